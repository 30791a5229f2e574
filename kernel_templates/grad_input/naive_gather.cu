/* variant
name      = "naive_gather"
computes  = ["grad_input"]
after     = ""
idea      = "One thread computes one input gradient: it sums the output gradients that its element reached."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
BLOCK          = {values = [32, 64, 128, 256, 512], default = 128, help = "threads of a block"}
CI_PER_THREAD  = {values = [1, 2, 4, 8], default = 1, help = "input channels that share each loaded gradient"}
*/
#include "contract/epilogue.cuh"
#include "contract/flat_grid.cuh"
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// Read this one first. Tap k brought input i to output o = i * stride - padding + k * dilation. So the gradient of
// input i is the sum of the gradients at those o, each times the weight of its tap:
//     grad_input[ci, i] = sum over co, k of grad_output[co, o] * weight[ci, co, k], where 0 <= o < out.
// Unlike forward it needs no division: every tap of every input has an output, and only the ends are tested. Taps whose
// output is cropped by padding add nothing.
//
// thread -> data: CI_PER_THREAD neighbouring input channels at one input position. A warp walks along W, so its stores
// are whole sectors, and with stride 1 its loads too. Nothing is shared, and no thread synchronises.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK, 1) naive_gather(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ grad_output,
    const typename Layer::scalar* __restrict__ weight, typename Layer::scalar* __restrict__ grad_input) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CI = Tune::CI_PER_THREAD;
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(ci_per_group, CI);
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;

  // One thread: (batch, group, channel tile, position), position running fastest.
  const long long item = flat_block() * Tune::BLOCK + threadIdx.x;
  if (item >= sizes.batch * layer.groups * channel_tiles * in_plane) return;
  const long long position = item % in_plane;
  const long long rest = item / in_plane;
  const int ci0 = int(rest % channel_tiles) * CI;  // within the group
  const int group = int(rest / channel_tiles % layer.groups);
  const long long n = rest / channel_tiles / layer.groups;
  const int iw = int(position % sizes.in_w);
  const int ih = int(position / sizes.in_w % sizes.in_h);
  const int id = int(position / sizes.in_w / sizes.in_h);

  Sum sum[CI] = {};
  const int channel = group * ci_per_group + ci0;
  const Scalar* grad_group = grad_output + (n * layer.out_channels + 1LL * group * co_per_group) * out_plane;
  const Scalar* weight_tile = weight + 1LL * channel * co_per_group * taps;
  for (int kd = 0; kd < layer.kernel_d; ++kd) {
    const int od = id * layer.stride_d - layer.padding_d + kd * layer.dilation_d;
    if (od < 0 || od >= sizes.out_d) continue;
    for (int kh = 0; kh < layer.kernel_h; ++kh) {
      const int oh = ih * layer.stride_h - layer.padding_h + kh * layer.dilation_h;
      if (oh < 0 || oh >= sizes.out_h) continue;
      for (int kw = 0; kw < layer.kernel_w; ++kw) {
        const int ow = iw * layer.stride_w - layer.padding_w + kw * layer.dilation_w;
        if (ow < 0 || ow >= sizes.out_w) continue;
        const Scalar* grad = grad_group + (1LL * od * sizes.out_h + oh) * sizes.out_w + ow;
        const Scalar* w = weight_tile + (kd * layer.kernel_h + kh) * layer.kernel_w + kw;
        for (int co = 0; co < co_per_group; ++co) {
          const Sum value = widen(grad[co * out_plane]);
#pragma unroll
          for (int c = 0; c < CI; ++c)
            if (ci0 + c < ci_per_group) sum[c] += value * Sum(widen(w[(1LL * c * co_per_group + co) * taps]));
        }
      }
    }
  }
  Scalar* result = grad_input + (n * layer.in_channels + channel) * in_plane + position;
#pragma unroll
  for (int c = 0; c < CI; ++c)
    if (ci0 + c < ci_per_group) store(result + c * in_plane, sum[c]);
}

template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void*,
                       cudaStream_t stream) {
  const int channel_tiles = ceil_div(layer.in_channels / layer.groups, Tune::CI_PER_THREAD);
  const long long items = sizes.batch * layer.groups * channel_tiles * sizes.in_d * sizes.in_h * sizes.in_w;
  naive_gather<Layer, Tune><<<flat_grid(ceil_div(items, Tune::BLOCK)), Tune::BLOCK, 0, stream>>>(
      layer, sizes, grad_output, weight, grad_input_out);
  return cudaGetLastError();
}
