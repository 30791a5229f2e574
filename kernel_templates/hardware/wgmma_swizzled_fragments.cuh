// Tensor-core products of a warpgroup (wgmma, sm_90a) of any precision: operand A comes from registers, operand B is swizzled:
// a row holds 128 bytes of K side by side, as they are copied from a row of a tensor.
#pragma once
#include "hardware/wgmma_fragments.cuh"
#include "hardware/wgmma_swizzled.cuh"

#ifdef __CUDACPU__
namespace ptx_emulation {

// As PendingFragments, but B is read at its swizzled places.
struct SwizzledFragments : PendingFragments {
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
  static void multiply(const Product& p) {
    if (memcmp(p.a, p.given, sizeof(p.given)) != 0)
      cuda_on_cpu::stop(cudaErrorLaunchFailure, "wgmma: a fragment was overwritten before its product was waited for");
    const int lane = cuda_on_cpu::current->thread->id % 32, bytes = p.element_bytes;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.d[i];
      for (int half = 0; half < 2; ++half) {
        const char* const a = reinterpret_cast<const char*>(p.word[i / 2 % 2] + 4 * half);
        const char* const b = SwizzledProducts::row_at(p.b, column, half);
        for (int k = 0; k < 16; k += bytes) sum += static_cast<double>(p.load(a + k)) * p.load(b + k);
      }
      p.d[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace ptx_emulation
#endif

// As wgmma_of_fragment(), with b from swizzled_descriptor(). Commit and wait with the two functions below.
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma_of_fragment_swizzled(float (&d)[registers], const unsigned (&a)[4], unsigned long long b) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
#ifdef __CUDACPU__
  ptx_emulation::agree(0, b, 1);
  auto load = [](const char* at) -> float {
    const float value = widen(*reinterpret_cast<const Scalar*>(at));
    return sizeof(Scalar) == 4 ? __uint_as_float(__float_as_uint(value) & 0xFFFFE000u) : value;
  };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::SwizzledFragments>();
  ptx_emulation::PendingFragments::Product product = {
      d, a, {a[0], a[1], a[2], a[3]}, {}, b, columns, int(sizeof(Scalar)), load, mine.committed};
  ptx_emulation::PendingFragments::gather(product);
  mine.add(product);
#else
  wgmma_of_fragment<precision, Scalar, columns>(d, a, b);
#endif
}

__device__ __forceinline__ void swizzled_fragments_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::SwizzledFragments>().committed;
#else
  wgmma_commit();
#endif
}

template <int pending>
__device__ __forceinline__ void swizzled_fragments_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::SwizzledFragments>().finish_all_but(pending);
  __syncwarp();  // no lane returns before the products of all lanes are done
#else
  wgmma_wait<pending>();
#endif
}
