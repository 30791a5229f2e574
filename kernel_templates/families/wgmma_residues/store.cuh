// How wgmma_residues stores its sums. An image in shared memory holds 8 channels of all cells of a tile, in the order
// of the result. Each row of it is shifted so that its first whole sector (32 bytes, or a line of 128) is aligned. A
// row is then stored at once, 16 bytes a lane. Only the warps that hold these channels meet, one of each team.
#pragma once
#include "hardware/const_loop.cuh"
#include "families/wgmma_residues/plan.cuh"
#include "hardware/warps_meet.cuh"

// thread -> data: row lane / 4 of the image gets the sums as tensor cores leave them; teams take turns with its rows.
// `filled` is the place of the residues without taps in the lane's row. These keep their values from tile to tile.
template <class P>
__device__ __forceinline__ void residue_store(const ResidueArguments& a, const float (&sum)[P::CLASSES][P::CELLS / 2],
                                              float* image, int& filled, const float* bias, float* rows, int tile,
                                              int channels, int warp, int lane) {
  constexpr int S = P::S, T = P::TEAMS, LINES = ceil_div(P::SPAN * S, 128);
  const int place = tile * P::STEP * S - P::W::CUT, team = warp / 4;  // place: of the tile's first output, in its row
  const bool last = tile + 1 == a.tiles;
  const unsigned phase = unsigned(reinterpret_cast<size_t>(rows) / 4), plane = unsigned(a.out_plane);
  const auto meet = [&] { warps_meet<32 * T>(1 + warp % 4); };
  const_loop<0, 2>([&](auto which) {
    constexpr int HALF = decltype(which)::value;
    const int g = lane / 4, skipped = int((0u - (phase + unsigned(HALF * 8 + g) * plane + unsigned(place))) & (P::OWNED - 1u));
    const float added = P::HAS_BIAS ? bias[HALF * 8 + g] : 0.0f;
    meet();  // the previous rows are stored
    if constexpr (P::CLASSES < S) {
      const bool other = P::HAS_BIAS || skipped % S != filled;
      filled = skipped % S;
      if (__any_sync(~0u, other)) {
        for (int i = lane + 32 * team; i < P::IMAGE / 4; i += 32 * T) {
          const float v = P::HAS_BIAS ? bias[HALF * 8 + i / (P::PITCH / 4)] : 0.0f;
          reinterpret_cast<float4*>(image)[i] = make_float4(v, v, v, v);
        }
        meet();
      }
    }
    float* const to = image + g * P::PITCH + P::FRONT - skipped + (team * P::CELLS + lane % 4 * 2) * S;
    const_loop<0, P::CLASSES>([&](auto number) {
      constexpr int C = decltype(number)::value, R = P::residue_of(C);
#pragma unroll
      for (int i = 0; i < P::CELLS / 8; ++i) {
        to[i * 8 * S + R] = sum[C][i * 4 + HALF * 2] + added;
        to[i * 8 * S + S + R] = sum[C][i * 4 + HALF * 2 + 1] + added;
      }
    });
    meet();
#pragma unroll(LINES < 8 ? 8 / LINES : 1)
    for (int m = team; m < 8; m += T) {
      if (HALF * 8 + m >= channels) break;
      float* const row = rows + (HALF * 8 + m) * a.out_plane;
      const unsigned mine = phase + unsigned(HALF * 8 + m) * plane;
      const auto up = [&](int w) { return w + int((0u - (mine + unsigned(w))) & (P::OWNED - 1u)); };  // next sector
      const int begin = up(place), end = last ? a.out_w : up(place + P::STEP * S);
      const float* const from = image + m * P::PITCH + P::FRONT - begin;  // from[w] is stored at row[w]
      const int whole = tile == 0 ? up(0) : begin, whole_end = end - int((mine + unsigned(end)) & (P::OWNED - 1u));
#pragma unroll
      for (int i = 0; i < LINES; ++i) {
        const int w = whole + 128 * i + 4 * lane;
        if (w < whole_end) __stcs(reinterpret_cast<float4*>(row + w), *reinterpret_cast<const float4*>(from + w));
      }
      // The ends of a row, whose sectors belong to other rows too.
      if (tile == 0 && lane < min(whole, end)) row[lane] = from[lane];
      if (last && max(whole, whole_end) + lane < end) row[max(whole, whole_end) + lane] = from[max(whole, whole_end) + lane];
    }
  });
}
