// The two kinds of warps of wgmma_strided: those that stage rows of the input, and those that multiply and store. They
// meet at mbarriers alone: a unit of the ring is full or empty. See paired_plan.cuh for the words.
#pragma once
#include "common/const_loop.cuh"
#include "common/paired_plan.cuh"
#include "common/ptx.cuh"
#include "common/wgmma_registers.cuh"

struct PairedBarriers {
  unsigned full, empty, weights_there;
  __device__ PairedBarriers(unsigned base, int ring) : full(base), empty(base + 8 * ring), weights_there(base + 16 * ring) {}
};

// thread -> data: positions of four channels, 32 neighbours a warp; positions beyond the tile, which taps of its last
// cells meet, are shared out one by one. A unit's first loads are under way while its place is still waited for. Rows
// outside the input are zeros.
template <class P, class Layer>
__device__ __forceinline__ void paired_stage(const PairedArguments& a, float* ring, PairedBarriers barriers, int group,
                                             int first, int end) {
  constexpr int EXTRA = P::W::REACH * P::QUADS;
  constexpr int AT_ONCE = 128 / P::TILE, TURNS = P::QUADS / AT_ONCE, BATCH = TURNS < 8 ? TURNS : 8;
  static_assert(P::TILE <= 128 && P::QUADS % AT_ONCE == 0, "a warpgroup stages whole quads");
  const int thread = threadIdx.x % 128, quad0 = thread / P::TILE, position0 = thread % P::TILE;
  const long long volume = a.in_volume;
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int cell = first; cell < end;) {
    const PairedWalk<P> walk(a, cell, end);
    cell += walk.length;
    const int left = walk.chunk * P::TILE + P::W::LEAST;
    const float* const image = a.input + (1LL * walk.n * Layer::in_channels + group * P::K) * volume;
    int h = walk.row + P::H::FIRST - P::H::REACH;
#pragma unroll 1
    for (int height = 0; height < walk.length + P::H::REACH; ++height, ++h)
#pragma unroll 1
      for (int plane = 0; plane < P::PLANES; ++plane) {
        int d = walk.plane + P::D::FIRST;
        const_loop<0, P::PLANES>([&](auto i) {
          if (plane == decltype(i)::value) d -= P::D::shift_at(decltype(i)::value);
        });
        const bool row_exists = unsigned(h) < unsigned(a.sizes.in_h) && unsigned(d) < unsigned(a.sizes.in_d);
        const float* const row = image + (1LL * d * a.sizes.in_h + h) * a.sizes.in_w + left;
        float4* const to = reinterpret_cast<float4*>(ring + slot * P::UNIT);
        const auto load = [&](float (&value)[4], int quad, int position) {
          const bool inside = row_exists && unsigned(left + position) < unsigned(a.sizes.in_w);
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
          if (thread < EXTRA) load(beyond, thread / P::W::REACH, P::TILE + thread % P::W::REACH);
#pragma unroll 1
        for (int turn0 = 0; turn0 < TURNS; turn0 += BATCH) {
          float value[BATCH][4];
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
            if (TURNS % BATCH == 0 || turn0 + i < TURNS) load(value[i], quad0 + (turn0 + i) * AT_ONCE, position0);
          if (turn0 == 0) mbarrier_wait(barriers.empty + 8 * slot, parity);
#pragma unroll
          for (int i = 0; i < BATCH; ++i)
            if (TURNS % BATCH == 0 || turn0 + i < TURNS) put(value[i], quad0 + (turn0 + i) * AT_ONCE, position0);
        }
        if constexpr (EXTRA > 0) {
          if (thread < EXTRA) put(beyond, thread / P::W::REACH, P::TILE + thread % P::W::REACH);
#pragma unroll 1
          for (int item = thread + 128; item < EXTRA; item += 128) {
            load(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
            put(beyond, item / P::W::REACH, P::TILE + item % P::W::REACH);
          }
        }
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.full + 8 * slot);
        if (++slot == P::RING) slot = 0, parity ^= 1;
      }
  }
}

