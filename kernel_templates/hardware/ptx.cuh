// Instructions that CUDA C++ has no functions for: asynchronous copies to shared memory, TF32 rounding, tensor-core
// products.
#pragma once

#ifndef __CUDACPU__
#include <cuda_runtime.h>
#endif

#ifdef __CUDACPU__
// The emulator's version of each stands beside the PTX.
namespace ptx_emulation {

// The copies that one thread has issued and not waited for yet.
struct PendingCopies {
  struct Copy {
    void* to;
    const void* from;
    int bytes, valid_bytes;
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
      copies = static_cast<Copy*>(realloc(copies, capacity * sizeof(Copy)));
    }
    copies[count++] = copy;
  }

  // Does the copies of all committed groups but the latest `pending`.
  void finish_all_but(int pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Copy copy = copies[i];
      if (copy.group >= committed - pending) {
        copies[kept++] = copy;
        continue;
      }
      memcpy(copy.to, copy.from, copy.valid_bytes);
      memset(static_cast<char*>(copy.to) + copy.valid_bytes, 0, copy.bytes - copy.valid_bytes);
    }
    count = kept;
  }
};

}  // namespace ptx_emulation
#endif

// Copies `bytes` from global to shared memory without registers. Both addresses are multiples of `bytes`. Only the
// first `valid_bytes` are read; the rest is written as zeros. The data has arrived after cp_async_wait(), for the
// thread that issued the copy; other threads also need a barrier.
template <int bytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int valid_bytes = bytes) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef __CUDACPU__
  // The emulator copies only at the wait, so a missing wait gives wrong results.
  if (!__isShared(shared)) {
    cuda_on_cpu::stop(cudaErrorIllegalAddress, "cp_async: the destination is not shared memory");
  }
  if (reinterpret_cast<size_t>(shared) % bytes != 0 || reinterpret_cast<size_t>(global) % bytes != 0) {
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "cp_async: an address is not a multiple of %d bytes", bytes);
  }
  if (valid_bytes < 0 || valid_bytes > bytes) {
    cuda_on_cpu::stop(cudaErrorInvalidValue, "cp_async: %d valid bytes of %d", valid_bytes, bytes);
  }
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingCopies>();
  mine.add({shared, global, bytes, valid_bytes, mine.committed});
#else
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (bytes == 16) {
    // .cg: only L2 caches it; it exists only for 16 bytes.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid_bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(bytes), "r"(valid_bytes)
                 : "memory");
  }
#endif
}

// Closes a group: the copies of this thread since the last commit.
__device__ __forceinline__ void cp_async_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingCopies>().committed;
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the latest `pending` groups of this thread are still under way.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingCopies>().finish_all_but(pending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// The nearest TF32 value (10 bits of mantissa), ties away from zero; NaN and infinity stay what they are.
__device__ __forceinline__ float round_to_tf32(float x) {
  unsigned bits;
#ifdef __CUDACPU__
  bits = __float_as_uint(x);
  const unsigned magnitude = bits & 0x7FFFFFFFu;
  // Half a unit of the last kept place is added; a NaN would carry over into the sign.
  bits = magnitude > 0x7F800000u ? 0x7FFFFFFFu : bits + 0x1000u;
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  // A NaN whose payload lies in the lower 13 bits would become infinity (seen on an H200 with 0x7F800001).
  if (x != x) bits = 0x7FFFFFFFu;
#endif
  // PTX does not define the lower 13 bits; in a float they must be zero.
  return __uint_as_float(bits & 0xFFFFE000u);
}

// As round_to_tf32(), but the lower 13 bits, which tensor cores ignore, are undefined. `one` is 1, but the compiler does
// not know that. The product turns every NaN into 0x7FFFFFFF; only then the sum overflows, and `max` takes the product.
__device__ __forceinline__ float round_for_tensor_cores(float value, float one) {
#ifdef __CUDACPU__
  return round_to_tf32(value * one);
#else
  const int bits = __float_as_int(value * one);
  return __int_as_float(max(int(unsigned(bits) + 0x1000u), bits));
#endif
}

// d = a * b + c for a warp: a 16x8, b 8x8, c and d 16x8, sums in float. All 32 lanes call it. Operands are rounded
// beforehand with round_to_tf32(); the lower 13 bits are ignored. With row = lane / 4, column = lane % 4, a lane holds
//   a: (row, column) (row + 8, column) (row, column + 4) (row + 8, column + 4)
//   b: (column, row) (column + 4, row)
//   c, d: (row, 2 column) (row, 2 column + 1) (row + 8, 2 column) (row + 8, 2 column + 1)
// PTX ISA, "Matrix Fragments for mma.m16n8k8".
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2],
                                                 const float (&c)[4]) {
#ifdef __CUDACPU__
  struct Fragments {
    float* d;
    const float *a, *b, *c;
  } mine{d, a, b, c};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned present) {
    if (present != ~0u) {
      cuda_on_cpu::stop(cudaErrorLaunchFailure, "mma_m16n8k8_tf32: lanes 0x%08x have exited; all 32 must call it",
                        ~present);
    }
    const auto truncated = [](float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000u); };
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<Fragments*>(arguments[lane]);
      const int row = lane / 4, column = lane % 4;
      for (int i = 0; i < 4; ++i) {
        a[row + i % 2 * 8][column + i / 2 * 4] = truncated(from.a[i]);
      }
      for (int i = 0; i < 2; ++i) {
        b[column + i * 4][row] = truncated(from.b[i]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      const auto& to = *static_cast<Fragments*>(arguments[lane]);
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        // Products are exact. A tensor core adds them in an order and with a rounding of its own; here it is one
        // rounding at the end, so the two differ by a few units in the last place.
        double sum = to.c[i];
        for (int k = 0; k < 8; ++k) {
          sum += static_cast<double>(a[row][k]) * b[k][column];
        }
        to.d[i] = static_cast<float>(sum);
      }
    }
  });
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}

