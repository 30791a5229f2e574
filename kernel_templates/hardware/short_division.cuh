// Division of 64-bit numbers that are usually small: 32-bit division is several times as fast.
#pragma once
#include <cuda_runtime.h>

// value / divisor, in 32 bits where both fit. `value` is not negative, `divisor` is positive.
__device__ __forceinline__ long long short_quotient(long long value, int divisor) {
  return value >> 31 == 0 ? int(unsigned(value) / unsigned(divisor)) : value / divisor;
}

// value becomes value / divisor; the remainder is returned.
__device__ __forceinline__ int take_remainder(long long& value, int divisor) {
  const long long quotient = short_quotient(value, divisor);
  const int remainder = int(value - quotient * divisor);
  value = quotient;
  return remainder;
}