// Products of one class of outputs of a cell, `groups` of up to four slabs with the same taps one behind the other: while
// one is multiplied the fragments of the next are loaded. `slot0`: where the cell's first unit lies.
template <class P, int RD, int RH>
struct PairedProducts {
  static constexpr int SLAB_GROUPS = ceil_div(P::SLABS, 4), ROWS = P::D::count(RD) * P::H::count(RH);
  static constexpr int GROUPS = ROWS * P::W::SLICES * SLAB_GROUPS;

  // What group i multiplies.
  static constexpr int slab0(int i) { return i % SLAB_GROUPS * 4; }
  static constexpr int slabs(int i) { return P::SLABS - slab0(i) < 4 ? P::SLABS - slab0(i) : 4; }
  static constexpr int slice(int i) { return i / SLAB_GROUPS % P::W::SLICES; }
  static constexpr int row(int i) { return i / SLAB_GROUPS / P::W::SLICES; }
  // Taps along H from the farthest shift to the nearest: the unit that came last is read last.
  static constexpr int kh(int i) { return P::H::tap(RH, P::H::count(RH) - 1 - row(i) / P::D::count(RD)); }
  static constexpr int kd(int i) { return P::D::tap(RD, row(i) % P::D::count(RD)); }
  static constexpr int unit(int i) { return (P::H::REACH - P::H::shift(kh(i))) * P::PLANES + P::D::shift_number(kd(i)); }

  template <int I>
  static __device__ __forceinline__ void load(float (&A)[4][4], const float* weights) {
    constexpr int SLICE = slice(I), RESIDUE = P::W::tap_of(SLICE, 0) < P::KW ? 0 : 1;
    const float* from = weights + (kd(I) * P::KH + kh(I)) * P::ROW_FLOATS + P::slice_at(SLICE);
    const_loop<0, slabs(I)>([&](auto slab) {
      constexpr int S = decltype(slab)::value;
      float(&to)[4] = A[S];
      if constexpr (P::both(SLICE)) {
        const float4 v = *reinterpret_cast<const float4*>(from + (slab0(I) + S) * 512 + threadIdx.x % 128 * 4);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      } else {
        const float2 v = *reinterpret_cast<const float2*>(from + (slab0(I) + S) * 256 + threadIdx.x % 128 * 2);
        to[RESIDUE] = v.x, to[RESIDUE + 2] = v.y, to[1 - RESIDUE] = 0.0f, to[3 - RESIDUE] = 0.0f;
      }
    });
  }

  static __device__ __forceinline__ void run(float (&sum)[P::TILE / 2], const float* weights, unsigned ring, int slot0) {
    if constexpr (GROUPS == 0) {
#pragma unroll
      for (int i = 0; i < P::TILE / 2; ++i) sum[i] = 0.0f;
    } else {
      float A[2][4][4];
      load<0>(A[0], weights);
      const_loop<0, GROUPS>([&](auto group) {
        constexpr int I = decltype(group)::value;
        int slot = slot0 + unit(I);
        if (slot >= P::RING) slot -= P::RING;
        const unsigned long long x = matrix_descriptor(ring + slot * (4 * P::UNIT), P::PLANE * 16, 128);
        wgmma_fence();
        const_loop<0, slabs(I)>([&](auto slab) {
          constexpr int S = decltype(slab)::value;
          wgmma_from_registers<P::TILE>(
              sum, A[I % 2][S],
              x + (2 * (slab0(I) + S) * P::PLANE + P::W::slice_offset(slice(I))), I > 0 || S > 0);
        });
        wgmma_commit();
        if constexpr (I + 1 < GROUPS) {
          wgmma_wait<1>();  // the group before, whose fragments are overwritten now
          load<I + 1>(A[(I + 1) % 2], weights);
        }
      });
      wgmma_wait<0>();
      wgmma_own(sum);
    }
  }
};

// What a warp stores of a row: results 0 to `end` of the tile's, in whole sectors of 32 bytes. `goes_on`: the row behind
// it comes next, and the values of its first sector stay in the image until then; `continues`: that was so before.
struct PairedRun {
  int end;
  bool continues, goes_on;
};

