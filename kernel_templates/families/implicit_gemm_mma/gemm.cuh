// Implicit GEMM on tensor cores (mma.m16n8k8, TF32; halves.cuh has 16-bit values) over strips. config.cuh describes the
// shape of a tile.
//
// Column n of the j-th product of a warp is position n * STRIP + j. So a lane owns STRIP neighbouring positions, and a
// tap along W is a shift of the index into the window of inputs that the lane holds in registers. Each input is read
// from shared memory once for all taps of a row, 16 bytes at a time.
#pragma once
#include "hardware/ptx.cuh"
#include "families/implicit_gemm_mma/halves.cuh"
#include "families/implicit_gemm_mma/walk.cuh"
#include "hardware/tf32_parts.cuh"

// weight[ci][co within its group][tap] -> fragments of A, rounded once. A thread writes four values of one lane.
template <class C>
__device__ __forceinline__ void pack_strip_weights(const float* __restrict__ weight, float* __restrict__ packed) {
  constexpr long long FRAGMENTS = 1LL * C::CELLS * C::D::TAPS * C::SLABS * C::TAPS * C::MT;
  const long long stride = 1LL * gridDim.x * blockDim.x;
  for (long long i = 1LL * blockIdx.x * blockDim.x + threadIdx.x; i < FRAGMENTS * 32; i += stride) {
    const int lane = int(i % 32), g = lane / 4, t = lane % 4;
    long long rest = i / 32;
    const int mt = int(rest % C::MT);
    rest /= C::MT;
    const int tap = int(rest % C::TAPS);
    rest /= C::TAPS;
    const int slab = int(rest % C::SLABS);
    rest /= C::SLABS;
    const int depth_tap = int(rest % C::D::TAPS), cell = int(rest / C::D::TAPS);
    const int group = cell / C::M_TILES;
    float high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = (cell % C::M_TILES * C::MT + mt) * 16 + g + e % 2 * 8;
      const int k = slab * 8 + strip_channel(C::ORDER, t + e / 2 * 4);
      const long long row = C::FORWARD ? (1LL * group * C::K + k) * C::M + m : (1LL * group * C::M + m) * C::K + k;
      const bool exists = m < C::M && k < C::K;
      const float v = exists ? weight[row * (C::D::TAPS * C::TAPS) + depth_tap * C::TAPS + tap] : 0.0f;
      high[e] = high_tf32(v);
      low[e] = nearest_tf32(low_tf32(v, high[e]));
    }
    float* to = packed + i / 32 * (C::PLANES_OF_A * 128) + lane * 4;
    *reinterpret_cast<float4*>(to) = make_float4(high[0], high[1], high[2], high[3]);
    if constexpr (C::PLANES_OF_A == 2)
      *reinterpret_cast<float4*>(to + 128) = make_float4(low[0], low[1], low[2], low[3]);
  }
}

