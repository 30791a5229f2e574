// Waiting at an mbarrier in a loop of wgmma. mbarrier_wait() stops the launch after many polls; that exit makes ptxas
// wait for the products before each poll (warning C7517).
#pragma once
#include "hardware/mbarrier.cuh"

// As mbarrier_wait(), but it polls without a limit.
__device__ __forceinline__ void mbarrier_await(unsigned barrier, int parity) {
#ifdef __CUDACPU__
  mbarrier_wait(barrier, parity);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}"
      ::"r"(barrier), "r"(parity)
      : "memory");
#endif
}

// Whether that phase has ended, without waiting for it.
__device__ __forceinline__ bool mbarrier_ended(unsigned barrier, int parity) {
#ifdef __CUDACPU__
  return static_cast<int>(ptx_emulation::barrier_at(barrier).phase & 1) != parity;
#elif __CUDA_ARCH__ >= 900
  unsigned ended;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ended != 0;
#else
  return true;
#endif
}
