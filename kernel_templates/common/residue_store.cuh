// How a warp of wgmma_residues stores its sums: 8 channels of some cells at a time through its own image in shared
// memory, out of which rows leave as long runs. Only lanes of one warp meet.
#pragma once
#include "common/const_loop.cuh"
#include "common/residue_plan.cuh"

// The sums of 8 channels (half 0 or 1 of the warp's 16) of the cells of one piece and of the 8 cells behind.
template <class P, int HALF, int PIECE>
__device__ __forceinline__ void residue_image(const float (&sum)[P::CLASSES][P::CELLS / 2], float* image, int lane) {
  constexpr int FIRST = PIECE * (P::PIECE / 8), LAST = FIRST + P::PIECE / 8 + 1 < P::CELLS / 8 ? FIRST + P::PIECE / 8 + 1 : P::CELLS / 8;
  float* const to = image + lane / 4 * P::PITCH + lane % 4 * 2 * P::PER_CELL;
  const_loop<0, P::CLASSES>([&](auto which) {
    constexpr int C = decltype(which)::value;
#pragma unroll
    for (int i = FIRST; i < LAST; ++i) {
      const float first = sum[C][i * 4 + HALF * 2], second = sum[C][i * 4 + HALF * 2 + 1];
      float* const at = to + (i - FIRST) * 8 * P::PER_CELL;
      if constexpr (P::PER_CELL == 1) {
        *reinterpret_cast<float2*>(at) = make_float2(first, second);
      } else {
        at[P::residue_of(C)] = first, at[P::residue_of(C) + P::PER_CELL] = second;
      }
    }
  });
}

// Rows out of the image: of each channel the sectors of 32 bytes that begin in the piece. `place` is where the piece's
// first output lies in its row, `end` where the strip ends; `bias` belongs to the first channel.
template <class P, bool FIRST>
__device__ __forceinline__ void residue_rows(const float* image, float* row, long long plane, int channels, int place,
                                             int end, bool head, bool last, const float* bias, int lane) {
  constexpr int S = P::S, LENGTH = P::PIECE * S;
#pragma unroll 4
  for (int m = 0; m < 8; ++m, row += plane) {
    if (m >= channels) break;
    const int phase = int(reinterpret_cast<size_t>(row) / 4);
    const int skipped = -(phase + place) & 7, from = place + skipped;
    const int stop = min(last ? end : end + (-(phase + end) & 7), from + LENGTH);
    const float added = P::HAS_BIAS ? bias[m] : 0.0f;
    const auto value = [&](unsigned at) {  // the piece's output number `at`
      if constexpr (P::PER_CELL == S) {
        const bool met = P::CLASSES == S || (P::MET >> at % S & 1u) != 0;
        return (met ? image[m * P::PITCH + at] : 0.0f) + added;
      } else {
        return (at % S == unsigned(P::residue_of(0)) ? image[m * P::PITCH + at / S] : 0.0f) + added;
      }
    };
    float* const out = row + from + lane;
#pragma unroll
    for (int i = 0; i < LENGTH; i += 32)
      if (from + i + lane < stop && (!FIRST || i > 0 || from + lane >= 0)) __stcs(out + i, value(skipped + lane + i));
    // What lies before the row's first whole sector.
    if (FIRST && head && lane < skipped && place + lane >= 0 && place + lane < stop) __stcs(row + place + lane, value(lane));
  }
}

template <class P>
__device__ __forceinline__ void residue_store(const ResidueArguments& a, const float (&sum)[P::CLASSES][P::CELLS / 2],
                                              float* image, const float* bias, float* row, int strip, int channels, int lane) {
  const int first = strip * P::STEP * P::S - P::W::CUT;  // output of the strip's first residue
  const bool last = strip + 1 == a.strips;
  const int end = last ? a.out_w : first + P::STEP * P::S;
  const_loop<0, 2>([&](auto half) {
    constexpr int HALF = decltype(half)::value;
    const_loop<0, P::PIECES>([&](auto piece) {
      constexpr int PIECE = decltype(piece)::value;
      __syncwarp();
      residue_image<P, HALF, PIECE>(sum, image, lane);
      __syncwarp();
      residue_rows<P, PIECE == 0>(image, row + HALF * 8 * a.out_plane, a.out_plane, channels - HALF * 8, first + PIECE * P::PIECE * P::S,
                      end, strip == 0, last, bias + HALF * 8, lane);
    });
  });
}
