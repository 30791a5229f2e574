// The end of every kernel: add the bias, convert to the storage type, store.
#pragma once
#include "contract/scalar.cuh"

// bias is null where the direction or the layer has none.
template <class Scalar, class Sum>
__device__ __forceinline__ void store_with_bias(Scalar* result, Sum sum, const Scalar* bias, int channel) {
  *result = narrow<Scalar>(bias == nullptr ? sum : sum + Sum(widen(bias[channel])));
}

template <class Scalar, class Sum>
__device__ __forceinline__ void store(Scalar* result, Sum sum) {
  *result = narrow<Scalar>(sum);
}
