// The end of a strip GEMM: sums go from fragments through shared memory to whole rows of the result, with the zeros of
// residues that no tap meets.
#pragma once
#include "hardware/guarded_load.cuh"
#include "hardware/pack.cuh"
#include "contract/scalar.cuh"
#include "families/implicit_gemm_mma/gemm.cuh"

// Where a run of 4 positions lies in the image. Strips of neighbouring lanes lie in different banks.
template <class C>
__device__ __forceinline__ int image_quad(int quad) {
  return C::STRIP * C::W::OUT_STEP / 2 % 4 == 0 ? quad ^ ((quad >> 3 & 3) << 1) : quad;
}

// Writes 8 channels (half 1: the upper 8 of a fragment of 16) x the positions of a warp.
template <class C>
__device__ __forceinline__ void fill_image(float* image, const float (&sum)[C::W::CLASSES][C::MA][C::STRIP][4], int m,
                                           int half, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    strip_unrolled<C::STRIP * C::W::OUT_STEP / 4>([&](auto part) {
      constexpr int FIRST = decltype(part)::value * 4;
      float v[4];
      strip_unrolled<4>([&](auto which) {
        constexpr int AT = FIRST + decltype(which)::value, J = AT / C::W::OUT_STEP, R = AT % C::W::OUT_STEP;
        if constexpr (C::W::met(R)) {
          v[AT - FIRST] = sum[C::W::class_of(R)][m][J][2 * half + e];
        } else {
          v[AT - FIRST] = 0.0f;
        }
      });
      const int quad = ((2 * t + e) * C::STRIP * C::W::OUT_STEP + FIRST) / 4;
      *reinterpret_cast<float4*>(image + g * C::IMAGE_PITCH + 4 * image_quad<C>(quad)) =
          make_float4(v[0], v[1], v[2], v[3]);
    });
}

// Streaming stores: nothing reads the result again here, but other blocks still read the inputs.
__device__ __forceinline__ void store_strip(float* out, const Pack<float, 4>& v) {
  __stcs(reinterpret_cast<float4*>(out), make_float4(v.value[0], v.value[1], v.value[2], v.value[3]));
}
__device__ __forceinline__ void store_strip(float* out, const Pack<float, 2>& v) {
  __stcs(reinterpret_cast<float2*>(out), make_float2(v.value[0], v.value[1]));
}
__device__ __forceinline__ void store_strip(float* out, const Pack<float, 1>& v) {
  __stcs(out, v.value[0]);
}
template <class Half, int N>
__device__ __forceinline__ void store_strip(Half* out, const Pack<float, N>& v) {
  Pack<Half, N> rounded;
#pragma unroll
  for (int i = 0; i < N; ++i) rounded.value[i] = narrow<Half>(v.value[i]);
  if constexpr (N == 4) {
    __stcs(reinterpret_cast<uint2*>(out), *reinterpret_cast<const uint2*>(&rounded));
  } else if constexpr (N == 2) {
    __stcs(reinterpret_cast<unsigned*>(out), *reinterpret_cast<const unsigned*>(&rounded));
  } else {
    __stcs(reinterpret_cast<unsigned short*>(out), *reinterpret_cast<const unsigned short*>(&rounded));
  }
}

// A warp stores the sectors whose first column c has first <= c < end. Bit q of the result: whether it stores column w if
// w is q values behind the start of a sector.
template <int SECTOR>
__device__ __forceinline__ unsigned owned_alignments(int w, int first, int end) {
  const int most = min(w - first, SECTOR - 1), least = min(max(w - end + 1, 0), SECTOR);
  return least > most ? 0u : (2u << most) - (1u << least);
}

