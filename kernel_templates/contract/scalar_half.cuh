// float16: included only when a candidate's dtype asks for it, because cuda_fp16.h costs compile time.
#pragma once
#include <cuda_fp16.h>
#include "contract/scalar.cuh"

__host__ __device__ __forceinline__ float widen(__half v) { return __half2float(v); }

template <>
struct Narrow<__half> {
  static __host__ __device__ __forceinline__ __half from(float v) { return __float2half_rn(v); }
};
