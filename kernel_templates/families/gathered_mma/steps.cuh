// The steps of the reduction of gathered_mma, and the copies of each: values of the source, each from the place where a
// position meets a tap, and the weights as they were packed.
#pragma once
#include "families/gathered_mma/tile.cuh"
#include "hardware/ptx.cuh"

// A row of a step: one pair of tap and channel, as its distance from tap 0 and channel 0.
struct alignas(16) GatheredRow {
  long long shift;
  int d, h, w, exists;
};

template <class P>
struct GatheredSteps {
  const GatheredArguments& a;
  const GatheredTile<P>& tile;
  int count;               // of steps
  int at_d, at_h, at_w, part;  // the next step, where steps are parts of taps: its tap
  int step;                    // the next step, where they are not

  __device__ __forceinline__ GatheredSteps(const GatheredArguments& arguments, const GatheredTile<P>& of)
      : a(arguments), tile(of), at_d(of.use_d.begin), at_h(of.use_h.begin), at_w(of.use_w.begin), part(0), step(0) {
    if (tile.no_taps()) {
      count = 0;
    } else if constexpr (P::MIXED) {
      const long long last = number(tile.use_d.end - 1, tile.use_h.end - 1, tile.use_w.end - 1);
      step = int(number(at_d, at_h, at_w) * P::CHANNELS / P::CHUNK);
      count = int((last * P::CHANNELS + P::CHANNELS - 1) / P::CHUNK) - step + 1;
    } else {
      count = (tile.use_d.end - at_d) * (tile.use_h.end - at_h) * (tile.use_w.end - at_w) * P::PARTS;
    }
  }

  // The number of a tap in its class, in the order in which weights are packed.
  __device__ __forceinline__ long long number(int d, int h, int w) const {
    return (1LL * d * tile.h.count + h) * tile.w.count + w;
  }

  // Starts the copies of the next step. `rows` is what list() wrote.
  __device__ __forceinline__ void copy(const GatheredColumn (&columns)[P::COLUMNS], const float* weights, float* stage,
                                       const GatheredRow* rows) {
    const long long packed = P::MIXED ? step : number(at_d, at_h, at_w) * P::PARTS + part;
    const float* const from = weights + packed * P::WEIGHT_FLOATS;
#pragma unroll
    for (int i = 0; i < ceil_div(P::WEIGHT_FLOATS / 4, P::THREADS); ++i) {
      const int piece = (threadIdx.x + i * P::THREADS) * 4;
      if (P::WEIGHT_FLOATS / 4 % P::THREADS == 0 || piece < P::WEIGHT_FLOATS)
        cp_async<16>(stage + P::SOURCE_FLOATS + piece, from + piece);
    }
    const int row = P::ROW_STEP > 1 ? threadIdx.x / P::TILE_N : 0;
    float* const to = stage + row * P::PITCH + (P::ROW_STEP > 1 ? threadIdx.x % P::TILE_N : threadIdx.x);
    if constexpr (P::MIXED) {
      gather_rows(columns, rows + row, to);
      ++step;
    } else {
      gather_tap(columns, part * P::CHUNK + row, to);
      next_part();
    }
  }

  // Writes the rows of the step that is `ahead` steps further. One thread works for each row.
  __device__ __forceinline__ void list(int ahead, GatheredRow* rows) const {
    if (count == 0 || int(threadIdx.x) >= P::CHUNK) return;
    const long long pair = (1LL * step + ahead) * P::CHUNK + threadIdx.x;
    long long tap = pair / P::CHANNELS;
    const int channel = int(pair % P::CHANNELS), w = take_remainder(tap, tile.w.count);
    const int h = take_remainder(tap, tile.h.count);
    GatheredRow row;
    row.exists = tap < tile.d.count;
    row.d = int(tap) * P::D::SHIFT, row.h = h * P::H::SHIFT, row.w = w * P::W::SHIFT;
    row.shift = channel * a.source_volume + (1LL * row.d * a.source_h + row.h) * a.source_w + row.w;
    rows[threadIdx.x] = row;
  }

 private:
  // Copies rows of one tap: channels k, k + ROW_STEP, ... One test decides whether a position meets the tap.
  __device__ __forceinline__ void gather_tap(const GatheredColumn (&columns)[P::COLUMNS], int k, float* to) const {
    const int d = at_d * P::D::SHIFT, h = at_h * P::H::SHIFT, w = at_w * P::W::SHIFT;
    const long long shift = k * a.source_volume + (1LL * d * a.source_h + h) * a.source_w + w;
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
      const bool met = columns[c].template meets<P>(a, d, h, w);
      const float* from = columns[c].from + shift;
#pragma unroll
      for (int i = 0; i < P::ROWS; ++i, from += P::ROW_STEP * a.source_volume) {
        const bool whole = P::K % P::CHUNK == 0 || k + i * P::ROW_STEP < P::K;
        cp_async<4>(to + i * P::ROW_STEP * P::PITCH + c * P::THREADS, from, met && whole ? 4 : 0);
      }
    }
  }

  // Copies rows of several taps.
  __device__ __forceinline__ void gather_rows(const GatheredColumn (&columns)[P::COLUMNS], const GatheredRow* rows,
                                              float* to) const {
#pragma unroll
    for (int i = 0; i < P::ROWS; ++i) {
      const GatheredRow row = rows[i * P::ROW_STEP];
#pragma unroll
      for (int c = 0; c < P::COLUMNS; ++c) {
        const bool met = row.exists && columns[c].template meets<P>(a, row.d, row.h, row.w);
        cp_async<4>(to + i * P::ROW_STEP * P::PITCH + c * P::THREADS, columns[c].from + row.shift, met ? 4 : 0);
      }
    }
  }

  __device__ __forceinline__ void next_part() {
    if (++part < P::PARTS) return;
    part = 0;
    if (++at_w < tile.use_w.end) return;
    at_w = tile.use_w.begin;
    if (++at_h < tile.use_h.end) return;
    at_h = tile.use_h.begin;
    ++at_d;
  }
};
