// The packed tensors of persistent_packed: their grid of positions, and the kernel that packs.
//
// Positions are counted along W, then H, D and the batch, with so many zeros behind each row, plane and image that no
// tap meets values of a neighbour. So every tap is one distance between positions, and a window is one run of memory.
#pragma once
#include "contract/flat_grid.cuh"
#include "families/persistent_wgmma/gather_places.cuh"
#include "families/persistent_wgmma/gather_weights.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/guarded_load.cuh"

// Taps along one axis, counted in positions. grad_input and grad_weight read one of STRIDE phases of grad_output.
template <bool is_forward, int KERNEL, int STRIDE, int PADDING, int DILATION>
struct PackedAxis {
  static constexpr int PHASES = is_forward ? 1 : STRIDE;
  static constexpr __host__ __device__ int shift(int tap) {
    const int v = tap * DILATION - (is_forward ? PADDING : 0);
    const int quotient = v >= 0 ? v / STRIDE : -((STRIDE - 1 - v) / STRIDE);
    return is_forward ? -quotient : quotient;
  }
  static constexpr int LOW = is_forward ? shift(KERNEL - 1) : 0, HIGH = shift(is_forward ? 0 : KERNEL - 1);
  // Positions along this axis: `steps` have results, `source` elements are in the source.
  static __host__ long long extent(long long steps, long long source) {
    const long long before = LOW < 0 ? source - LOW : 0, behind = steps + (HIGH > 0 ? HIGH : 0);
    return before > behind ? before : behind;
  }
};

struct PackedGrid {
  GatherDivisor wide, high, deep;  // positions of a row, rows of a plane, planes of an image
  int rows, row, plane;            // of all images; positions from one row, one plane to the next
  long long places, before;        // of a plane of a unit: `before`, then the positions, then those behind
};

// Returns false if there are too many positions. `steps` are those with results, tiles have TILE positions.
template <class D, class H, class W, int TILE>
bool packed_grid(long long batch, const int (&steps)[3], const int (&source)[3], PackedGrid& g) {
  const long long deep = D::extent(steps[0], source[0]), high = H::extent(steps[1], source[1]);
  long long wide = W::extent(steps[2], source[2]);
  // Eight positions that a warp stores together begin at a sector, if the extra zeros are few.
  const long long even = (wide + 7) / 8 * 8;
  if (even - wide <= wide / 32) wide = even;
  constexpr long long MOST = 1LL << 30;
  if (deep >= MOST || high >= MOST || wide >= MOST || deep * high >= MOST || deep * high * wide >= MOST) return false;
  if (deep == 0 || high == 0 || wide == 0) return false;
  const long long rows = batch * deep * high, positions = rows * wide;
  if (positions >= (1LL << 31) - TILE) return false;
  g.wide = GatherDivisor(int(wide)), g.high = GatherDivisor(int(high)), g.deep = GatherDivisor(int(deep));
  g.rows = int(rows), g.row = int(wide), g.plane = int(high * wide);
  const long long low = D::LOW * high * wide + H::LOW * wide + W::LOW, far = D::HIGH * high * wide + H::HIGH * wide + W::HIGH;
  g.before = low < 0 ? -low : 0;
  g.places = g.before + ceil_div(positions, TILE) * TILE + (far > 0 ? far : 0);
  return g.places < 1LL << 31;
}

// A tensor as it lies in memory.
template <class Scalar>
struct PackedTensor {
  const Scalar* values;
  int size[3];
  long long volume;
  float one;  // 1, where the compiler cannot see it
};

template <class Source>
long long packed_bytes(const PackedGrid& g) {
  return 16LL * Source::PHASES * Source::GROUPS * Source::UNITS * Source::PLANES * g.places;
}

constexpr int PACKED_THREADS = 256;

// What a block of pack_units packs of one unit: `rows` whole rows of the grid, or `columns` positions of one row.
struct PackedCut {
  int rows, columns, row_blocks, column_blocks;
  int vector, line;                    // elements that are loaded together; elements of a line in shared memory
  int lanes;                           // that load a line
  long long blocks, of_channel;        // blocks with values; those that meet a channel
  bool whole;                          // rows are whole
};

