// The tiles of wgmma_packed: which one a block computes, how it lies in the staged patch and in the result. Also the
// warps that copy: one fills the ring of stages, others pack what the next launch reads.
#pragma once
#include "hardware/mbarrier.cuh"
#include "families/wgmma_packed/layer.cuh"

// Where a block works: its tile of positions, its channel tile and its group.
struct PackedTile {
  long long n;
  int group, channel_tile, d;
  int first;         // the first packed position it reads, for tap d 0
  int row, column;   // its first result row and column; flat: column is its first packed position
  bool tail;
};

// How a tile lies in the staged patch, in positions.
struct PatchLayout {
  int rows, length;          // copies: the number of packed rows, and positions of each
  int pitch;                 // from one row of taps to the next
  int run_step, group_step;  // from one run to the next, from 8 positions of a run to the next 8
};

template <class Plan>
__device__ __forceinline__ PackedTile packed_tile(const PackedGeometry& g, long long tile) {
  PackedTile t;
  constexpr int VARIETIES = Plan::GROUPS * Plan::CHANNEL_TILES;
  const int variety = int(tile % VARIETIES);
  t.group = variety / Plan::CHANNEL_TILES, t.channel_tile = variety % Plan::CHANNEL_TILES;
  const long long rest = tile / VARIETIES, image = rest / g.tiles_per_plane;
  int at = int(rest % g.tiles_per_plane);
  t.d = int(image % g.result_d), t.n = image / g.result_d;
  t.tail = !g.flat && at >= g.wide_tiles;
  if (g.flat) {
    t.row = 0, t.column = t.first = at * Plan::TILE;
    return t;
  }
  constexpr int ROWS = Plan::CONSUMERS * Plan::RUNS;
  if (t.tail) {
    at -= g.wide_tiles;
    t.row = at / g.tail_columns * (ROWS * Plan::RUN / 8), t.column = g.wide_columns * Plan::RUN + at % g.tail_columns * 8;
  } else {
    t.row = at / g.wide_columns * ROWS, t.column = at % g.wide_columns * Plan::RUN;
  }
  t.first = t.row * g.pitch + t.column;
  return t;
}

template <class Plan>
__device__ __forceinline__ PatchLayout patch_layout(const PackedGeometry& g, const PackedTile& t) {
  constexpr int ROWS = Plan::CONSUMERS * Plan::RUNS;
  if (g.flat) return {1, g.patch, g.pitch, Plan::RUN, 8};
  if (!t.tail) return {ROWS + Plan::HALO_H, Plan::RUN + Plan::HALO_W, Plan::RUN + Plan::HALO_W, Plan::RUN + Plan::HALO_W, 8};
  constexpr int LENGTH = 8 + Plan::HALO_W;
  return {ROWS * Plan::RUN / 8 + Plan::HALO_H, LENGTH, LENGTH, Plan::RUN / 8 * LENGTH, LENGTH};
}

// The index in the result's plane of position p of run `run`; -1 if there is none.
template <class Plan>
__device__ __forceinline__ int result_index(const PackedGeometry& g, const PackedTile& t, int run, int p) {
  int row, column;
  if (g.flat) {
    const unsigned position = unsigned(t.column) + run * Plan::RUN + p;
    row = int(position / unsigned(g.pitch)), column = int(position) - row * g.pitch;
  } else if (t.tail) {
    row = t.row + run * (Plan::RUN / 8) + p / 8, column = t.column + p % 8;
  } else {
    row = t.row + run, column = t.column + p;
  }
  return row < g.result_h && column < g.result_w ? row * g.result_w + column : -1;
}

// False if a tap of D lies outside the source. It adds nothing and is left out.
template <class Plan>
__device__ __forceinline__ bool reaches(const PackedGeometry& g, const PackedTile& t, int kd) {
  return unsigned(t.d + Plan::LEFT_D + kd * Plan::DD) < unsigned(source_planes<Plan>(g));
}

// A place in the ring and its parity; producers and consumers each walk along it.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

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
    const long long unit_step = 1LL * source_planes<Plan>(g) * g.plane * 16;
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
