// What both launches of gathered_mma share: arguments, the packing launch, the launch of the blocks.
#pragma once
#include "contract/flat_grid.cuh"
#include "families/gathered_mma/pack.cuh"

template <class P>
GatheredArguments gathered_arguments(const Sizes& sizes, const float* source, const float* packed, const float* bias,
                                     float* result) {
  GatheredArguments a = {source, packed, bias, result};
  a.source_d = P::FORWARD ? sizes.in_d : sizes.out_d, a.result_d = P::FORWARD ? sizes.out_d : sizes.in_d;
  a.source_h = P::FORWARD ? sizes.in_h : sizes.out_h, a.result_h = P::FORWARD ? sizes.out_h : sizes.in_h;
  a.source_w = P::FORWARD ? sizes.in_w : sizes.out_w, a.result_w = P::FORWARD ? sizes.out_w : sizes.in_w;
  a.classes_d = P::D::classes(a.result_d), a.positions_d = P::D::positions(a.result_d);
  a.classes_h = P::H::classes(a.result_h), a.positions_h = P::H::positions(a.result_h);
  a.classes_w = P::W::classes(a.result_w), a.positions_w = P::W::positions(a.result_w);
  a.positions = sizes.batch * a.positions_d * a.positions_h * a.positions_w;
  a.tiles = ceil_div(a.positions, P::TILE_N);
  a.blocks = 1LL * a.classes_d * a.classes_h * a.classes_w * P::M_TILES * P::GROUPS * a.tiles;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w;
  a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  return a;
}

template <class P>
cudaError_t launch_gathered_pack(const float* weight, float* packed, cudaStream_t stream) {
  constexpr long long PACKERS = ceil_div(P::PACKED_FLOATS / (4 * P::PLANES), 256LL);
  pack_gathered_weights<P><<<unsigned(PACKERS < 4096 ? PACKERS : 4096), 256, 0, stream>>>(weight, packed);
  return cudaGetLastError();
}

template <class P>
cudaError_t launch_gathered_blocks(void (*kernel)(GatheredArguments), const GatheredArguments& a, long long blocks,
                                   cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  kernel<<<flat_grid(blocks), P::THREADS, P::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}
