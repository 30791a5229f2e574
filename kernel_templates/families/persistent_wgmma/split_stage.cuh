// The copying warps of grad_weight: they read both tensors and write stages for the products.
#pragma once
#include "families/persistent_wgmma/split_async.cuh"
#include "families/persistent_wgmma/split_registers.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/wgmma.cuh"

// Two loaders with the same members: JOBS, AHEAD, load, await, store, end_stage.
template <class Layer, class Tune, bool ASYNC = Tune::ASYNC>
struct GradSplitLoader {
  using Type = GradSplitRegisterLoader<Layer, Tune>;
};
template <class Layer, class Tune>
struct GradSplitLoader<Layer, Tune, true> {
  using Type = GradSplitAsyncLoader<Layer, Tune>;
};

// All stages of all pairs (share, tile) of the block, through a ring. Loads run AHEAD jobs ahead of the stores.
template <class Loader>
__device__ __forceinline__ void copy_grad_split(Loader& loader, char* stages, unsigned barriers) {
  using Plan = typename Loader::Plan;
  constexpr int JOBS = Loader::JOBS, AHEAD = Loader::AHEAD;
  loader.prepare();
  if (!loader.more) return;
  const auto load = [&](auto job) {  // after a stage's last job come the jobs of the next stage
    constexpr int JOB = decltype(job)::value;
    if constexpr (JOB > 0 && JOB % JOBS == 0)
      if (loader.more) loader.prepare();
    loader.template load<JOB>(JOB < JOBS || loader.more);
  };
  const_loop<0, AHEAD>(load);
  int stage = 0, parity = 1;
#pragma unroll 1
  while (loader.next_stage()) {
    mbarrier_await(barriers + 8 * (Plan::STAGES + stage), parity);
    char* const to = stages + stage * Plan::STAGE;
    const_loop<0, JOBS>([&](auto job) {
      constexpr int JOB = decltype(job)::value;
      loader.await();
      load(Constant<JOB + AHEAD>{});
      loader.template store<JOB>(to);
    });
    products_see_writes();
    __syncwarp();
    if (loader.lane == 0) mbarrier_arrive(barriers + 8 * stage);
    if (loader.own_ends) loader.store_bias();
    loader.end_stage();
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
}
