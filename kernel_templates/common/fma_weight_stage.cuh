// A block's walk over its share of the positions, and the copies of a tile: a row of the input, and for each tap row
// the row of gy that it meets, de-interleaved by the stride.
#pragma once
#include "common/const_loop.cuh"
#include "common/fma_weight_plan.cuh"
#include "common/split_mma_stage.cuh"

// Where a tile begins; tiles are counted along h, then w, d, n: neighbouring rows of the input meet the same rows of
// gy, which are then still in L2.
struct FmaWeightPlace {
  long long n;
  int d, h, w;

  __device__ __forceinline__ FmaWeightPlace(long long tile, const Sizes& sizes, int length) {
    const int row_tiles = ceil_div(sizes.in_w, length);
    const long long column = tile / sizes.in_h, slice = column / row_tiles;
    n = slice / sizes.in_d, d = int(slice % sizes.in_d), h = int(tile % sizes.in_h);
    w = int(column % row_tiles) * length;
  }
  __device__ __forceinline__ void next(const Sizes& sizes, int length) {
    if (++h < sizes.in_h) return;
    h = 0;
    if ((w += length) < sizes.in_w) return;
    w = 0;
    if (++d < sizes.in_d) return;
    d = 0;
    ++n;
  }
};

// What a block sums: channels from m0 and n0 of a group, tap rows from tap_row0.
struct FmaWeightTile {
  int group, m0, n0, tap_row0;
};

template <class Layer, class Plan, class Scalar>
__device__ __forceinline__ void fma_weight_copy(float* to, const FmaWeightPlace& at, const FmaWeightTile& tile,
                                                const Sizes& sizes, const Scalar* __restrict__ input,
                                                const Scalar* __restrict__ grad_output, int x_width, int gy_width) {
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  RowSource<Scalar> x;
  x.row = input + (at.n * Layer::in_channels + tile.group * Plan::CI + tile.m0) * in_plane +
          (1LL * at.d * sizes.in_h + at.h) * sizes.in_w;
  x.plane = in_plane, x.channels = Plan::CI - tile.m0, x.first = at.w, x.length = sizes.in_w;
  copy_rows<Plan::THREADS, Plan::M, Plan::TILE, Plan::X_PITCH, 1>(to, x, x_width);
  to += Plan::M * Plan::X_PITCH;
#pragma unroll 1
  for (int r = 0; r < Plan::TR; ++r, to += Plan::N * Plan::GY_PITCH) {
    const int kd = (tile.tap_row0 + r) / Layer::kernel_h, kh = (tile.tap_row0 + r) % Layer::kernel_h;
    const long long od = 1LL * at.d * Layer::stride_d + 1LL * kd * Layer::dilation_d - Layer::padding_d;
    const long long oh = 1LL * at.h * Layer::stride_h + 1LL * kh * Layer::dilation_h - Layer::padding_h;
    const bool there = tile.tap_row0 + r < Plan::ROWS && od >= 0 && od < sizes.out_d && oh >= 0 && oh < sizes.out_h;
    RowSource<Scalar> gy;
    gy.row = grad_output;
    if (there)
      gy.row += (at.n * Layer::out_channels + tile.group * Plan::CO + tile.n0) * out_plane +
                (od * sizes.out_h + oh) * sizes.out_w;
    gy.plane = out_plane, gy.channels = there ? Plan::CO - tile.n0 : 0, gy.length = sizes.out_w;
    const_loop<0, Plan::Group::PLANES>([&](auto which) {
      constexpr int P = decltype(which)::value;
      using Group = typename Plan::Group;
      gy.first = (at.w + Group::low(P)) * Layer::stride_w + Group::residue(P);
      float* const plane = to + Plan::plane_at(P, Plan::TILE);
      constexpr int LENGTH = Plan::TILE + Group::halo(P);
      copy_rows<Plan::THREADS, Plan::N, LENGTH, Plan::GY_PITCH, Layer::stride_w>(plane, gy, gy_width);
    });
  }
}
