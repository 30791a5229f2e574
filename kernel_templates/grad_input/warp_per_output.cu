/* variant
name      = "warp_per_output"
computes  = ["grad_input"]
after     = "naive_gather"
idea      = "A warp shares the sum of a few gradients: each lane sums a part, shuffles add the parts."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = ["CI_PER_WARP * POSITIONS_PER_WARP <= 32"]

[tune]
WARPS              = {values = [1, 2, 4, 8, 16], default = 4, help = "warps of a block"}
CI_PER_WARP        = {values = [1, 2, 4, 8], default = 8, help = "input channels that share each loaded gradient"}
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

// Compared with naive_gather, where one thread walks over all pairs (output channel, tap) of its results: here the 32
// lanes of a warp walk over them side by side. That pays if inputs are few and sums are long: a short input with many
// channels fills the GPU 32 times as well. It costs a sum over the lanes, and loads that are spread over channels. The
// weights of one input channel lie exactly in the order of the sum, so their loads are whole sectors.
//
// warp -> data: CI_PER_WARP channels x POSITIONS_PER_WARP neighbouring positions of one input row.
// lane -> data: every 32nd pair (output channel, tap); in the end one result.
// Blocks: channel tile fastest (its neighbours find the gradients in L1), then positions, group, batch.
// The lanes meet in warp_sums, whose order is fixed, so two launches agree in every bit. Warps do not meet.
// Bytes: a loaded gradient serves CI_PER_WARP products, a loaded weight POSITIONS_PER_WARP.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::WARPS * 32, 1) warp_per_output(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ grad_output,
    const typename Layer::scalar* __restrict__ weight, typename Layer::scalar* __restrict__ grad_input) {
  using Scalar = typename Layer::scalar;
  constexpr int CI = Tune::CI_PER_WARP, POSITIONS = Tune::POSITIONS_PER_WARP, RESULTS = CI * POSITIONS;
  static_assert(RESULTS <= 32, "each lane stores one result at most");
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(ci_per_group, CI);
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int row_items = ceil_div(sizes.in_w, POSITIONS);
  const long long items = 1LL * sizes.in_d * sizes.in_h * row_items;

  const int lane = threadIdx.x % 32;
  const long long warp = flat_block() * Tune::WARPS + threadIdx.x / 32;
  if (warp >= sizes.batch * layer.groups * channel_tiles * items) return;  // the whole warp
  const int ci0 = int(warp % channel_tiles) * CI;                          // within the group
  const long long item = warp / channel_tiles % items;
  const long long rest = warp / channel_tiles / items;
  const int group = int(rest % layer.groups);
  const long long n = rest / layer.groups;
  const int iw0 = int(item % row_items) * POSITIONS;
  const int ih = int(item / row_items % sizes.in_h);
  const int id = int(item / row_items / sizes.in_h);
  const int channel = group * ci_per_group + ci0;

  typename Layer::accumulator sum[RESULTS] = {};
  add_products_of_lane<POSITIONS, CI>(
      sum, tap_grid_of_inputs(layer, sizes, id, ih, iw0, 1), lane,
      grad_output + (n * layer.out_channels + 1LL * group * co_per_group) * out_plane, out_plane, co_per_group,
      weight + 1LL * channel * co_per_group * taps, {taps, 1LL * co_per_group * taps, ci_per_group - ci0});
  const auto total = warp_sums(sum, lane);

  constexpr int LANES = 32 / RESULTS;  // lanes that hold the same total
  const int k = lane / LANES % CI;
  const int iw = iw0 + lane / LANES / CI;
  if (lane % LANES != 0 || ci0 + k >= ci_per_group || iw >= sizes.in_w) return;
  store(grad_input + (n * layer.in_channels + channel + k) * in_plane + (1LL * id * sizes.in_h + ih) * sizes.in_w + iw,
        total);
}

template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void*,
                       cudaStream_t stream) {
  const int channel_tiles = ceil_div(layer.in_channels / layer.groups, Tune::CI_PER_WARP);
  const int row_items = ceil_div(sizes.in_w, Tune::POSITIONS_PER_WARP);
  const long long warps = sizes.batch * layer.groups * channel_tiles * sizes.in_d * sizes.in_h * row_items;
  warp_per_output<Layer, Tune><<<flat_grid(ceil_div(warps, Tune::WARPS)), Tune::WARPS * 32, 0, stream>>>(
      layer, sizes, grad_output, weight, grad_input_out);
  return cudaGetLastError();
}