template <class Source, class Scalar>
PackedCut packed_cut(const PackedTensor<Scalar>& tensor, const PackedGrid& g) {
  constexpr int MOST = 24576 / (Source::CHANNELS * int(sizeof(Scalar)));  // elements of a channel in shared memory
  const int w = tensor.size[2];
  PackedCut cut = {};
  cut.vector = 16 / int(sizeof(Scalar));
  while (w % cut.vector != 0 || size_t(tensor.values) % (cut.vector * sizeof(Scalar)) != 0) cut.vector /= 2;
  const auto line = [&](int columns) { return ceil_div(columns * Source::STEP_W + Source::PACK, 8) * 8 + 8; };
  const int of_row = g.row <= MOST ? line(g.row) * Source::STEP_H : MOST + 1;
  cut.whole = of_row <= MOST;
  cut.rows = cut.whole ? MOST / of_row : 1;
  const int high = g.high.divisor, enough = ceil_div(2048, g.row);  // positions of a block
  if (cut.rows > enough) cut.rows = enough;
  if (cut.rows > high) cut.rows = high;
  cut.columns = cut.whole ? g.row : MOST / (Source::STEP_H * Source::STEP_W) - 16;
  if (cut.columns < 1) cut.columns = 1;
  cut.line = line(cut.columns), cut.lanes = 32;
  while (cut.lanes > 1 && cut.lanes / 2 * cut.vector >= cut.line) cut.lanes /= 2;
  cut.row_blocks = ceil_div(high, cut.rows), cut.column_blocks = ceil_div(g.row, cut.columns);
  cut.of_channel = 1LL * Source::STEP_D * (g.rows / high) * cut.row_blocks * cut.column_blocks;
  cut.blocks = cut.of_channel * Source::GROUPS * Source::UNITS;
  return cut;
}

