/* variant
name      = "warp_per_output"
computes  = ["grad_weight"]
after     = "naive_gather"
idea      = "A warp shares the sum of a weight gradient: each lane sums some positions, shuffles add the parts."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
WARPS        = {values = [1, 2, 4, 8], default = 4, help = "warps of a block"}
CO_PER_WARP  = {values = [1, 2, 4, 8], default = 8, help = "output channels that share each loaded input value"}
BLOCKS       = {values = [132, 1056, 4224, 16896], default = 4224, help = "target number of blocks that share the positions"}

[derived]
threads = "32 * WARPS"

[plan]
threads = ""
*/
#include "contract/grad_weight.cuh"

// families/warp_per_output/README.md has a picture and the words.

// Warps that should fit on a multiprocessor at once, to hide the latency of loads: as many as leave a thread enough
// registers. A run-time layer and float64 need more registers.
template <class Layer>
constexpr int resident_warps() {
  return !Layer::is_constant ? 16 : sizeof(typename Layer::accumulator) == 4 ? 28 : 24;
}

// Compared with naive_gather, whose warp reads grad_output in up to 32 places at once: here the lanes of a warp have 32
// neighbouring positions of one gradient, so with stride 1 a load is whole sectors. CO_PER_WARP saves bytes:
// neighbouring co at the same tap share the input value, the position and the test whether the tap meets the output.
// The warps of a block take neighbouring taps and walk over the same positions: what one loads, the others find in L1.
//
// warp -> data: (share of the positions, ci, CO_PER_WARP neighbouring co, tap), tap running fastest; lane -> every 32nd
// position of the share. There is no barrier. The lanes of a warp meet in the shuffles, whose tree has a fixed order.
template <class Layer, class Tune>
__global__ void __launch_bounds__(32 * Tune::WARPS, resident_warps<Layer>() / Tune::WARPS) warp_per_output(
    Layer layer, Sizes sizes, Split split, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ grad_output, typename Layer::accumulator* __restrict__ partials) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CO = Tune::CO_PER_WARP;
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(co_per_group, CO);
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int lane = threadIdx.x % 32;

  const long long items = split.count * layer.in_channels * channel_tiles * taps;
  for (long long item = 1LL * blockIdx.x * Tune::WARPS + threadIdx.x / 32; item < items;
       item += 1LL * gridDim.x * Tune::WARPS) {
    const int k = int(item % taps);
    const long long rest = item / taps;
    const int co0 = int(rest % channel_tiles) * CO;  // within the group
    const int ci = int(rest / channel_tiles % layer.in_channels);
    const long long share = rest / channel_tiles / layer.in_channels;
    const int channels = co_per_group - co0 < CO ? co_per_group - co0 : CO;
    const Tap tap = tap_at(layer, sizes, k);
    const Scalar* x = input + ci * in_plane;
    const Scalar* gy = grad_output + (1LL * (ci / ci_per_group) * co_per_group + co0) * out_plane + tap.offset;

    Sum sum[CO] = {};
    const long long all = sizes.batch * in_plane, begin = share * split.length;
    const long long end = begin + split.length < all ? begin + split.length : all;
    const Position step = position_at(32, sizes);
    Position at = position_at(begin + lane, sizes);
#pragma unroll 4
    for (long long position = begin + lane; position < end; position += 32) {
      if (meets(layer, tap, at)) {
        const Sum value = widen(x[at.n * layer.in_channels * in_plane + input_index(sizes, at)]);
        const Scalar* met = gy + at.n * layer.out_channels * out_plane + output_index(layer, sizes, at);
#pragma unroll
        for (int c = 0; c < CO; ++c)
          if (c < channels) sum[c] += value * Sum(widen(met[c * out_plane]));
      }
      advance(at, step, sizes);
    }
    Sum* out = partials + share * weight_count(layer) + (1LL * ci * co_per_group + co0) * taps + k;
#pragma unroll
    for (int c = 0; c < CO; ++c) {
      const Sum whole = sum_of_lanes(sum[c]);
      if (lane == 0 && c < channels) out[1LL * c * taps] = whole;
    }
  }
}

template <class Layer, class Tune>
long long blocks_of(const Layer& layer) {  // for one share of the positions
  const int co_per_group = layer.out_channels / layer.groups;
  const long long warps = weight_count(layer) / co_per_group * ceil_div(co_per_group, Tune::CO_PER_WARP);
  return ceil_div(warps, Tune::WARPS);
}

template <class Layer, class Tune>
Split split_of(const Layer& layer, const Sizes& sizes) {
  return split_positions(position_count(sizes), weight_count(layer),
                         ceil_div(Tune::BLOCKS, blocks_of<Layer, Tune>(layer)), 64, 32 * TERMS_PER_SUM);
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return partials_workspace(layer, sizes, split_of<Layer, Tune>(layer, sizes));
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  const Split split = split_of<Layer, Tune>(layer, sizes);
  const unsigned blocks = grid_blocks(split.count * blocks_of<Layer, Tune>(layer));
  warp_per_output<Layer, Tune><<<blocks, 32 * Tune::WARPS, 0, stream>>>(
      layer, sizes, split, input, grad_output, static_cast<typename Layer::accumulator*>(workspace));
  return finish_grad_weight(layer, sizes, split, grad_output, grad_weight_out, grad_bias, workspace, stream);
}
