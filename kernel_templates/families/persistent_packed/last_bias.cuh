// grad_bias of a channels_last grad_output: the sums of the columns of a matrix [positions][channels].
#pragma once
#include "contract/partial_sums.cuh"

constexpr int LAST_BIAS_ROWS = 8;  // positions that a block reads at once

template <class Layer>
Split last_bias_split(const Layer& layer, const Sizes& sizes) {
  const long long positions = sizes.batch * sizes.out_d * sizes.out_h * sizes.out_w;
  return split_positions(positions, layer.out_channels, ceil_div(2048, ceil_div(layer.out_channels, 32)), 64,
                         LAST_BIAS_ROWS * TERMS_PER_SUM);
}

template <class Layer>
long long last_bias_workspace(const Layer& layer, const Sizes& sizes) {
  return last_bias_split(layer, sizes).count * layer.out_channels * sizeof(typename Layer::accumulator);
}

// thread -> data: lanes have neighbouring channels, warps positions in turn.
// The barriers: row 0 adds up what the other rows left, before they overwrite it for the next share.
template <class Scalar, class Sum>
__global__ void __launch_bounds__(32 * LAST_BIAS_ROWS)
    sum_last_channels(const Scalar* __restrict__ grad_output, long long positions, int channels, Split split, Sum* __restrict__ partials) {
  __shared__ Sum left[LAST_BIAS_ROWS][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32, tiles = ceil_div(channels, 32);
  for (long long work = blockIdx.x; work < split.count * tiles; work += gridDim.x) {
    const long long share = work / tiles, end = (share + 1) * split.length, last = end < positions ? end : positions;
    const int channel = int(work % tiles) * 32 + lane;
    Sum sum = 0;
    if (channel < channels)
#pragma unroll 4
      for (long long at = share * split.length + row; at < last; at += LAST_BIAS_ROWS) sum += widen(grad_output[at * channels + channel]);
    left[row][lane] = sum;
    __syncthreads();
    if (row == 0 && channel < channels) {
      for (int other = 1; other < LAST_BIAS_ROWS; ++other) sum += left[other][lane];
      partials[share * channels + channel] = sum;
    }
    __syncthreads();
  }
}

// Does nothing if grad_bias is null.
template <class Layer>
cudaError_t last_bias_into(const Layer& layer, const Sizes& sizes, const typename Layer::scalar* grad_output,
                           typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  if (!grad_bias) return cudaSuccess;
  const Split split = last_bias_split(layer, sizes);
  const long long positions = sizes.batch * sizes.out_d * sizes.out_h * sizes.out_w;
  Sum* const partials = static_cast<Sum*>(workspace);
  sum_last_channels<Scalar, Sum><<<grid_blocks(split.count * ceil_div(layer.out_channels, 32)), 32 * LAST_BIAS_ROWS, 0, stream>>>(
      grad_output, positions, layer.out_channels, split, partials);
  if (const cudaError_t error = cudaGetLastError()) return error;
  return add_partials<Scalar, Sum>(partials, layer.out_channels, split.count, grad_bias, stream);
}
