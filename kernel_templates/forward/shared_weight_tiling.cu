/* variant
name      = "shared_weight_tiling"
computes  = ["forward"]
after     = "naive_gather"
idea      = "A block keeps chunks of the weights in shared memory and uses them for all its output positions."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
BLOCK                = {values = [32, 64, 128, 256], default = 128, help = "threads of a block"}
CO_PER_THREAD        = {values = [1, 2, 4, 8, 16], default = 8, help = "output channels that share each input value"}
POSITIONS_PER_THREAD = {values = [1, 2, 4], default = 4, help = "positions of a thread that share each loaded weight"}
TILES_PER_BLOCK      = {values = [1, 4, 16], default = 4, help = "tiles of positions that share weights, if all of them fit"}
STAGE_KB             = {values = [1, 8, 16, 32, 48], default = 32, help = "shared memory for weights, in KB"}

[derived]
pack_bytes = "CO_PER_THREAD * max(4, element_bytes)"
capacity   = "1024 * STAGE_KB // pack_bytes"
taps       = "min(layer.kernel_d * layer.kernel_h * layer.kernel_w, capacity)"
channels   = "min(layer.in_channels // layer.groups, capacity // taps)"
smem_bytes = "channels * taps * pack_bytes"

[plan]
Weights    = "Pack<typename Layer::accumulator, Tune::CO_PER_THREAD>"
pack_bytes = "sizeof(Weights)"
capacity   = "1024 * Tune::STAGE_KB / int(sizeof(Weights))"
taps       = "chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::in_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).taps"
channels   = "chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::in_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).channels"
smem_bytes = "sizeof(Weights) * chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::in_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).channels * chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), Layer::in_channels / Layer::groups, Layer::kernel_d * Layer::kernel_h * Layer::kernel_w).taps"
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
  constexpr int SUM_BYTES = sizeof(typename Layer::accumulator) * Tune::CO_PER_THREAD * Tune::POSITIONS_PER_THREAD;
  return (SUM_BYTES > 128 ? 256 : sizeof(typename Layer::scalar) == 2 ? 384 : 512) / Tune::BLOCK;
}

// Compared with naive_gather:
// - The weights of CO_PER_THREAD output channels lie in shared memory, converted, and ordered so that the channels of
//   one (input channel, tap) are one Pack: one load of 16 bytes gives four weights to a whole warp. Weights that do not
//   fit are taken in chunks, so no layer is too large. Weights that fit are staged once for TILES_PER_BLOCK tiles.
// - No tap is tested for divisibility: taps_of_output finds the first tap of a position, and the others follow at a
//   fixed step.
// - A thread holds CO_PER_THREAD x POSITIONS_PER_THREAD sums. Its positions lie `span` apart in one row of W, and span
//   is a multiple of the stride. So all of them meet the same taps, and each weight is read once for all.
//
// thread -> data: POSITIONS_PER_THREAD positions x, x + span, ... of one output row. A warp walks along x, so loads and
// stores are whole sectors. Blocks: channel tile fastest (its neighbours find the input in L2), then positions, group,
// batch.
// All threads meet at two barriers for each chunk: before staging, so that no thread still reads the old weights, and
// after it, so that the new ones are complete. Threads without a position stage with the others.
// Bytes: weights go to the multiprocessor once for each block, not for each warp; input goes there once for each
// channel tile.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK, blocks_wanted<Layer, Tune>()) shared_weight_tiling(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ weight, const typename Layer::scalar* __restrict__ bias,
    typename Layer::scalar* __restrict__ output) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CO = Tune::CO_PER_THREAD, POSITIONS = Tune::POSITIONS_PER_THREAD;
  using Weights = Pack<Sum, CO>;
  constexpr int CAPACITY = 1024 * Tune::STAGE_KB / int(sizeof(Weights));
  static_assert(CAPACITY >= 1, "STAGE_KB must hold the weights of one tap for CO_PER_THREAD channels");
  extern __shared__ __align__(16) unsigned char staged_bytes[];
  Weights* staged = reinterpret_cast<Weights*>(staged_bytes);

  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const Chunk most = chunk_of(CAPACITY, ci_per_group, taps);
  const bool whole = most.channels == ci_per_group && most.taps == taps;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int span = ceil_div(ceil_div(sizes.out_w, POSITIONS), layer.stride_w) * layer.stride_w;
  const long long items = 1LL * sizes.out_d * sizes.out_h * span;
  const long long position_blocks = ceil_div(items, Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const int channel_tiles = ceil_div(co_per_group, CO);

  const long long block = flat_block();
  const int co0 = int(block % channel_tiles) * CO;  // within the group
  const long long rest = block / channel_tiles / position_blocks;
  const int group = int(rest % layer.groups);
  const long long n = rest / layer.groups;
  if (n >= sizes.batch) return;  // the whole block
  const long long item0 = block / channel_tiles % position_blocks * (Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const Scalar* in_group = input + (n * layer.in_channels + 1LL * group * ci_per_group) * in_plane;
  const Scalar* weight_group = weight + (1LL * group * ci_per_group * co_per_group + co0) * taps;
  const int channel = group * co_per_group + co0;

  for (int tile = 0; tile < Tune::TILES_PER_BLOCK && item0 + tile * Tune::BLOCK < items; ++tile) {
    const long long item = item0 + tile * Tune::BLOCK + threadIdx.x;
    const bool active = item < items;
    const int x = int(item % span);
    const int oh = int(item / span % sizes.out_h);
    const int od = int(item / span / sizes.out_h);
    const TapGrid grid = tap_grid_of_outputs(layer, sizes, od, oh, x, span);
    Sum sum[POSITIONS][CO] = {};

    for (int ci0 = 0; ci0 < ci_per_group; ci0 += most.channels) {
      for (int tap0 = 0; tap0 < taps; tap0 += most.taps) {
        const Chunk chunk = {min(most.channels, ci_per_group - ci0), min(most.taps, taps - tap0)};
        if (!whole || tile == 0) {
          __syncthreads();
          stage_weights<Tune::BLOCK>(staged, weight_group + 1LL * ci0 * co_per_group * taps + tap0, chunk,
                                     1LL * co_per_group * taps, co_per_group - co0, taps);
          __syncthreads();
        }
        if (active) add_products(sum, grid, in_group + ci0 * in_plane, in_plane, staged, chunk, tap0);
      }
    }
    const long long out_row = (1LL * od * sizes.out_h + oh) * sizes.out_w;
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      const int ow = x + p * span;
      if (!active || ow >= sizes.out_w) continue;
      Scalar* out = output + (n * layer.out_channels + channel) * out_plane + out_row + ow;
#pragma unroll
      for (int k = 0; k < CO; ++k)
        if (co0 + k < co_per_group)
          store_with_bias(out + k * out_plane, sum[p][k], layer.has_bias ? bias : nullptr, channel + k);
    }
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  using Weights = Pack<typename Layer::accumulator, Tune::CO_PER_THREAD>;
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const Chunk most = chunk_of(1024 * Tune::STAGE_KB / int(sizeof(Weights)), ci_per_group,
                              layer.kernel_d * layer.kernel_h * layer.kernel_w);
  const int span = ceil_div(ceil_div(sizes.out_w, Tune::POSITIONS_PER_THREAD), layer.stride_w) * layer.stride_w;
  const long long items = 1LL * sizes.out_d * sizes.out_h * span;
  const long long blocks = sizes.batch * layer.groups * ceil_div(co_per_group, Tune::CO_PER_THREAD) *
                           ceil_div(items, Tune::BLOCK * Tune::TILES_PER_BLOCK);
  const size_t bytes = most.channels * most.taps * sizeof(Weights);
  shared_weight_tiling<Layer, Tune><<<flat_grid(blocks), Tune::BLOCK, bytes, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
