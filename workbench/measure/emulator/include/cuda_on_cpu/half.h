// __half and __nv_bfloat16: 16 bits, conversions rounded to nearest even, arithmetic through float.
#pragma once
#pragma GCC system_header

#include <stdint.h>
#include <string.h>
#include <type_traits>

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

inline uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Drops the lower `count` bits (1 to 31) of a magnitude, rounded to nearest even; a carry moves into the exponent.
inline uint32_t drop_bits(uint32_t magnitude, int count) {
  const uint32_t half = 1u << (count - 1);
  const uint32_t odd = magnitude >> count & 1;
  return (magnitude + half - 1 + odd) >> count;
}

inline uint16_t float_to_half_bits(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const int exponent = static_cast<int>(magnitude >> 23);
  uint32_t result;
  if (magnitude > 0x7F800000) {
    return 0x7FFF;  // the NaN that a GPU gives
  } else if (exponent >= 127 + 16) {
    result = 0x7C00;
  } else if (exponent >= 127 - 14) {
    // 65520 and more carry into the exponent and become infinity.
    result = drop_bits(magnitude - ((127 - 15) << 23), 13);
  } else if (exponent >= 127 - 25) {
    // A subnormal result counts units of 2^-24.
    result = drop_bits((magnitude & 0x7FFFFF) | 0x800000, 127 - 1 - exponent);
  } else {
    result = 0;
  }
  return static_cast<uint16_t>(sign | result);
}

inline float half_bits_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F;
  const uint32_t mantissa = half & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bits_to_float(sign | float_bits(magnitude));
  }
  const uint32_t wide_exponent = exponent == 0x1F ? 0xFF : exponent + 127 - 15;
  return bits_to_float(sign | wide_exponent << 23 | mantissa << 13);
}

inline uint16_t float_to_bfloat16_bits(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) {
    return 0x7FFF;
  }
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | drop_bits(magnitude, 16));
}

inline float bfloat16_bits_to_float(uint16_t bits) {
  return bits_to_float(static_cast<uint32_t>(bits) << 16);
}

// Rounded to odd: what is then rounded to a shorter type is as if rounded once.
inline float double_to_float_odd(double x) {
  const float nearest = static_cast<float>(x);
  const uint32_t bits = float_bits(nearest);
  if (x != x || static_cast<double>(nearest) == x || (bits & 1) != 0) {
    return nearest;
  }
  const bool too_large = __builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(x);
  return bits_to_float(too_large ? bits - 1 : bits + 1);
}

}  // namespace cuda_on_cpu

// Name: the type; from_float, to_float: its conversions; word: how CUDA's function names call it.
#define CUDA_ON_CPU_SHORT_FLOAT(Name, from_float, to_float)                                                         \
  struct Name {                                                                                                     \
    unsigned short __x;                                                                                             \
    Name() = default;                                                                                               \
    Name(float x) : __x(cuda_on_cpu::from_float(x)) {}                                                              \
    Name(double x) : Name(cuda_on_cpu::double_to_float_odd(x)) {}                                                   \
    template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer>>>                                 \
    Name(Integer x) : Name(static_cast<double>(x)) {}                                                               \
    operator float() const { return cuda_on_cpu::to_float(__x); }                                                   \
  };                                                                                                                \
  struct alignas(4) Name##2 {                                                                                       \
    Name x, y;                                                                                                      \
  };                                                                                                                \
  inline Name operator+(Name a, Name b) { return static_cast<float>(a) + static_cast<float>(b); }                   \
  inline Name operator-(Name a, Name b) { return static_cast<float>(a) - static_cast<float>(b); }                   \
  inline Name operator*(Name a, Name b) { return static_cast<float>(a) * static_cast<float>(b); }                   \
  inline Name operator/(Name a, Name b) { return static_cast<float>(a) / static_cast<float>(b); }                   \
  inline Name operator-(Name a) { return -static_cast<float>(a); }                                                  \
  inline Name& operator+=(Name& a, Name b) { return a = a + b; }                                                    \
  inline Name& operator-=(Name& a, Name b) { return a = a - b; }                                                    \
  inline Name& operator*=(Name& a, Name b) { return a = a * b; }                                                    \
  inline Name& operator/=(Name& a, Name b) { return a = a / b; }                                                    \
  inline bool operator==(Name a, Name b) { return static_cast<float>(a) == static_cast<float>(b); }                 \
  inline bool operator!=(Name a, Name b) { return static_cast<float>(a) != static_cast<float>(b); }                 \
  inline bool operator<(Name a, Name b) { return static_cast<float>(a) < static_cast<float>(b); }                   \
  inline bool operator<=(Name a, Name b) { return static_cast<float>(a) <= static_cast<float>(b); }                 \
  inline bool operator>(Name a, Name b) { return static_cast<float>(a) > static_cast<float>(b); }                   \
  inline bool operator>=(Name a, Name b) { return static_cast<float>(a) >= static_cast<float>(b); }                 \
  inline Name __hadd(Name a, Name b) { return a + b; }                                                              \
  inline Name __hsub(Name a, Name b) { return a - b; }                                                              \
  inline Name __hmul(Name a, Name b) { return a * b; }

CUDA_ON_CPU_SHORT_FLOAT(__half, float_to_half_bits, half_bits_to_float)
CUDA_ON_CPU_SHORT_FLOAT(__nv_bfloat16, float_to_bfloat16_bits, bfloat16_bits_to_float)
#undef CUDA_ON_CPU_SHORT_FLOAT

typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline float __half2float(__half x) {
  return x;
}
inline __half __float2half(float x) {
  return x;
}
inline __half __float2half_rn(float x) {
  return x;
}
inline __half __double2half(double x) {
  return x;
}
inline unsigned short __half_as_ushort(__half x) {
  return x.__x;
}
inline __half __ushort_as_half(unsigned short bits) {
  __half x;
  x.__x = bits;
  return x;
}

inline float __bfloat162float(__nv_bfloat16 x) {
  return x;
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return x;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return x;
}
inline __nv_bfloat16 __double2bfloat16(double x) {
  return x;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.__x;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 x;
  x.__x = bits;
  return x;
}

// ---- pairs --------------------------------------------------------------------------------------------------------

inline float2 __half22float2(__half2 pair) {
  return {pair.x, pair.y};
}
inline __half2 __floats2half2_rn(float low, float high) {
  return {low, high};
}
inline __half2 __float22half2_rn(float2 pair) {
  return {pair.x, pair.y};
}
inline __half2 __halves2half2(__half low, __half high) {
  return {low, high};
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {pair.x, pair.y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {low, high};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) {
  return {pair.x, pair.y};
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
  return {low, high};
}
