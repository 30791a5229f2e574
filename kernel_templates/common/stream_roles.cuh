// The three kinds of warps of strided_streams: those that stage input rows, those that multiply, those that store.
#pragma once
#include "common/const_loop.cuh"
#include "common/pack.cuh"
#include "common/ptx.cuh"
#include "common/stream_plan.cuh"
#include "common/wgmma.cuh"

// Barriers of the ring of units and of the images, as shared addresses.
template <class P>
struct StreamBarriers {
  unsigned unit_full, unit_empty, image_full, image_empty, weights_there;
  __device__ explicit StreamBarriers(unsigned at)
      : unit_full(at), unit_empty(at + 8 * P::RING), image_full(at + 16 * P::RING),
        image_empty(image_full + 8 * P::IMAGES), weights_there(image_empty + 8 * P::IMAGES) {}
};

// All taps' weights of the block's variety, rounded:
// [tap along D][tap along H][8 channels][run of taps along W][4 channels][tap of the run, output channel][channel].
template <class P, class Layer>
__device__ __forceinline__ void stream_weights(const StreamArguments& a, float* to, int group, int tile, int residue_d,
                                               int thread, int threads) {
  const int first = P::D::first_tap(residue_d);
  const_loop<0, P::KW>([&](auto tap) {
    constexpr int TAP = decltype(tap)::value, RUN = P::run_at(TAP), PART = RUN * 8 * P::N;
    if constexpr (RUN > 0) {
#pragma unroll 8
      for (int i = thread; i < P::WEIGHTS / (8 * P::N * P::KW) * PART; i += threads) {
        const int rest = i / PART, slab = rest % P::SLABS, kh = rest / P::SLABS % P::KH;
        const int kd = first + rest / P::SLABS / P::KH * P::D::TAP_STEP;
        const int in_run = i % PART, column = in_run / 4 % (RUN * P::N), ci = slab * 8 + in_run / (4 * RUN * P::N) * 4 + in_run % 4;
        const int m = tile * P::N + column % P::N, kw = TAP + column / P::N;
        float v = 0.0f;
        if (m < P::M && ci < P::K && kd < P::KD)
          v = __ldg(a.weight + ((1LL * group * P::K + ci) * P::M + m) * (P::KD * P::KH * P::KW) + (kd * P::KH + kh) * P::KW + kw);
        to[rest * (8 * P::N * P::KW) + TAP * 8 * P::N + in_run] = round_for_tensor_cores(v, a.one);
      }
    }
  });
}

