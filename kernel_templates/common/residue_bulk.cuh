// How wgmma_residues stores its sums: 8 channels of all cells of a tile lie in an image in shared memory as they will in
// the result, each row shifted so that its first whole sector of 32 bytes is aligned. A row then leaves at once, in
// whole sectors. Only the warps that hold these channels meet, one of each team.
#pragma once
#include "common/bulk_store.cuh"
#include "common/const_loop.cuh"
#include "common/residue_plan.cuh"
#include "common/warps_meet.cuh"

// What a warp remembers of its images: where residues without taps lie in them, by lane / 4. They keep what they hold.
template <class P>
struct ResidueImages {
  float* first;
  int filled[P::IMAGES];

  __device__ __forceinline__ explicit ResidueImages(float* memory) : first(memory) {
#pragma unroll
    for (int i = 0; i < P::IMAGES; ++i) filled[i] = -1;
  }
};

// thread -> data: row lane / 4 of the image gets the sums as tensor cores leave them. Teams take turns with its rows.
template <class P, bool ENGINE>
__device__ __forceinline__ void residue_store(const ResidueArguments& a, const float (&sum)[P::CLASSES][P::CELLS / 2],
                                              ResidueImages<P>& images, const float* bias, float* rows, int tile,
                                              int channels, int warp, int lane) {
  constexpr int S = P::S, T = P::TEAMS;
  const int place = tile * P::STEP * S - P::W::CUT, team = warp / 4;  // of the tile's first output, in its row
  const bool last = tile + 1 == a.tiles;
  const unsigned phase = unsigned(reinterpret_cast<size_t>(rows) / 4), plane = unsigned(a.out_plane);
  const auto meet = [&] { warps_meet<32 * T>(1 + warp % 4); };
  const_loop<0, 2>([&](auto which) {
    constexpr int HALF = decltype(which)::value, TURN = HALF % P::IMAGES;
    float* const image = images.first + TURN * P::IMAGE;
    const int g = lane / 4, skipped = int(0u - (phase + unsigned(HALF * 8 + g) * plane + unsigned(place)) & 7u);
    const float added = P::HAS_BIAS ? bias[HALF * 8 + g] : 0.0f;
    if constexpr (ENGINE) bulk_store_wait_read<P::IMAGES - 1>();
    meet();
    if constexpr (P::CLASSES < S) {
      const bool other = skipped % S != images.filled[TURN] || (P::HAS_BIAS && P::IMAGES == 1);
      images.filled[TURN] = skipped % S;
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
    if constexpr (ENGINE) copy_engine_sees_stores();
    meet();
    const auto leave = [&](int m, int first, int step) {
      if (HALF * 8 + m >= channels) return;
      float* const row = rows + (HALF * 8 + m) * a.out_plane;
      const unsigned mine = phase + unsigned(HALF * 8 + m) * plane;  // alignment of the row
      const auto up = [&](int w) { return w + int(0u - (mine + unsigned(w)) & 7u); };
      const int begin = up(place), end = last ? a.out_w : up(place + P::STEP * S);
      const float* const from = image + m * P::PITCH + P::FRONT - begin;  // from[w] leaves to row[w]
      const int whole = tile == 0 ? up(0) : begin, whole_end = end - int(mine + unsigned(end) & 7u);
      if constexpr (ENGINE) {
        if (whole_end > whole) bulk_store(row + whole, from + whole, (whole_end - whole) * 4);
      } else {
#pragma unroll
        for (int i = 0; i < P::SPAN * S; i += 128) {
          const int w = whole + i + 4 * first;
          if (w < whole_end) __stcs(reinterpret_cast<float4*>(row + w), *reinterpret_cast<const float4*>(from + w));
        }
      }
      if (tile == 0)
        for (int w = first; w < min(whole, end); w += step) row[w] = from[w];
      if (last)
        for (int w = max(whole, whole_end) + first; w < end; w += step) row[w] = from[w];
    };
    if constexpr (ENGINE) {
      if (lane < 8 / T) leave(lane * T + team, 0, 1);
      bulk_store_commit();
    } else {
#pragma unroll 2
      for (int m = 0; m < 8; m += T) leave(m + team, lane, 32);
    }
  });
}
