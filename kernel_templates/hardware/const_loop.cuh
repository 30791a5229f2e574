// A loop whose counter is a constant in every turn: body(Constant<i>{}) for first <= i < end. Registers indexed with it
// stay registers, and `if constexpr` may ask about it.
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
