// Tensor-core products of a warpgroup (wgmma, sm_90a). Both operands have the order of a channels_last tensor: each index K is a
// row of 64 channels (128 bytes), swizzled. 16-bit types only. Index K + 1 is the next row.
#pragma once
#include "hardware/wgmma_swizzled.cuh"
#include "hardware/wgmma_transposed.cuh"

// `start` is the first byte of any row. If an operand has more than 64 channels, the next 64 are `next` bytes further.
__device__ __forceinline__ unsigned long long rows_descriptor(unsigned start, unsigned next) {
  return 1ULL << 62 | matrix_descriptor(start, next, 1024);
}

#ifdef __CUDACPU__
namespace ptx_emulation {

// The products that one thread has issued and not waited for yet.
struct RowProducts : TransposedProducts {
  static const char* at(unsigned long long descriptor, int channel, int k) {
    const unsigned start = (descriptor & 0x3FFF) << 4, next = (descriptor >> 16 & 0x3FFF) << 4;
    const unsigned eight_rows = (descriptor >> 32 & 0x3FFF) << 4;
    const unsigned place = start + channel / 64 * next + k / 8 * eight_rows + k % 8 * 128 + channel % 64 / 8 * 16;
    return shared_bytes(swizzled<128>(place), 16, "wgmma") + channel % 8 * 2;
  }
  void finish_all_but(int pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Product product = products[i];
      if (product.group >= committed - pending) products[kept++] = product;
      else multiply(product);
    }
    count = kept;
  }
  // This thread's own elements of D: rows 16 warp + lane / 4 and 8 further on, two columns of each eight.
  static void multiply(const Product& p) {
    const int thread = cuda_on_cpu::current->thread->id % 128, lane = thread % 32;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.d[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(p.load(at(p.a, row, k))) * p.load(at(p.b, column, k));
      p.d[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace ptx_emulation
#endif

// d += a * b, of 64 channels of a and `columns` of b, over 16 indices K. Asynchronous, as wgmma(): commit and wait with
// rows_commit() and rows_wait().
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma_rows(float (&d)[registers], unsigned long long a, unsigned long long b) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
  static_assert(sizeof(Scalar) == 2, "64 channels are 128 bytes");
#ifdef __CUDACPU__
  ptx_emulation::agree(a, b, 1);
  auto load = [](const char* at) -> float { return widen(*reinterpret_cast<const Scalar*>(at)); };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::RowProducts>();
  mine.add({d, a, b, columns, load, mine.committed});
#else
  wgmma_transposed<precision, Scalar, columns>(d, a, b);
#endif
}

__device__ __forceinline__ void rows_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::RowProducts>().committed;
#else
  wgmma_commit();
#endif
}

template <int pending>
__device__ __forceinline__ void rows_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::RowProducts>().finish_all_but(pending);
  __syncwarp();  // a warp's products are done together, before any lane says so
#else
  wgmma_wait<pending>();
#endif
}
