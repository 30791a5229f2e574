// What a general variant of grad_weight needs around its kernel: the number of weights, the workspace for partial sums,
// and the launches that follow the kernel.
#pragma once
#include "contract/grad_bias.cuh"
#include "contract/partial_sums.cuh"
#include "contract/positions.cuh"

template <class Layer>
__host__ __device__ long long weight_count(const Layer& layer) {
  return 1LL * layer.in_channels * (layer.out_channels / layer.groups) * layer.kernel_d * layer.kernel_h *
         layer.kernel_w;
}

inline long long position_count(const Sizes& sizes) {
  return sizes.batch * sizes.in_d * sizes.in_h * sizes.in_w;
}

// Bytes for the partial sums of grad_weight. The partial sums of grad_bias use the same place afterwards.
template <class Layer>
long long partials_workspace(const Layer& layer, const Sizes& sizes, const Split& split) {
  const long long bytes = split.count * weight_count(layer) * sizeof(typename Layer::accumulator);
  const long long bias_bytes = grad_bias_workspace(layer, sizes);
  return bytes > bias_bytes ? bytes : bias_bytes;
}

// Call it right after the kernel's launch. The kernel has left [split.count][weights] partial sums in the workspace.
template <class Layer>
cudaError_t finish_grad_weight(const Layer& layer, const Sizes& sizes, const Split& split,
                               const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                               typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError()) return error;
  if (const cudaError_t error = add_partials(static_cast<const typename Layer::accumulator*>(workspace),
                                             weight_count(layer), split.count, grad_weight_out, stream))
    return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
