// The copies of a tile for grad_weight: a row of the input, and for each tap row the row of gy that it meets, split
// into planes by the stride.
#pragma once
#include "hardware/const_loop.cuh"
#include "families/register_blocked/weight_plan.cuh"
#include "families/split_mma/stage.cuh"
#include "contract/tile_place.cuh"

// What a block sums: channels from m0 and n0 of a group, tap rows from tap_row0.
struct FmaWeightTile {
  int group, m0, n0, tap_row0;
};

template <class Layer, class Plan, class Scalar>
__device__ __forceinline__ void fma_weight_copy(float* to, const TilePlace& at, const FmaWeightTile& tile,
                                                const Sizes& sizes, const Scalar* __restrict__ input,
                                                const Scalar* __restrict__ grad_output, int x_width, int gy_width) {
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const auto x = input_row<Layer, Plan>(input, at, sizes, in_plane, tile.group, tile.m0);
  copy_rows<Plan::THREADS, Plan::M, Plan::TILE, Plan::X_PITCH, 1>(to, x, x_width);
  to += Plan::M * Plan::X_PITCH;
#pragma unroll 1
  for (int r = 0; r < Plan::TR; ++r, to += Plan::N * Plan::GY_PITCH) {
    auto gy = gy_row<Layer, Plan>(grad_output, at, sizes, out_plane, tile.group, tile.n0, tile.tap_row0 + r);
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
