// The inner loop of register_blocked: 4 neighbouring steps of a thread x the taps of a kernel row, from
// registers.
#pragma once
#include "hardware/const_loop.cuh"
#include "families/register_blocked/row.cuh"
#include "hardware/pack.cuh"

// Loads LENGTH (a multiple of 4) elements from shared memory, 16 bytes at a time.
template <int LENGTH, class Sum>
__device__ __forceinline__ void fma_load(Sum (&v)[LENGTH], const Sum* from) {
#pragma unroll
  for (int i = 0; i < LENGTH; i += 4) {
    const Pack<Sum, 4> four = *reinterpret_cast<const Pack<Sum, 4>*>(from + i);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[i + e] = four.value[e];
  }
}

// For each tap k of the row: body(Constant<k>, Constant<at>, window), where window[s][at + j * STEP] is what step j of
// strip s meets. source[s] is strip s in plane 0; planes are `plane` elements apart. A window that would take too many
// registers is loaded tap by tap.
template <class Row, int STRIPS, class Sum, int MOST = 20, class Body>
__device__ __forceinline__ void fma_taps(const Sum* const (&source)[STRIPS], int plane, const Body& body) {
  const_loop<0, Row::PLANES>([&](auto which) {
    constexpr int P = decltype(which)::value, LENGTH = Row::window(P);
    if constexpr (LENGTH <= MOST) {
      Sum v[STRIPS][LENGTH];
#pragma unroll
      for (int s = 0; s < STRIPS; ++s) fma_load(v[s], source[s] + P * plane);
      const_loop<0, Row::TAPS>([&](auto tap) {
        constexpr int K = decltype(tap)::value;
        if constexpr (Row::plane_of(K) == P) body(tap, Constant<Row::at(K)>{}, v);
      });
    } else {
      const_loop<0, Row::TAPS>([&](auto tap) {
        constexpr int K = decltype(tap)::value;
        if constexpr (Row::plane_of(K) == P) {
          constexpr int FROM = Row::at(K) / 4 * 4, OFF = Row::at(K) - FROM;
          constexpr int PART = ceil_div(OFF + 3 * Row::STEP + 1, 4) * 4;
          Sum v[STRIPS][PART];
#pragma unroll
          for (int s = 0; s < STRIPS; ++s) fma_load(v[s], source[s] + P * plane + FROM);
          body(tap, Constant<OFF>{}, v);
        }
      });
    }
  });
}
