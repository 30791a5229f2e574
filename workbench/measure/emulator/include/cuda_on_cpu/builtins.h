// threadIdx and its kin, barriers, and the device functions that the C++ library has not.
#pragma once
#pragma GCC system_header

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <type_traits>

#include "cuda_on_cpu/block.h"
#include "cuda_on_cpu/shared_memory.h"

#define threadIdx (cuda_on_cpu::current->thread->index)
#define blockIdx (cuda_on_cpu::current->index)
#define blockDim (cuda_on_cpu::current->grid.threads)
#define gridDim (cuda_on_cpu::current->grid.blocks)
constexpr int warpSize = 32;

// ---- barriers, time, traps ----------------------------------------------------------------------------------------

inline void __syncthreads(cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  cuda_on_cpu::current->barrier(0, where);
}
inline int __syncthreads_count(int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  return cuda_on_cpu::current->barrier(predicate != 0, where);
}
inline int __syncthreads_or(int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  return cuda_on_cpu::current->barrier(predicate != 0, where) != 0;
}
inline int __syncthreads_and(int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  return cuda_on_cpu::current->barrier(predicate == 0, where) == 0;
}

// Lets the other threads of the block go on, so that a thread may wait for them in a loop.
inline void __nanosleep(unsigned) {
  sched_yield();
  cuda_on_cpu::current->let_others_run();
}

// Nanoseconds of a clock that never goes back; a GPU counts cycles.
inline long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

[[noreturn]] inline void __trap(cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  cuda_on_cpu::current->stop(cudaErrorLaunchFailure, "__trap() at %s:%d", where.file, where.line);
}

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// What -fsanitize=alignment tells of an access.
struct Misaligned {
  const char* file;
  unsigned line, column;
  const struct {
    unsigned short kind, information;
    char name[1];
  } & type;
  unsigned char alignment_bits, access;
};

[[noreturn]] inline void misaligned(const void* data, void* address) {
  const auto& found = *static_cast<const Misaligned*>(data);
  const char* folder = strrchr(found.file, '/');
  const char* file = folder == nullptr ? found.file : folder + 1;
  const unsigned bytes = 1u << found.alignment_bits;
  if (current == nullptr) {
    fprintf(stderr, "%s:%u: misaligned address in host code: %s needs a multiple of %u\n", file, found.line,
            found.type.name, bytes);
    abort();
  }
  current->stop(cudaErrorMisalignedAddress,
                "misaligned address at %s:%u: %s needs a multiple of %u bytes, this one is %u beyond one", file, found.line,
                found.type.name, bytes, static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) % bytes));
}

}  // namespace cuda_on_cpu

// g++ and clang call these by name. The first is for code with -fsanitize-recover, whose host code goes on.
#define CUDA_ON_CPU_HANDLER extern "C" __attribute__((visibility("hidden"), used, weak)) void
CUDA_ON_CPU_HANDLER __ubsan_handle_type_mismatch_v1(void* data, void* address) {
  if (cuda_on_cpu::current != nullptr) {
    cuda_on_cpu::misaligned(data, address);
  }
}
CUDA_ON_CPU_HANDLER __ubsan_handle_type_mismatch_v1_abort(void* data, void* address) {
  cuda_on_cpu::misaligned(data, address);
}
#undef CUDA_ON_CPU_HANDLER

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line) {
  if (current == nullptr) {
    fprintf(stderr, "%s:%d: assertion `%s' failed in host code\n", file, line, condition);
    abort();
  }
  current->stop(cudaErrorAssert, "%s:%d: assertion `%s' failed", file, line, condition);
}

}  // namespace cuda_on_cpu

// ---- memory -------------------------------------------------------------------------------------------------------

#define CUDA_ON_CPU_LOAD(name)  \
  template <class T>            \
  T name(const T* address) {    \
    return *address;            \
  }
CUDA_ON_CPU_LOAD(__ldg)
CUDA_ON_CPU_LOAD(__ldca)
CUDA_ON_CPU_LOAD(__ldcg)
CUDA_ON_CPU_LOAD(__ldcs)
CUDA_ON_CPU_LOAD(__ldlu)
CUDA_ON_CPU_LOAD(__ldcv)
#undef CUDA_ON_CPU_LOAD

#define CUDA_ON_CPU_STORE(name)                          \
  template <class T>                                     \
  void name(T* address, std::type_identity_t<T> value) { \
    *address = value;                                    \
  }
CUDA_ON_CPU_STORE(__stwb)
CUDA_ON_CPU_STORE(__stcg)
CUDA_ON_CPU_STORE(__stcs)
CUDA_ON_CPU_STORE(__stwt)
#undef CUDA_ON_CPU_STORE

// The offset within the block's shared memory.
inline size_t __cvta_generic_to_shared(const void* address) {
  const size_t offset = cuda_on_cpu::shared_offset(address);
  if (offset == ~size_t(0)) {
    cuda_on_cpu::current->stop(cudaErrorIllegalAddress, "__cvta_generic_to_shared: not an address of shared memory");
  }
  return offset;
}
inline unsigned __isShared(const void* address) {
  return cuda_on_cpu::offset_in_shared(address) != ~size_t(0);
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------

// As in CUDA, the one that is not NaN if one is.
template <class A, class B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return b != b || static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
  } else {
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
  }
}
template <class A, class B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return b != b || static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(a) : static_cast<T>(b);
  } else {
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
  }
}

