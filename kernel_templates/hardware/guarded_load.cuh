// A read-only load that stays behind the test that guards it.
#pragma once

// CUDA's __ldg of a 16-bit float is inline assembly without side effects, so nvcc may move it ahead of the test.
template <class T>
__device__ __forceinline__ T guarded_load(const T* at) {
  if constexpr (sizeof(T) == 2) return *at;
  else return __ldg(at);
}
