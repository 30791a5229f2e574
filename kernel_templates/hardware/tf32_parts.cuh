// A float as the sum of two TF32 values, which tensor cores can multiply.
#pragma once
#include <cuda_runtime.h>

// The nearest TF32 value, ties away from zero. The tensor core itself drops the low 13 bits. It is an addition of a
// selected constant, because the compiler then keeps fragment pairs in neighbouring registers; a predicated addition
// costs two moves for each product.
__device__ __forceinline__ float nearest_tf32(float v) {
  return __uint_as_float(__float_as_uint(v) + (fabsf(v) < __uint_as_float(0x7F800000u) ? 0x1000u : 0u));
}
__device__ __forceinline__ float high_tf32(float v) {
  return __uint_as_float(__float_as_uint(nearest_tf32(v)) & 0xFFFFE000u);
}
// The remainder, exact in float. The tensor core drops all of it below 2^-21 of v.
__device__ __forceinline__ float low_tf32(float v, float high) {
  return fabsf(v) < __uint_as_float(0x7F800000u) ? v - high : 0.0f;
}