#ifdef __CUDACPU__
namespace ptx_emulation {

// A 16-bit value, bfloat16 or IEEE half, as float: exact.
inline float widened(unsigned bits, bool is_bfloat) {
  if (is_bfloat) return __uint_as_float(bits << 16);
  const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3FFu;
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
  const float magnitude = exponent == 0 ? float(mantissa) * 0x1p-24f
                                        : __uint_as_float((exponent + 112) << 23 | mantissa << 13);
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace ptx_emulation
#endif

// d = a * b + c for a warp: a 16x16, b 16x8 of 16-bit floats (bfloat16 or IEEE half), c and d 16x8, sums in float. All
// 32 lanes call it. A register holds two neighbours along K, the first in the lower half. With row = lane / 4,
// column = 2 (lane % 4), a lane holds
//   a: (row, column) (row + 8, column) (row, column + 8) (row + 8, column + 8), each with the next column
//   b: (column, row) (column + 8, row), each with the next row of b
//   c, d: (row, column) (row, column + 1) (row + 8, column) (row + 8, column + 1)
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <bool is_bfloat>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                             const float (&c)[4]) {
#ifdef __CUDACPU__
  struct Fragments {
    float* d;
    const unsigned *a, *b;
    const float* c;
  } mine{d, a, b, c};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned present) {
    if (present != ~0u) {
      cuda_on_cpu::stop(cudaErrorLaunchFailure, "mma_m16n8k16: lanes 0x%08x have exited; all 32 must call it",
                        ~present);
    }
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<Fragments*>(arguments[lane]);
      const int row = lane / 4, column = lane % 4 * 2;
      for (int i = 0; i < 8; ++i) {
        a[row + i / 2 % 2 * 8][column + i / 4 * 8 + i % 2] =
            ptx_emulation::widened(from.a[i / 2] >> (i % 2 * 16) & 0xFFFFu, is_bfloat);
      }
      for (int i = 0; i < 4; ++i) {
        b[column + i / 2 * 8 + i % 2][row] = ptx_emulation::widened(from.b[i / 2] >> (i % 2 * 16) & 0xFFFFu, is_bfloat);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      const auto& to = *static_cast<Fragments*>(arguments[lane]);
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = to.c[i];  // one rounding at the end, as in mma_m16n8k8_tf32
        for (int k = 0; k < 16; ++k) {
          sum += static_cast<double>(a[row][k]) * b[k][column];
        }
        to.d[i] = static_cast<float>(sum);
      }
    }
  });
#else
  if constexpr (is_bfloat) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  }
#endif
}
