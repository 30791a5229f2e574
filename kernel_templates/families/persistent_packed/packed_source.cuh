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
  int rows, row, plane;            // rows of all images; positions from one row (plane) to the next
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
  int wide_loads;  // PACK neighbours, of channels_last E channels, can be read together
  float one;       // 1, unknown to the compiler
};
template <class Source, class Scalar>
PackedTensor<Scalar> packed_tensor(const Scalar* values, int d, int h, int w) {
  constexpr int TOGETHER = Source::LAST ? Source::PACK * Source::CHANNELS : Source::PACK;
  const bool together = (Source::LAST ? Source::K : w) % TOGETHER == 0 && size_t(values) % (sizeof(Scalar) * TOGETHER) == 0;
  return {values, {d, h, w}, 1LL * d * h * w, together, 1.0f};
}

template <class Source>
long long packed_bytes(const PackedGrid& g) {
  return 16LL * Source::PHASES * Source::GROUPS * Source::UNITS * Source::PLANES * g.places;
}

constexpr int PACKED_THREADS = 256;

// What a place stands for: an image, and where the first tap along each axis meets the source.
template <class Source>
struct PackedPlace {
  int n, d, h, step;
  bool inside;  // along D and H
  template <class Scalar>
  __device__ __forceinline__ PackedPlace(const PackedTensor<Scalar>& tensor, const PackedGrid& grid, int place, int phase) {
    const long long position = place - grid.before;
    const bool on_grid = position >= 0 && position < 1LL * grid.rows * grid.row;
    const int number = on_grid ? int(position) : 0, row = grid.wide.quotient(number);
    step = number - row * grid.row;
    const int plane = grid.high.quotient(row);
    n = grid.deep.quotient(plane);
    d = (plane - n * grid.deep.divisor) * Source::STEP_D + phase / Source::STEP_H - Source::BEFORE_D;
    h = (row - plane * grid.high.divisor) * Source::STEP_H + phase % Source::STEP_H - Source::BEFORE_H;
    inside = on_grid && unsigned(d) < unsigned(tensor.size[0]) && unsigned(h) < unsigned(tensor.size[1]);
  }
};

// packed: [phase of D and H][group][unit][plane][place], 16 bytes each.
// thread -> data: a place of all planes of a unit. Neighbouring lanes have neighbouring places.
// Bytes: the tensor is read once (its phases through L1), and written once with its zeros.
template <class Source>
__global__ void __launch_bounds__(PACKED_THREADS)
    pack_units(PackedTensor<typename Source::Scalar> tensor, PackedGrid grid, char* packed, int blocks) {
  using Scalar = typename Source::Scalar;
  constexpr int PACK = Source::PACK, CHANNELS = Source::CHANNELS, E = PACK * CHANNELS;
  let_next_kernel_start();
  const long long block = flat_block(), unit_of_all = block / blocks;
  const int place = int(block - unit_of_all * blocks) * PACKED_THREADS + int(threadIdx.x);
  if (unit_of_all < Source::PHASES * Source::GROUPS * Source::UNITS && place < grid.places) {
    const int unit = int(unit_of_all % Source::UNITS), which = int(unit_of_all / Source::UNITS);
    const int group = which % Source::GROUPS, phase = which / Source::GROUPS;
    const PackedPlace<Source> at(tensor, grid, place, phase);
    const Scalar* const first = tensor.values +
                                ((1LL * at.n * Source::GROUPS + group) * Source::K + unit * CHANNELS) * tensor.volume +
                                (1LL * at.d * tensor.size[1] + at.h) * tensor.size[2];
    char* const to = packed + 16 * (unit_of_all * Source::PLANES * grid.places + place);
    const_loop<0, Source::PLANES>([&](auto which_plane) {
      constexpr int PLANE = decltype(which_plane)::value;
      const int w = at.step * Source::STEP_W + Source::phase_of(PLANE) - Source::BEFORE_W;
      Pack<Scalar, E> value;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const Scalar* const from = first + c * tensor.volume + w;
        const bool exists = at.inside && unit * CHANNELS + c < Source::K;
        Pack<Scalar, PACK> some;
#pragma unroll
        for (int e = 0; e < PACK; ++e) some.value[e] = narrow<Scalar>(0.0f);
        if (PACK > 1 && tensor.wide_loads) {
          if (exists && unsigned(w) < unsigned(tensor.size[2])) some = *reinterpret_cast<const Pack<Scalar, PACK>*>(from);
        } else {
#pragma unroll
          for (int e = 0; e < PACK; ++e)
            if (exists && unsigned(w + e) < unsigned(tensor.size[2])) some.value[e] = guarded_load(from + e);
        }
#pragma unroll
        for (int e = 0; e < PACK; ++e) value.value[c * PACK + e] = gather_rounded(some.value[e], tensor.one);
      }
      *reinterpret_cast<Pack<Scalar, E>*>(to + 16 * PLANE * grid.places) = value;
    });
  }
  wait_for_kernel_ahead();  // the kernel after this one also reads what the one ahead packs
}

