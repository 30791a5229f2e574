// How register_blocked cuts a layer in forward and grad_input: channels of a thread, warps of a block, channels of a
// stage. All are constants of layer and config. FmaImage stores the results: a warp's own shared memory turns each lane's
// 4 steps into whole row pieces, with the zeros of residues without taps.
#pragma once
#include "families/register_blocked/row.cuh"
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

// PLANES: how a source that is read with a stride is staged. 1: by residues, 2: as in memory, 0: chosen here.
template <bool FORWARD_, class Layer, class Tune, int PLANES = 1>
struct FmaPlan {
  static constexpr bool FORWARD = FORWARD_;
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  using D = StripAxis<FORWARD, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using H = StripAxis<FORWARD, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using W = StripAxis<FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  // A source that is read with a stride is staged by residues if they are few and windows are short, so that copies
  // element by element are faster.
  using Planar = FmaRow<FORWARD, Layer, true>;
  static constexpr bool SPLIT = PLANES > 0 ? PLANES == 1 : Planar::PLANES <= 2 && W::TAPS < 5;
  using Row = FmaRow<FORWARD, Layer, SPLIT>;
  using Image = FmaImage<W, Sum>;
  static constexpr int GROUPS = Layer::groups;
  static constexpr int M = (FORWARD ? Layer::out_channels : Layer::in_channels) / GROUPS;  // of the result
  static constexpr int K = (FORWARD ? Layer::in_channels : Layer::out_channels) / GROUPS;  // summed over
  static constexpr int TAP_ROWS = D::TAPS * H::TAPS, TAPS = TAP_ROWS * W::TAPS;
  static constexpr bool HAS_BIAS = FORWARD && Layer::has_bias;

  static constexpr __host__ __device__ int evenly(int count, int most) {
    return ceil_div(count, ceil_div(count, most < 1 ? 1 : most));
  }
  // Channels of a thread: at most CHANNELS, so that the sums fit in the registers. With more channels more loads are shared,
  // but more channels may be wasted.
  static constexpr int STRIPS = Tune::STRIPS;
  static constexpr __host__ __device__ int channels() {
    int best = 1;
    for (int c = 2; c <= Tune::CHANNELS && 4 * STRIPS * W::CLASSES * c <= Tune::SUMS; c *= 2)
      if (ceil_div(M, c) * (c + 1) <= ceil_div(M, best) * (best + 1)) best = c;
    return best;
  }
  static constexpr int MC = channels();
  static constexpr int SUMS = 4 * STRIPS * W::CLASSES * MC;
  static constexpr int WARPS_M = evenly(ceil_div(M, MC), Tune::WARPS);
  static constexpr int WARPS_N = Tune::WARPS / WARPS_M, WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;
  static constexpr int MB = WARPS_M * MC, M_TILES = ceil_div(M, MB);
  // Threads whose registers a multiprocessor should hold. Without this bound ptxas spills to fit more.
  static constexpr int RESIDENT = SUMS <= 32 ? 512 : SUMS <= 64 ? 384 : 256;
  static constexpr int BLOCKS = Tune::BLOCKS > 0 ? Tune::BLOCKS : RESIDENT / THREADS < 1 ? 1 : RESIDENT / THREADS;

  static constexpr int UNROLL = Tune::UNROLL;  // channels whose products are in one turn of the loop

  // Shared memory, in elements: stages of [channel][plane][row][element] and weights, then the places of the strips.
  // The images of the results later take the place of the stages.
  static constexpr int TILE = 32 * STRIPS * WARPS_N;  // strips
  static constexpr int MOST_ROWS = TILE / 4 < 16 ? TILE / 4 : 16;
  static constexpr int PLANE = 4 * Row::STEP * TILE + MOST_ROWS * Row::WINDOW;
  static constexpr int CHANNEL = Row::PLANES * PLANE;
  static constexpr __host__ __device__ int weights(int kc) { return ceil_div(kc * W::TAPS * MB, 4) * 4; }
  static constexpr __host__ __device__ int stage(int kc) { return kc * CHANNEL + weights(kc); }
  static constexpr int STAGES = Tune::STAGES;
  static constexpr __host__ __device__ int staged_channels() {
    int kc = 1;
    while (kc < K && kc < Tune::STAGED && STAGES * stage(2 * kc) * int(sizeof(Sum)) <= 1024 * Tune::STAGE_KB) kc *= 2;
    return kc;
  }
  // Threads that copy the rows of a channel: about as many as there are vectors of 4.
  static constexpr int TEAM = TILE < 64 && THREADS % 64 == 0 ? 64 : TILE < 128 && THREADS % 128 == 0 ? 128 : THREADS;
  static_assert(THREADS % TEAM == 0, "every thread belongs to one team");
  static constexpr int KC = staged_channels(), CHUNKS = ceil_div(K, KC);
  static constexpr int STAGE = stage(KC), WEIGHTS = weights(KC);
  static constexpr int IMAGES_FIT = 3072 / Image::FLOATS;
  static constexpr int IMAGES = IMAGES_FIT >= 4 && MC >= 4 ? 4 : IMAGES_FIT >= 2 && MC >= 2 ? 2 : 1;
  static constexpr int IMAGE_FLOATS = WARPS * IMAGES * Image::FLOATS;
  static constexpr int BODY = STAGES * STAGE > IMAGE_FLOATS ? STAGES * STAGE : IMAGE_FLOATS;
  static constexpr int SHARED_BYTES = BODY * int(sizeof(Sum)) + TILE * int(sizeof(FmaPlace));
  static constexpr long long PACKED = 1LL * GROUPS * M_TILES * TAP_ROWS * CHUNKS * WEIGHTS;
};