// Issues the copies of one step's inputs. What lies outside the tensor arrives as zeros. A thread computes the place of
// a piece of a row once and copies it for several channels.
template <class C, int VECTOR>
__device__ __forceinline__ void copy_strip(const StripArgumentsOf<C>& a, const StripSteps<C>& at, int group,
                                           typename C::Scalar* stage) {
  using Scalar = typename C::Scalar;
  constexpr bool COPIED = sizeof(Scalar) * VECTOR >= 4;  // else two values go through a register
  constexpr int TAKEN = COPIED ? VECTOR : 2, PIECES = C::WIDTH / TAKEN;
  constexpr int FIT = C::THREADS / PIECES < 1 ? 1 : C::THREADS / PIECES;
  constexpr int TEAMS = FIT < C::CHANNELS ? FIT : C::CHANNELS;
  constexpr int EACH = ceil_div(C::CHANNELS, TEAMS);  // channels of a team
  constexpr bool TAIL = C::K % C::CHANNELS != 0;
  const StripTile<C>& tile = at.tile;
  const long long plane = 1LL * a.in_h * a.in_w, volume = plane * a.in_d;
  const int team = TEAMS == 1 ? 0 : int(threadIdx.x) / PIECES;
  const int start = int(threadIdx.x) - team * PIECES;
  if (TEAMS > 1 && team * EACH >= C::CHANNELS) return;
  const int channel0 = at.chunk * C::CHANNELS + team * EACH;
  const Scalar* const from =
      a.in + ((tile.n * C::GROUPS + group) * C::K + channel0) * volume + tile.in_d(at.tap) * plane;
  stage += team * EACH * C::PITCH;
  const int in_pitch = a.pitch * C::W::IN_STEP;
  const int used = C::SPAN + C::ROWS_APART * in_pitch - (C::OVERLAP > 0 ? (C::WARPS_N - 1) * a.overlap * C::W::IN_STEP : 0);
  const int first = tile.block * a.columns * C::W::IN_STEP + C::W::BASE - C::LEAD;
  const int along0 = tile.column * C::W::IN_STEP;
#pragma unroll 1
  for (int x = start * TAKEN; x < used; x += (TEAMS == 1 ? C::THREADS : PIECES) * TAKEN) {
    const int rows_on = divided(along0 + x, a.by_in_pitch);
    const int w = first + along0 + x - rows_on * in_pitch;
    const int h0 = (tile.row + rows_on) * C::H::IN_STEP + C::H::BASE;
#pragma unroll
    for (int row_plane = 0; row_plane < C::ROW_PLANES; ++row_plane) {
      if (C::ROW_PLANES > 1 && C::H::OUT_STEP > 1 && C::H::residue(row_plane) != tile.residue_h()) continue;
      const int h = h0 + (C::ROW_PLANES > 1 ? C::H::offset(row_plane) : 0);
      Scalar* to = stage + row_plane * C::CHANNELS * C::PITCH + x;
      if constexpr (COPIED) {
        const bool inside = unsigned(w) < unsigned(a.in_w) && unsigned(h) < unsigned(a.in_h);
        const Scalar* source = inside ? from + 1LL * h * a.in_w + w : a.in;
        const long long step = inside ? volume : 0;
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
          if (EACH * TEAMS > C::CHANNELS && team * EACH + c >= C::CHANNELS) break;
          const bool exists = inside && (!TAIL || channel0 + c < C::K);
          constexpr int BYTES = int(sizeof(Scalar)) * VECTOR;
          cp_async<BYTES>(to + c * C::PITCH, TAIL && !exists ? a.in : source, exists ? BYTES : 0);
          source += step;
        }
      } else {
        const int left = EACH * TEAMS > C::CHANNELS ? min(EACH, C::CHANNELS - team * EACH) : EACH;
        const int exist = unsigned(h) < unsigned(a.in_h) ? (TAIL ? min(left, C::K - channel0) : left) : 0;
        const int first_exist = unsigned(w) < unsigned(a.in_w) ? exist : 0;
        const int second_exist = unsigned(w + 1) < unsigned(a.in_w) ? exist : 0;
        copy_halves<EACH, C::PITCH>(to, from + 1LL * h * a.in_w + w, volume, left, first_exist, second_exist);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void copy_step(const StripArgumentsOf<C>& a, const StripSteps<C>& at, int cell,
                                          typename C::Scalar* stage, float* weight_stage) {
  const int group = cell / C::M_TILES;
  if (C::HALVES && a.in_vector == 8) {
    if constexpr (C::HALVES) copy_strip<C, 8>(a, at, group, stage);
  } else if (a.in_vector == 4) {
    copy_strip<C, 4>(a, at, group, stage);
  } else if (a.in_vector == 2) {
    copy_strip<C, 2>(a, at, group, stage);
  } else {
    copy_strip<C, 1>(a, at, group, stage);
  }
  if constexpr (C::WEIGHTS == StripWeights::streamed) {
    const float* from = a.packed + cell * C::WEIGHT_TILE +
                        (1LL * at.tap * C::SLABS + at.chunk * (C::CHANNELS / C::SLAB)) * C::WEIGHT_SLAB;
    for (int i = threadIdx.x * 4; i < C::WEIGHT_STAGE; i += C::THREADS * 4) cp_async<16>(weight_stage + i, from + i);
  }
}

// tf32x3: tensor cores truncate sums. So short sums are added up in fp32, which rounds.
template <class C>
__device__ __forceinline__ void take_out(StripSums<C>& few, StripSums<C>& sum) {
#pragma unroll
  for (int c = 0; c < C::W::CLASSES; ++c)
#pragma unroll
    for (int m = 0; m < C::MA; ++m)
#pragma unroll
      for (int j = 0; j < C::STRIP; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum[c][m][j][e] += few[c][m][j][e];
          few[c][m][j][e] = 0.0f;
        }
}

// sum += weights * inputs for 8 channels and the taps of one row. `x` is the lane's window in channel 0 of the slab.
template <class C>
__device__ __forceinline__ void add_row(StripSums<C>& sum, const float* x, const float* weights, int lane) {
  constexpr bool WHOLE = C::WINDOW <= 48;  // else each tap reads its part of the window anew
  constexpr int HELD = WHOLE ? C::WINDOW : round_up((C::STRIP - 1) * C::W::IN_STEP + 4, 4);
  const float* channel[2] = {x + strip_channel(C::ORDER, lane % 4) * C::PITCH,
                             x + strip_channel(C::ORDER, lane % 4 + 4) * C::PITCH};
  float window[2][HELD];
  const auto read = [&](int from) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < HELD; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(channel[half] + from + i);
        const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) window[half][i + e] = C::PLANES_OF_A == 2 ? four[e] : nearest_tf32(four[e]);
      }
  };
  if constexpr (WHOLE) read(0);
  strip_unrolled<C::W::TAPS>([&](auto tap) {
    constexpr int TAP = decltype(tap)::value, AT = C::W::offset(TAP) + C::LEAD;
    constexpr int CLASS = C::W::class_of(C::W::residue(TAP)), SHIFT = WHOLE ? AT : AT % 4;
    if constexpr (!WHOLE) read(AT - AT % 4);
    float A[C::PLANES_OF_A][C::MA][4];
#pragma unroll
    for (int m = 0; m < C::MA; ++m)
#pragma unroll
      for (int p = 0; p < C::PLANES_OF_A; ++p) {
        const float4* from = reinterpret_cast<const float4*>(weights + ((TAP * C::MT + m) * C::PLANES_OF_A + p) * 128);
        const float4 v = C::WEIGHTS == StripWeights::direct ? __ldg(from) : *from;
        A[p][m][0] = v.x, A[p][m][1] = v.y, A[p][m][2] = v.z, A[p][m][3] = v.w;
      }
#pragma unroll
    for (int j = 0; j < C::STRIP; ++j) {
      const float b[2] = {window[0][j * C::W::IN_STEP + SHIFT], window[1][j * C::W::IN_STEP + SHIFT]};
      if constexpr (C::PLANES_OF_A == 2) {
        // low * low is less than one ulp.
        const float high[2] = {high_tf32(b[0]), high_tf32(b[1])};
        const float low[2] = {low_tf32(b[0], high[0]), low_tf32(b[1], high[1])};
#pragma unroll
        for (int m = 0; m < C::MA; ++m) mma_m16n8k8_tf32(sum[CLASS][m][j], A[1][m], high, sum[CLASS][m][j]);
#pragma unroll
        for (int m = 0; m < C::MA; ++m) mma_m16n8k8_tf32(sum[CLASS][m][j], A[0][m], low, sum[CLASS][m][j]);
#pragma unroll
        for (int m = 0; m < C::MA; ++m) mma_m16n8k8_tf32(sum[CLASS][m][j], A[0][m], high, sum[CLASS][m][j]);
      } else {
#pragma unroll
        for (int m = 0; m < C::MA; ++m) mma_m16n8k8_tf32(sum[CLASS][m][j], A[0][m], b, sum[CLASS][m][j]);
      }
    }
  });
}