// Eight channels of a row, 32 results of each at a time ("a part"), through shared memory of the warp's own: a lane has
// four neighbours of one channel, but 32 lanes write 32 neighbours. The image holds two parts, as a ring, because what is
// stored begins at a sector, up to 7 values before the part. `full`: all 8 channels exist, and all lanes store all but the
// ends of the row.
template <class P, bool full>
__device__ __forceinline__ void paired_store(const float (&sum)[P::TILE / 2], float* memory, int image_at, float* out,
                                             long long volume, int channels, PairedRun run, float bias) {
  constexpr int PART = 32, LENGTH = 2 * PART, PARTS = 2 * P::TILE / PART;
  static_assert(P::IMAGES_AT % LENGTH == 0 && P::IMAGE_FLOATS == 8 * LENGTH, "halves of an image differ in one bit");
  // Where result `at` of channel c lies, in bytes. Four results lie as products leave them: first both of one residue.
  // Odd channels have the halves of a part exchanged: then no two lanes that write meet in a bank.
  const auto place_of = [&](int c, int at) {
    const int four = at & (LENGTH - 4), one = (at & 1) << 1 | (at >> 1 & 1);
    return 4 * (image_at + c * LENGTH + ((four | one) ^ (c % 2 * 16)));
  };
  const auto value_at = [&](int place) -> float& {
    return *reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + place);
  };
  const int lane = threadIdx.x % 32, begin = int(reinterpret_cast<size_t>(out) / 4);
  float* to[8];         // where the lane's value of part 0 goes
  int from[8];          // its place in the image
  unsigned before = 0;  // channels whose value of part 0 lies before the row
#pragma unroll
  for (int c = 0; c < 8; ++c, out += volume) {
    const int at = lane - (int(reinterpret_cast<size_t>(out) / 4) & 7);
    to[c] = out + at, from[c] = place_of(c, at);
    before |= (!run.continues && at < 0 ? 1u : 0u) << c;
  }
  const auto inside = [&](int c, int part) {
    const int first = begin + c * int(volume), at = lane + part * PART - (first & 7);
    return at < (run.goes_on ? run.end - (first + run.end & 7) : run.end) && (full || c < channels);
  };
  const auto reaches = [&](int part) { return (full && part < PARTS) || part * PART < run.end + (run.goes_on ? 0 : 7); };
  constexpr int DELAY = 1;  // a part is stored while the next one is on its way
  float value[2][8];
  const_loop<0, PARTS + 1 + DELAY>([&](auto number) {
    constexpr int NUMBER = decltype(number)::value, HALF = NUMBER % 2 * PART, READY = NUMBER - DELAY;
    if (NUMBER <= PARTS && reaches(NUMBER)) {
      if constexpr (NUMBER < PARTS) {
#pragma unroll
        for (int i = 0; i < PART / 16; ++i) {
          const int at = 4 * (NUMBER * (PART / 16) + i);
          float4 v = make_float4(sum[at], sum[at + 1], sum[at + 2], sum[at + 3]);
          if constexpr (P::HAS_BIAS) v.x += bias, v.y += bias, v.z += bias, v.w += bias;
          *reinterpret_cast<float4*>(&value_at(place_of(lane / 4, HALF + i * 16 + lane % 4 * 4))) = v;
        }
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < 8; ++c) value[NUMBER % 2][c] = value_at(from[c] ^ 4 * HALF);
    }
    if (READY >= 0 && reaches(READY)) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
        if (((full && READY < PARTS - 1) || inside(c, READY)) && (READY > 0 || (before >> c & 1) == 0))
          __stcs(to[c] + READY * PART, value[READY & 1][c]);
    }
    __syncwarp();
  });
  if (run.goes_on) {  // what is left goes before the place of the next row
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) value[i] = value_at(place_of(4 * i + lane / 8, run.end - 8 + lane % 8));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) value_at(place_of(4 * i + lane / 8, lane % 8 - 8)) = value[i];
    __syncwarp();
  }
}

