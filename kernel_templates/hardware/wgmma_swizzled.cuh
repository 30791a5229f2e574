// Tensor-core products of a warpgroup (wgmma, sm_90a) whose operand A is swizzled: a row holds 32, 64 or 128 bytes of K side by
// side, as in a channels_last tensor. So a copy of whole rows reads whole sectors from L2.
#pragma once
#include "hardware/wgmma_more_shapes.cuh"

// The swizzled place of 16 bytes whose place without swizzle is `at`; both count from a multiple of 1024 bytes. Eight lanes
// that copy rows write to different banks, and so do eight rows that tensor cores read.
template <int ROW_BYTES>
__host__ __device__ __forceinline__ unsigned swizzled(unsigned at) {
  return at ^ (at >> 7 & (ROW_BYTES / 16 - 1)) << 4;
}

// `start` is a row's, or a multiple of 32 bytes further, for the next K. It is a place without swizzle.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned long long swizzled_descriptor(unsigned start) {
  static_assert(ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128, "the patterns that wgmma knows");
  constexpr unsigned long long PATTERN = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
  return PATTERN << 62 | matrix_descriptor(start, 16, 8 * ROW_BYTES);
}

#ifdef __CUDACPU__
namespace ptx_emulation {

// The products that one thread has issued and not waited for yet.
struct SwizzledProducts {
  struct Product {
    float* d;
    unsigned long long a, b;
    int columns;
    float (*load)(const char*);
    long group;
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
  static const char* row_at(unsigned long long descriptor, int row, int half) {
    const unsigned start = (descriptor & 0x3FFF) << 4, eight_rows = (descriptor >> 32 & 0x3FFF) << 4;
    const unsigned at = start + row / 8 * eight_rows + row % 8 * (eight_rows / 8) + half * 16;
    const unsigned place = eight_rows == 1024 ? swizzled<128>(at) : eight_rows == 512 ? swizzled<64>(at) : swizzled<32>(at);
    return shared_bytes(place, 16, "wgmma");
  }
  // This thread's own elements of D: rows 16 warp + lane / 4 and 8 further on, two columns of each eight.
  static void multiply(const Product& p) {
    const int thread = cuda_on_cpu::current->thread->id % 128, lane = thread % 32;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.d[i];
      for (int half = 0; half < 2; ++half) {
        const char *a = row_at(p.a, row, half), *b = PendingProducts::row_at(p.b, column, half);
        for (int k = 0; k < 16; k += 2) sum += static_cast<double>(p.load(a + k)) * p.load(b + k);
      }
      p.d[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace ptx_emulation
#endif

// As wgmma() with 16-bit values, added to d. Commit and wait with swizzled_commit() and swizzled_wait().
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma_swizzled(float (&d)[registers], unsigned long long a, unsigned long long b) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
  static_assert(sizeof(Scalar) == 2, "16 values are 32 bytes of K");
#ifdef __CUDACPU__
  ptx_emulation::agree(a, b, 1);
  auto load = [](const char* at) -> float { return widen(*reinterpret_cast<const Scalar*>(at)); };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::SwizzledProducts>();
  mine.add({d, a, b, columns, load, mine.committed});
#else
  wgmma<precision, Scalar, columns>(d, a, b, 1);
#endif
}

__device__ __forceinline__ void swizzled_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::SwizzledProducts>().committed;
#else
  wgmma_commit();
#endif
}

template <int pending>
__device__ __forceinline__ void swizzled_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::SwizzledProducts>().finish_all_but(pending);
  __syncwarp();  // no lane returns before the products of all lanes are done
#else
  wgmma_wait<pending>();
#endif
}
