// Which results a block of gathered_mma has, the steps of its reduction, and the copies of each step: values of the source,
// each from the place where a position meets a tap, and the weights as they were packed.
#pragma once
#include "contract/flat_grid.cuh"
#include "families/gathered_mma/plan.cuh"
#include "hardware/tf32_parts.cuh"
#include "hardware/ptx.cuh"
#include "hardware/short_division.cuh"

// Brings the weights of gathered_mma into the order in which its lanes hold them, rounded once.

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

// Neighbouring blocks have the classes of the same part of the result, so their stores to one sector meet in L2. Then
// come the channel tiles, which read the same source.
template <class P>
struct GatheredTile {
  int class_d, class_h, class_w, m_tile, group;
  long long first;  // position
  GatheredTaps d, h, w;
  GatheredRange use_d, use_h, use_w;  // taps that a position of this tile may meet

  __device__ __forceinline__ GatheredTile(const GatheredArguments& a, long long block) {
    class_w = take_remainder(block, a.classes_w);
    class_h = take_remainder(block, a.classes_h);
    class_d = take_remainder(block, a.classes_d);
    m_tile = take_remainder(block, P::M_TILES);
    group = block >= a.tiles ? int(block / a.tiles) : 0;
    first = (block - group * a.tiles) * P::TILE_N;
    d = P::D::taps_of_class(class_d), h = P::H::taps_of_class(class_h), w = P::W::taps_of_class(class_w);

    // The positions are neighbours as long as they are in one row; else the whole row, plane or volume counts.
    long long from = first, to = (first + P::TILE_N < a.positions ? first + P::TILE_N : a.positions) - 1;
    int low = take_remainder(from, a.positions_w), high = take_remainder(to, a.positions_w);
    use_w = P::W::range(w, from == to ? low : 0, from == to ? high : a.positions_w - 1, a.source_w);
    low = take_remainder(from, a.positions_h), high = take_remainder(to, a.positions_h);
    use_h = P::H::range(h, from == to ? low : 0, from == to ? high : a.positions_h - 1, a.source_h);
    low = take_remainder(from, a.positions_d), high = take_remainder(to, a.positions_d);
    use_d = P::D::range(d, from == to ? low : 0, from == to ? high : a.positions_d - 1, a.source_d);
  }

  __device__ __forceinline__ bool no_taps() const {
    return use_d.end == 0 || use_h.end == 0 || use_w.end == 0;
  }
  // The weights of this block's channels and class.
  __device__ __forceinline__ const float* weights(const GatheredArguments& a) const {
    const long long firsts = (1LL * d.first * P::H::FIRSTS + h.first) * P::W::FIRSTS + w.first;
    return a.packed + ((1LL * group * P::M_TILES + m_tile) * P::FIRSTS + firsts) * P::CLASS_FLOATS;
  }
};

// One position: where tap 0 of its class meets the source.
struct GatheredColumn {
  int d, h, w;
  bool exists;
  const float* from;  // channel 0 of the group; not read if it is outside

  template <class P>
  __device__ __forceinline__ void place(const GatheredArguments& a, const GatheredTile<P>& tile, int column) {
    long long rest = tile.first + column;
    exists = rest < a.positions;
    w = tile.w.at + take_remainder(rest, a.positions_w) * P::W::SPAN;
    h = tile.h.at + take_remainder(rest, a.positions_h) * P::H::SPAN;
    d = tile.d.at + take_remainder(rest, a.positions_d) * P::D::SPAN;
    from = a.source + (rest * P::GROUPS + tile.group) * P::K * a.source_volume +
           (1LL * d * a.source_h + h) * a.source_w + w;
  }

  // True if the source has an element at this distance from that of tap 0.
  template <class P>
  __device__ __forceinline__ bool meets(const GatheredArguments& a, int to_d, int to_h, int to_w) const {
    return exists && (P::D::PLAIN || unsigned(d + to_d) < unsigned(a.source_d)) &&
           (P::H::PLAIN || unsigned(h + to_h) < unsigned(a.source_h)) &&
           (P::W::PLAIN || unsigned(w + to_w) < unsigned(a.source_w));
  }
};

// Where the result of a position is stored, in the tile's channel 0; null if there is none.
template <class P>
__device__ __forceinline__ float* gathered_result(const GatheredArguments& a, const GatheredTile<P>& tile, int column) {
  long long rest = tile.first + column;
  if (rest >= a.positions) return nullptr;
  const long long w = 1LL * take_remainder(rest, a.positions_w) * P::W::RESULT_STEP + tile.class_w;
  const long long h = 1LL * take_remainder(rest, a.positions_h) * P::H::RESULT_STEP + tile.class_h;
  const long long d = 1LL * take_remainder(rest, a.positions_d) * P::D::RESULT_STEP + tile.class_d;
  if (d >= a.result_d || h >= a.result_h || w >= a.result_w) return nullptr;
  return a.result + ((rest * P::GROUPS + tile.group) * P::M + tile.m_tile * P::TILE_M) * a.result_volume +
         (d * a.result_h + h) * a.result_w + w;
}

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

// The steps of one share of a tile in gathered_along. The reduction has the order of gathered_pair: taps along W run
// fastest, then channels, then rows of taps. A step is CHUNK pairs of that order, wherever they begin and end.
//
// A thread copies the same WIDTH pairs of every step, for each PACE-th position, so
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
