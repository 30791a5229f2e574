/* variant
name      = "warp_per_output"
computes  = ["forward"]
after     = "naive_gather"
idea      = "A warp shares the sum of a few outputs: each lane sums a part, shuffles add the parts."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = ["CO_PER_WARP * POSITIONS_PER_WARP <= 32"]

[tune]
WARPS              = {values = [1, 2, 4, 8, 16], default = 4, help = "warps of a block"}
CO_PER_WARP        = {values = [1, 2, 4, 8], default = 8, help = "output channels that share each loaded input value"}
POSITIONS_PER_WARP = {values = [1, 2, 4, 8], default = 4, help = "neighbouring positions that share each loaded weight"}

[derived]
threads = "32 * WARPS"

[plan]
threads = ""
*/
#include "contract/epilogue.cuh"
#include "contract/flat_grid.cuh"
#include "families/warp_per_output/lane_products.cuh"
#include "contract/problem.cuh"
#include "contract/reduce.cuh"
#include "contract/taps.cuh"

// families/warp_per_output/README.md has a picture and the words.

// Compared with naive_gather, where one thread walks over all pairs (input channel, tap) of its outputs: here the 32
// lanes of a warp walk over them side by side. That pays if outputs are few and sums are long: a short output with many
// channels fills the GPU 32 times as well. It costs a sum over the lanes, and loads that are spread over channels.
//
// warp -> data: CO_PER_WARP channels x POSITIONS_PER_WARP positions ow, ow + stride, ... of one output row, which meet
// the same taps and neighbouring inputs.
// lane -> data: every 32nd pair (input channel, tap); in the end one result.
// Blocks: channel tile fastest (its neighbours find the input in L1), then positions, group, batch.
// The lanes meet in warp_sums, whose order is fixed, so two launches agree in every bit. Warps do not meet.
// Bytes: a loaded input serves CO_PER_WARP products, a loaded weight POSITIONS_PER_WARP.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::WARPS * 32, 1) warp_per_output(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ weight, const typename Layer::scalar* __restrict__ bias,
    typename Layer::scalar* __restrict__ output) {
  using Scalar = typename Layer::scalar;
  constexpr int CO = Tune::CO_PER_WARP, POSITIONS = Tune::POSITIONS_PER_WARP, RESULTS = CO * POSITIONS;
  static_assert(RESULTS <= 32, "each lane stores one result at most");
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(co_per_group, CO);
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int row_items = ceil_div(sizes.out_w, POSITIONS * layer.stride_w) * layer.stride_w;
  const long long items = 1LL * sizes.out_d * sizes.out_h * row_items;

  const int lane = threadIdx.x % 32;
  const long long warp = flat_block() * Tune::WARPS + threadIdx.x / 32;
  if (warp >= sizes.batch * layer.groups * channel_tiles * items) return;  // the whole warp
  const int co0 = int(warp % channel_tiles) * CO;                          // within the group
  const long long item = warp / channel_tiles % items;
  const long long rest = warp / channel_tiles / items;
  const int group = int(rest % layer.groups);
  const long long n = rest / layer.groups;
  const int x = int(item % row_items);
  const int oh = int(item / row_items % sizes.out_h);
  const int od = int(item / row_items / sizes.out_h);
  const int ow0 = x / layer.stride_w * (POSITIONS * layer.stride_w) + x % layer.stride_w;
  const int channel = group * co_per_group + co0;

  typename Layer::accumulator sum[RESULTS] = {};
  add_products_of_lane<POSITIONS, CO>(
      sum, tap_grid_of_outputs(layer, sizes, od, oh, ow0, layer.stride_w), lane,
      input + (n * layer.in_channels + 1LL * group * ci_per_group) * in_plane, in_plane, ci_per_group,
      weight + (1LL * group * ci_per_group * co_per_group + co0) * taps,
      {1LL * co_per_group * taps, taps, co_per_group - co0});
  const auto total = warp_sums(sum, lane);

  constexpr int LANES = 32 / RESULTS;  // lanes that hold the same total
  const int k = lane / LANES % CO;
  const int ow = ow0 + lane / LANES / CO * layer.stride_w;
  if (lane % LANES != 0 || co0 + k >= co_per_group || ow >= sizes.out_w) return;
  Scalar* out = output + (n * layer.out_channels + channel + k) * out_plane +
                (1LL * od * sizes.out_h + oh) * sizes.out_w + ow;
  store_with_bias(out, total, layer.has_bias ? bias : nullptr, channel + k);
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  const int channel_tiles = ceil_div(layer.out_channels / layer.groups, Tune::CO_PER_WARP);
  const int row_items = ceil_div(sizes.out_w, Tune::POSITIONS_PER_WARP * layer.stride_w) * layer.stride_w;
  const long long warps = sizes.batch * layer.groups * channel_tiles * sizes.out_d * sizes.out_h * row_items;
  warp_per_output<Layer, Tune><<<flat_grid(ceil_div(warps, Tune::WARPS)), Tune::WARPS * 32, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