// A warpgroup takes every CONSUMERS-th (cell, residue along D) and all rows of its outputs, and hands units back once
// none of its own products needs them any more, also those it did not read. It waits for each before that: a barrier
// tells only whether an odd or an even number of phases has ended.
template <class P, class Layer>
__device__ __forceinline__ void paired_multiply(const PairedArguments& a, float* memory, unsigned ring, int image_at,
                                                PairedBarriers barriers, int group, int tile, int first, int end, int consumer) {
  // Where each cell would have the same work for each, they exchange it from cell to cell (SWAP), or keep it: then the
  // next cell's rows are the next ones of the same plane.
  constexpr bool SWAPS = P::SWAP && Layer::stride_d % P::CONSUMERS == 0;
  constexpr bool FOLLOWS = !SWAPS && Layer::stride_d == P::CONSUMERS;
  const int lane = threadIdx.x % 32, channel = tile * P::CHANNELS + threadIdx.x % 128 / 32 * 8;
  int waited = 0, waited_slot = 0, waited_parity = 0;  // units that were seen to be full
  int released_slot = 0;                               // the next unit to hand back: the cell's first
  int unit0 = 0, turn = 0;                             // the walk's first unit; whose work comes next
  float bias = 0.0f;
  if constexpr (P::HAS_BIAS)
    if (channel + lane / 4 < P::M) bias = __ldg(a.bias + group * P::M + channel + lane / 4);
  mbarrier_wait(barriers.weights_there, 0);
  const auto release = [&](int units) {
    __syncwarp();  // no lane still waits for these units: it would miss the phase
#pragma unroll 1
    for (; units > 0; --units) {
      if (lane == 0) mbarrier_arrive(barriers.empty + 8 * released_slot);
      if (++released_slot == P::RING) released_slot = 0;
    }
  };
#pragma unroll 1
  for (int cell = first; cell < end;) {
    const PairedWalk<P> walk(a, cell, end);
    cell += walk.length;
    const int origin = 2 * walk.chunk * P::TILE;  // the tile's first output in its row
    float* const column = a.output + (1LL * walk.n * Layer::out_channels + group * P::M + channel) * a.out_volume + origin;
    PairedRun run = {a.sizes.out_w - origin, false, false};
    if (run.end > 2 * P::TILE) run.end = 2 * P::TILE;
#pragma unroll 1
    for (int c = 0; c < walk.length; ++c) {
#pragma unroll 1
      for (const int needed = unit0 + (c + P::H::REACH + 1) * P::PLANES; waited < needed; ++waited) {
        mbarrier_wait(barriers.full + 8 * waited_slot, waited_parity);
        if (++waited_slot == P::RING) waited_slot = 0, waited_parity ^= 1;
      }
      products_see_writes();
      const int slot0 = released_slot;
      bool holds = true;
#pragma unroll 1
      for (int rd = 0; rd < Layer::stride_d; ++rd) {
        const bool mine = turn == consumer;
        if (++turn == P::CONSUMERS) turn = 0;
        const int od = walk.plane * Layer::stride_d - P::D::CUT + rd;
        if (!mine || unsigned(od) >= unsigned(a.sizes.out_d)) continue;
#pragma unroll 1
        for (int rh = 0; rh < Layer::stride_h; ++rh) {
          const int oh = (walk.row + c) * Layer::stride_h - P::H::CUT + rh;
          if (unsigned(oh) >= unsigned(a.sizes.out_h)) continue;
          float sum[P::TILE / 2];
          const_loop<0, P::CLASSES>([&](auto number) {
            constexpr int RD = decltype(number)::value / Layer::stride_h, RH = decltype(number)::value % Layer::stride_h;
            if (rd == RD && rh == RH) PairedProducts<P, RD, RH>::run(sum, memory, ring, slot0);
          });
          const bool last_row = oh + 1 == a.sizes.out_h, last_here = rh + 1 == Layer::stride_h || last_row;
          if (holds && rd + P::CONSUMERS >= Layer::stride_d && (last_here || rh >= P::H::LAST_OF_FIRST))
            release(P::PLANES), holds = false;
          run.goes_on = a.chunks == 1 && run.end >= 16 && !last_row && (!last_here || (FOLLOWS && c + 1 < walk.length));
          float* const row = column + (1LL * od * a.sizes.out_h + oh) * a.sizes.out_w;
          if (run.end >= 2 * P::TILE - 25 && channel + 8 <= P::M) {
            paired_store<P, true>(sum, memory, image_at, row, a.out_volume, 8, run, bias);
          } else {
            paired_store<P, false>(sum, memory, image_at, row, a.out_volume, P::M - channel, run, bias);
          }
          run.continues = run.goes_on;
        }
      }
      if (holds) release(P::PLANES);
      if (SWAPS && ++turn == P::CONSUMERS) turn = 0;
    }
    release(P::H::REACH * P::PLANES);
    unit0 += walk.units();
  }
}
