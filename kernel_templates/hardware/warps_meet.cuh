// A barrier of some warps of a block (a named barrier). It has a number from 1 to 15 and is always used by the same
// threads.
#pragma once
#include <cuda_runtime.h>

#ifdef __CUDACPU__
namespace ptx_emulation {
struct Meetings {
  unsigned long serial;
  int arrived[16];
  unsigned ended[16];
};
inline thread_local Meetings meetings{};
}  // namespace ptx_emulation
#endif

// All lanes of a warp call it together.
template <int threads>
__device__ __forceinline__ void warps_meet(int number) {
  static_assert(threads % 32 == 0, "whole warps");
  if constexpr (threads == 32) {
    __syncwarp();
    return;
  }
#ifdef __CUDACPU__
  auto& all = ptx_emulation::meetings;
  if (all.serial != cuda_on_cpu::current->serial) {
    all = {};
    all.serial = cuda_on_cpu::current->serial;
  }
  const unsigned mine = all.ended[number];
  if (++all.arrived[number] == threads) {
    all.arrived[number] = 0;
    ++all.ended[number];
    return;
  }
  for (int polls = 0; all.ended[number] == mine; ++polls) {
    if (polls > 20000) cuda_on_cpu::stop(cudaErrorLaunchFailure, "warps_meet: barrier %d is waited for in vain", number);
    cuda_on_cpu::current->let_others_run();
  }
#else
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
#endif
}
