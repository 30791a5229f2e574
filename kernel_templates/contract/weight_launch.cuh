// What the fast variants of grad_weight need around their kernels: the number of tiles, how many blocks share them, the
// workspace, and one launch for each group of taps.
#pragma once
#include "contract/grad_bias.cuh"

// A tile is `length` neighbouring positions of a row.
inline long long input_tiles(const Sizes& sizes, int length) {
  return sizes.batch * sizes.in_d * sizes.in_h * ceil_div(sizes.in_w, length);
}

// Returns `wanted` shares, at least one, and at most one for each tile.
inline int share_count(long long wanted, long long tiles) {
  return int(wanted < 1 || tiles < 1 ? 1 : wanted < tiles ? wanted : tiles);
}

// The workspace: `bytes` for grad_weight. The partial sums of grad_bias use the same place afterwards.
template <class Layer>
long long or_grad_bias(long long bytes, const Layer& layer, const Sizes& sizes) {
  const long long bias = grad_bias_workspace(layer, sizes);
  return bytes > bias ? bytes : bias;
}

// Launch<Layer, Tune, FIRST> has `workspace` and `run` for the group of taps that begins with tap FIRST of a row
// (Plan::Group). The groups run one after the other and share one workspace.
template <template <class, class, int> class Launch, class Layer, class Tune, int FIRST = 0>
struct TapGroupsInTurn {
  using Own = Launch<Layer, Tune, FIRST>;
  using Scalar = typename Layer::scalar;
  static constexpr int NEXT = Own::Plan::Group::END;

  static long long workspace(const Sizes& sizes) {
    const long long own = Own::workspace(sizes);
    if constexpr (NEXT < Layer::kernel_w) {
      const long long others = TapGroupsInTurn<Launch, Layer, Tune, NEXT>::workspace(sizes);
      return own > others ? own : others;
    }
    return own;
  }
  static cudaError_t run(const Sizes& sizes, const Scalar* input, const Scalar* grad_output, Scalar* grad_weight,
                         void* workspace, cudaStream_t stream) {
    if (const cudaError_t error = Own::run(sizes, input, grad_output, grad_weight, workspace, stream)) return error;
    if constexpr (NEXT < Layer::kernel_w)
      return TapGroupsInTurn<Launch, Layer, Tune, NEXT>::run(sizes, input, grad_output, grad_weight, workspace, stream);
    return cudaSuccess;
  }
};

template <template <class, class, int> class Launch, class Layer, class Tune>
cudaError_t launch_tap_groups(const Layer& layer, const Sizes& sizes, const typename Layer::scalar* input,
                              const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight,
                              typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  if (sizes.in_w > 1 << 29 || sizes.out_w > 1 << 29) return cudaErrorInvalidValue;  // columns are counted in int
  if (const cudaError_t error = TapGroupsInTurn<Launch, Layer, Tune>::run(sizes, input, grad_output, grad_weight,
                                                                          workspace, stream))
    return error;
  return grad_bias_into(layer, sizes, grad_output, grad_bias, workspace, stream);
}
