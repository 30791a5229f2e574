// Waiting at an mbarrier in a loop of wgmma. mbarrier_wait() stops the launch after many polls; that exit makes ptxas
// wait for the products before each poll (warning C7517).
#pragma once
#include "hardware/mbarrier.cuh"

// As mbarrier_wait(), without an end.
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
