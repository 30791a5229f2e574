// The products of wgmma_strided. Weights come from shared memory through registers, staged rows through their
// descriptors. A row of A is a channel and a residue along W, a column of B is a position; a tap is a shift. plan.cuh
// has the words.
#pragma once

#include "hardware/const_loop.cuh"
#include "families/wgmma_strided/plan.cuh"
#include "hardware/wgmma_registers.cuh"

// The products of one class of outputs of a cell. A group of up to four slabs has the same taps. While it is
// multiplied, the fragments of the next group are loaded. `slot0` is where the cell's first unit lies.
template <class P, int RD, int RH>
struct PairedProducts {
  static constexpr int SLAB_GROUPS = ceil_div(P::SLABS, 4), ROWS = P::D::count(RD) * P::H::count(RH);
  static constexpr int GROUPS = ROWS * P::W::SLICES * SLAB_GROUPS;

  // What group i multiplies.
  static constexpr int slab0(int i) { return i % SLAB_GROUPS * 4; }
  static constexpr int slabs(int i) { return P::SLABS - slab0(i) < 4 ? P::SLABS - slab0(i) : 4; }
  static constexpr int slice(int i) { return i / SLAB_GROUPS % P::W::SLICES; }
  static constexpr int row(int i) { return i / SLAB_GROUPS / P::W::SLICES; }
  // Taps along H go from the farthest shift to the nearest, so the unit that arrived last is read last.
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
          constexpr int SHIFT = 2 * (slab0(I) + S) * P::PLANE + P::W::slice_offset(slice(I));
          wgmma_from_registers<P::TILE>(sum, A[I % 2][S], x + SHIFT, I > 0 || S > 0);
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

// How a warp of wgmma_strided stores its sums, without other warps: whole sectors, in long runs of a row. plan.cuh has
// the words.

// What a warp stores of a row: results 0 to `end` of the tile's, in whole sectors of 32 bytes. `goes_on`: the next row
// follows it in memory and is stored next, so the values of its first sector stay in the image until then. `continues`:
// that was so for the row before.
struct PairedRun {
  int end;
  bool continues, goes_on;
};

// Stores eight channels of a row, 32 results of each at a time ("a part"), through the warp's own shared memory. A lane
// holds four neighbours of one channel, but 32 lanes write 32 neighbours. The image holds two parts, as a ring, because
// what is stored begins at a sector, up to 7 values before the part. `full`: all 8 channels exist, and all lanes store
// everything but the ends of the row.
template <class P, bool full>
__device__ __forceinline__ void paired_store(const float (&sum)[P::TILE / 2], float* memory, int image_at, float* out,
                                             long long volume, int channels, PairedRun run, float bias) {
  constexpr int PART = 32, LENGTH = 2 * PART, PARTS = 2 * P::TILE / PART;
  static_assert(P::IMAGES_AT % LENGTH == 0 && P::IMAGE_FLOATS == 8 * LENGTH, "halves of an image differ in one bit");
  // Where result `at` of channel c lies, in bytes. Four results lie as products leave them: first both of one residue.
  // Odd channels have the halves of a part exchanged, so no two writing lanes meet in a bank.
  const auto place_of = [&](int c, int at) {
    const int four = at & (LENGTH - 4), one = (at & 1) << 1 | (at >> 1 & 1);
    return 4 * (image_at + c * LENGTH + ((four | one) ^ (c % 2 * 16)));
  };
  const auto value_at = [&](int place) -> float& {
    return *reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + place);
  };
  const int lane = threadIdx.x % 32;
  const unsigned begin = unsigned(reinterpret_cast<size_t>(out) / 4);
  float* to[8];         // where the lane's value of part 0 goes
  int from[8];          // its place in the image
  unsigned before = 0;  // channels whose value of part 0 lies before the row
#pragma unroll
  for (int c = 0; c < 8; ++c, out += volume) {
    const int at = lane - int(reinterpret_cast<size_t>(out) / 4 % 8);
    to[c] = out + at, from[c] = place_of(c, at);
    before |= (!run.continues && at < 0 ? 1u : 0u) << c;
  }
  const auto inside = [&](int c, int part) {
    const unsigned first = begin + c * unsigned(volume);
    const int at = lane + part * PART - int(first % 8);
    return at < run.end - (run.goes_on ? int((first + run.end) % 8) : 0) && (full || c < channels);
  };
  const_loop<0, PARTS + 1>([&](auto number) {
    constexpr int NUMBER = decltype(number)::value, HALF = NUMBER % 2 * PART;
    if ((!full || NUMBER == PARTS) && NUMBER * PART >= run.end + (run.goes_on ? 0 : 7)) return;
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
    float value[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) value[c] = value_at(from[c] ^ 4 * HALF);
#pragma unroll
    for (int c = 0; c < 8; ++c)
      if (((full && NUMBER < PARTS - 1) || inside(c, NUMBER)) && (NUMBER > 0 || (before >> c & 1) == 0))
        __stcs(to[c] + NUMBER * PART, value[c]);
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

// The warpgroups of wgmma_strided that multiply and store: how they share work and give staged rows back. plan.cuh has
// the words.

// A warpgroup takes every CONSUMERS-th (cell, residue along D), with all rows of its outputs. It gives units back once
// none of its own products needs them any more, also those that it did not read. It waits for each unit before that,
// because a barrier tells only whether an odd or an even number of phases has ended.
template <class P, class Layer>
__device__ __forceinline__ void paired_multiply(const PairedArguments& a, float* memory, unsigned ring, int image_at,
                                                PairedBarriers barriers, int group, int tile, int first, int end,
                                                int consumer) {
  constexpr bool FOLLOWS = Layer::stride_d == P::CONSUMERS;  // its next cell's rows are the next ones of the same plane
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
    }
    release(P::H::REACH * P::PLANES);
    unit0 += walk.units();
  }
}
