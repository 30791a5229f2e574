// N neighbouring values that are loaded together, 16 bytes at a time where N allows it.
#pragma once
#include <cuda_runtime.h>

constexpr __host__ __device__ int pack_alignment(int bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2;
}

template <class T, int N>
struct alignas(pack_alignment(int(sizeof(T)) * N)) Pack {
  T value[N];
};
