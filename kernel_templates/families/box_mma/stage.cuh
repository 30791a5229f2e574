// How box_mma fills shared memory: a box of the source, one chunk of channels at a time, and the weights.
#pragma once
#include "families/box_mma/tile.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/ptx.cuh"

// Copies the box of a tile. thread -> data: TAKEN neighbouring grains of a row, for all channels. What lies outside the
// tensor arrives as zeros.
template <class Plan, int TAKEN>
__device__ __forceinline__ void copy_box(const BoxArguments<typename Plan::Scalar>& a,
                                         const BoxTile<typename Plan::Scalar>& tile, int plane0, int chunk, int group,
                                         typename Plan::Scalar* box) {
  using Scalar = typename Plan::Scalar;
  using D = typename Plan::D;
  using H = typename Plan::H;
  using W = typename Plan::W;
  constexpr int BYTES = TAKEN * Plan::BYTES;
  constexpr bool TAIL = Plan::K % Plan::CHANNELS != 0;
  const int items = a.planes * a.rows * a.pieces, left = Plan::K - chunk * Plan::CHANNELS;
  const int first_d = D::ORIGIN + (tile.d * D::IN_STEP + plane0) * D::GRAIN;
  const int first_h = H::ORIGIN + tile.h * H::IN_STEP * H::GRAIN;
  const int first_w = W::ORIGIN - Plan::LEAD + tile.w * Plan::STRIP_IN * W::GRAIN;
  const long long volume = 1LL * a.in_d * a.in_h * a.in_w;
  const Scalar* const from = a.in + ((tile.n * Plan::GROUPS + group) * Plan::K + chunk * Plan::CHANNELS) * volume;
#pragma unroll 1
  for (int item = threadIdx.x; item < items; item += Plan::THREADS) {
    const int line = box_quotient(item, a.by_pieces), grain = (item - line * a.pieces) * TAKEN;
    const int plane = box_quotient(line, a.by_rows), d = first_d + plane * D::GRAIN;
    const int h = first_h + (line - plane * a.rows) * H::GRAIN, w = first_w + grain * W::GRAIN;
    const bool inside = unsigned(d) < unsigned(a.in_d) && unsigned(h) < unsigned(a.in_h) && unsigned(w) < unsigned(a.in_w);
    const Scalar* source = inside ? from + (1LL * d * a.in_h + h) * a.in_w + w : a.in;
    const long long step = inside ? volume : 0;
    Scalar* to = box + line * a.row + grain;
#pragma unroll
    for (int c = 0; c < Plan::CHANNELS; ++c) {
      const bool exists = inside && (!TAIL || c < left);
      if constexpr (BYTES >= 4) {
        cp_async<BYTES>(to, TAIL && !exists ? a.in : source, exists ? BYTES : 0);
      } else {
        *reinterpret_cast<unsigned short*>(to) =
            exists ? __ldg(reinterpret_cast<const unsigned short*>(source)) : (unsigned short)(0);
      }
      source += step;
      to += c % 2 == 0 ? a.pitch : a.pitch + a.pair;
    }
  }
}

