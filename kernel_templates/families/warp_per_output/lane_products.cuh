// The inner loop of warp_per_output in forward and grad_input, where a warp shares one sum.
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"
#include "contract/taps.cuh"

// The distances between the weights of a sum over (channel, tap), in elements. `members` channels of the result share
// each source value.
struct WeightPitch {
  long long channel, member;
  int members;
};

// sum[p * MEMBERS + m] += source(channel, what position p meets) * weight(channel, tap, member m), over this lane's
// part of the sum: every 32nd of the pairs (channel, tap), tap running fastest, because taps are neighbours in memory.
// A member that does not exist repeats the last one; its sum is not used.
template <int POSITIONS, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void add_products_of_lane(Sum (&sum)[POSITIONS * MEMBERS], const TapGrid& grid, int lane,
                                                     const Scalar* __restrict__ source, long long plane, int channels,
                                                     const Scalar* __restrict__ weight, WeightPitch pitch) {
  const int rows = grid.d.count * grid.h.count;
  const int taps = rows * grid.w.count;
  if (taps == 0) return;
  long long member[MEMBERS];
#pragma unroll
  for (int m = 0; m < MEMBERS; ++m) member[m] = (m < pitch.members ? m : pitch.members - 1) * pitch.member;
  int c = lane / taps;
  int t = lane % taps;
  const int c_step = 32 / taps;
  const int t_step = 32 % taps;
  while (c < channels) {
    const int row = rows == 1 ? 0 : t / grid.w.count;
    const int w = t - row * grid.w.count;
    const int d = grid.d.count == 1 ? 0 : row / grid.h.count;
    const int h = row - d * grid.h.count;
    const int at = grid.w.at + w * grid.w.at_step;
    const long long source_row = 1LL * (grid.d.at + d * grid.d.at_step) * grid.source_h + grid.h.at +
                                 h * grid.h.at_step;
    const Scalar* from = source + c * plane + source_row * grid.source_w + at;
    const int tap = ((grid.d.first + d * grid.d.step) * grid.kernel_h + grid.h.first + h * grid.h.step) *
                    grid.kernel_w + grid.w.first + w * grid.w.step;
    const Scalar* weights = weight + c * pitch.channel + tap;
    bool meets[POSITIONS];
    Sum value[POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      meets[p] = unsigned(at + p * grid.span) < unsigned(grid.source_w);
      value[p] = meets[p] ? Sum(widen(from[p * grid.span])) : Sum(0);
    }
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) {
      const Sum one = widen(weights[member[m]]);
#pragma unroll
      for (int p = 0; p < POSITIONS; ++p)
        if (meets[p]) sum[p * MEMBERS + m] += value[p] * one;  // not 0 * weight: NaN for an infinite weight
    }
    c += c_step;
    t += t_step;
    if (t >= taps) {
      t -= taps;
      ++c;
    }
  }
}
