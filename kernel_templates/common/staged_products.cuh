// The inner loops of the variants that keep weights in shared memory.
#pragma once
#include "common/pack.cuh"
#include "common/scalar.cuh"
#include "common/taps.cuh"
#include "common/weight_stage.cuh"

// What a thread's positions meet: taps in three dimensions, those of d and h all inside the source (taps.cuh).
// Position p of the thread meets the source p * span further on in W than w says, inside or not.
struct Reach {
  Taps d, h, w;
  int span;
  int kernel_h, kernel_w;
  int source_h, source_w;
};

// sum[p][m] += source(channel, what position p meets) * weight(channel, tap, member m), over one chunk whose first
// tap is tap0. `source` points at the chunk's first channel; its channels lie `plane` elements apart.
// Channels are taken four at a time and taps inside: four loads in flight hide their latency, the arithmetic for a tap
// serves 4 * POSITIONS * MEMBERS products, and the rows that neighbouring taps share are still in L1.
template <int POSITIONS, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void add_products(Sum (&sum)[POSITIONS][MEMBERS], const Reach& reach,
                                             const Scalar* __restrict__ source, long long plane,
                                             const Pack<Sum, MEMBERS>* staged, Chunk chunk, int tap0) {
  constexpr int STEP = 4;
  for (int c = 0; c < chunk.channels; c += STEP, source += STEP * plane) {
    for (int d = 0; d < reach.d.count; ++d) {
      for (int h = 0; h < reach.h.count; ++h) {
        const long long row = 1LL * (reach.d.at + d * reach.d.at_step) * reach.source_h + reach.h.at +
                              h * reach.h.at_step;
        const int tap_row = ((reach.d.first + d * reach.d.step) * reach.kernel_h + reach.h.first + h * reach.h.step) *
                            reach.kernel_w - tap0;
        for (int w = 0; w < reach.w.count; ++w) {
          const int tap = tap_row + reach.w.first + w * reach.w.step;
          if (unsigned(tap) >= unsigned(chunk.taps)) continue;  // staged with another chunk
          const int at = reach.w.at + w * reach.w.at_step;
          const Scalar* from = source + row * reach.source_w + at;
          bool meets[POSITIONS];
          Sum value[POSITIONS][STEP];
#pragma unroll
          for (int p = 0; p < POSITIONS; ++p) {
            meets[p] = unsigned(at + p * reach.span) < unsigned(reach.source_w);
#pragma unroll
            for (int u = 0; u < STEP; ++u)
              value[p][u] = meets[p] && c + u < chunk.channels ? Sum(widen(from[u * plane + p * reach.span])) : Sum(0);
          }
#pragma unroll
          for (int u = 0; u < STEP; ++u) {
            if (c + u >= chunk.channels) break;
            const Pack<Sum, MEMBERS> weights = staged[(c + u) * chunk.taps + tap];
#pragma unroll
            for (int p = 0; p < POSITIONS; ++p) {
              if (!meets[p]) continue;  // rather than add 0 * weight, which is NaN for an infinite weight
#pragma unroll
              for (int m = 0; m < MEMBERS; ++m) sum[p][m] += value[p][u] * weights.value[m];
            }
          }
        }
      }
    }
  }
}
