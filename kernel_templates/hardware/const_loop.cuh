// A loop whose counter is a constant in every turn: body(Constant<i>{}) for first <= i < end. Arrays indexed with the
// counter stay in registers, and `if constexpr` may test it.
#pragma once
#include <cuda_runtime.h>

template <int VALUE>
struct Constant {
  static constexpr int value = VALUE;
};

template <int FIRST, int END, class Body>
__device__ __forceinline__ void const_loop(const Body& body) {
  if constexpr (FIRST < END) {
    body(Constant<FIRST>{});
    const_loop<FIRST + 1, END>(body);
  }
}
