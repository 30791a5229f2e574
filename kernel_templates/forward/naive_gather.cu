/* variant
name      = "naive_gather"
computes  = ["forward"]
after     = ""
idea      = "One thread computes one output; it tests each tap for divisibility by the stride."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = []

[tune]
BLOCK          = {values = [32, 64, 128, 256, 512], default = 128, help = "threads of a block"}
CO_PER_THREAD  = {values = [1, 2, 4, 8], default = 1, help = "output channels that share each loaded input value"}
*/
#include "contract/epilogue.cuh"
#include "contract/flat_grid.cuh"
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// Read this one first. It computes the definition in reverse. The layer scatters input i over the outputs o = i *
// stride - padding + k * dilation; here an output gathers the inputs that reach it:
//     i = (o + padding - k * dilation) / stride, if that division leaves no remainder and 0 <= i < in.
// A missing remainder test is the usual mistake: the result is then right for stride 1 and wrong for every other.
//
// thread -> data: CO_PER_THREAD neighbouring output channels at one output position. A warp walks along W, so its
// stores are whole sectors. Nothing is shared, and no thread synchronises.
template <class Layer, class Tune>
__global__ void __launch_bounds__(Tune::BLOCK, 1) naive_gather(
    Layer layer, Sizes sizes, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ weight, const typename Layer::scalar* __restrict__ bias,
    typename Layer::scalar* __restrict__ output) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int CO = Tune::CO_PER_THREAD;
  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int channel_tiles = ceil_div(co_per_group, CO);
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;

  // One thread: (batch, group, channel tile, position), position running fastest.
  const long long item = flat_block() * Tune::BLOCK + threadIdx.x;
  if (item >= sizes.batch * layer.groups * channel_tiles * out_plane) return;
  const long long position = item % out_plane;
  const long long rest = item / out_plane;
  const int tile = int(rest % channel_tiles);
  const int group = int(rest / channel_tiles % layer.groups);
  const long long n = rest / channel_tiles / layer.groups;
  const int co0 = tile * CO;  // within the group
  const int ow = int(position % sizes.out_w);
  const int oh = int(position / sizes.out_w % sizes.out_h);
  const int od = int(position / sizes.out_w / sizes.out_h);

  Sum sum[CO] = {};

  const Scalar* in_group = input + (n * layer.in_channels + 1LL * group * ci_per_group) * in_plane;
  const Scalar* weight_group = weight + (1LL * group * ci_per_group * co_per_group + co0) * taps;
  for (int kd = 0; kd < layer.kernel_d; ++kd) {
    const int td = od + layer.padding_d - kd * layer.dilation_d;
    if (td < 0 || td % layer.stride_d != 0 || td / layer.stride_d >= sizes.in_d) continue;
    for (int kh = 0; kh < layer.kernel_h; ++kh) {
      const int th = oh + layer.padding_h - kh * layer.dilation_h;
      if (th < 0 || th % layer.stride_h != 0 || th / layer.stride_h >= sizes.in_h) continue;
      for (int kw = 0; kw < layer.kernel_w; ++kw) {
        const int tw = ow + layer.padding_w - kw * layer.dilation_w;
        if (tw < 0 || tw % layer.stride_w != 0 || tw / layer.stride_w >= sizes.in_w) continue;
        const Scalar* in = in_group + (1LL * (td / layer.stride_d) * sizes.in_h + th / layer.stride_h) * sizes.in_w +
                           tw / layer.stride_w;
        const Scalar* w = weight_group + (kd * layer.kernel_h + kh) * layer.kernel_w + kw;
        for (int ci = 0; ci < ci_per_group; ++ci) {
          const Sum value = widen(in[ci * in_plane]);
#pragma unroll
          for (int c = 0; c < CO; ++c)
            if (co0 + c < co_per_group) sum[c] += value * Sum(widen(w[(1LL * ci * co_per_group + c) * taps]));
        }
      }
    }
  }
  const int channel = group * co_per_group + co0;
  Scalar* out = output + (n * layer.out_channels + channel) * out_plane + position;
#pragma unroll
  for (int c = 0; c < CO; ++c)
    if (co0 + c < co_per_group)
      store_with_bias(out + c * out_plane, sum[c], layer.has_bias ? bias : nullptr, channel + c);
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 0;
}

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  const int channel_tiles = ceil_div(layer.out_channels / layer.groups, Tune::CO_PER_THREAD);
  const long long items = sizes.batch * layer.groups * channel_tiles * sizes.out_d * sizes.out_h * sizes.out_w;
  naive_gather<Layer, Tune><<<flat_grid(ceil_div(items, Tune::BLOCK)), Tune::BLOCK, 0, stream>>>(
      layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
