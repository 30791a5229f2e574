// Tensor-core products of a warpgroup (wgmma, sm_90a): 128 threads multiply two operands that lie in shared memory.
// Under `__CUDACPU__` a twin decodes the same descriptors and reads the same bytes. In a build for another architecture
// the instructions do not exist: there the kernel stops at the first of them.
#pragma once
#include "common/mbarrier.cuh"
#include "common/problem.cuh"
#include "common/scalar.cuh"
#include "common/wgmma_shapes.cuh"

// An operand whose rows hold their summed index K contiguously, without swizzle. Eight rows of 16 bytes, one behind the
// other, are a core matrix; `k_step` bytes lie between the two core matrices along K, `row_step` between groups of
// eight rows. The start is any multiple of 16: one more row is one unit of 16 bytes more.
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned start, unsigned k_step, unsigned row_step) {
  return static_cast<unsigned long long>((start & 0x3FFFFu) >> 4) |
         static_cast<unsigned long long>(k_step >> 4) << 16 | static_cast<unsigned long long>(row_step >> 4) << 32;
}

#ifdef __CUDACPU__
namespace ptx_emulation {

// The two rows of A that a thread's elements of D need, where A comes from registers of its quad.
struct RegisterRows {
  float value[2][8];
};

// What one thread has asked to multiply and has not waited for yet.
struct PendingProducts {
  struct Product {
    float* d;
    unsigned long long a, b;
    int columns, keep, element_bytes;
    float (*load)(const char*);
    long group;
    bool from_registers;
    RegisterRows own;
  };
  Product* products;
  int count, capacity;
  long committed;

  void clear() {
    count = 0;
    committed = 0;
  }
  void release() { free(products); }

  void add(const Product& product) {
    if (count == capacity) {
      capacity = capacity == 0 ? 64 : 2 * capacity;
      products = static_cast<Product*>(realloc(products, capacity * sizeof(Product)));
    }
    products[count++] = product;
  }

  void finish_all_but(int pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Product product = products[i];
      if (product.group >= committed - pending) {
        products[kept++] = product;
      } else {
        multiply(product);
      }
    }
    count = kept;
  }

  // The core matrix that holds row `row` from K index 0 on, or from the half of K behind it.
  static const char* row_at(unsigned long long descriptor, int row, int half) {
    const unsigned start = (descriptor & 0x3FFF) << 4, k_step = (descriptor >> 16 & 0x3FFF) << 4;
    const unsigned row_step = (descriptor >> 32 & 0x3FFF) << 4;
    return shared_bytes(start + half * k_step + row / 8 * row_step + row % 8 * 16, 16, "wgmma");
  }

  // This thread's own elements of D: rows 16 warp + lane / 4 and 8 further on, two columns of each eight.
  static void multiply(const Product& p) {
    const int thread = cuda_on_cpu::current->thread->id % 128, lane = thread % 32;
    const int per_half = 16 / p.element_bytes;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.keep != 0 ? p.d[i] : 0.0;
      for (int half = 0; half < 2; ++half) {
        const char *a = p.from_registers ? nullptr : row_at(p.a, row, half), *b = row_at(p.b, column, half);
        for (int k = 0; k < per_half; ++k) {
          const float left = p.from_registers ? p.own.value[i / 2 % 2][4 * half + k] : p.load(a + k * p.element_bytes);
          sum += static_cast<double>(left) * p.load(b + k * p.element_bytes);
        }
      }
      p.d[i] = static_cast<float>(sum);
    }
  }
};

// All lanes of a warp are there and agree on what is multiplied.
inline void agree(unsigned long long a, unsigned long long b, int keep) {
  struct Asked {
    unsigned long long a, b;
    int keep;
  } mine{a, b, keep};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned present) {
    const auto& first = *static_cast<Asked*>(arguments[__builtin_ctz(present)]);
    for (int lane = 0; lane < 32; ++lane) {
      const auto* other = static_cast<Asked*>(arguments[lane]);
      if (other == nullptr || other->a != first.a || other->b != first.b || other->keep != first.keep) {
        cuda_on_cpu::stop(cudaErrorLaunchFailure, "wgmma: lane %d is missing or asks for another product", lane);
      }
    }
  });
}

// Each lane's fragment of A (wgmma_registers.cuh) becomes the two rows of its quad.
inline void gather_rows(const float (&a)[4], RegisterRows& rows) {
  struct Given {
    const float* a;
    RegisterRows* rows;
  } mine{a, &rows};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 16; ++i) {
        const auto* from = static_cast<Given*>(arguments[lane / 4 * 4 + i % 4]);
        static_cast<Given*>(arguments[lane])->rows->value[i / 8][i % 8] =
            __uint_as_float(__float_as_uint(from->a[i / 8 + i % 8 / 4 * 2]) & 0xFFFFE000u);
      }
  });
}

}  // namespace ptx_emulation
#endif

// A whole warpgroup hands registers of its threads back, or takes such as others have handed back: what is left of
// those the block was launched with. Multiples of 8.
template <int registers>
__device__ __forceinline__ void give_registers() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void take_registers() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// Before the first product that uses registers or shared memory written by ordinary instructions.
__device__ __forceinline__ void wgmma_fence() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Between ordinary writes to shared memory, seen through a barrier, and the products that read them.
__device__ __forceinline__ void products_see_writes() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Closes a group: the products since the last commit.
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>().committed;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most the latest `pending` groups are still under way; only then may their operands be overwritten.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>().finish_all_but(pending);
  __syncwarp();  // a warp's products are done together, before any lane says so
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

// After wgmma_wait(): no use of d may move up before it, where the tensor cores still own the registers.
template <int registers>
__device__ __forceinline__ void wgmma_own(float (&d)[registers]) {
#ifndef __CUDACPU__
#pragma unroll
  for (int i = 0; i < registers; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

// d = a * b, plus d unless `keep` is 0: a has 64 rows, b has `columns`, both 32 bytes of K (8 TF32 or 16 half-size
// values). Asynchronous: d belongs to the tensor cores until wgmma_wait(). With row = lane / 4 a thread holds
//   d[4 i], d[4 i + 1]: row 16 warp + row, columns 8 i + 2 (lane % 4) and the next;  d[4 i + 2], d[4 i + 3]: row + 8
// PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma.mma_async.
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma(float (&d)[registers], unsigned long long a, unsigned long long b, int keep) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
#ifdef __CUDACPU__
  ptx_emulation::agree(a, b, keep);
  auto load = [](const char* at) -> float {
    const float value = widen(*reinterpret_cast<const Scalar*>(at));
    return sizeof(Scalar) == 4 ? __uint_as_float(__float_as_uint(value) & 0xFFFFE000u) : value;
  };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>();
  mine.add({d, a, b, columns, keep, static_cast<int>(sizeof(Scalar)), load, mine.committed});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WgmmaShape<columns>::template issue<precision>(d, a, b, keep);
#else
  __trap();
#endif
}