// Stores VECTOR positions of a lane at a time, row after row; neighbouring lanes write neighbours. The places in the
// result are the same for all channels, so each lane computes its own once.
template <class C, int VECTOR>
__device__ __forceinline__ void store_tile(const StripArgumentsOf<C>& a, const StripTile<C>& tile,
                                           const float (&sum)[C::W::CLASSES][C::MA][C::STRIP][4], int cell, int warp_m,
                                           int warp_n, int lane, float* image, bool any) {
  constexpr int PIECES = C::IMAGE_WIDTH / VECTOR;
  constexpr int LANES = PIECES < 32 && 32 % PIECES == 0 ? PIECES : 32;  // of a row; the others write the next row
  constexpr int TOGETHER = 32 / LANES, ROUNDS = ceil_div(PIECES, LANES), TURNS = 8 / TOGETHER;
  // Floats held between load and store. They are fewer where ptxas 13.0 otherwise spills (found by trial: nvcc reports
  // it).
  constexpr bool MANY_SUMS = C::MA * C::STRIP * C::W::CLASSES >= 32;
  constexpr bool LARGE = MANY_SUMS && (C::HALVES || (C::OLD ? C::TAPS > 15 : C::TAPS == 15 && !C::FORWARD));
  constexpr int HELD = (LARGE ? 8 : 16) / (ROUNDS * VECTOR), FIT = HELD < TURNS ? HELD : TURNS;
  constexpr int BATCH = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;  // turns whose loads come before their stores
  // Also found by trial: unrolled, these cases take up to 90 more registers and spill on sm_80. 16-bit values spill if
  // unrolled; one case spills if it is not.
  constexpr bool ROLLED = C::HALVES ? !(MANY_SUMS && C::OLD && C::TAPS == 15) : C::ROLL || C::OLD || C::IMAGE_WIDTH > 128;
  constexpr int TURNS_UNROLLED = ROLLED ? 1 : TURNS / BATCH;
  static_assert(TOGETHER <= 8 && TURNS % BATCH == 0, "rows of an image divide evenly");
  const long long plane = 1LL * a.out_h * a.out_w, volume = plane * a.out_d;
  const int row_of_lane = lane / LANES, piece = lane % LANES;
  const int channel0 = cell % C::M_TILES * C::TILE_M + warp_m * C::MA * 16 + row_of_lane;
  const int first = cell / C::M_TILES * C::M;  // of the group
  const int row0 = tile.row * C::H::OUT_STEP + tile.residue_h() - C::H::CUT;
  typename C::Scalar* to =
      a.out + (tile.n * (C::GROUPS * C::M) + first) * volume + tile.out_d() * plane + 1LL * row0 * a.out_w;
  int place[ROUNDS];
  // For each place SECTOR bits. Bit i: the place is stored if the channel's first row begins i values behind the start
  // of a sector.
  constexpr int A_WORD = 32 / C::SECTOR;  // places
  [[maybe_unused]] unsigned owned[ceil_div(ROUNDS, A_WORD)] = {};
  const int begin = tile.column + warp_n * strip_warp_step<C>(a);
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (piece + LANES * i) * VECTOR;
    const int along = begin + at / C::W::OUT_STEP;
    const int rows_on = divided(along, a.by_pitch);
    const int column = along - rows_on * a.pitch;
    const int w = (tile.block * a.columns + column) * C::W::OUT_STEP + at % C::W::OUT_STEP - C::W::CUT;
    const int h = row0 + rows_on * C::H::OUT_STEP;
    const bool inside = at < C::IMAGE_WIDTH && column < a.columns && unsigned(w) < unsigned(a.out_w) &&
                        unsigned(h) < unsigned(a.out_h);
    place[i] = inside ? rows_on * C::H::OUT_STEP * a.out_w + w : -1;
    if constexpr (C::OVERLAP > 0) {
      // There is no overlap before the row's first column.
      const int first = begin - rows_on * a.pitch, end = first + strip_warp_step<C>(a);
      const bool alone = first <= 0 || a.overlap == 0;
      const int w0 = tile.block * a.columns * C::W::OUT_STEP - C::W::CUT;
      const unsigned mask = owned_alignments<C::SECTOR>(w, alone ? w - C::SECTOR : w0 + first * C::W::OUT_STEP,
                                                        a.overlap == 0 ? w + 1 : w0 + end * C::W::OUT_STEP);
      const unsigned long long twice = mask | static_cast<unsigned long long>(mask) << C::SECTOR;
      const unsigned turned = unsigned(twice >> unsigned(place[i]) % C::SECTOR) & ~0u >> (32 - C::SECTOR);
      // end <= 0: the row begins in the overlap, so the next warp stores all of it.
      owned[i / A_WORD] |= (inside && end > 0 ? turned : 0u) << i % A_WORD * C::SECTOR;
    }
  }
#pragma unroll
  for (int m = 0; m < C::MA; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (any) {
        __syncwarp();
        fill_image<C>(image, sum, m, half, lane);
        __syncwarp();
      }
#pragma unroll TURNS_UNROLLED
      for (int turn0 = 0; turn0 < TURNS; turn0 += BATCH) {
        const int channel = channel0 + m * 16 + half * 8 + turn0 * TOGETHER;
        typename C::Scalar* out = to + channel * volume;
        Pack<float, VECTOR> v[BATCH][ROUNDS] = {};
        if (any) {
#pragma unroll
          for (int turn = 0; turn < BATCH; ++turn)
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
              const int at = PIECES % LANES == 0 ? (piece + LANES * i) * VECTOR
                                                 : min(piece + LANES * i, PIECES - 1) * VECTOR;
              const float* row = image + ((turn0 + turn) * TOGETHER + row_of_lane) * C::IMAGE_PITCH;
              v[turn][i] = *reinterpret_cast<const Pack<float, VECTOR>*>(row + 4 * image_quad<C>(at / 4) + at % 4);
            }
        }
#pragma unroll
        for (int turn = 0; turn < BATCH; ++turn) {
          if (C::M % C::TILE_M != 0 && channel + turn * TOGETHER >= C::M) break;
          if constexpr (C::HAS_BIAS) {
            const float bias = widen(guarded_load(a.bias + first + channel + turn * TOGETHER));
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
              for (int e = 0; e < VECTOR; ++e) v[turn][i].value[e] += bias;
          }
#pragma unroll
          for (int i = 0; i < ROUNDS; ++i) {
            const unsigned behind = reinterpret_cast<size_t>(out) / sizeof(*out) % C::SECTOR;
            const bool stored = C::OVERLAP > 0 ? owned[i / A_WORD] >> behind >> i % A_WORD * C::SECTOR & 1 : place[i] >= 0;
            if (stored) store_strip(out + place[i], v[turn][i]);
          }
          out += TOGETHER * volume;
        }
      }
    }
}