// The same of a channels_last tensor. E neighbouring channels are read at once: PACK units.
// thread -> data: a place of all planes of PACK units. Of neighbouring lanes, four have neighbouring channels: a warp reads
// runs of 64 bytes and writes runs of 128.
template <class Source>
__global__ void __launch_bounds__(PACKED_THREADS)
    pack_last_units(PackedTensor<typename Source::Scalar> tensor, PackedGrid grid, char* packed, int blocks) {
  using Scalar = typename Source::Scalar;
  constexpr int PACK = Source::PACK, CHANNELS = Source::CHANNELS, E = PACK * CHANNELS;
  constexpr int RUNS = ceil_div(Source::UNITS, PACK), FOURS = ceil_div(RUNS, 4);
  let_next_kernel_start();
  const long long block = flat_block(), four_of_all = block / blocks;
  const int place = int(block - four_of_all * blocks) * (PACKED_THREADS / 4) + int(threadIdx.x) / 4;
  const int run = int(four_of_all % FOURS) * 4 + int(threadIdx.x) % 4, which = int(four_of_all / FOURS);
  const int group = which % Source::GROUPS, phase = which / Source::GROUPS;
  if (phase < Source::PHASES && run < RUNS && place < grid.places) {
    const PackedPlace<Source> at(tensor, grid, place, phase);
    const Scalar* const first = tensor.values + group * Source::K + run * E +
                                ((1LL * at.n * tensor.size[0] + at.d) * tensor.size[1] + at.h) * tensor.size[2] *
                                    (1LL * Source::GROUPS * Source::K);
    char* const to = packed + 16 * (((1LL * which * Source::UNITS + run * PACK) * Source::PLANES) * grid.places + place);
    const_loop<0, Source::PLANES>([&](auto which_plane) {
      constexpr int PLANE = decltype(which_plane)::value;
      const int w = at.step * Source::STEP_W + Source::phase_of(PLANE) - Source::BEFORE_W;
      Pack<Scalar, E> some[PACK];
#pragma unroll
      for (int e = 0; e < PACK; ++e) {
        const Scalar* const from = first + (w + e) * (1LL * Source::GROUPS * Source::K);
        const bool exists = at.inside && unsigned(w + e) < unsigned(tensor.size[2]);
#pragma unroll
        for (int c = 0; c < E; ++c) some[e].value[c] = narrow<Scalar>(0.0f);
        if (tensor.wide_loads) {
          if (exists && run * E < Source::K) some[e] = *reinterpret_cast<const Pack<Scalar, E>*>(from);
        } else {
#pragma unroll
          for (int c = 0; c < E; ++c)
            if (exists && run * E + c < Source::K) some[e].value[c] = guarded_load(from + c);
        }
      }
#pragma unroll
      for (int unit = 0; unit < PACK; ++unit) {
        Pack<Scalar, E> value;
#pragma unroll
        for (int i = 0; i < E; ++i)
          value.value[i] = gather_rounded(some[i % PACK].value[unit * CHANNELS + i / PACK], tensor.one);
        if (run * PACK + unit < Source::UNITS)
          *reinterpret_cast<Pack<Scalar, E>*>(to + 16 * (unit * Source::PLANES + PLANE) * grid.places) = value;
      }
    });
  }
  wait_for_kernel_ahead();  // as above
}

// `first`: the first kernel of the call. It starts after all earlier work of the stream.
template <class Source>
cudaError_t launch_pack_units(bool first, const PackedTensor<typename Source::Scalar>& tensor, const PackedGrid& grid,
                              char* packed, cudaStream_t stream) {
  constexpr int AT_ONCE = Source::LAST ? PACKED_THREADS / 4 : PACKED_THREADS;  // places of a block
  constexpr int OF_GROUP = Source::LAST ? ceil_div(ceil_div(Source::UNITS, Source::PACK), 4) : Source::UNITS;
  const auto kernel = [] {
    if constexpr (Source::LAST) return pack_last_units<Source>;
    else return pack_units<Source>;
  }();
  const int blocks = int(ceil_div(grid.places, AT_ONCE));
  const dim3 all = flat_grid(1LL * Source::PHASES * Source::GROUPS * OF_GROUP * blocks);
  if (first) {
    kernel<<<all, PACKED_THREADS, 0, stream>>>(tensor, grid, packed, blocks);
    return cudaGetLastError();
  }
  return launch_early(kernel, all, PACKED_THREADS, 0, stream, tensor, grid, packed, blocks);
}
