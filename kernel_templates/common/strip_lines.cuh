// The end of a strip GEMM for rows whose alignment changes from channel to channel, so that stores take one value a lane
// (LINES): where a warp's run lies in one row of the result, 32 lanes store 32 neighbours, all places of a row are a
// constant away from one pointer, and only the ends of the run are asked about. strip_store.cuh does the other runs.
//   LINES = 1: the first store of a row begins where the run begins.
//   LINES = 2: every store but a row's first and last is a whole line of 128 bytes; a row takes one store more.
#pragma once
#include "common/computed_anew.cuh"
#include "common/strip_store.cuh"

// A warp's run in its row of the result: elements begin to end of IMAGE_WIDTH are there. Element 0 is column w0.
struct StripRun {
  int h, w0, begin, end;
};

// One row, and all of the run but what padding crops at its begin and less than a line at its end.
template <class C>
__device__ __forceinline__ bool run_of_one_row(const StripArgumentsOf<C>& a, const StripTile<C>& tile, int warp_n,
                                               StripRun& run) {
  const int along = tile.column + warp_n * C::WARP_COLUMNS, rows_on = divided(along, a.by_pitch);
  const int column = along - rows_on * a.pitch;
  run.w0 = (tile.block * a.columns + column) * C::W::OUT_STEP - C::W::CUT;
  run.h = (tile.row + rows_on) * C::H::OUT_STEP + tile.residue_h() - C::H::CUT;
  run.begin = max(-run.w0, 0);
  run.end = min(min((a.columns - column) * C::W::OUT_STEP, a.out_w - run.w0), C::IMAGE_WIDTH);
  return column + C::WARP_COLUMNS <= a.pitch && run.begin <= C::W::CUT && run.end > C::IMAGE_WIDTH - 32;
}

// FILLED: some tap meets this tile; else its results are zero or bias alone.
template <class C, bool FILLED>
__device__ __forceinline__ void store_lines(const StripArgumentsOf<C>& a, const StripTile<C>& tile,
                                            const StripSums<C>& sum, int cell, int warp_m, int lane, float* image,
                                            const StripRun& run) {
  constexpr bool WHOLE_LINES = C::LINES == 2;
  constexpr int FULL = C::IMAGE_WIDTH / 32, ROUNDS = FULL + WHOLE_LINES, BATCH = ROUNDS <= 6 ? 4 : 2;
  constexpr int PAD = C::IMAGE_PAD, UNROLLED = C::ROLL || C::OLD ? 1 : 8 / BATCH;
  static_assert(C::IMAGE_WIDTH % 32 == 0, "a run is whole lines");
  if (unsigned(run.h) >= unsigned(a.out_h)) return;
  const long long plane = 1LL * a.out_h * a.out_w, volume = plane * a.out_d;
  const int channel0 = cell % C::M_TILES * C::TILE_M + warp_m * C::MA * 16;
  const int first = cell / C::M_TILES * C::M;  // of the group
  const int last = run.end - 32 * (FULL - 1);
  // The lane's place in the next row to store: element `lane` of the run.
  float* out = a.out + (tile.n * (C::GROUPS * C::M) + first + channel0) * volume + tile.out_d() * plane +
               1LL * run.h * a.out_w + run.w0 + (WHOLE_LINES ? 0 : lane);
#pragma unroll
  for (int m = 0; m < C::MA; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (FILLED) {
        __syncwarp();
        fill_image<C>(image, sum, m, half, lane);
        __syncwarp();
      }
#pragma unroll UNROLLED
      for (int row0 = 0; row0 < 8; row0 += BATCH) {
        const int channel = channel0 + m * 16 + half * 8 + row0;
        float v[BATCH][ROUNDS];
        float* to[BATCH];
        int at[BATCH];  // the lane's first element; before 0 where a line begins before the run
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
          const unsigned long long address = reinterpret_cast<unsigned long long>(out);
          at[r] = WHOLE_LINES ? lane - int(unsigned(address) / 4 % 32) : lane;
          to[r] = WHOLE_LINES ? reinterpret_cast<float*>((address & ~127ULL) | unsigned(lane * 4)) : out;
          out = computed_anew(out + volume);
          // At most a line before and behind the image are read in vain; there is room for that (IMAGE_MARGIN).
          const float* from = image + (row0 + r) * C::IMAGE_PITCH + at[r] + (WHOLE_LINES ? PAD * (at[r] >> 31) : 0);
          float bias = 0.0f;
          if constexpr (C::HAS_BIAS)
            if (channel + r < C::M) bias = widen(__ldg(a.bias + first + channel + r));
#pragma unroll
          for (int i = 0; i < ROUNDS; ++i) v[r][i] = FILLED ? (C::HAS_BIAS ? from[(32 + PAD) * i] + bias : from[(32 + PAD) * i]) : bias;
        }
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
          if (C::M % C::TILE_M != 0 && channel + r >= C::M) break;
#pragma unroll
          for (int i = 0; i < ROUNDS; ++i) {
            bool inside = true;  // what is always so needs no instruction
            if (i == 0 || C::W::CUT > 32 * i - 31) inside = at[r] + 32 * i >= run.begin;
            if (i >= FULL - 1) inside = inside && at[r] < last - 32 * (i - FULL + 1);
            if (inside) __stcs(to[r] + 32 * i, v[r][i]);
          }
        }
      }
    }
}
