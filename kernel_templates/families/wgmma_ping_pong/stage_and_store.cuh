// What the warpgroups of wgmma_ping_pong do in addition to products. Two of them (producers) load the source, round it once and
// stage it for tensor cores. The two others (consumers) store their sums.
#pragma once
#include "families/wgmma_ping_pong/layer.cuh"
#include "hardware/wgmma.cuh"

// The place of a producer in the sequence (tile, chunk). Each producer takes every second chunk.
template <class Plan>
struct ChunkWalk {
  int tile, chunk;  // the block's tile number
  __device__ explicit ChunkWalk(int producer)
      : tile(Plan::CHUNKS == 1 ? producer : 0), chunk(Plan::CHUNKS == 1 ? 0 : producer) {}
  // Moves on and returns by how many tiles: 0 or 1, or 2 if a tile has only one chunk.
  __device__ __forceinline__ int advance() {
    constexpr int TILES = Plan::CHUNKS == 1 ? 2 : 1;
    chunk += 2;
    if (chunk < Plan::CHUNKS) return 0;
    chunk -= TILES * Plan::CHUNKS;
    tile += TILES;
    return TILES;
  }
};

// The work of a producer. thread -> data: UNITS times two neighbouring positions of four channels. Four lanes take the
// first four channels of a chunk, the next four lanes the others. Loads run DEPTH chunks ahead, in registers. Every
// instruction counts here: two warps on a scheduler cannot hide each other's latency.
template <class Plan, bool paired>
__device__ __forceinline__ void ping_pong_stage(const PingPongGeometry& g, const float* __restrict__ source, int tiles,
                                                unsigned char* ring, unsigned full, unsigned empty, int producer) {
  constexpr int R = Plan::RING, DEPTH = Plan::DEPTH;
  const int thread = threadIdx.x % 128, quad = thread >> 2 & 1, pair = thread >> 3 << 2 | (thread & 3);
  float2 value[DEPTH][Plan::UNITS][4];
  const float* from[Plan::UNITS];  // running pointers keep the address arithmetic short
  bool inside[Plan::UNITS], inside_too[Plan::UNITS];
  ChunkWalk<Plan> load(producer), store(producer);
  PingPongTile<Plan> at(g);
  for (int i = 0; i < load.tile; ++i) at.advance(g);

  const auto begin_tile = [&] {
#pragma unroll
    for (int u = 0; u < Plan::UNITS; ++u) {
      const int w = at.first(g) + Plan::LEFT + 2 * pair + 128 * u;
      inside[u] = unsigned(w) < unsigned(g.source_w), inside_too[u] = unsigned(w + 1) < unsigned(g.source_w);
      from[u] = source + ((1LL * at.n * Plan::GROUPS + at.group) * Plan::SUMMED + load.chunk * 8 + quad * 4) * g.source_plane +
                1LL * at.row * g.source_w + w;
    }
  };
  const auto issue = [&](float2 (&to)[Plan::UNITS][4]) {
    const int channels = Plan::SUMMED - load.chunk * 8 - quad * 4;
#pragma unroll
    for (int u = 0; u < Plan::UNITS; ++u) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool there = Plan::SUMMED % 8 == 0 || c < channels;
        const float* const element = from[u] + c * g.source_plane;
        to[u][c] = make_float2(0.f, 0.f);
        if constexpr (paired) {
          if (there && inside[u]) to[u][c] = __ldg(reinterpret_cast<const float2*>(element));
        } else {
          if (there && inside[u]) to[u][c].x = __ldg(element);
          if (there && inside_too[u]) to[u][c].y = __ldg(element + 1);
        }
      }
      from[u] += 16 * g.source_plane;
    }
    const int further = load.advance();
    if (further == 0) return;
    for (int i = 0; i < further; ++i) at.advance(g);
    begin_tile();
  };

  float4* const mine = reinterpret_cast<float4*>(ring) + quad * Plan::PLANE + 2 * pair;
  int consumer, stage, parity;  // where the next chunk is stored: a stage of its consumer's ring
  const auto find_place = [&] {
    const int chunk = (store.tile >> 1) * Plan::CHUNKS + store.chunk;  // counted through the tiles of the consumer
    consumer = store.tile & 1, stage = chunk % R, parity = (chunk / R & 1) ^ 1;
  };
  const auto put = [&](const float2 (&from)[Plan::UNITS][4]) {
    const int slot = consumer * R + stage;
    mbarrier_wait(empty + slot * 8, parity);
    float4* const to = mine + slot * (Plan::STAGE_BYTES / 16);
#pragma unroll
    for (int u = 0; u < Plan::UNITS; ++u) {
      float x[4], y[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[c] = round_for_tensor_cores(from[u][c].x, g.one), y[c] = round_for_tensor_cores(from[u][c].y, g.one);
      }
      to[128 * u] = make_float4(x[0], x[1], x[2], x[3]);
      to[128 * u + 1] = make_float4(y[0], y[1], y[2], y[3]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(full + slot * 8);
    stage += 2;
    if (stage >= R) stage -= R, parity ^= 1;
    if (store.advance() != 0) find_place();
  };

  begin_tile();
  find_place();
  int left = (tiles * Plan::CHUNKS - producer + 1) / 2;
#pragma unroll
  for (int i = 0; i < DEPTH; ++i)
    if (i < left) issue(value[i]);
#pragma unroll 1
  for (; left >= 2 * DEPTH; left -= DEPTH) {
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      put(value[i]);
      issue(value[i]);
    }
  }
#pragma unroll 1
  for (; left > 0; left -= DEPTH) {
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      if (i < left) put(value[i]);
      if (i + DEPTH < left) issue(value[i]);
    }
  }
}