// packed: [phase of D and H][group][unit][plane][place], 16 bytes each.
// A block loads lines of all channels of a unit, as wide as rows allow, and writes the places that meet them. Behind the
// blocks with values, a block for each unit and phase writes the zeros before and behind the positions.
// `sums`, if it is given, gets the sum of what each block loads of a channel: [channel][block].
// Bytes: the tensor is read once, and written once with its zeros.
template <class Source>
__global__ void __launch_bounds__(PACKED_THREADS)
    pack_units(PackedTensor<typename Source::Scalar> tensor, PackedGrid grid, PackedCut cut, char* packed, float* sums) {
  using Scalar = typename Source::Scalar;
  constexpr int PACK = Source::PACK, CHANNELS = Source::CHANNELS, E = PACK * CHANNELS, STEP_H = Source::STEP_H;
  extern __shared__ __align__(16) char packed_lines[];
  Scalar* const lines = reinterpret_cast<Scalar*>(packed_lines);
  let_next_kernel_start();
  const int thread = threadIdx.x;
  const long long block = flat_block();
  constexpr long long ROWS_OF_ALL = 1LL * Source::PHASES * Source::GROUPS * Source::UNITS * Source::PLANES;
  if (block >= cut.blocks) {
    const long long first = block - cut.blocks, positions = 1LL * grid.rows * grid.row;
    if (first < ROWS_OF_ALL)
      for (long long place = thread; place < grid.places - positions; place += PACKED_THREADS)
        *reinterpret_cast<uint4*>(packed + 16 * (first * grid.places + (place < grid.before ? place : place + positions))) =
            make_uint4(0, 0, 0, 0);
    wait_for_kernel_ahead();
    return;
  }
  const long long of_unit = block / cut.of_channel;
  long long rest = block - of_unit * cut.of_channel;
  const int unit = int(of_unit % Source::UNITS), group = int(of_unit / Source::UNITS);
  const int phase_d = int(rest % Source::STEP_D);
  rest /= Source::STEP_D;
  const int column0 = int(rest % cut.column_blocks) * cut.columns;
  rest /= cut.column_blocks;
  const int row0 = int(rest % cut.row_blocks) * cut.rows, plane = int(rest / cut.row_blocks), n = grid.deep.quotient(plane);
  const int rows = grid.high.divisor - row0 < cut.rows ? grid.high.divisor - row0 : cut.rows;
  const int columns = grid.row - column0 < cut.columns ? grid.row - column0 : cut.columns;
  const int d = (plane - n * grid.deep.divisor) * Source::STEP_D + phase_d - Source::BEFORE_D;
  const int h0 = row0 * STEP_H - Source::BEFORE_H, w0 = column0 * Source::STEP_W - Source::BEFORE_W;
  const int end = w0 + columns * Source::STEP_W;                       // elements of these positions end here
  const int base = w0 < 0 ? 0 : w0 / cut.vector * cut.vector;          // the first element of a line in shared memory
  const int wanted = end + PACK - 1 < tensor.size[2] ? end + PACK - 1 : tensor.size[2];
  const bool there = unsigned(d) < unsigned(tensor.size[0]);
  const int count = rows * STEP_H;                                      // lines of a channel

  // A thread loads lines of one channel alone: 256 / lanes is a multiple of CHANNELS.
  const int channel = thread / cut.lanes % CHANNELS;
  const Scalar* const from = tensor.values +
                             ((1LL * n * Source::GROUPS + group) * Source::K + unit * CHANNELS + channel) * tensor.volume +
                             1LL * d * tensor.size[1] * tensor.size[2];
  float sum = 0.f;
  if (there && unit * CHANNELS + channel < Source::K)
    for (int line = thread / cut.lanes / CHANNELS; line < count; line += PACKED_THREADS / cut.lanes / CHANNELS) {
      const int h = h0 + line;
      if (unsigned(h) >= unsigned(tensor.size[1])) continue;
      const Scalar* const row = from + 1LL * h * tensor.size[2];
      Scalar* const to = lines + (channel * count + line) * cut.line - base;
      const auto each = [&](auto width) {
        constexpr int V = decltype(width)::value;
        for (int w = base + thread % cut.lanes * V; w < wanted; w += cut.lanes * V) {
          auto some = *reinterpret_cast<const Pack<Scalar, V>*>(row + w);
#pragma unroll
          for (int e = 0; e < V; ++e) {
            if (w + e >= w0 && w + e < end) sum += float(widen(some.value[e]));
            some.value[e] = gather_rounded(some.value[e], tensor.one);
          }
          *reinterpret_cast<Pack<Scalar, V>*>(to + w) = some;
        }
      };
      if constexpr (sizeof(Scalar) == 2)
        if (cut.vector == 8) each(Constant<8>{});
      if (cut.vector == 4) each(Constant<4>{});
      if (cut.vector == 2) each(Constant<2>{});
      if (cut.vector == 1) each(Constant<1>{});
    }
  __syncthreads();

  const long long first_place = grid.before + (1LL * plane * grid.high.divisor + row0) * grid.row + column0;
  for (int position = thread; position < rows * columns; position += PACKED_THREADS) {
    const int row = cut.whole ? grid.wide.quotient(position) : 0, step = position - row * columns;
    char* const to = packed + 16 * (first_place + position);
#pragma unroll 1
    for (int phase_h = 0; phase_h < STEP_H; ++phase_h) {
      const int line = row * STEP_H + phase_h;
      const bool exists = there && unsigned(h0 + line) < unsigned(tensor.size[1]);
      const long long which = ((1LL * phase_d * STEP_H + phase_h) * Source::GROUPS + group) * Source::UNITS + unit;
      const_loop<0, Source::PLANES>([&](auto of_plane) {
        constexpr int PLANE = decltype(of_plane)::value;
        const int w = w0 + step * Source::STEP_W + Source::phase_of(PLANE);
        Pack<Scalar, E> value;
#pragma unroll
        for (int e = 0; e < E; ++e) {
          const bool inside = exists && unsigned(w + e % PACK) < unsigned(tensor.size[2]) && unit * CHANNELS + e / PACK < Source::K;
          value.value[e] = inside ? lines[(e / PACK * count + line) * cut.line - base + w + e % PACK] : narrow<Scalar>(0.0f);
        }
        *reinterpret_cast<Pack<Scalar, E>*>(to + 16 * ((which * Source::PLANES + PLANE) * grid.places)) = value;
      });
    }
  }
  if (sums) {
    __syncthreads();
    float* const parts = reinterpret_cast<float*>(packed_lines);
    parts[thread] = sum;
    __syncthreads();
    if (thread < CHANNELS && unit * CHANNELS + thread < Source::K) {
      float total = 0.f;
      for (int other = 0; other < PACKED_THREADS; ++other)
        if (other / cut.lanes % CHANNELS == thread) total += parts[other];
      sums[((1LL * group * Source::K) + unit * CHANNELS + thread) * cut.of_channel + (block - of_unit * cut.of_channel)] = total;
    }
  }
  wait_for_kernel_ahead();  // the kernel behind this one needs what that one packs, too
}

// `first`: no kernel of the same call is ahead. Then it waits for all that is.
template <class Source>
cudaError_t launch_pack_units(bool first, const PackedTensor<typename Source::Scalar>& tensor, const PackedGrid& grid, char* packed,
                              float* sums, cudaStream_t stream) {
  using Scalar = typename Source::Scalar;
  const PackedCut cut = packed_cut<Source>(tensor, grid);
  const int lines = Source::CHANNELS * cut.rows * Source::STEP_H * cut.line * int(sizeof(Scalar));
  const int shared = lines > 4 * PACKED_THREADS ? lines : 4 * PACKED_THREADS;
  const long long zeros = 1LL * Source::PHASES * Source::GROUPS * Source::UNITS * Source::PLANES;
  const auto kernel = pack_units<Source>;
  if (shared > 48 * 1024)
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared)) return error;
  if (first) {
    kernel<<<flat_grid(cut.blocks + zeros), PACKED_THREADS, shared, stream>>>(tensor, grid, cut, packed, sums);
    return cudaGetLastError();
  }
  return launch_early(kernel, flat_grid(cut.blocks + zeros), PACKED_THREADS, shared, stream, tensor, grid, cut, packed, sums);
}
