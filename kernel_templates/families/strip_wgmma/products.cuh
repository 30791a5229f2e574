// The walk of packed_wgmma over tiles, its multiplying warpgroups, and what these share with strip_wgmma.
#pragma once
#include "families/strip_wgmma/plan.cuh"
#include "hardware/wgmma.cuh"
#include "hardware/wgmma_more_shapes.cuh"

// A tile of U: row (n, d, h), tile w of it. h runs fastest.
struct TileWalk {
  long long n, left;  // left: tiles of the share from here on
  int d, h, w, u_d, u_h;
  TileWalk() = default;
  __device__ TileWalk(const Sizes& sizes, bool u_is_gy, long long tile, long long end, int row_tiles)
      : left(end - tile), u_d(u_is_gy ? sizes.out_d : sizes.in_d), u_h(u_is_gy ? sizes.out_h : sizes.in_h) {
    h = int(tile % u_h);
    w = int(tile / u_h % row_tiles);
    d = int(tile / u_h / row_tiles % u_d);
    n = tile / u_h / row_tiles / u_d;
  }
  __device__ __forceinline__ void advance(int row_tiles) {
    --left;
    if (++h < u_h) return;
    h = 0;
    if (++w < row_tiles) return;
    w = 0;
    if (++d < u_d) return;
    d = 0;
    ++n;
  }
};

// *to += more, as one piece of assembly. Otherwise the compiler loads many values ahead into registers, which the sums
// already fill.
__device__ __forceinline__ void add_in_memory(float4* to, const float4& more) {
#ifdef __CUDACPU__
  *to = make_float4(to->x + more.x, to->y + more.y, to->z + more.z, to->w + more.w);
#else
  asm volatile(
      "{\n.reg .f32 x, y, z, w;\nld.global.v4.f32 {x, y, z, w}, [%0];\nadd.f32 x, x, %1;\nadd.f32 y, y, %2;\n"
      "add.f32 z, z, %3;\nadd.f32 w, w, %4;\nst.global.v4.f32 [%0], {x, y, z, w};\n}"
      :
      : "l"(to), "f"(more.x), "f"(more.y), "f"(more.z), "f"(more.w)
      : "memory");
#endif
}

// The products of one warpgroup over all tiles of its share, stage after stage. At `barriers` lie the `full` barriers
// of the stages, 8 bytes each, then as many `empty` ones. u and v describe block 0 of the operands in stage 0. All
// threads call release(stage, parity) once their warp's products of a stage are done.
template <class Plan, Precision precision, class Scalar, class Release>
__device__ __forceinline__ void multiply_strips_of_share(unsigned long long u, unsigned long long v, unsigned barriers,
                                                         long long tiles, float4* slot, const Release& release) {
  constexpr int N = Plan::N, SLABS = Plan::SLABS;
  float sum[SLABS][N / 2];  // the first product of a series does not read it
  [[maybe_unused]] float total[SLABS][N / 2];  // tf32x3: series are short, so they are added up here first
  if constexpr (Plan::SPLIT) {
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[s][i] = 0.f;
  }
  bool first = true;
  const auto take_out = [&] {
#pragma unroll
    for (int s = 0; s < SLABS; ++s) {
      wgmma_own(sum[s]);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[s][i] += sum[s][i];
    }
  };
  const auto promote = [&] {  // this thread alone reads and writes these elements
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
#pragma unroll
      for (int i = 0; i < N / 8; ++i) {
        float4* const to = slot + 128 * (s * (N / 8) + i);
        const float* const from = Plan::SPLIT ? total[s] + 4 * i : sum[s] + 4 * i;
        const float4 own = make_float4(from[0], from[1], from[2], from[3]);
        if (first)
          *to = own;
        else
          add_in_memory(to, own);
      }
    first = false;
  };
  int stage = 0, parity = 0, since = 0, held = -1, held_parity = 0;
#pragma unroll 1
  for (long long tile = 0; tile < tiles; ++tile) {
    mbarrier_wait(barriers + 8 * stage, parity);
    wgmma_fence();
    const unsigned long long u_at = u + stage * (Plan::STAGE >> 4), v_at = v + stage * (Plan::STAGE >> 4);
#pragma unroll
    for (int j = 0; j < Plan::STRIP; ++j)
#pragma unroll
      for (int s = 0; s < SLABS; ++s)
#pragma unroll
        for (int term = 0; term < (Plan::SPLIT ? 3 : 1); ++term)  // rest * high, high * rest, high * high
          wgmma<precision, Scalar, N>(
              sum[s], u_at + ((j * Plan::U_BLOCK + (Plan::SPLIT && term == 0 ? Plan::U_CHUNK : 0)) >> 4),
              v_at + ((s * Plan::PLANES * Plan::V_CHUNK + Plan::place(j) * Plan::V_BLOCK +
                       (Plan::SPLIT && term == 1 ? Plan::V_CHUNK : 0)) >> 4),
              j == 0 && term == 0 ? since : 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (held >= 0) release(held, held_parity);
    held = stage;
    held_parity = parity;
    if (++since == Plan::PROMOTE) {
      wgmma_wait<0>();
      release(held, held_parity);
      held = -1;
      since = 0;
      if constexpr (Plan::SPLIT)
        take_out();
      else
        promote();
    }
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  if (Plan::SPLIT && since > 0) take_out();
  if (Plan::SPLIT || since > 0) {
    promote();
  } else if (first) {
#pragma unroll 1
    for (int i = 0; i < SLABS * N / 8; ++i) slot[128 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}