// thread -> data: positions of four channels, 32 neighbours a warp; positions beyond the tile, which taps of its last
// cells meet, are shared out one by one. A group of four warps takes every (PRODUCERS / 4)-th unit; its first loads are
// under way while it waits for an empty place.
template <class P, class Layer>
__device__ __forceinline__ void stream_stage(const StreamArguments& a, float* ring, StreamBarriers<P> barriers, int group,
                                             int residue_d, int worker, int workers, int thread) {
  constexpr int GROUPS = P::PRODUCERS / 4, EXTRA = P::W::REACH * P::QUADS;
  constexpr int QUADS_AT_ONCE = P::TILE < 128 ? 128 / P::TILE : 1, ACROSS = P::TILE < 128 ? 1 : P::TILE / 128;
  constexpr int TURNS = P::QUADS / QUADS_AT_ONCE, BATCH = TURNS * ACROSS <= 8 ? TURNS : 8 / ACROSS;
  const int producer = thread / 128, mine = thread % 128;
  const int quad0 = P::TILE < 128 ? mine / P::TILE : 0, position0 = P::TILE < 128 ? mine % P::TILE : mine;
  const long long volume = a.in_volume;
  int unit0 = 0;
#pragma unroll 1
  for (int number = worker; number < a.walks; number += workers) {
    const StreamWalk<P, Layer> walk(a, number, residue_d);
    if (!walk.exists) continue;
    const int left = walk.first_cell + P::W::BASE;
    const float* const image = a.input + (1LL * walk.n * Layer::in_channels + group * P::K) * volume;
#pragma unroll 1
    for (int height = 0, unit = unit0; height < walk.heights; ++height)
#pragma unroll 1
      for (int plane = 0; plane < walk.planes; ++plane, ++unit) {
        if (GROUPS > 1 && unit % GROUPS != producer) continue;
        const int d = walk.top - plane * P::D::SHIFT_STEP, h = walk.first_h + height;
        const float* const row = image + (1LL * d * a.sizes.in_h + h) * a.sizes.in_w + left;
        const int slot = unit % P::RING;
        float4* const to = reinterpret_cast<float4*>(ring + slot * P::UNIT);
        const auto load = [&](float (&value)[4], int quad, int position) {
          const bool inside = unsigned(left + position) < unsigned(a.sizes.in_w);
          const float* from = row + 4 * quad * volume + position;
#pragma unroll
          for (int c = 0; c < 4; ++c, from += volume)
            value[c] = inside && (P::K % 8 == 0 || 4 * quad + c < P::K) ? __ldg(from) : 0.0f;
        };
        const auto put = [&](const float (&value)[4], int quad, int position) {
          to[quad * P::PLANE + position] =
              make_float4(round_for_tensor_cores(value[0], a.one), round_for_tensor_cores(value[1], a.one),
                          round_for_tensor_cores(value[2], a.one), round_for_tensor_cores(value[3], a.one));
        };
        [[maybe_unused]] float beyond[4];
        if constexpr (EXTRA > 0)
          if (mine < EXTRA) load(beyond, mine / P::W::REACH, P::TILE + mine % P::W::REACH);
#pragma unroll 1
        for (int turn0 = 0; turn0 < TURNS; turn0 += BATCH) {
          float value[BATCH][ACROSS][4];
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
              if (TURNS % BATCH == 0 || turn0 + i < TURNS)
                load(value[i][j], quad0 + (turn0 + i) * QUADS_AT_ONCE, position0 + 128 * j);
          if (turn0 == 0) mbarrier_wait(barriers.unit_empty + 8 * slot, (unit / P::RING & 1) ^ 1);
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
              if (TURNS % BATCH == 0 || turn0 + i < TURNS)
                put(value[i][j], quad0 + (turn0 + i) * QUADS_AT_ONCE, position0 + 128 * j);
        }
        if constexpr (EXTRA > 0) {
          if (mine < EXTRA) put(beyond, mine / P::W::REACH, P::TILE + mine % P::W::REACH);
#pragma unroll 1
          for (int item = mine + 128; item < EXTRA; item += 128) {
            load(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
            put(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
          }
        }
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.unit_full + 8 * slot);
      }
    unit0 += walk.units();
  }
}

// Adds the products of one row of taps with one unit. `source`: its first position of the piece.
template <class P>
__device__ __forceinline__ void stream_products(float (&sum)[P::MT][P::CLASSES][P::N / 2], unsigned weights, unsigned source) {
  const unsigned long long x = matrix_descriptor(source, P::PLANE * 16, 128);
#pragma unroll(P::SLABS <= 8 ? P::SLABS : 1)
  for (int slab = 0; slab < P::SLABS; ++slab)
    const_loop<0, P::KW>([&](auto tap) {
      constexpr int TAP = decltype(tap)::value, RUN = P::run_at(TAP);
      if constexpr (RUN > 0) {
        constexpr int CLASS = P::W::class_of(P::W::residue(TAP));
        const unsigned long long w = matrix_descriptor(weights + (slab * P::KW + TAP) * (32 * P::N), RUN * P::N * 16, 128);
#pragma unroll
        for (int m = 0; m < P::MT; ++m)
          wgmma<Precision::tf32, float, RUN * P::N>(reinterpret_cast<float(&)[RUN * P::N / 2]>(sum[m][CLASS]),
                                                    x + (2 * slab * P::PLANE + P::W::offset(TAP) + 64 * m), w, 1);
      }
    });
}

// Lays the sums of a step, and what no tap meets between them, into an image of result rows.
template <class P, class Layer>
__device__ __forceinline__ void stream_image(const StreamArguments& a, const float (&sum)[P::MT][P::CLASSES][P::N / 2],
                                             float* image, int first_channel, int limit, int thread) {
  constexpr int S = P::S, WIDE = S == 2 || S == 4 ? S : 1;
  const int lane = thread % 32, channel = lane % 4 * 2, cell = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < P::N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float bias = 0.0f;
      if constexpr (P::HAS_BIAS)
        if (8 * j + channel + e < limit) bias = __ldg(a.bias + first_channel + 8 * j + channel + e);
      float* const row = image + (8 * j + channel + e) * P::PITCH + cell * S;
#pragma unroll
      for (int m = 0; m < P::MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          const_loop<0, S / WIDE>([&](auto part) {
            Pack<float, WIDE> v;
            const_loop<0, WIDE>([&](auto which) {
              constexpr int R = decltype(part)::value * WIDE + decltype(which)::value;
              v.value[decltype(which)::value] = bias;
              if constexpr (P::W::met(R)) v.value[decltype(which)::value] += sum[m][P::W::class_of(R)][4 * j + 2 * half + e];
            });
            *reinterpret_cast<Pack<float, WIDE>*>(row + (64 * m + 8 * half) * S + decltype(part)::value * WIDE) = v;
          });
    }
}

// A team multiplies every TEAMS-th step: while one lays its image down, another one's products run. It hands units back
// once none of its own steps needs them any more, also those it did not read. It waits for each before that: a barrier
// tells only whether an odd or an even number of phases has ended, so nobody may be two phases behind.
template <class P, class Layer>
__device__ __forceinline__ void stream_multiply(const StreamArguments& a, unsigned base, float* images,
                                                StreamBarriers<P> barriers, int group, int tile, int residue_d, int worker,
                                                int workers, int team, int thread) {
  int unit0 = 0, step0 = 0, released = 0;
  mbarrier_wait(barriers.weights_there, 0);
  const auto release = [&](int end) {
    if (thread % 32 == 0)
      for (; released < end; ++released) {
        mbarrier_wait(barriers.unit_full + 8 * (released % P::RING), released / P::RING & 1);
        mbarrier_arrive(barriers.unit_empty + 8 * (released % P::RING));
      }
    released = end;
    __syncwarp();
  };
#pragma unroll 1
  for (int number = worker; number < a.walks; number += workers) {
    const StreamWalk<P, Layer> walk(a, number, residue_d);
    if (!walk.exists) continue;
    const int steps = walk.steps(), units = walk.units();
    int step = (team + P::TEAMS - step0 % P::TEAMS) % P::TEAMS, row = 0, piece = step;
    while (piece >= walk.pieces) piece -= walk.pieces, ++row;
    // All units before those that the next step of this team may need.
    const auto release_before_step = [&] {
      release(unit0 + (step < steps ? min((walk.lowest(walk.row + row) - walk.first_h) * walk.planes, units) : units));
    };
    release_before_step();
#pragma unroll 1
    while (step < steps) {
      float sum[P::MT][P::CLASSES][P::N / 2];
#pragma unroll
      for (int m = 0; m < P::MT; ++m)
#pragma unroll
        for (int c = 0; c < P::CLASSES; ++c)
#pragma unroll
          for (int i = 0; i < P::N / 2; ++i) sum[m][c][i] = 0.0f;
      const StreamTaps h = stream_taps<typename P::H, P::KH, Layer::stride_h, Layer::dilation_h>(walk.row + row, a.sizes.in_h);
      const int skipped = (walk.kd - P::D::first_tap(residue_d)) / P::D::TAP_STEP;
#pragma unroll 1
      for (int i = h.count - 1; i >= 0; --i)
#pragma unroll 1
        for (int plane = 0; plane < walk.planes; ++plane) {
          const int unit = unit0 + (h.at - i * P::H::SHIFT_STEP - walk.first_h) * walk.planes + plane, slot = unit % P::RING;
          mbarrier_wait(barriers.unit_full + 8 * slot, unit / P::RING & 1);
          products_see_writes();
          wgmma_fence();
          const int tap_row = (skipped + plane) * P::KH + h.k + i * P::H::TAP_STEP;
          stream_products<P>(sum, base + tap_row * (32 * P::SLABS * P::KW * P::N),
                             base + 4 * P::RING_AT + 4 * slot * P::UNIT + 16 * piece * P::IMAGE);
          wgmma_commit();
          wgmma_wait<0>();
        }
#pragma unroll
      for (int m = 0; m < P::MT; ++m)
#pragma unroll
        for (int c = 0; c < P::CLASSES; ++c) wgmma_own(sum[m][c]);

      const int count = step0 + step, slot = count % P::IMAGES;
      step += P::TEAMS, piece += P::TEAMS;
      while (piece >= walk.pieces) piece -= walk.pieces, ++row;
      release_before_step();
      mbarrier_wait(barriers.image_empty + 8 * slot, (count / P::IMAGES & 1) ^ 1);
      stream_image<P, Layer>(a, sum, images + slot * P::IMAGE_FLOATS, group * P::M + tile * P::N, P::M - tile * P::N, thread);
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(barriers.image_full + 8 * slot);
    }
    unit0 += units, step0 += steps;
  }
}

// thread -> data: a warp stores the runs of every STORERS-th channel, a float a lane. A run that goes on in the next
// step ends at a whole sector of 32 bytes; the values behind it are carried over, so that a sector is stored once. Lane i
// alone keeps the value that lies i behind the start of a sector.
template <class P, class Layer>
__device__ __forceinline__ void stream_store(const StreamArguments& a, const float* images, float* carry,
                                             StreamBarriers<P> barriers, int group, int tile, int residue_d, int worker,
                                             int workers, int warp, int lane) {
  constexpr int LENGTH = P::S * P::IMAGE, TURNS = ceil_div(LENGTH + 7, 32), AT_ONCE = TURNS <= 10 ? TURNS : 8;
  int count = 0;
#pragma unroll 1
  for (int number = worker; number < a.walks; number += workers) {
    const StreamWalk<P, Layer> walk(a, number, residue_d);
    if (!walk.exists) continue;
    float* const first = a.output + (1LL * walk.n * Layer::out_channels + group * P::M + tile * P::N + warp) * a.out_volume +
                         1LL * walk.od * a.sizes.out_h * a.sizes.out_w;
    bool continues = false;  // the run before, which this walk stored
#pragma unroll 1
    for (int row = 0; row < walk.rows; ++row)
#pragma unroll 1
      for (int piece = 0; piece < walk.pieces; ++piece, ++count) {
        const bool last = piece + 1 == walk.pieces;
        const bool goes_on = !last || (a.chunks == 1 && row + 1 < walk.rows);
        // Values of the image by their place in it; a row begins behind what padding cuts off its first cell.
        const int origin = (walk.first_cell + piece * P::IMAGE) * P::S - P::W::CUT;
        const int begin = max(0, -origin);
        const int walk_begin = a.chunks == 1 ? -origin - row * a.sizes.out_w : 0;  // the walk's first value, by its place
        const int end = !last ? LENGTH
                        : walk.last_chunk ? a.sizes.out_w - origin
                                          : (a.chunk_step - piece * P::IMAGE) * P::S;
        const int slot = count % P::IMAGES;
        mbarrier_wait(barriers.image_full + 8 * slot, count / P::IMAGES & 1);
        const float* image = images + slot * P::IMAGE_FLOATS + warp * P::PITCH + lane;
        float* out = first + (1LL * (walk.row + row) * a.sizes.out_w + origin);
        float* kept = carry + warp * 8 + lane;
#pragma unroll 1
        for (int m = warp; m < P::N && tile * P::N + m < P::M;
             m += P::STORERS, image += P::STORERS * P::PITCH, out += P::STORERS * a.out_volume, kept += P::STORERS * 8) {
          const int place = int(reinterpret_cast<size_t>(out) / 4);
          const int behind = (place + begin) & 7;  // a sector's start
          // Of several walks beside each other each has the sectors that begin in it.
          const int from = continues ? begin - behind : walk.first_cell > 0 ? begin + (-behind & 7) : begin;
          const int to = goes_on ? end - ((place + end) & 7) : walk.last_chunk ? end : end + (-(place + end) & 7);
          const float* const own = image + from;
          float* const out_lane = out + from + lane;
          // Of the first sector of rows of a few values the walk may have a part alone.
          const int left = continues && a.chunks == 1 && from + lane < walk_begin ? 0 : to - from - lane;
#pragma unroll
          for (int turn0 = 0; turn0 < TURNS; turn0 += AT_ONCE) {
            float v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
              const bool before = turn0 + i == 0 && from + lane < begin;
              if (32 * (turn0 + i) < left) v[i] = before ? *kept : own[32 * (turn0 + i)];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
              if (32 * (turn0 + i) < left) __stcs(out_lane + 32 * (turn0 + i), v[i]);
          }
          if (goes_on && lane < 8 && to + lane < end && to + lane >= begin) *kept = image[to];
        }
        continues = goes_on;
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barriers.image_empty + 8 * slot);
      }
  }
}
