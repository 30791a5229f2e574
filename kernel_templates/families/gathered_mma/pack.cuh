// Brings the weights of gathered_mma into the order in which its lanes hold them, rounded once.
#pragma once
#include "families/gathered_mma/plan.cuh"
#include "hardware/short_division.cuh"
#include "hardware/tf32_parts.cuh"

// A term of the reduction: a channel, and a tap by its number in its class along each axis.
struct GatheredPair {
  int k, h, w;
  long long d;
};

// For a class with taps_h and taps_w taps. Channels run fastest; in the kernel for long strides the taps of a row do.
template <class P>
__device__ __forceinline__ GatheredPair gathered_pair(long long pair, int taps_h, int taps_w) {
  GatheredPair of;
  if constexpr (P::ALONG) {
    of.w = take_remainder(pair, P::KERNEL_W);
    of.k = take_remainder(pair, P::K);
  } else {
    of.k = take_remainder(pair, P::CHANNELS);
    of.w = take_remainder(pair, taps_w);
  }
  of.h = take_remainder(pair, taps_h);
  of.d = pair;
  return of;
}

// thread -> data: the four values that one lane gives to a product (and their remainders). No thread synchronises.
template <class P>
__global__ void __launch_bounds__(256) pack_gathered_weights(const float* __restrict__ weight,
                                                             float* __restrict__ packed) {
  constexpr long long LANES = P::PACKED_FLOATS / (4 * P::PLANES);
  for (long long i = 256LL * blockIdx.x + threadIdx.x; i < LANES; i += 256LL * gridDim.x) {
    const int lane = int(i % 32), fragment = int(i / 32 % (P::TILE_M / 16));
    long long rest = i / (2 * P::TILE_M);
    const long long first_pair = rest % (P::MOST_STEPS * (P::CHUNK / 8)) * 8;
    rest /= P::MOST_STEPS * (P::CHUNK / 8);
    const int w = int(rest % P::W::FIRSTS), h = int(rest / P::W::FIRSTS % P::H::FIRSTS);
    const int d = int(rest / (P::W::FIRSTS * P::H::FIRSTS) % P::D::FIRSTS);
    const long long cell = rest / P::FIRSTS;
    const int group = int(cell / P::M_TILES), m0 = int(cell % P::M_TILES) * P::TILE_M + fragment * 16;
    const int taps_h = P::H::taps_from(h), taps_w = P::W::taps_from(w);
    float high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = m0 + lane / 4 + e % 2 * 8;
      const GatheredPair pair = gathered_pair<P>(first_pair + lane % 4 + e / 2 * 4, taps_h, taps_w);
      const int k = pair.k, kw = w + pair.w * P::W::TAP_STEP, kh = h + pair.h * P::H::TAP_STEP;
      float v = 0.0f;
      if (m < P::M && k < P::K && pair.d < P::D::taps_from(d)) {
        const long long channels =
            P::FORWARD ? (1LL * group * P::K + k) * P::M + m : (1LL * group * P::M + m) * P::K + k;
        const long long kd = d + pair.d * P::D::TAP_STEP;
        v = __ldg(weight + channels * P::KERNEL + (kd * P::KERNEL_H + kh) * P::KERNEL_W + kw);
      }
      high[e] = high_tf32(v);
      low[e] = nearest_tf32(low_tf32(v, high[e]));
    }
    float* const to = packed + i / 32 * (P::PLANES * 128) + lane * 4;
    *reinterpret_cast<float4*>(to) = make_float4(high[0], high[1], high[2], high[3]);
    if constexpr (P::THREE) *reinterpret_cast<float4*>(to + 128) = make_float4(low[0], low[1], low[2], low[3]);
  }
}

template <class P>
cudaError_t launch_gathered_pack(const float* weight, float* packed, cudaStream_t stream) {
  constexpr long long PACKERS = ceil_div(P::PACKED_FLOATS / (4 * P::PLANES), 256LL);
  pack_gathered_weights<P><<<unsigned(PACKERS < 4096 ? PACKERS : 4096), 256, 0, stream>>>(weight, packed);
  return cudaGetLastError();
}
