/* variant
name      = "shared_weight_tiling"
computes  = ["grad_weight"]
after     = "naive_gather"
idea      = "A block owns a tile of the weight gradient and uses what it stages for the whole tile."
precision = ["ieee", "fp16", "bf16", "fp64"]
layer     = ["constant", "runtime"]
needs     = ["smem_bytes <= 49152"]  # static shared memory ends at 48 KB; only large tiles in float64 exceed it

[tune]
CI_PER_THREAD       = {values = [1, 2, 4, 8], default = 4, help = "input channels of a thread; a tile has 8 times as many"}
COLUMNS_PER_THREAD  = {values = [1, 2, 4, 8], default = 4, help = "columns of a thread; a tile has 16 times as many"}
POSITIONS           = {values = [16, 32], default = 32, help = "positions staged at a time"}
BLOCKS              = {values = [132, 1056, 4224, 16896], default = 4224, help = "target number of blocks that share the positions"}

[derived]
accumulator_bytes = "8 if dtype == 'float64' else 4"
row_bytes = "POSITIONS * accumulator_bytes + 16"
threads = "128"
smem_bytes = "(8 * CI_PER_THREAD + 16 * COLUMNS_PER_THREAD) * row_bytes + 16 * COLUMNS_PER_THREAD * 32"

[plan]
accumulator_bytes = "sizeof(typename Layer::accumulator)"
row_bytes = ""
threads = ""
smem_bytes = ""
*/
#include "contract/grad_weight.cuh"
#include "hardware/pack.cuh"

// families/shared_weight_tiling/README.md has a picture and the words.

// Blocks that should fit on a multiprocessor at once, so that some compute while others stage: as many as leave each
// thread registers for its gradients and for the vectors it multiplies.
template <class Layer, class Tune>
constexpr int resident_blocks() {
  const int words = Tune::CI_PER_THREAD * Tune::COLUMNS_PER_THREAD * int(sizeof(typename Layer::accumulator)) / 4;
  return words <= 16 ? 5 : words <= 32 ? 3 : 1;
}

