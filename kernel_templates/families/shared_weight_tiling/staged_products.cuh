// How shared_weight_tiling stages weights: what fits at once, and the copy.
#pragma once

#include "hardware/pack.cuh"
#include "contract/problem.cuh"
#include "contract/scalar.cuh"
#include "contract/taps.cuh"

// A chunk: the channels x taps whose weights are in shared memory at one time.
struct Chunk {
  int channels, taps;
};

// The largest chunk of at most `capacity` packs: all taps of as many channels as fit, or some taps of one channel.
constexpr __host__ __device__ Chunk chunk_of(int capacity, int channels, int taps) {
  const int t = taps < capacity ? taps : capacity;
  const int c = capacity / t;
  return {c < channels ? c : channels, t};
}

// staged[channel * chunk.taps + tap].value[member] = weight[channel * channel_pitch + member * member_pitch + tap], in
// the accumulator's type; 0 for a member that does not exist. All threads of the block call it, between two barriers.
// Neighbouring threads read neighbouring taps, which are neighbours in memory.
template <int BLOCK, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void stage_weights(Pack<Sum, MEMBERS>* staged, const Scalar* __restrict__ weight,
                                              Chunk chunk, long long channel_pitch, int members,
                                              long long member_pitch) {
  for (int e = threadIdx.x; e < chunk.channels * chunk.taps * MEMBERS; e += BLOCK) {
    const int tap = e % chunk.taps;
    const int member = e / chunk.taps % MEMBERS;
    const int channel = e / chunk.taps / MEMBERS;
    staged[channel * chunk.taps + tap].value[member] =
        member < members ? Sum(widen(weight[channel * channel_pitch + member * member_pitch + tap])) : Sum(0);
  }
}

// The inner loop of forward and grad_input.

// sum[p][m] += source(channel, what position p meets) * weight(channel, tap, member m), over one chunk whose first tap
// is tap0. `source` points at the chunk's first channel; channels lie `plane` elements apart.
// Four channels are taken at a time, with taps inside: four loads at once hide their latency, the arithmetic for a tap
// serves 4 * POSITIONS * MEMBERS products, and the rows that neighbouring taps share are still in L1.
template <int POSITIONS, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void add_products(Sum (&sum)[POSITIONS][MEMBERS], const TapGrid& grid,
                                             const Scalar* __restrict__ source, long long plane,
                                             const Pack<Sum, MEMBERS>* staged, Chunk chunk, int tap0) {
  constexpr int STEP = 4;
  for (int c = 0; c < chunk.channels; c += STEP, source += STEP * plane) {
    for (int d = 0; d < grid.d.count; ++d) {
      for (int h = 0; h < grid.h.count; ++h) {
        const long long row = 1LL * (grid.d.at + d * grid.d.at_step) * grid.source_h + grid.h.at +
                              h * grid.h.at_step;
        const int tap_row = ((grid.d.first + d * grid.d.step) * grid.kernel_h + grid.h.first + h * grid.h.step) *
                            grid.kernel_w - tap0;
        for (int w = 0; w < grid.w.count; ++w) {
          const int tap = tap_row + grid.w.first + w * grid.w.step;
          if (unsigned(tap) >= unsigned(chunk.taps)) continue;  // staged with another chunk
          const int at = grid.w.at + w * grid.w.at_step;
          const Scalar* from = source + row * grid.source_w + at;
          bool meets[POSITIONS];
          Sum value[POSITIONS][STEP];
#pragma unroll
          for (int p = 0; p < POSITIONS; ++p) {
            meets[p] = unsigned(at + p * grid.span) < unsigned(grid.source_w);
#pragma unroll
            for (int u = 0; u < STEP; ++u)
              value[p][u] = meets[p] && c + u < chunk.channels ? Sum(widen(from[u * plane + p * grid.span])) : Sum(0);
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
