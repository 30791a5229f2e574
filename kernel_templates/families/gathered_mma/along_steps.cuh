// The steps of gathered_along, and the copies of each. The reduction has the order of gathered_pair: taps along W run
// fastest, then channels, then rows of taps. A step is CHUNK pairs of that order, wherever they begin and end.
#pragma once
#include "families/gathered_mma/pack.cuh"
#include "families/gathered_mma/tile.cuh"
#include "hardware/ptx.cuh"

// The steps of one share of a tile. A thread copies the same WIDTH pairs of every step, for each PACE-th position, so
// neighbouring lanes copy neighbours in grad_output.
template <class P, int WIDTH>
struct AlongSteps {
  static constexpr int LANES = P::CHUNK / WIDTH, PACE = P::THREADS / LANES;
  static constexpr int COPIES = ceil_div(P::TILE_N, PACE), AT_ONCE = COPIES < 4 ? COPIES : 4;
  static constexpr long long ROW_PAIRS = 1LL * P::K * P::KERNEL_W;  // of a row of taps: one tap along D and H
  static_assert(P::THREADS % LANES == 0 && COPIES % AT_ONCE == 0, "threads must share a step evenly");

  int count;       // of steps
  int step;        // the next one
  int k, w, h, d;  // where this thread is in it

  __device__ __forceinline__ AlongSteps(const GatheredTile<P>& tile, int share, int shares) : count(0), step(0) {
    if (!tile.no_taps()) {
      const long long row = 1LL * tile.use_d.begin * P::KERNEL_H + tile.use_h.begin;
      const long long last_row = (tile.use_d.end - 1LL) * P::KERNEL_H + tile.use_h.end - 1;
      const long long begin = row * ROW_PAIRS / P::CHUNK;
      const long long steps = ((last_row + 1) * ROW_PAIRS + P::CHUNK - 1) / P::CHUNK - begin;
      const long long from = steps * share / shares;
      step = int(begin + from), count = int(steps * (share + 1) / shares - from);
    }
    const GatheredPair at =
        gathered_pair<P>(1LL * step * P::CHUNK + int(threadIdx.x) % LANES * WIDTH, P::KERNEL_H, P::KERNEL_W);
    k = at.k, w = at.w, h = at.h, d = int(at.d);
  }

  // Starts the copies of the next step.
  __device__ __forceinline__ void copy(const GatheredArguments& a, const GatheredColumn* columns, const float* weights,
                                       float* stage) {
    const float* const from = weights + 1LL * step * P::WEIGHT_FLOATS;
#pragma unroll
    for (int i = 0; i < ceil_div(P::WEIGHT_FLOATS / 4, P::THREADS); ++i) {
      const int piece = (threadIdx.x + i * P::THREADS) * 4;
      if (P::WEIGHT_FLOATS / 4 % P::THREADS == 0 || piece < P::WEIGHT_FLOATS)
        cp_async<16>(stage + P::SOURCE_FLOATS + piece, from + piece);
    }
    const int first = threadIdx.x / LANES;
    if (PACE <= P::TILE_N || first < P::TILE_N)
      copy_runs(a, columns + first, stage + first * P::POSITION_PITCH + int(threadIdx.x) % LANES * WIDTH);
    ++step;
    advance();
  }

 private:
  __device__ __forceinline__ void copy_runs(const GatheredArguments& a, const GatheredColumn* columns,
                                            float* to) const {
    const int to_d = d * P::D::SHIFT, to_h = h * P::H::SHIFT;
    const bool exists = d < P::KERNEL_D;  // else the last step is filled up with zeros
    const long long shift = k * a.source_volume + (1LL * to_d * a.source_h + to_h) * a.source_w + w;
#pragma unroll
    for (int i = 0; i < COPIES; i += AT_ONCE) {
      const float* from[AT_ONCE];  // read before a copy starts: copies are not reordered with reads
      bool met[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        const GatheredColumn& column = columns[(i + j) * PACE];
        from[j] = column.from + shift, met[j] = exists && column.template meets<P>(a, to_d, to_h, w);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
        cp_async<4 * WIDTH>(to + (i + j) * PACE * P::POSITION_PITCH, from[j], met[j] ? 4 * WIDTH : 0);
    }
  }

  // Moves to the next step. The WIDTH pairs of a thread belong to one run: if WIDTH is 4, all lengths are multiples of
  // 4.
  __device__ __forceinline__ void advance() {
    w += P::CHUNK % P::KERNEL_W, k += P::CHUNK / P::KERNEL_W;
    if (w >= P::KERNEL_W) w -= P::KERNEL_W, ++k;
    while (k >= P::K) {
      k -= P::K;
      if (++h == P::KERNEL_H) h = 0, ++d;
    }
  }
};