// Compared with naive_gather, which loads two elements for every product: a block owns a tile *of the weight gradient*.
// Its rows are input channels. Its columns are (co, tap) pairs of one group in the order of memory, whatever the
// kernel's shape. So grad_weight is a matrix product over positions i (o as in naive_gather):
//     tile[ci, (co, k)] = sum over i of input[ci, i] * grad_output[co, o(i, k)]
// The block stages POSITIONS of them in shared memory for every row and every column, with 0 where a tap leaves the
// output. Then each thread multiplies CI_PER_THREAD rows with COLUMNS_PER_THREAD columns from registers. That saves
// bytes twice: an element staged once serves 8 * CI or 16 * COLUMNS gradients, and one read from shared memory serves
// COLUMNS or CI of them. Shared memory depends on the config only, so no layer is refused: long kernels and many
// channels become more tiles, positions become more chunks.
// A 0 where a tap leaves the output is multiplied too: an infinite input makes gradients NaN that it does not meet.
//
// thread -> data: gradients (ty + 8 a, tx + 16 b) of the tile. While staging, one position and every THREADS /
// POSITIONS-th row, so that a warp reads along the positions and writes shared memory without bank conflicts.
// The barriers: all of a chunk is staged before a thread reads it, and read before the next one overwrites it.
template <class Layer, class Tune>
__global__ void __launch_bounds__(128, resident_blocks<Layer, Tune>()) shared_weight_tiling(
    Layer layer, Sizes sizes, Split split, const typename Layer::scalar* __restrict__ input,
    const typename Layer::scalar* __restrict__ grad_output, typename Layer::accumulator* __restrict__ partials) {
  using Scalar = typename Layer::scalar;
  using Sum = typename Layer::accumulator;
  constexpr int THREADS = 128, TY = 8, TX = 16, CI = Tune::CI_PER_THREAD, COLUMNS = Tune::COLUMNS_PER_THREAD;
  constexpr int ROW_TILE = TY * CI, COLUMN_TILE = TX * COLUMNS, P = Tune::POSITIONS;
  constexpr int VEC = 16 / sizeof(Sum);  // one 16-byte read of shared memory: this many positions of a row
  constexpr int PITCH = P + VEC;         // 16 bytes more than the row: 8 rows read side by side meet 8 groups of banks
  static_assert(TY * TX == THREADS, "every thread owns one place in the grid of gradients");
  static_assert(THREADS % P == 0, "a thread stages the same position of every chunk in each of its rows");
  static_assert(P % VEC == 0, "a row is read in whole vectors");
  using Vector = Pack<Sum, VEC>;
  __shared__ alignas(16) Sum x_tile[ROW_TILE * PITCH];
  __shared__ alignas(16) Sum gy_tile[COLUMN_TILE * PITCH];
  __shared__ Tap column_taps[COLUMN_TILE];  // of the tile's columns; offset reaches from the group's first channel

  const int ci_per_group = layer.in_channels / layer.groups;
  const int co_per_group = layer.out_channels / layer.groups;
  const int taps = layer.kernel_d * layer.kernel_h * layer.kernel_w;
  const long long columns = 1LL * co_per_group * taps;
  const long long column_tiles = ceil_div(columns, COLUMN_TILE), row_tiles = ceil_div(ci_per_group, ROW_TILE);
  const long long in_plane = 1LL * sizes.in_d * sizes.in_h * sizes.in_w;
  const long long out_plane = 1LL * sizes.out_d * sizes.out_h * sizes.out_w;
  const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
  const int my_position = threadIdx.x % P, my_row = threadIdx.x / P;

  const long long works = split.count * layer.groups * row_tiles * column_tiles;
  for (long long work = blockIdx.x; work < works; work += gridDim.x) {
    const long long column0 = work % column_tiles * COLUMN_TILE;
    const long long rest = work / column_tiles;
    const int ci0 = int(rest % row_tiles) * ROW_TILE;  // within the group
    const int group = int(rest / row_tiles % layer.groups);
    const long long share = rest / row_tiles / layer.groups;
    const int rows = ci_per_group - ci0 < ROW_TILE ? ci_per_group - ci0 : ROW_TILE;
    const int wide = columns - column0 < COLUMN_TILE ? int(columns - column0) : COLUMN_TILE;
    for (int j = threadIdx.x; j < wide; j += THREADS) {
      Tap tap = tap_at(layer, sizes, int((column0 + j) % taps));
      tap.offset += (column0 + j) / taps * out_plane;
      column_taps[j] = tap;
    }

    Sum sum[CI][COLUMNS] = {};
    const long long all = sizes.batch * in_plane, begin = share * split.length;
    const long long end = begin + split.length < all ? begin + split.length : all;
    const Position step = position_at(P, sizes);
    Position at = position_at(begin + my_position, sizes);
    for (long long chunk = begin; chunk < end; chunk += P) {
      const bool inside = chunk + my_position < end;
      const Scalar* x = input + (at.n * layer.in_channels + 1LL * group * ci_per_group + ci0) * in_plane +
                        input_index(sizes, at);
      const Scalar* gy = grad_output + (at.n * layer.out_channels + 1LL * group * co_per_group) * out_plane +
                         output_index(layer, sizes, at);
      __syncthreads();
#pragma unroll 4
      for (int r = my_row; r < ROW_TILE; r += THREADS / P)
        x_tile[r * PITCH + my_position] = inside && r < rows ? Sum(widen(x[r * in_plane])) : Sum(0);
#pragma unroll 8
      for (int j = my_row; j < COLUMN_TILE; j += THREADS / P) {
        Sum value = 0;
        if (inside && j < wide) {
          const Tap tap = column_taps[j];
          if (meets(layer, tap, at)) value = widen(gy[tap.offset]);
        }
        gy_tile[j * PITCH + my_position] = value;
      }
      __syncthreads();
#pragma unroll 1
      for (int p = 0; p < P; p += VEC) {
        Vector row[CI], column[COLUMNS];
#pragma unroll
        for (int a = 0; a < CI; ++a)
          row[a] = *reinterpret_cast<const Vector*>(x_tile + (ty + TY * a) * PITCH + p);
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b)
          column[b] = *reinterpret_cast<const Vector*>(gy_tile + (tx + TX * b) * PITCH + p);
#pragma unroll
        for (int v = 0; v < VEC; ++v)
#pragma unroll
          for (int a = 0; a < CI; ++a)
#pragma unroll
            for (int b = 0; b < COLUMNS; ++b) sum[a][b] += row[a].value[v] * column[b].value[v];
      }
      advance(at, step, sizes);
    }
    __syncthreads();  // the next tile's columns must not replace these while a thread still stages

    // A weight's index: ci, then (co, tap) in the order of columns.
    Sum* out = partials + share * weight_count(layer) + (1LL * group * ci_per_group + ci0) * columns + column0;
#pragma unroll
    for (int a = 0; a < CI; ++a)
#pragma unroll
      for (int b = 0; b < COLUMNS; ++b)
        if (ty + TY * a < rows && tx + TX * b < wide) out[(ty + TY * a) * columns + tx + TX * b] = sum[a][b];
  }
}

template <class Layer, class Tune>
long long tiles_of(const Layer& layer) {
  const long long columns = weight_count(layer) / layer.in_channels;
  return layer.groups * ceil_div(columns, 16 * Tune::COLUMNS_PER_THREAD) *
         ceil_div(layer.in_channels / layer.groups, 8 * Tune::CI_PER_THREAD);
}

template <class Layer, class Tune>
Split split_of(const Layer& layer, const Sizes& sizes) {
  return split_positions(position_count(sizes), weight_count(layer),
                         ceil_div(Tune::BLOCKS, tiles_of<Layer, Tune>(layer)), Tune::POSITIONS, TERMS_PER_SUM);
}

template <class Layer, class Tune>
long long grad_weight_workspace(Layer layer, Sizes sizes) {
  return partials_workspace(layer, sizes, split_of<Layer, Tune>(layer, sizes));
}

template <class Layer, class Tune>
cudaError_t grad_weight(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                        const typename Layer::scalar* grad_output, typename Layer::scalar* grad_weight_out,
                        typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {
  const Split split = split_of<Layer, Tune>(layer, sizes);
  const unsigned blocks = grid_blocks(split.count * tiles_of<Layer, Tune>(layer));
  shared_weight_tiling<Layer, Tune><<<blocks, 128, 0, stream>>>(
      layer, sizes, split, input, grad_output, static_cast<typename Layer::accumulator*>(workspace));
  return finish_grad_weight(layer, sizes, split, grad_output, grad_weight_out, grad_bias, workspace, stream);
}
