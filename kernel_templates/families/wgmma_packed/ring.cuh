// The copying warps of wgmma_packed: one fills the ring of stages, others pack what the next launch reads.
#pragma once
#include "hardware/mbarrier.cuh"
#include "families/wgmma_packed/layer.cuh"
#include "families/wgmma_packed/tiles.cuh"

// The producing warp. For each tap of D and chunk of channels it copies the patch (two units of channels, every row)
// and, unless they are resident, the weights. Lane 0 announces the bytes; all lanes issue copies.
template <class Plan>
__device__ __forceinline__ void fill_ring(const PackedGeometry& g, const char* source, const char* weights, unsigned ring,
                                          unsigned full, unsigned empty) {
  const int lane = threadIdx.x % 32;
  RingPlace at;
  for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
    const PackedTile t = packed_tile<Plan>(g, tile);
    const PatchLayout patch = patch_layout<Plan>(g, t);
    const int copies = 2 * Plan::PARTS * patch.rows;
    const int bytes = copies * patch.length * 16 + (g.resident ? 0 : Plan::SLICE_BYTES);
    const long long unit_step = 1LL * g.source_d * g.plane * 16;
    for (int kd = 0; kd < Plan::KD; ++kd) {
      if (!reaches<Plan>(g, t, kd)) continue;
      const char* image = source + ((t.n * Plan::GROUPS + t.group) * Plan::PARTS * Plan::UNITS_OF_SOURCE) * unit_step +
                          (1LL * (t.d + Plan::LEFT_D + kd * Plan::DD) * g.plane + t.first) * 16;
      const char* slice = weights + (1LL * (t.group * Plan::CHANNEL_TILES + t.channel_tile) * Plan::KD + kd) *
                                        Plan::CHUNKS * Plan::SLICE_BYTES;
#pragma unroll 1
      for (int chunk = 0; chunk < Plan::CHUNKS; ++chunk, at.next(g.stages)) {
        const unsigned stage = ring + at.stage * g.stage_bytes, barrier = full + at.stage * 8;
        mbarrier_wait(empty + at.stage * 8, at.parity ^ 1);
        if (lane == 0) {
          mbarrier_arrive_expecting(barrier, bytes);
          if (!g.resident)
            bulk_copy(stage + 2 * Plan::PARTS * g.patch * 16, slice + chunk * Plan::SLICE_BYTES, Plan::SLICE_BYTES, barrier);
        }
        __syncwarp();
        for (int i = lane; i < copies; i += 32) {
          const int unit = i / patch.rows, row = i - unit * patch.rows;  // unit: hi 0, hi 1, lo 0, lo 1
          bulk_copy(stage + (unit * g.patch + row * patch.length) * 16,
                    image + ((unit / 2) * Plan::UNITS_OF_SOURCE + 2 * chunk + unit % 2) * unit_step + 16LL * row * g.pitch,
                    patch.length * 16, barrier);
        }
      }
    }
  }
}

// What the packing warps do during a launch: they pack the slice of the batch that the next launch reads.
template <class Plan>
struct PackAhead {
  const typename Plan::Scalar* source;
  Pack<typename Plan::Scalar, Plan::PER_UNIT>* packed;
  unsigned images;  // 0: nothing left to pack
};

// warp -> data: 32 * POSITIONS positions of an image at a time; all packing warps of the grid take turns.
template <class Plan>
__device__ __forceinline__ void pack_ahead(const PackedGeometry& g, const PackAhead<Plan>& ahead, int warp) {
  constexpr int POSITIONS = 32 / Plan::PER_UNIT / Plan::PARTS;  // as registers allow
  const unsigned per_image = unsigned(ceil_div(g.plane, 32 * POSITIONS)), items = per_image * ahead.images;
#pragma unroll 1
  for (unsigned item = blockIdx.x * Plan::PACKING_WARPS + warp; item < items; item += gridDim.x * Plan::PACKING_WARPS) {
    const unsigned image = item / per_image;
    pack_positions<Plan, POSITIONS>(g, ahead.source, ahead.packed, image,
                                    int(item - image * per_image) * (32 * POSITIONS) + int(threadIdx.x % 32), 32);
  }
}
