/* variant
name      = "warp_per_output"
computes  = ["forward", "grad_input"]
after     = "naive_gather"
idea      = "A warp shares the sum of a few results: each lane sums a part, shuffles add the parts."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]

[derived]
threads = "32 * WARPS"

[plan]
threads = ""

[forward]
idea      = "A warp shares the sum of a few outputs: each lane sums a part, shuffles add the parts."
needs     = ["CO_PER_WARP * POSITIONS_PER_WARP <= 32"]

[forward.tune]
WARPS              = {values = [1, 2, 4, 8, 16], default = 4, help = "warps of a block"}
CO_PER_WARP        = {values = [1, 2, 4, 8], default = 8, help = "output channels that share each loaded input value"}
POSITIONS_PER_WARP = {values = [1, 2, 4, 8], default = 4, help = "neighbouring positions that share each loaded weight"}

[grad_input]
idea      = "A warp shares the sum of a few gradients: each lane sums a part, shuffles add the parts."
needs     = ["CI_PER_WARP * POSITIONS_PER_WARP <= 32"]

[grad_input.tune]
WARPS              = {values = [1, 2, 4, 8, 16], default = 4, help = "warps of a block"}
CI_PER_WARP        = {values = [1, 2, 4, 8], default = 8, help = "input channels that share each loaded gradient"}
POSITIONS_PER_WARP = {values = [1, 2, 4, 8], default = 4, help = "neighbouring positions that share each loaded weight"}
*/
#include "contract/epilogue.cuh"
#include "contract/flat_grid.cuh"
#include "contract/problem.cuh"
#include "contract/reduce.cuh"
#include "contract/scalar.cuh"
#include "contract/taps.cuh"

// families/warp_per_output/README.md has a picture and the words.

// The distances between the weights of a sum over (channel, tap), in elements. `members` channels of the result share
// each source value.
struct WeightPitch {
  long long channel, member;
  int members;
};

// sum[p * MEMBERS + m] += source(channel, what position p meets) * weight(channel, tap, member m), over this lane's
// part of the sum: every 32nd of the pairs (channel, tap), tap running fastest, because taps are neighbours in memory.
// A member that does not exist repeats the last one; its sum is not used.
template <int POSITIONS, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void add_products_of_lane(Sum (&sum)[POSITIONS * MEMBERS], const TapGrid& grid, int lane,
                                                     const Scalar* __restrict__ source, long long plane, int channels,
                                                     const Scalar* __restrict__ weight, WeightPitch pitch) {
  const int rows = grid.d.count * grid.h.count;
  const int taps = rows * grid.w.count;
  if (taps == 0) return;
  long long member[MEMBERS];
#pragma unroll
  for (int m = 0; m < MEMBERS; ++m) member[m] = (m < pitch.members ? m : pitch.members - 1) * pitch.member;
  int c = lane / taps;
  int t = lane % taps;
  const int c_step = 32 / taps;
  const int t_step = 32 % taps;
  while (c < channels) {
    const int row = rows == 1 ? 0 : t / grid.w.count;
    const int w = t - row * grid.w.count;
    const int d = grid.d.count == 1 ? 0 : row / grid.h.count;
    const int h = row - d * grid.h.count;
    const int at = grid.w.at + w * grid.w.at_step;
    const long long source_row = 1LL * (grid.d.at + d * grid.d.at_step) * grid.source_h + grid.h.at +
                                 h * grid.h.at_step;
    const Scalar* from = source + c * plane + source_row * grid.source_w + at;
    const int tap = ((grid.d.first + d * grid.d.step) * grid.kernel_h + grid.h.first + h * grid.h.step) *
                    grid.kernel_w + grid.w.first + w * grid.w.step;
    const Scalar* weights = weight + c * pitch.channel + tap;
    bool meets[POSITIONS];
    Sum value[POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      meets[p] = unsigned(at + p * grid.span) < unsigned(grid.source_w);
      value[p] = meets[p] ? Sum(widen(from[p * grid.span])) : Sum(0);
    }
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) {
      const Sum one = widen(weights[member[m]]);
#pragma unroll
      for (int p = 0; p < POSITIONS; ++p)
        if (meets[p]) sum[p * MEMBERS + m] += value[p] * one;  // not 0 * weight: NaN for an infinite weight
    }
    c += c_step;
    t += t_step;
    if (t >= taps) {
      t -= taps;
      ++c;
    }
  }
}

// Compared with naive_gather, where one thread walks over all pairs (channel, tap) of its results: here the 32 lanes of a
// warp walk over them side by side. That is faster if results are few and sums are long: a result with few positions then
// has 32 times as many threads. It costs a sum over the lanes, and loads that are spread over channels. In grad_input
// the weights of one channel lie exactly in the order of the sum, so their loads are whole sectors.
//
// The lanes meet in warp_sums, whose order is fixed, so two launches agree in every bit. Warps do not meet.
#ifdef KW_FORWARD
// warp -> data: CO_PER_WARP channels x POSITIONS_PER_WARP positions ow, ow + stride, ... of one output row, which meet
// the same taps and neighbouring inputs.
// lane -> data: every 32nd pair (input channel, tap); in the end one result.
// Blocks: channel tile fastest (its neighbours find the input in L1), then positions, group, batch.
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
#else
// warp -> data: CI_PER_WARP channels x POSITIONS_PER_WARP neighbouring positions of one input row.
// lane -> data: every 32nd pair (output channel, tap); in the end one result.
// Blocks: channel tile fastest (its neighbours find the gradients in L1), then positions, group, batch.
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
#endif