// Stores eight channels of 32 positions at a time through the warp's own staging memory; only lanes of one warp meet.
template <class Plan>
__device__ __forceinline__ void ping_pong_store(const PingPongGeometry& g, const PingPongTile<Plan>& t,
                                                const float (&sum)[2][64], float* staging,
                                                const float* __restrict__ bias, float* __restrict__ result) {
  constexpr int PITCH = 40;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int first_channel = t.channel_tile * Plan::CHANNEL_TILE, first = t.first(g);
  float* row = result + (1LL * t.n * Plan::GROUPS + t.group) * Plan::CHANNELS * g.result_plane +
               1LL * t.row * g.result_w + first;
  const bool whole = g.paired_results && first + Plan::RESULTS <= g.result_w &&
                     first_channel + Plan::CHANNEL_TILE <= Plan::CHANNELS;
  float* put = staging + lane / 4 * PITCH + lane % 4 * 2;
  const float* pair = staging + lane / 16 * PITCH + lane % 16 * 2;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int column0 = Plan::COLUMN_TILES == 1 ? 0 : tile * 128, channel0 = Plan::ROW_TILES == 1 ? 0 : tile * 64;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = first_channel + channel0 + warp * 16 + half * 8;
      float added = 0.f;  // to the sums of this lane's row
      if constexpr (Plan::HAS_BIAS)
        if (channel + lane / 4 < Plan::CHANNELS) added = bias[t.group * Plan::CHANNELS + channel + lane / 4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<float2*>(put + i * 8) = make_float2(sum[tile][(part * 4 + i) * 4 + half * 2] + added,
                                                               sum[tile][(part * 4 + i) * 4 + half * 2 + 1] + added);
        __syncwarp();
        const int column = column0 + part * 32;
        if (whole) {  // two rows at a time, 128 bytes of each
          float* to = row + (channel + lane / 16) * g.result_plane + column + lane % 16 * 2;
#pragma unroll
          for (int i = 0; i < 4; ++i, to += 2 * g.result_plane) {
            const float2 value = *reinterpret_cast<const float2*>(pair + i * 2 * PITCH);
            if (column + lane % 16 * 2 < Plan::RESULTS) __stcs(reinterpret_cast<float2*>(to), value);
          }
        } else {
          const int w = first + column + lane;
          const bool inside = column + lane < Plan::RESULTS && unsigned(w) < unsigned(g.result_w);
          float* to = row + channel * g.result_plane + column + lane;
#pragma unroll
          for (int i = 0; i < 8; ++i, to += g.result_plane)
            if (inside && channel + i < Plan::CHANNELS) *to = staging[i * PITCH + lane];
        }
      }
    }
  }
}
