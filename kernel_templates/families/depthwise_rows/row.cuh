// A thread's window of one source row: from memory into registers, 16 bytes at a time where rows allow it.
#pragma once
#include "contract/scalar.cuh"
#include "families/depthwise_rows/axis.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/pack.cuh"

// x[e] = element start + e of a row of `length` at `row`; 0 outside it. V divides start and length.
template <class Window, int V, int N, class Sum, class Scalar>
__device__ __forceinline__ void load_run(Sum (&x)[N], const Scalar* __restrict__ row, int start, int length) {
  static_assert(N == Window::LENGTH, "the registers hold the window");
  Pack<Scalar, V> part[Window::VECTORS];
#pragma unroll
  for (int v = 0; v < Window::VECTORS; ++v) {
#pragma unroll
    for (int e = 0; e < V; ++e) part[v].value[e] = narrow<Scalar>(Sum(0));
    if (Window::read(v) && unsigned(start + v * V) < unsigned(length))
      part[v] = *reinterpret_cast<const Pack<Scalar, V>*>(row + (start + v * V));
  }
#pragma unroll
  for (int v = 0; v < Window::VECTORS; ++v)
#pragma unroll
    for (int e = 0; e < V; ++e) x[v * V + e] = Sum(widen(part[v].value[e]));
}

// body(Constant<tap>, Constant<end>) for groups of at most RUN_TAPS taps of a row.
template <int TAPS, class Body>
__device__ __forceinline__ void tap_groups(const Body& body) {
  const_loop<0, ceil_div(TAPS, RUN_TAPS)>([&](auto which) {
    constexpr int TAP = decltype(which)::value * RUN_TAPS, END = TAP + RUN_TAPS < TAPS ? TAP + RUN_TAPS : TAPS;
    body(Constant<TAP>{}, Constant<END>{});
  });
}
