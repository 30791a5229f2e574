// bfloat16: included only when a candidate's dtype asks for it, because cuda_bf16.h costs compile time.
#pragma once
#include <cuda_bf16.h>
#include "contract/scalar.cuh"

__host__ __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <>
struct Narrow<__nv_bfloat16> {
  static __host__ __device__ __forceinline__ __nv_bfloat16 from(float v) { return __float2bfloat16_rn(v); }
};
