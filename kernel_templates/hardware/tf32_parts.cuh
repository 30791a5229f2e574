// A float as the sum of two that a tensor core takes (TF32).
#pragma once
#include <cuda_runtime.h>

// Nearest TF32, ties away. The tensor core drops the low 13 bits itself. Written as an addition of a chosen constant:
// the compiler then keeps fragment pairs in neighbouring registers; a predicated addition costs two moves a product.
__device__ __forceinline__ float nearest_tf32(float v) {
  return __uint_as_float(__float_as_uint(v) + (fabsf(v) < __uint_as_float(0x7F800000u) ? 0x1000u : 0u));
}
__device__ __forceinline__ float high_tf32(float v) {
  return __uint_as_float(__float_as_uint(nearest_tf32(v)) & 0xFFFFE000u);
}
// What that leaves over, exact in float; the tensor core drops all below 2^-21 of v.
__device__ __forceinline__ float low_tf32(float v, float high) {
  return fabsf(v) < __uint_as_float(0x7F800000u) ? v - high : 0.0f;
}
