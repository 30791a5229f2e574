/* variant
name      = "builds_for_minutes"
computes  = ["forward"]
idea      = "Right, but the compiler computes for minutes."
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = 128}
*/
#include "common/gather.cuh"

template <int N>
constexpr int slowly() {
  int sum = N;
  for (int i = 0; i < 1000; ++i)
    for (int k = 0; k < 1000; ++k) sum = (sum + i * k) % 8191;
  return sum;
}

template <int N>
constexpr bool for_minutes() {
  static_assert(slowly<N>() >= 0, "computed by the compiler");
  if constexpr (N > 0) return for_minutes<N - 1>();
  return true;
}

template <class Layer, class Tune>
__global__ void builds_for_minutes(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  static_assert(for_minutes<200>(), "it is right");
  using Scalar = typename Layer::scalar;
  const Place p = my_place(layer, sizes);
  if (p.item >= outputs(layer, sizes)) return;
  output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
}

KW_LAUNCH_FORWARD(builds_for_minutes)