// volatile: a product that is rounded by name is never fused with the sum that follows.
#define CUDA_ON_CPU_ROUNDED(Type, name, operation) \
  inline Type name(Type a, Type b) {               \
    volatile Type result = a operation b;          \
    return result;                                 \
  }
CUDA_ON_CPU_ROUNDED(float, __fadd_rn, +)
CUDA_ON_CPU_ROUNDED(float, __fsub_rn, -)
CUDA_ON_CPU_ROUNDED(float, __fmul_rn, *)
CUDA_ON_CPU_ROUNDED(float, __fdiv_rn, /)
CUDA_ON_CPU_ROUNDED(double, __dadd_rn, +)
CUDA_ON_CPU_ROUNDED(double, __dsub_rn, -)
CUDA_ON_CPU_ROUNDED(double, __dmul_rn, *)
CUDA_ON_CPU_ROUNDED(double, __ddiv_rn, /)
#undef CUDA_ON_CPU_ROUNDED

inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __fma_rn(double a, double b, double c) {
  return fma(a, b, c);
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
// The approximate functions: exact but for what the GPU rounds on the way, which is what makes them inexact. They scale their
// argument in float first; sine and cosine of 1000 are then wrong in the fifth digit.
inline float __exp2f(float x) {
  return exp2f(x);
}
inline float __expf(float x) {
  return exp2f(__fmul_rn(x, 1.4426950408889634f));
}
inline float __exp10f(float x) {
  return exp2f(__fmul_rn(x, 3.3219280948873623f));
}
inline float __log2f(float x) {
  return log2f(x);
}
inline float __logf(float x) {
  return __fmul_rn(log2f(x), 0.69314718055994531f);
}
inline float __log10f(float x) {
  return __fmul_rn(log2f(x), 0.30102999566398120f);
}
inline float __powf(float x, float y) {
  return exp2f(__fmul_rn(y, log2f(x)));
}
inline float __sinf(float x) {
  const double turns = __fmul_rn(x, 0.15915494309189534f);
  return static_cast<float>(sin((turns - rint(turns)) * 6.2831853071795865));
}
inline float __cosf(float x) {
  const double turns = __fmul_rn(x, 0.15915494309189534f);
  return static_cast<float>(cos((turns - rint(turns)) * 6.2831853071795865));
}
inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = __sinf(x);
  *cosine = __cosf(x);
}
inline float __tanf(float x) {
  return __fdiv_rn(__sinf(x), __cosf(x));
}
inline float __fdividef(float a, float b) {
  const float size = fabsf(b);
  return size > 8.507059e37f && size < INFINITY ? __fmul_rn(a, 0.0f) : __fdiv_rn(a, b);  // 2^126
}

// ---- bits ---------------------------------------------------------------------------------------------------------

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long result = 0;
  for (int i = 0; i < 64; ++i) {
    result = result << 1 | (x >> i & 1);
  }
  return result;
}
inline unsigned __brev(unsigned x) {
  return static_cast<unsigned>(__brevll(x) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<int64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
// Byte i of the result is the byte of high:low that hex digit i of the selector names (0 to 7).
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  }
  return result;
}

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same_bits needs two types of one size");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

}  // namespace cuda_on_cpu

inline int __float_as_int(float x) {
  return cuda_on_cpu::same_bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return cuda_on_cpu::same_bits<unsigned>(x);
}
inline float __int_as_float(int x) {
  return cuda_on_cpu::same_bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return cuda_on_cpu::same_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
  return cuda_on_cpu::same_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return cuda_on_cpu::same_bits<double>(x);
}

// ---- asynchronous copies to shared memory (cuda_pipeline.h) ---------------------------------------------------------

namespace cuda_on_cpu {
// What a thread has copied and not waited for yet. It is copied only at the wait, so a missing wait gives wrong results.
struct PipelineCopies {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes, zeros;
    long group;
  };
  Copy* copies;
  int count, capacity;
  long committed;  // groups closed so far

  void clear() {
    count = 0;
    committed = 0;
  }
  void release() { free(copies); }
  void add(const Copy& copy) {
    if (count == capacity) {
      capacity = capacity == 0 ? 16 : 2 * capacity;
      copies = static_cast<Copy*>(realloc(copies, static_cast<size_t>(capacity) * sizeof(Copy)));
    }
    copies[count++] = copy;
  }
  void finish_all_but(size_t pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Copy copy = copies[i];
      if (copy.group >= committed - static_cast<long>(pending)) {
        copies[kept++] = copy;
        continue;
      }
      memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
      memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
    }
    count = kept;
  }
};
}  // namespace cuda_on_cpu

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes) {
    cuda_on_cpu::stop(cudaErrorInvalidValue, "__pipeline_memcpy_async: %zu bytes, %zu of them zero; it copies 4, 8 or 16",
                      bytes, zeros);
  }
  if (!__isShared(to)) {
    cuda_on_cpu::stop(cudaErrorIllegalAddress, "__pipeline_memcpy_async: the destination is not shared memory");
  }
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "__pipeline_memcpy_async: an address is not a multiple of %zu bytes", bytes);
  }
  auto& mine = cuda_on_cpu::thread_storage<cuda_on_cpu::PipelineCopies>();
  mine.add({to, from, bytes, zeros, mine.committed});
}
inline void __pipeline_commit() {
  ++cuda_on_cpu::thread_storage<cuda_on_cpu::PipelineCopies>().committed;
}
inline void __pipeline_wait_prior(size_t pending) {
  cuda_on_cpu::thread_storage<cuda_on_cpu::PipelineCopies>().finish_all_but(pending);
}
