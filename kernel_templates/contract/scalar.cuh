// Storage type <-> accumulator type. float16 and bfloat16 are stored in two bytes and summed in float.
#pragma once
#include <cuda_runtime.h>

__host__ __device__ __forceinline__ float widen(float v) { return v; }
__host__ __device__ __forceinline__ double widen(double v) { return v; }

// narrow<scalar>(accumulator): rounded to nearest even. scalar_half.cuh and scalar_bfloat16.cuh add their types.
template <class Scalar>
struct Narrow {
  template <class Accumulator>
  static __host__ __device__ __forceinline__ Scalar from(Accumulator v) {
    return static_cast<Scalar>(v);
  }
};

template <class Scalar, class Accumulator>
__host__ __device__ __forceinline__ Scalar narrow(Accumulator v) {
  return Narrow<Scalar>::from(v);
}
