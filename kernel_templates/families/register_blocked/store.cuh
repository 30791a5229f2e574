// Stores the results of register_blocked. A warp's own shared memory turns each lane's 4 steps into whole row pieces,
// with the zeros of residues without taps. From there neighbouring lanes store side by side.
#pragma once
#include "contract/epilogue.cuh"
#include "hardware/pack.cuh"
#include "contract/axis.cuh"

// Where a strip's first result lies: plane row h, column w (negative: cropped). h < 0: there is no result.
struct FmaPlace {
  int h, w;
};

template <class W, class Sum>
struct FmaImage {
  static constexpr int EACH = 4 * W::OUT_STEP;  // results of a strip
  // 4 elements more after every 32: strips 8 or 16 apart then fall into different banks.
  static constexpr int FLOATS = 36 * EACH;
  static constexpr __host__ __device__ int at(int position) { return position + position / 32 * 4; }

  // sums[class][step] of this lane's strip.
  static __device__ __forceinline__ void fill(Sum* image, const Sum (&sum)[W::CLASSES][4], int lane) {
    strip_unrolled<W::OUT_STEP>([&](auto part) {
      constexpr int FIRST = decltype(part)::value * 4;
      Pack<Sum, 4> four;
      strip_unrolled<4>([&](auto which) {
        constexpr int AT = FIRST + decltype(which)::value, STEP = AT / W::OUT_STEP, R = AT % W::OUT_STEP;
        if constexpr (W::met(R)) {
          four.value[AT - FIRST] = sum[W::class_of(R)][STEP];
        } else {
          four.value[AT - FIRST] = Sum(0);
        }
      });
      *reinterpret_cast<Pack<Sum, 4>*>(image + at(lane * EACH + FIRST)) = four;
    });
  }

  // Stores IMAGES channels, of which the first `count` exist. `out` is row 0 of the plane of the first; planes are
  // `volume` apart. any: false if there are no sums, and every result is its bias.
  template <int IMAGES, class Scalar>
  static __device__ __forceinline__ void drain(const Sum* image, const FmaPlace* places, Scalar* out, long long volume,
                                               int out_w, int count, const Sum (&bias)[IMAGES], int lane, bool any) {
#pragma unroll 2
    for (int turn = 0; turn < EACH; ++turn) {
      const int position = turn * 32 + lane;
      const FmaPlace place = places[position / EACH];
      const int w = place.w + position % EACH;
      if (place.h < 0 || unsigned(w) >= unsigned(out_w)) continue;
      Scalar* to = out + 1LL * place.h * out_w + w;
#pragma unroll
      for (int i = 0; i < IMAGES; ++i)
        if (i < count) to[i * volume] = narrow<Scalar>((any ? image[i * FLOATS + turn * 36 + lane] : Sum(0)) + bias[i]);
    }
  }
};
