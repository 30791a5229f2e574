// dim3 and the vector types (float4, int2, ...) with CUDA's sizes and alignments, and their make_ functions.
#pragma once
#pragma GCC system_header

#define CUDA_ON_CPU_VECTOR(Scalar, name)                            \
  struct name##1 {                                                  \
    Scalar x;                                                       \
  };                                                                \
  struct alignas(2 * sizeof(Scalar)) name##2 {                      \
    Scalar x, y;                                                    \
  };                                                                \
  struct name##3 {                                                  \
    Scalar x, y, z;                                                 \
  };                                                                \
  struct alignas(sizeof(Scalar) > 4 ? 16 : 4 * sizeof(Scalar)) name##4 { \
    Scalar x, y, z, w;                                              \
  };                                                                \
  constexpr name##1 make_##name##1(Scalar x) {                      \
    return {x};                                                     \
  }                                                                 \
  constexpr name##2 make_##name##2(Scalar x, Scalar y) {            \
    return {x, y};                                                  \
  }                                                                 \
  constexpr name##3 make_##name##3(Scalar x, Scalar y, Scalar z) {  \
    return {x, y, z};                                               \
  }                                                                 \
  constexpr name##4 make_##name##4(Scalar x, Scalar y, Scalar z, Scalar w) { \
    return {x, y, z, w};                                            \
  }

CUDA_ON_CPU_VECTOR(signed char, char)
CUDA_ON_CPU_VECTOR(unsigned char, uchar)
CUDA_ON_CPU_VECTOR(short, short)
CUDA_ON_CPU_VECTOR(unsigned short, ushort)
CUDA_ON_CPU_VECTOR(int, int)
CUDA_ON_CPU_VECTOR(unsigned int, uint)
CUDA_ON_CPU_VECTOR(long, long)
CUDA_ON_CPU_VECTOR(unsigned long, ulong)
CUDA_ON_CPU_VECTOR(long long, longlong)
CUDA_ON_CPU_VECTOR(unsigned long long, ulonglong)
CUDA_ON_CPU_VECTOR(float, float)
CUDA_ON_CPU_VECTOR(double, double)
#undef CUDA_ON_CPU_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
