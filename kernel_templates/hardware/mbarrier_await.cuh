// The wait for a phase of an mbarrier as one piece of assembly. A loop in C++ with a trap in it makes ptxas wait for
// all products before it (warning C7517).
#pragma once
#include "hardware/mbarrier.cuh"

// As mbarrier_wait(), but a wait that never ends is not stopped.
__device__ __forceinline__ void mbarrier_await(unsigned barrier, int parity) {
#ifdef __CUDACPU__
  mbarrier_wait(barrier, parity);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred ended;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n@ended bra DONE;\n"
      "bra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
