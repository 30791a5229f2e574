/* variant
name      = "wgmma_strided"
computes  = ["forward"]
after     = "wgmma_ping_pong"
idea      = "Both residues along W are rows of one product, so one warp stores whole runs of the result."
precision = ["tf32"]
layer     = ["constant"]
needs     = ["layer.stride_w == 2", "layer.dilation_w % 2 == 1", "layer.stride_d * layer.stride_h <= 16", "ring >= window",
             "ring <= 15", "max(reach_w, reach_h, reach_d) <= 64", "layer.groups * ceil_div(m, 32) * weights <= 2 ** 28",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28"]
min_sm    = 90
arch      = "sm_90a"

[tune]
TILE      = {values = [64, 128], default = 128, help = "positions along W of a product; each has two outputs"}
STAGES    = {values = [1, 2, 4], default = 1, help = "input rows staged ahead, as many as fit"}

[derived]
m          = "layer.out_channels // layer.groups"
slabs      = "ceil_div(layer.in_channels // layer.groups, 8)"
reach_w    = "(layer.padding_w + 1) // 2 - (layer.padding_w - (layer.kernel_w - 1) * layer.dilation_w + 1) // 2"
reach_h    = "(layer.kernel_h - 1) * layer.dilation_h // layer.stride_h"
reach_d    = "(layer.kernel_d - 1) * layer.dilation_d // layer.stride_d"
planes     = "layer.kernel_d if layer.dilation_d >= layer.stride_d else reach_d + 1"
weights    = "layer.kernel_d * layer.kernel_h * layer.kernel_w * slabs * 256"
images     = "8 * 512"
unit       = "slabs * 8 * (TILE + reach_w)"
window     = "planes * (reach_h + 1)"
ring       = "min(window + STAGES, (227 * 256 - 192 - weights - images) // unit)"
threads    = "384"
smem_bytes = "4 * (weights + images + ring * unit + 192)"

[plan]
Plan       = "PairedPlan<Layer, Tune>"
reach_w    = "Plan::W::REACH"
reach_h    = "Plan::H::REACH"
reach_d    = "Plan::D::REACH"
images     = "4 * Plan::CONSUMERS * Plan::IMAGE_FLOATS"
smem_bytes = ">= Plan::BYTES"
*/
#include "hardware/const_loop.cuh"
#include "families/wgmma_strided/plan.cuh"
#include "hardware/wgmma_registers.cuh"
#include "families/wgmma_strided/store.cuh"
#include "hardware/mbarrier.cuh"
#include "hardware/ptx.cuh"

// The warps of wgmma_strided that stage rows of the input: rounded once, four channels of a position side by side.
// plan.cuh has the words.

// thread -> data: positions of four channels, 32 neighbours a warp. The positions beyond the tile, which taps of its
// last cells meet, are distributed one by one. A unit's first loads are issued before its place is free. Rows outside the
// input are zeros.
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

// families/wgmma_strided/README.md has a picture and the words.

// Weights come from shared memory through registers, staged rows through their descriptors. A row of A is a channel and a
// residue along W, a column of B is a position; a tap is a shift.

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

