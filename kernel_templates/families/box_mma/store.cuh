// The end of a tile of box_mma: each lane stores the results of its strips.
#pragma once
#include "contract/scalar.cuh"
#include "families/box_mma/multiply.cuh"

// Streaming stores: nothing reads the result again here, but other blocks still read the source.
template <int COUNT, class Scalar>
__device__ __forceinline__ void store_box_results(Scalar* to, const float (&value)[COUNT]) {
  Pack<Scalar, COUNT> pack;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) pack.value[i] = narrow<Scalar>(value[i]);
  constexpr int BYTES = COUNT * int(sizeof(Scalar));
  if constexpr (BYTES == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  } else if constexpr (BYTES == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&pack));
  } else if constexpr (BYTES == 4) {
    __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(&pack));
  } else {
    __stcs(reinterpret_cast<unsigned short*>(to), *reinterpret_cast<const unsigned short*>(&pack));
  }
}

// Result AT of a lane's strip STRIP, of channel eight * 8 + lane / 4, at residues RD and RH. e: which of the two columns
// of a lane. A residue without taps has no sum.
template <class Plan, int RD, int RH, int EIGHT, int STRIP, int AT>
__device__ __forceinline__ float box_result(const BoxSums<Plan>& sum, int e) {
  using D = typename Plan::D;
  using H = typename Plan::H;
  using W = typename Plan::W;
  constexpr int CELL = STRIP * Plan::CELLS + AT / Plan::CELL_OUT;
  constexpr int STEP = AT % Plan::CELL_OUT / W::OUT_STEP, RW = AT % W::OUT_STEP;
  if constexpr (D::met(RD) && H::met(RH) && W::met(RW)) {
    constexpr int CLASS = D::class_of(RD) * H::CLASSES + H::class_of(RH);
    constexpr int HALF = EIGHT * Plan::SLOTS + STEP * W::CLASSES + W::class_of(RW);
    return sum[CLASS][HALF / 2][CELL][HALF % 2 * 2 + e];
  } else {
    return 0.0f;
  }
}

// All results of a warp. A lane holds channel lane / 4 of each eight, and of each eight strips lane % 4 and + 4.
// VECTOR > 1: it stores so many neighbours together. VECTOR = 1: eight channels of all strips go through the image; then
// neighbouring lanes store neighbours.
template <class Plan, int VECTOR>
__device__ __forceinline__ void store_box(const BoxArguments<typename Plan::Scalar>& a,
                                          const BoxTile<typename Plan::Scalar>& tile, const BoxSums<Plan>& sum, int kind,
                                          float* image) {
  using Scalar = typename Plan::Scalar;
  using D = typename Plan::D;
  using H = typename Plan::H;
  constexpr int LENGTH = Plan::LENGTH, ALL = 8 * Plan::STRIPS;  // strips of a warp
  constexpr int TURNS = VECTOR > 1 ? 2 * Plan::STRIPS : ceil_div(ALL * LENGTH, 32);
  const int lane = threadIdx.x % 32, strip0 = threadIdx.x / 32 * ALL;
  const int channel0 = kind % Plan::M_PARTS * Plan::EIGHTS * 8 + (VECTOR > 1 ? lane / 4 : 0);
  const long long plane = 1LL * a.out_h * a.out_w, volume = a.out_d * plane;
  Scalar* const out = a.out + ((tile.n * Plan::GROUPS + kind / Plan::M_PARTS) * Plan::M + channel0) * volume;
  // Of each turn: how many residues along D and H and results along W exist, and where the first one lies.
  int deep[TURNS], high[TURNS], wide[TURNS];
  long long at[TURNS];
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    const int column = turn / 2 * 8 + Plan::strip_of_column(lane % 4 * 2 + turn % 2);  // if VECTOR > 1
    const int element = VECTOR > 1 ? column * LENGTH : turn * 32 + lane, strip = element / LENGTH;
    const BoxStrip own = box_strip(a, strip0 + strip);
    const int d = (tile.d + own.deep) * D::OUT_STEP, h = (tile.h + own.high) * H::OUT_STEP;
    const int w = (tile.w + own.strip) * LENGTH + element % LENGTH;
    deep[turn] = own.deep < 0 || strip >= ALL ? 0 : a.out_d - d;
    high[turn] = a.out_h - h, wide[turn] = a.out_w - w;
    at[turn] = d * plane + 1LL * h * a.out_w + w;
  }
  const_loop<0, D::OUT_STEP * H::OUT_STEP * Plan::EIGHTS>([&](auto index) {
    constexpr int EIGHT = decltype(index)::value % Plan::EIGHTS, RH = decltype(index)::value / Plan::EIGHTS % H::OUT_STEP;
    constexpr int RD = decltype(index)::value / Plan::EIGHTS / H::OUT_STEP;
    Scalar* const first = out + 8 * EIGHT * volume + RD * plane + 1LL * RH * a.out_w;
    const int channel = channel0 + 8 * EIGHT;
    if constexpr (VECTOR > 1) {
      if (channel >= Plan::M) return;
      [[maybe_unused]] float bias;
      if constexpr (Plan::HAS_BIAS) bias = widen(a.bias[kind / Plan::M_PARTS * Plan::M + channel]);
      const_loop<0, TURNS>([&](auto which) {
        constexpr int TURN = decltype(which)::value, STRIP = TURN / 2, E = TURN % 2;
        if (RD >= deep[TURN] || RH >= high[TURN]) return;
        const_loop<0, LENGTH / VECTOR>([&](auto run) {
          constexpr int FIRST = decltype(run)::value * VECTOR;
          float value[VECTOR];
          const_loop<0, VECTOR>([&](auto i) {
            value[decltype(i)::value] = box_result<Plan, RD, RH, EIGHT, STRIP, FIRST + decltype(i)::value>(sum, E);
            if constexpr (Plan::HAS_BIAS) value[decltype(i)::value] += bias;
          });
          if (FIRST < wide[TURN]) store_box_results(first + at[TURN] + FIRST, value);
        });
      });
    } else {
      constexpr bool MET = D::met(RD) && H::met(RH);
      if constexpr (MET) {
        const_loop<0, 2 * Plan::STRIPS>([&](auto which) {
          constexpr int STRIP = decltype(which)::value / 2, E = decltype(which)::value % 2;
          const_loop<0, LENGTH>([&](auto i) {
            image[lane / 4 * Plan::IMAGE_PITCH +
                  (8 * STRIP + Plan::strip_of_column(lane % 4 * 2 + E)) * LENGTH + decltype(i)::value] =
                box_result<Plan, RD, RH, EIGHT, STRIP, decltype(i)::value>(sum, E);
          });
        });
        __syncwarp();
      }
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const bool exists = RD < deep[turn] && RH < high[turn] && wide[turn] > 0;
        Scalar* to = first + at[turn];
#pragma unroll
        for (int c = 0; c < 8; ++c, to += volume) {
          float value[1] = {MET ? image[c * Plan::IMAGE_PITCH + turn * 32 + lane] : 0.0f};
          if (!exists || channel + c >= Plan::M) continue;
          if constexpr (Plan::HAS_BIAS) value[0] += widen(a.bias[kind / Plan::M_PARTS * Plan::M + channel + c]);
          store_box_results(to, value);
        }
      }
      if constexpr (MET) __syncwarp();
    }
  });
}
