/* variant
name      = "shared_weight_tiling"
computes  = ["grad_input"]
after     = "naive_gather"
idea      = "A block keeps chunks of the weights in shared memory and uses them for all its input positions."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
BLOCK                = {values = [32, 64, 128, 256], default = 128, help = "threads of a block"}
CI_PER_THREAD        = {values = [1, 2, 4, 8, 16], default = 8, help = "input channels that share each loaded gradient"}
POSITIONS_PER_THREAD = {values = [1, 2, 4], default = 4, help = "positions of a thread that share each loaded weight"}
TILES_PER_BLOCK      = {values = [1, 4, 16], default = 4, help = "tiles of positions that share weights, if all of them fit"}
STAGE_KB             = {values = [1, 8, 16, 32, 48], default = 32, help = "shared memory for weights, in KB"}

[derived]
pack_bytes = "CI_PER_THREAD * max(4, element_bytes)"
capacity   = "1024 * STAGE_KB // pack_bytes"
taps       = "min(layer.kernel_d * layer.kernel_h * layer.kernel_w, capacity)"
channels   = "min(layer.out_channels // layer.groups, capacity // taps)"
smem_bytes = "channels * taps * pack_bytes"

[plan]
Weights    = "Pack<typename Layer::accumulator, Tune::CI_PER_THREAD>"
pack_bytes = "sizeof(Weights)"
capacity   = "1024 * Tune::STAGE_KB / int(sizeof(Weights))"
taps       = "chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::out_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).taps"
channels   = "chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::out_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).channels"
smem_bytes = "sizeof(Weights) * chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::out_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).channels * chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::out_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).taps"
*/
#include "contract/epilogue.cuh"
#include "contract/flat_grid.cuh"
#include "hardware/pack.cuh"
#include "contract/problem.cuh"
#include "families/shared_weight_tiling/staged_products.cuh"
#include "contract/taps.cuh"

// families/shared_weight_tiling/README.md has a picture and the words.

// For the compiler: 512 threads a multiprocessor (128 registers each) hide the latency of loads. 16-bit types and
// large tiles of sums need more registers. Without this bound ptxas spills to fit more threads.
template <class Layer, class Tune>
constexpr int blocks_wanted() {
  constexpr int SUM_BYTES = sizeof(typename Layer::accumulator) * Tune::CI_PER_THREAD * Tune::POSITIONS_PER_THREAD;
  return (SUM_BYTES > 128 ? 256 : sizeof(typename Layer::scalar) == 2 ? 384 : 512) / Tune::BLOCK;
}

