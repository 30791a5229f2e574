// grad_bias[co] = sum of grad_output[n, co, :] over batch and positions. All variants of grad_weight use it.
#pragma once
#include "contract/partial_sums.cuh"

// thread -> data: a block sums one share of one channel; its threads lie side by side along the positions.
// The barrier: warp 0 adds up the sums of all warps.
template <class Scalar, class Sum>
__global__ void __launch_bounds__(256) sum_channel(const Scalar* __restrict__ grad_output, long long batch,
                                                   int channels, long long plane, Split split,
                                                   Sum* __restrict__ partials) {
  constexpr int THREADS = 256;
  __shared__ Sum of_warp[THREADS / 32];
  const long long step_n = THREADS / plane, step_q = THREADS % plane;  // one step, so that the loop need not divide
  for (long long work = blockIdx.x; work < split.count * channels; work += gridDim.x) {
    const long long share = work / channels, channel = work % channels;
    const long long all = batch * plane, end = (share + 1) * split.length;
    const long long last = end < all ? end : all;
    long long r = share * split.length + threadIdx.x, n = r / plane, q = r % plane;
    Sum sum = 0;
    for (; r < last; r += THREADS) {
      sum += widen(grad_output[(n * channels + channel) * plane + q]);
      n += step_n;
      q += step_q;
      if (q >= plane) {
        q -= plane;
        ++n;
      }
    }
    sum = sum_of_lanes(sum);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      sum = sum_of_lanes(threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : Sum(0));
      if (threadIdx.x == 0) partials[share * channels + channel] = sum;
    }
    __syncthreads();  // of_warp is read before the next share overwrites it
  }
}

template <class Layer>
Split bias_split(const Layer& layer, const Sizes& sizes) {
  const long long positions = sizes.batch * sizes.out_d * sizes.out_h * sizes.out_w;
  return split_positions(positions, layer.out_channels, ceil_div(2048, layer.out_channels), 1024,
                         256 * TERMS_PER_SUM);
}

template <class Layer>
long long grad_bias_workspace(const Layer& layer, const Sizes& sizes) {
  return bias_split(layer, sizes).count * layer.out_channels * sizeof(typename Layer::accumulator);
}

// Does nothing if grad_bias is null.
template <class Layer>
cudaError_t grad_bias_into(const Layer& layer, const Sizes& sizes, const typename Layer::scalar* grad_output,
                           typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  if (!grad_bias) return cudaSuccess;
  const Split split = bias_split(layer, sizes);
  const long long plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  Sum* partials = static_cast<Sum*>(workspace);
  sum_channel<Scalar, Sum><<<grid_blocks(split.count * layer.out_channels), 256, 0, stream>>>(
      grad_output, sizes.batch, layer.out_channels, plane, split, partials);
  if (const cudaError_t error = cudaGetLastError()) return error;
  return add_partials<Scalar, Sum>(partials, layer.out_channels, split.count, grad_bias, stream);
}