// A warpgroup takes every CONSUMERS-th (cell, residue along D), with all rows of its outputs. It frees a unit when
// none of its products needs it any more, also a unit that it did not read. It waits for each unit before that,
// because a barrier tells only whether an odd or an even number of phases has ended.
template <class P, class Layer>
__device__ __forceinline__ void paired_multiply(const PairedArguments& a, float* memory, unsigned ring, int image_at,
                                                PairedBarriers barriers, int group, int tile, int first, int end,
                                                int consumer) {
  constexpr bool FOLLOWS = Layer::stride_d == P::CONSUMERS;  // its next cell's rows are the next ones of the same plane
  const int lane = threadIdx.x % 32, channel = tile * P::CHANNELS + threadIdx.x % 128 / 32 * 8;
  int waited = 0, waited_slot = 0, waited_parity = 0;  // units that were seen to be full
  int released_slot = 0;                               // the next unit to free: the cell's first
  int unit0 = 0, turn = 0;                             // the walk's first unit; which warpgroup is next
  float bias = 0.0f;
  if constexpr (P::HAS_BIAS)
    if (channel + lane / 4 < P::M) bias = __ldg(a.bias + group * P::M + channel + lane / 4);
  mbarrier_wait(barriers.weights_there, 0);
  const auto release = [&](int units) {
    __syncwarp();  // otherwise a lane that still waits for these units could miss the phase
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

// thread -> data: one value of a fragment of weights. Its row of the product is a channel and a residue: rows r and r +
// 8 belong to one channel, so a thread's sums of two positions are four neighbours of the result.
template <class P, class Layer>
__global__ void __launch_bounds__(256) pack_paired_weights(const float* __restrict__ weight, float* __restrict__ packed) {
  const int index = int(blockIdx.x * 256 + threadIdx.x);
  if (index >= P::VARIETIES * P::WEIGHTS) return;
  const int variety = index / P::WEIGHTS, group = variety / P::CHANNEL_TILES, tile = variety % P::CHANNEL_TILES;
  const int row = index % P::WEIGHTS / P::ROW_FLOATS, in_row = index % P::WEIGHTS % P::ROW_FLOATS;
  int slice = 0;
  while (in_row >= P::slice_at(slice + 1)) ++slice;
  const bool both = P::both(slice);
  const int in_slice = in_row - P::slice_at(slice), values = both ? 4 : 2;
  const int value = in_slice % values, thread = in_slice / values % 128, slab = in_slice / values / 128;
  const int residue = both ? value % 2 : P::W::tap_of(slice, 0) < P::KW ? 0 : 1, half = both ? value / 2 : value;
  const int m = tile * P::CHANNELS + thread / 32 * 8 + thread % 32 / 4, k = slab * 8 + half * 4 + thread % 4;
  float v = 0.0f;
  if (m < P::M && k < P::K) {
    const long long of_tap = row * P::KW + P::W::tap_of(slice, residue);
    v = weight[((1LL * group * P::K + k) * P::M + m) * (P::KD * P::KH * P::KW) + of_tap];
  }
  packed[index] = round_to_tf32(v);
}

// Compared with wgmma_ping_pong:
// - Rows r and r + 8 of a product are the two residues along W of one channel, and its columns are positions. So a
//   thread holds four neighbouring results and a quad 16. A warp stores what it has multiplied, through its own memory,
//   in whole sectors. A warp waits for others only when it needs rows of the input.
// - Weights come from registers. If a tap has only one residue, the zeros beside it take no memory. But an input that
//   is not finite then makes the result of the other residue NaN.
// - A block walks down H, so staged rows stay while the next results need them. Residues along D and H have different
//   taps. All result rows of one residue along D belong to one warpgroup, one after the other.
//
// warpgroup -> data: two multiply and store, in turns; one stages. They meet at mbarriers: a unit of the ring is full
// or empty. Their loops: paired_multiply() above, paired_stage() in stage.cuh.
// Bytes: an input row once for each plane that it is shifted to, mostly from L2; a result once.
template <class Layer, class Tune>
__global__ void __launch_bounds__(PairedPlan<Layer, Tune>::THREADS, 1) wgmma_strided(PairedArguments a) {
  using P = PairedPlan<Layer, Tune>;
  extern __shared__ __align__(1024) float paired_memory[];
  const unsigned base = shared_address(paired_memory);
  const PairedBarriers barriers(base + 4 * P::BARRIERS_AT, P::RING);
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  const int variety = blockIdx.x % P::VARIETIES, group = variety / P::CHANNEL_TILES, tile = variety % P::CHANNEL_TILES;
  const int worker = blockIdx.x / P::VARIETIES, workers = gridDim.x / P::VARIETIES;
  const int first = int(1LL * a.cells * worker / workers), end = int(1LL * a.cells * (worker + 1) / workers);
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::RING; ++i)
      mbarrier_init(barriers.full + 8 * i, 4), mbarrier_init(barriers.empty + 8 * i, 4 * P::CONSUMERS);
    mbarrier_init(barriers.weights_there, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup >= P::CONSUMERS) {
    give_registers<P::KEPT>();
    paired_stage<P, Layer>(a, paired_memory + P::RING_AT, barriers, group, first, end);
  } else {
    take_registers<P::TAKEN>();
    if (threadIdx.x == 0) {
      mbarrier_arrive_expecting(barriers.weights_there, 4 * P::WEIGHTS);
      const float* const from = a.weights + 1LL * variety * P::WEIGHTS;
      for (int i = 0; i < P::WEIGHTS; i += P::ROW_FLOATS)
        bulk_copy(base + 4 * i, from + i, 4 * P::ROW_FLOATS, barriers.weights_there);
    }
    __syncwarp();
    const int image_at = P::IMAGES_AT + int(threadIdx.x) / 32 * P::IMAGE_FLOATS;
    paired_multiply<P, Layer>(a, paired_memory, base + 4 * P::RING_AT, image_at, barriers, group, tile, first, end, warpgroup);
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  using P = PairedPlan<Layer, Tune>;
  return 4LL * P::VARIETIES * P::WEIGHTS;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  using P = PairedPlan<Layer, Tune>;
  if (sizes.batch == 0) return cudaSuccess;
  PairedArguments a = {input, static_cast<const float*>(workspace), bias, output, sizes};
  a.in_volume = 1LL * sizes.in_d * sizes.in_h * sizes.in_w, a.out_volume = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  a.planes = P::D::cells(sizes.out_d), a.rows = P::H::cells(sizes.out_h);
  a.chunks = ceil_div(sizes.out_w, 2 * P::TILE), a.one = 1.0f;
  const long long cells = sizes.batch * a.planes * a.rows * a.chunks;
  if (cells * P::WINDOW * P::CLASSES >= 1LL << 30) return cudaErrorInvalidValue;  // counted in int
  a.cells = int(cells);
  constexpr int WEIGHTS = P::VARIETIES * P::WEIGHTS;
  pack_paired_weights<P, Layer><<<ceil_div(WEIGHTS, 256), 256, 0, stream>>>(weight, static_cast<float*>(workspace));
  cudaError_t error = cudaGetLastError();
  int device = 0, processors = 1;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto kernel = wgmma_strided<Layer, Tune>;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
  if (error != cudaSuccess) return error;
  const long long most = processors < P::VARIETIES ? 1 : processors / P::VARIETIES, workers = most < cells ? most : cells;
  kernel<<<unsigned(workers * P::VARIETIES), P::THREADS, P::BYTES, stream>>>(a);
  return cudaGetLastError();
}