// Compared with naive_gather:
// - The weights of CI_PER_THREAD input channels lie in shared memory, converted, and ordered so that the channels of
//   one (output channel, tap) are one Pack: one load of 16 bytes gives four weights to a whole warp. Weights that do
//   not fit are taken in chunks, so no layer is too large. Weights that fit are staged once for TILES_PER_BLOCK tiles.
// - A thread holds CI_PER_THREAD x POSITIONS_PER_THREAD sums. Each weight that it reads serves all its positions, each
//   gradient all its channels. Its positions lie `span` apart in one row of W.
// This is the forward variant of the same name with the roles of the channels exchanged. Every tap meets every position
// here, so the stride only sets how far apart the gradients of neighbouring lanes lie.
//
// thread -> data: POSITIONS_PER_THREAD positions x, x + span, ... of one input row. A warp walks along x, so stores are
// whole sectors, and so are loads with stride 1. Blocks: channel tile fastest (its neighbours find the gradients in
// L2), then positions, group, batch.
// All threads meet at two barriers for each chunk: before staging, so that no thread still reads the old weights, and
// after it, so that the new ones are complete. Threads without a position stage with the others.
// Bytes: weights go to the multiprocessor once for each block, not for each warp; gradients go there once for each
// channel tile.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK, blocks_wanted<Layer, Tune>()) shared_weight_tiling(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ grad_output,
    const typename Layer::scalar* __restrict__ weight, typename Layer::scalar* __restrict__ grad_input) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CI = Tune::CI_PER_THREAD, POSITIONS = Tune::POSITIONS_PER_THREAD;
  using Weights = Pack<Sum, CI>;
  constexpr int CAPACITY = 1024 * Tune::STAGE_KB / int(sizeof(Weights));
  static_assert(CAPACITY >= 1, "STAGE_KB must hold the weights of one tap for CI_PER_THREAD channels");
  extern __shared__ __align__(16) unsigned char staged_bytes[];
  Weights* staged = reinterpret_cast<Weights*>(staged_bytes);

  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const Chunk most = chunk_of(CAPACITY, co_per_group, taps);
  const bool whole = most.channels == co_per_group && most.taps == taps;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int span = ceil_div(sizes.in_w, POSITIONS);
  const long long items = 1LL * sizes.in_d * sizes.in_h * span;
  const long long position_blocks = ceil_div(items, Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const int channel_tiles = ceil_div(ci_per_group, CI);

  const long long block = flat_block();
  const int ci0 = int(block % channel_tiles) * CI;  // within the group
  const long long rest = block / channel_tiles / position_blocks;
  const int group = int(rest % layer.groups);
  const long long n = rest / layer.groups;
  if (n >= sizes.batch) return;  // the whole block
  const long long item0 = block / channel_tiles % position_blocks * (Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const int channel = group * ci_per_group + ci0;
  const Scalar* grad_group = grad_output + (n * layer.out_channels + 1LL * group * co_per_group) * out_plane;
  const Scalar* weight_tile = weight + 1LL * channel * co_per_group * taps;

  for (int tile = 0; tile < Tune::TILES_PER_BLOCK && item0 + tile * Tune::BLOCK < items; ++tile) {
    const long long item = item0 + tile * Tune::BLOCK + threadIdx.x;
    const bool active = item < items;
    const int x = int(item % span);
    const int ih = int(item / span % sizes.in_h);
    const int id = int(item / span / sizes.in_h);
    const TapGrid grid = tap_grid_of_inputs(layer, sizes, id, ih, x, span);
    Sum sum[POSITIONS][CI] = {};

    for (int co0 = 0; co0 < co_per_group; co0 += most.channels) {
      for (int tap0 = 0; tap0 < taps; tap0 += most.taps) {
        const Chunk chunk = {min(most.channels, co_per_group - co0), min(most.taps, taps - tap0)};
        if (!whole || tile == 0) {
          __syncthreads();
          stage_weights<Tune::BLOCK>(staged, weight_tile + 1LL * co0 * taps + tap0, chunk, taps, ci_per_group - ci0,
                                     1LL * co_per_group * taps);
          __syncthreads();
        }
        if (active) add_products(sum, grid, grad_group + co0 * out_plane, out_plane, staged, chunk, tap0);
      }
    }
    const long long in_row = (1LL * id * sizes.in_h + ih) * sizes.in_w;
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      const int iw = x + p * span;
      if (!active || iw >= sizes.in_w) continue;
      Scalar* result = grad_input + (n * layer.in_channels + channel) * in_plane + in_row + iw;
#pragma unroll
      for (int k = 0; k < CI; ++k)
        if (ci0 + k < ci_per_group) store(result + k * in_plane, sum[p][k]);
    }
  }
}

template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void*,
                       cudaStream_t stream) {
  using Weights = Pack<typename Layer::accumulator, Tune::CI_PER_THREAD>;
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const Chunk most = chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), co_per_group,
                              layer.kernel_d * layer.kernel_h * layer.kernel_w);
  const long long items = 1LL * sizes.in_d * sizes.in_h * ceil_div(sizes.in_w, Tune::POSITIONS_PER_THREAD);
  const long long blocks = sizes.batch * layer.groups * ceil_div(ci_per_group, Tune::CI_PER_THREAD) *
                           ceil_div(items, Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const size_t bytes = most.channels * most.taps * sizeof(Weights);
  shared_weight_tiling<Layer, Tune><<<flat_grid(blocks), Tune::BLOCK, bytes, stream>>>(
      layer, sizes, grad_output, weight, grad_input_out);
  return cudaGetLastError();
}