// RAW: the box as copy_box() does it, in vectors of 16 bytes as they lie in memory. Vectors that lie inside the row whatever
// its phase come first. thread -> data: such a vector in all channels; then one vector at an end of a row, in one channel.
template <class Plan>
__device__ __forceinline__ void copy_box_vectors(const BoxArguments<typename Plan::Scalar>& a,
                                                 const BoxTile<typename Plan::Scalar>& tile, int plane0, int chunk, int group,
                                                 typename Plan::Scalar* box) {
  using Scalar = typename Plan::Scalar;
  using D = typename Plan::D;
  using H = typename Plan::H;
  using W = typename Plan::W;
  constexpr int VECTOR = Plan::VECTOR;
  const int lines = a.planes * a.rows, left = Plan::K - chunk * Plan::CHANNELS;
  const int first_d = D::ORIGIN + (tile.d * D::IN_STEP + plane0) * D::GRAIN;
  const int first_h = H::ORIGIN + tile.h * H::IN_STEP * H::GRAIN;
  const int first_w = W::ORIGIN + tile.w * Plan::STRIP_IN * W::GRAIN;
  const BoxEnds<Plan> ends(a, first_w);
  const int cut = ends.cut(a);
  const long long volume = 1LL * a.in_d * a.in_h * a.in_w;
  const Scalar* const first = a.in + ((tile.n * Plan::GROUPS + group) * Plan::K + chunk * Plan::CHANNELS) * volume;
  // The row of the source that line `line` of the box holds, in the first channel; null: there is none.
  const auto row_of = [&](int line) -> const Scalar* {
    const int plane = box_quotient(line, a.by_rows), d = first_d + plane * D::GRAIN;
    const int h = first_h + (line - plane * a.rows) * H::GRAIN;
    const bool inside = unsigned(d) < unsigned(a.in_d) && unsigned(h) < unsigned(a.in_h);
    return inside ? first + (1LL * d * a.in_h + h) * a.in_w : nullptr;
  };
  const auto zeros = [](Scalar* to) { *reinterpret_cast<float4*>(to) = make_float4(0.0f, 0.0f, 0.0f, 0.0f); };
#pragma unroll 1
  for (int item = threadIdx.x; item < lines * a.pieces; item += Plan::THREADS) {
    const int line = box_quotient(item, a.by_pieces), piece = item - line * a.pieces;
    if (piece < ends.from || piece >= ends.to) continue;
    const Scalar* const row = row_of(line);
    unsigned long long source = reinterpret_cast<unsigned long long>(row + first_w + piece * VECTOR);
    Scalar* to = box + line * a.row + piece * VECTOR;
#pragma unroll
    for (int c = 0; c < Plan::CHANNELS; ++c) {
      if (row != nullptr && (Plan::K % Plan::CHANNELS == 0 || c < left))
        cp_async<16>(to, reinterpret_cast<const Scalar*>(source / 16 * 16));
      else
        zeros(to);
      source += volume * Plan::BYTES;
      to += c % 2 == 0 ? a.pitch : a.pitch + a.pair;
    }
  }
#pragma unroll 1
  for (int item = threadIdx.x; item < lines * Plan::CHANNELS * cut; item += Plan::THREADS) {
    const int c = item % Plan::CHANNELS, line = int(unsigned(item / Plan::CHANNELS) / unsigned(cut));
    const int end = item / Plan::CHANNELS - line * cut, piece = end < ends.from ? end : ends.to + end - ends.from;
    Scalar* const to = box + line * a.row + c * a.pitch + c / 2 * a.pair + piece * VECTOR;
    const Scalar* const row = row_of(line);
    const Scalar* source = row + c * volume + first_w + piece * VECTOR;
    const int phase = int(reinterpret_cast<unsigned long long>(source) % 16) / Plan::BYTES;
    const int w = first_w + piece * VECTOR - phase;
    source -= phase;
    if (row == nullptr || c >= left || w <= -VECTOR || w >= a.in_w) {
      zeros(to);
    } else if (w >= 0 && w + VECTOR <= a.in_w) {
      cp_async<16>(to, source);
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) {
        const bool met = unsigned(w + i) < unsigned(a.in_w);
        cp_async<4>(to + i, met ? source + i : a.in, met ? 4 : 0);
      }
    }
  }
}

// Copies what step `step` of a tile needs: chunk step / PLANES, plane step % PLANES.
template <class Plan>
__device__ __forceinline__ void copy_box_step(const BoxArguments<typename Plan::Scalar>& a,
                                          const BoxTile<typename Plan::Scalar>& tile, int step, int kind,
                                          typename Plan::Scalar* box, float* weights) {
  using D = typename Plan::D;
  const int group = kind / Plan::M_PARTS, chunk = step / Plan::PLANES;
  int plane = 0, first_tap = 0, taps = D::TAPS;
  if constexpr (Plan::SPLIT)
    const_loop<0, Plan::PLANES>([&](auto number) {
      constexpr int NUMBER = decltype(number)::value, BEFORE = D::taps_before(NUMBER);
      if (step % Plan::PLANES == NUMBER)
        plane = D::offset_at(NUMBER), first_tap = BEFORE, taps = D::taps_before(NUMBER + 1) - BEFORE;
    });
  if constexpr (Plan::RAW) {
    copy_box_vectors<Plan>(a, tile, plane, chunk, group, box);
  } else if (Plan::VECTOR == 8 && a.in_vector == 8) {
    if constexpr (Plan::VECTOR == 8 && Plan::READ >= 8) copy_box<Plan, 8>(a, tile, plane, chunk, group, box);
  } else if (a.in_vector == 4) {
    if constexpr (Plan::READ >= 4) copy_box<Plan, 4>(a, tile, plane, chunk, group, box);
  } else if (a.in_vector == 2) {
    if constexpr (Plan::READ >= 2) copy_box<Plan, 2>(a, tile, plane, chunk, group, box);
  } else {
    copy_box<Plan, 1>(a, tile, plane, chunk, group, box);
  }
  if constexpr (!Plan::RESIDENT) {
    const float* const from = a.packed + (1LL * kind * Plan::CHUNKS + chunk) * Plan::CHUNK_WORDS + first_tap * Plan::TAP_WORDS;
    for (int i = 4 * threadIdx.x; i < taps * Plan::TAP_WORDS; i += 4 * Plan::THREADS) cp_async<16>(weights + i, from + i);
  }
}
