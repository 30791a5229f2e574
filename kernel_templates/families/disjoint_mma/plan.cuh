// Compile-time constants of disjoint_mma, and its weights in the order in which lanes hold them.
//
// Along an axis with (kernel - 1) * dilation < stride no output meets two taps. Input i owns the outputs i * stride -
// padding + r, 0 <= r < stride, and tap k contributes to r = k * dilation alone.
#pragma once
#include "contract/problem.cuh"
#include "hardware/tf32_parts.cuh"

template <class Layer, class Tune>
struct DisjointPlan {
  static constexpr bool THREE = Tune::precision == Precision::tf32x3;  // products of high and low parts
  static constexpr int PARTS = THREE ? 2 : 1;
  static constexpr int M = Layer::out_channels / Layer::groups, K = Layer::in_channels / Layer::groups;
  static constexpr int M_TILES = ceil_div(M, 16), CELLS = Layer::groups * M_TILES;  // a block keeps its cell
  static constexpr int TAPS = Layer::kernel_d * Layer::kernel_h * Layer::kernel_w;

  static constexpr int IMAGE_FLOATS = 16 * 16 * Layer::stride_w;  // of a warp's 16 positions
  static constexpr int WARPS_AUTO = IMAGE_FLOATS <= 1280 ? 8 : IMAGE_FLOATS <= 2560 ? 4 : IMAGE_FLOATS <= 5120 ? 2 : 1;
  static constexpr int WARPS = Tune::WARPS > 0 ? Tune::WARPS : WARPS_AUTO, THREADS = 32 * WARPS;
  static constexpr int POSITIONS = 16 * WARPS;  // of the input, side by side
  static constexpr int PIECES = POSITIONS / WARPS / 8;
  // If a row takes several blocks, they overlap by this many positions, so that one of them stores all of each
  // 32-byte sector.
  static constexpr int OVERLAP = ceil_div(ceil_div(7, Layer::stride_w), 4) * 4;

  // Slabs of 8 channels whose inputs a lane holds at once. If it holds all of them, they serve every tap.
  static constexpr int MOST_HELD = THREE ? 4 : 8, HELD = ceil_div(K, 8) < MOST_HELD ? ceil_div(K, 8) : MOST_HELD;
  static constexpr int CHUNKS = ceil_div(K, 8 * HELD), SLABS = CHUNKS * HELD;
  static constexpr int TAPS_AT_ONCE = Layer::kernel_w < 4 ? Layer::kernel_w : 4;  // along W

  static constexpr int FIRST_W = Layer::padding_w / Layer::stride_w;  // inputs that padding removes
  static constexpr int CUT_W = Layer::padding_w % Layer::stride_w;    // outputs of the next input that it removes
  static constexpr int LEAD = (4 - CUT_W % 4) % 4;  // floats before an image row, which align it

  // The pitch between rows of an image for which the lanes of a product have the fewest bank conflicts.
  static constexpr int conflicts(int pitch) {
    int hits[32] = {}, worst = 0;
    for (int g = 0; g < 8; ++g)
      for (int t = 0; t < 4; ++t) {
        const int bank = (g * pitch + 2 * t * Layer::stride_w) % 32;
        if (++hits[bank] > worst) worst = hits[bank];
      }
    return worst;
  }
  static constexpr int best_pitch() {
    const int least = ceil_div(LEAD + POSITIONS * Layer::stride_w, 4) * 4;
    int best = least;
    for (int pitch = least; pitch < least + 32; pitch += 4)
      if (conflicts(pitch) < conflicts(best)) best = pitch;
    return best;
  }
  static constexpr int PITCH = best_pitch(), IMAGE = 16 * PITCH;

  // Weights: [cell][depth tap][row tap][slab][tap along W][high, low][lane][4].
  static constexpr long long WEIGHTS = 1LL * TAPS * SLABS * PARTS * 128;  // floats of a cell
  static_assert(WEIGHTS < 1LL << 31, "counted in 32 bits");
  // Small weights lie in shared memory, where each block packs them itself. Others are packed by a launch of their own
  // and read through L1.
  static constexpr bool RESIDENT = WEIGHTS <= 12288;
  static constexpr long long SHARED_BYTES = 4 * ((RESIDENT ? WEIGHTS : 0) + 1LL * Tune::IMAGES * IMAGE);
};

// Packs values first, first + step, ... of a cell's weights, counted in lanes of fragments, rounded once.
template <class P, class Layer>
__device__ __forceinline__ void pack_cell(const float* __restrict__ weight, float* packed, int cell, int first, int step) {
  constexpr int KW = Layer::kernel_w, LANES = int(P::WEIGHTS / (4 * P::PARTS));
  const int group = cell / P::M_TILES;
#pragma unroll 4
  for (int i = first; i < LANES; i += step) {
    const int lane = i % 32, g = lane / 4, t = lane % 4, kw = i / 32 % KW;
    const int slab = i / (32 * KW) % P::SLABS, row = i / (32 * KW * P::SLABS);
    float high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = cell % P::M_TILES * 16 + g + e % 2 * 8, k = slab * 8 + t + e / 2 * 4;
      const bool exists = m < P::M && k < P::K;
      const float v = exists ? __ldg(weight + ((1LL * group * P::K + k) * P::M + m) * P::TAPS + row * KW + kw) : 0.0f;
      high[e] = high_tf32(v);
      low[e] = nearest_tf32(low_tf32(v, high[e]));
    }
    float* to = packed + i / 32 * (P::PARTS * 128) + lane * 4;
    *reinterpret_cast<float4*>(to) = make_float4(high[0], high[1], high[2], high[3]);
    if constexpr (P::THREE) *reinterpret_cast<float4*>(to + 128) = make_float4(low[0], low[1], low[2], low[3]);
  }
}

// thread -> data: four values of one lane; blockIdx.y is the cell. No thread synchronises.
template <class P, class Layer>
__global__ void __launch_bounds__(64) pack_disjoint(const float* __restrict__ weight, float* __restrict__ packed) {
  for (int cell = blockIdx.y; cell < P::CELLS; cell += gridDim.y)
    pack_cell<P, Layer>(weight, packed + cell * P::WEIGHTS, cell, blockIdx.x * 64 + threadIdx.x, gridDim.x * 64);
}
