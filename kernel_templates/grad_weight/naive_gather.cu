/* variant
name      = "naive_gather"
computes  = ["grad_weight"]
after     = ""
idea      = "One thread sums one weight gradient over a share of all positions; a second kernel adds the partial sums."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
BLOCK          = {values = [32, 64, 128, 256], default = 128, help = "threads of a block"}
CO_PER_THREAD  = {values = [1, 2, 4, 8], default = 1, help = "output channels that share each loaded input value"}
SPLIT          = {values = [1, 4, 16, 64, 256], default = 64, help = "threads that share one sum"}
*/
#include "contract/grad_weight.cuh"

// Read this one first. The definition: input position i meets tap k at output o = i * stride - padding + k * dilation,
// and
//     grad_weight[ci, co, k] = sum over n and i of input[n, ci, i] * grad_output[n, co, o], where 0 <= o < out.
// A walk over inputs needs no division by the stride: each step reaches an output. Two usual mistakes are to walk over
// outputs, and to sum in float16.
// The result is small and the sum is long (KernelBench #74: 10 240 gradients of 4 million terms each). With one thread
// for each gradient most of a GPU would be idle. So SPLIT threads share a sum, and a second kernel adds their partial
// sums.
//
// thread -> data: (share of the positions, ci, CO_PER_THREAD neighbouring co, tap), tap running fastest. The threads of
// a warp read the same input value, and grad_output elements a dilation apart. Nothing is shared, and no thread
// synchronises.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK) naive_gather(
    Layer layer, Sizes sizes, Split split, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ grad_output, typename Layer::accumulator* __restrict__ partials) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CO = Tune::CO_PER_THREAD;
  constexpr int RUN = 1024;  // terms summed before they are added to the total: two short sums round less than a long one
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(co_per_group, CO);
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const long long weights = weight_count(layer);
  const long long items = split.count * layer.in_channels * channel_tiles * taps;

  for (long long item = 1LL * blockIdx.x * Tune::BLOCK + threadIdx.x; item < items;
       item += 1LL * gridDim.x * Tune::BLOCK) {
    const int k = int(item % taps);
    const long long rest = item / taps;
    const int co0 = int(rest % channel_tiles) * CO;  // within the group
    const int ci = int(rest / channel_tiles % layer.in_channels);
    const long long share = rest / channel_tiles / layer.in_channels;
    const long long co_first = 1LL * (ci / ci_per_group) * co_per_group + co0;
    const Tap tap = tap_at(layer, sizes, k);

    Sum sum[CO] = {};
    const long long all = sizes.batch * in_plane, begin = share * split.length;
    long long left = begin + split.length < all ? split.length : all - begin;
    Position at = position_at(begin, sizes);
    while (left > 0) {  // a piece of one row (n, d, h): positions at.w <= w < stop
      const long long piece = left < RUN ? left : RUN;
      const int stop = piece < sizes.in_w - at.w ? at.w + int(piece) : sizes.in_w;
      if (tap.d.holds(at.d) && tap.h.holds(at.h)) {
        const int first = at.w > tap.w.first ? at.w : tap.w.first;
        const int last = stop < tap.w.first + tap.w.count ? stop : tap.w.first + tap.w.count;
        const Position row = {at.n, at.d, at.h, 0};
        const Scalar* x = input + (at.n * layer.in_channels + ci) * in_plane + input_index(sizes, row);
        const Scalar* gy = grad_output + (at.n * layer.out_channels + co_first) * out_plane +
                           output_index(layer, sizes, row) + tap.offset;
        Sum part[CO] = {};
#pragma unroll 4
        for (int w = first; w < last; ++w) {
          const Sum value = widen(x[w]);
#pragma unroll
          for (int c = 0; c < CO; ++c)
            if (co0 + c < co_per_group) part[c] += value * Sum(widen(gy[c * out_plane + 1LL * w * layer.stride_w]));
        }
#pragma unroll
        for (int c = 0; c < CO; ++c) sum[c] += part[c];
      }
      left -= stop - at.w;
      at.w = stop;
      if (stop == sizes.in_w) {  // the next row
        at.w = 0;
        if (++at.h == sizes.in_h) at.h = 0, ++at.d;
        if (at.d == sizes.in_d) at.d = 0, ++at.n;
      }
    }
    Sum* out = partials + share * weights + (1LL * ci * co_per_group + co0) * taps + k;
#pragma unroll
    for (int c = 0; c < CO; ++c)
      if (co0 + c < co_per_group) out[1LL * c * taps] = sum[c];
  }
}

template <class Layer, class Tune>
Split split_of(const Layer& layer, const Sizes& sizes) {
  const long long positions = position_count(sizes);
  return split_positions(positions, weight_count(layer), Tune::SPLIT, 16, positions);  // RUN keeps sums short
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
  const int co_per_group = layer.out_channels / layer.groups;
  const long long threads =
      split.count * (weight_count(layer) / co_per_group) * ceil_div(co_per_group, Tune::CO_PER_THREAD);
  naive_gather<Layer, Tune><<<grid_blocks(ceil_div(threads, Tune::BLOCK)), Tune::BLOCK, 0, stream>>>(
      layer, sizes, split, input, grad_output, static_cast<typename Layer::accumulator*>(workspace));
  return finish_grad_weight(layer, sizes, split, grad_output, grad_weight_out, grad_bias, workspace, stream);
}
