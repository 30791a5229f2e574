/* variant
name      = "implicit_gemm_mma"
computes  = ["forward", "grad_input"]
after     = "shared_weight_tiling"
idea      = "Tensor cores multiply strips of positions; a tap is a shift into the staged source, whatever the stride."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.groups == 1 or min(m, k) >= 8", "wide >= piece", "PAD == 1 or element_bytes == 2", "overlap < 8 * strip",
             "reach_w <= 2048", "max(reach_h, reach_d) < 1000000"]

[tune]
FRAGMENTS_M = {values = [0, 1, 2, 3, 4], default = 0, help = "tiles of 16 channels that a warp sums (0: automatic)"}
STRIP       = {values = [0, 4, 8, 16], default = 0, help = "neighbouring positions that a lane sums (0: automatic)"}
WARPS_M     = {values = [0, 1, 2, 4], default = 0, help = "warps along the channels (0: automatic)"}
WARPS_N     = {values = [0, 1, 2, 4, 8], default = 0, help = "warps along the positions (0: automatic)"}
CHANNELS    = {values = [0, 8, 16, 32], default = 0, help = "channels that a step stages, at most (0: automatic)"}
STAGES      = {values = [2, 3, 4], default = 2, help = "steps whose copies are in flight or in use"}
WEIGHTS     = {values = [0, 1, 2, 3], default = 0, help = "place of weights: 1 shared memory, 2 staged, 3 L1 (0: automatic)"}
MAX_PITCH   = {values = [72, 136, 264], default = 136, help = "longest row of a tile in 2-D and 3-D, in positions"}
UNROLL      = {values = [0, 1], default = 1, help = "1: unroll a short loop over taps along H"}
PAD         = {values = [0, 1], default = 1, help = "1: copy 16-bit rows of odd length to aligned rows first"}
BLOCKS      = {values = [0, 1, 2, 3, 4], default = 0, help = "blocks that a multiprocessor should hold (0: automatic)"}
OWNED       = {values = [0, 32, 128], default = 0, help = "each aligned piece of so many bytes is written by one warp (0: off)"}
ROLL        = {values = [0, 1], default = 0, help = "1: store results in a loop, which takes fewer registers"}

[derived]
forward     = "direction == 'forward'"
m           = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k           = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
fragments   = "ceil_div(m, 16)"
sums        = "min(layer.kernel_w, layer.stride_w) if forward else 1"
piece       = "16 // element_bytes"
slab        = "16 if element_bytes == 2 and k > 8 else 8"
planes      = "2 if precision == 'tf32x3' else 1"
many_sums   = "sums > 2 or (planes == 2 and sums > 1 and layer.kernel_w > 5) if forward else layer.stride_w > 1"
strip       = "STRIP if STRIP > 0 else (4 if many_sums else 8)"
many_taps   = "layer.kernel_h > 1 and layer.kernel_w > 5 or planes == 2 and layer.kernel_h * layer.kernel_w > 9"
room        = "(16 if sums > 2 or many_taps else 32) // planes"
ma          = "FRAGMENTS_M if FRAGMENTS_M > 0 else min(fragments, max(1, min(4, room // (sums * strip))))"
warps_m     = "WARPS_M if WARPS_M > 0 else (2 if fragments > ma else 1)"
warps_n     = "WARPS_N if WARPS_N > 0 else (2 if strip * warps_m > 8 else 4)"
in_step     = "1 if forward else layer.stride_w"
out_step    = "layer.stride_w if forward else 1"
reach_w     = "(layer.kernel_w - 1) * layer.dilation_w // out_step"
reach_h     = "(layer.kernel_h - 1) * layer.dilation_h // (layer.stride_h if forward else 1)"
reach_d     = "(layer.kernel_d - 1) * layer.dilation_d // (layer.stride_d if forward else 1)"
owned       = "min(32, OWNED // element_bytes)"
overlap     = "ceil_div(ceil_div(owned - 1, out_step), piece) * piece if owned > 0 else 0"
lead        = "(layer.padding_w // layer.stride_w - reach_w if forward else 0 - layer.padding_w) % piece"
shared_rows = "(forward or layer.stride_h == 1) and reach_h <= 6"
few_taps    = "shared_rows and (layer.kernel_h == 1 or forward and layer.stride_h > 1)"
wanted      = "slab * (1 if not few_taps else 4 if layer.kernel_h == 1 and warps_m == 2 and element_bytes == 4 else 2)"
channels    = "min(max(slab, CHANNELS) if CHANNELS > 0 else wanted, slab * ceil_div(k, slab))"
wide        = "MAX_PITCH - ceil_div(reach_w + lead, in_step) if shared_rows and reach_h > 0 else piece"
apart       = "reach_h * MAX_PITCH * in_step if shared_rows else 0"
step        = "strip * in_step % (8 * piece)"
vector      = "8 if piece == 8 and step % 8 == 0 else 4"
window      = "ceil_div((strip - 1) * in_step + reach_w + 1 + lead, vector) * vector"
width       = "ceil_div((8 * warps_n - 1) * strip * in_step + window, piece) * piece + apart"
crowded     = "4 if step not in [2 * piece, 4 * piece, 6 * piece] else 2 if piece == 4 or step == 4 * piece else 8"
pitch       = "width + (piece if width % (crowded * piece) == 0 else 0)"
row_planes    = "1 if shared_rows else layer.kernel_h"
input_floats  = "row_planes * channels * pitch // (4 // element_bytes)"
most_width    = "8 * strip * warps_n * in_step + reach_w + lead + 9 * piece - 4 + apart"
most_floats   = "STAGES * row_planes * channels * most_width // (4 // element_bytes)"
slab_floats   = "layer.kernel_h * layer.kernel_w * warps_m * ma * (256 if precision == 'tf32x3' else 128)"
tile_floats   = "layer.kernel_d * ceil_div(k, channels) * (channels // slab) * slab_floats"
stage_floats  = "channels // slab * slab_floats"
most_staged   = "5120 if planes == 1 or sums > 2 else 10240 if STAGES * (input_floats + stage_floats) <= 38912 else 0"
image_floats  = "warps_m * warps_n * 8 * (8 * strip * out_step + 4)"
resident      = "12288 if element_bytes == 4 else min(12288, 41472 - most_floats - image_floats)"
staged        = "2 if stage_floats <= most_staged else 3"
weights       = "WEIGHTS if WEIGHTS > 0 else (1 if tile_floats <= resident else staged)"
weight_floats = "tile_floats if weights == 1 else STAGES * stage_floats if weights == 2 else 0"
threads       = "32 * warps_m * warps_n"
smem_bytes    = "4 * (weight_floats + STAGES * input_floats + image_floats)"

[plan]
Plan          = "StripConfig<true, Layer, Tune>"
planes        = "Plan::PLANES_OF_A"
in_step       = "Plan::W::IN_STEP"
out_step      = "Plan::W::OUT_STEP"
reach_w       = "Plan::W::REACH"
reach_h       = "Plan::H::REACH"
reach_d       = "Plan::D::REACH"
wanted        = "Plan::CHANNELS_AUTO"
many_sums     = ""
wide          = ""
apart         = "Plan::ROWS_APART * Plan::MAX_PITCH * Plan::W::IN_STEP"
step          = "Plan::STRIP * Plan::W::IN_STEP % (8 * Plan::PIECE)"
vector        = "Plan::READ"
crowded       = ""
input_floats  = "Plan::INPUT_STAGE * int(sizeof(typename Plan::Scalar)) / 4"
most_width    = ""
most_floats   = "Plan::INPUT_MOST"
slab_floats   = "Plan::WEIGHT_SLAB"
tile_floats   = "Plan::WEIGHT_TILE"
stage_floats  = "Plan::WEIGHT_STAGE"
image_floats  = "Plan::WARPS * 8 * Plan::IMAGE_PITCH"
resident      = ""
staged        = ""
smem_bytes    = "Plan::SHARED_BYTES"

[grad_input.plan]
Plan          = "StripConfig<false, Layer, Tune>"
*/
#include "families/implicit_gemm_mma/store.cuh"

// families/implicit_gemm_mma/README.md has a picture and the words.

template <class C>
__global__ void __launch_bounds__(256) pack_fragments(const typename C::Scalar* __restrict__ weight,
                                                      float* __restrict__ packed) {
  if constexpr (C::HALVES) {
    pack_half_weights<C>(weight, packed);
  } else {
    pack_strip_weights<C>(weight, packed);
  }
}

// The work of one block. A block is persistent: it keeps its channel tile and walks over tiles of positions. Copies run
// STAGES - 1 steps ahead, also across tiles, so they continue while results are stored.
// All threads meet once a step. After the barrier the step's copies have arrived, and the buffer of the step before is
// free.
template <class C>
__device__ __forceinline__ void strip_block(const StripArgumentsOf<C>& a, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % C::WARPS_M, warp_n = warp / C::WARPS_M;
  const int cell = blockIdx.x % C::CELLS;
  float* const weights = shared;
  using Scalar = typename C::Scalar;
  Scalar* const inputs = reinterpret_cast<Scalar*>(weights + C::WEIGHT_FLOATS);
  float* const image = reinterpret_cast<float*>(inputs + C::STAGES * C::INPUT_STAGE) + warp * 8 * C::IMAGE_PITCH;
  const float* const packed = a.packed + cell * C::WEIGHT_TILE;

  StripSteps<C> ahead;
  ahead.start(a);
  int filled = 0;
  const auto fill = [&]() {
    if (!ahead.tile.ended(a)) {
      copy_step<C>(a, ahead, cell, inputs + filled * C::INPUT_STAGE, weights + filled * C::WEIGHT_STAGE);
      ahead.next(a);
    }
    filled = filled + 1 == C::STAGES ? 0 : filled + 1;
    cp_async_commit();
  };
  if constexpr (C::WEIGHTS == StripWeights::resident)
    for (int i = threadIdx.x * 4; i < int(C::WEIGHT_TILE); i += C::THREADS * 4) cp_async<16>(weights + i, packed + i);
  for (int i = 0; i < C::STAGES - 1; ++i) fill();

  int stage = 0;
  StripTile<C> tile;
  for (tile.start(a); !tile.ended(a); tile.next(a)) {
    StripSums<C> sum = {};
    [[maybe_unused]] StripSums<C> few = {};  // tf32x3: summed by the tensor cores
    [[maybe_unused]] int since = 0;          // rows of taps in it
    bool any = false;
#pragma unroll 1
    for (int depth_tap = tile.depth_tap(a, 0); depth_tap < C::D::TAPS; depth_tap = tile.depth_tap(a, depth_tap + 1)) {
      any = true;
#pragma unroll 1
      for (int chunk = 0; chunk < C::CHUNKS; ++chunk) {
        cp_async_wait<C::STAGES - 2>();
        __syncthreads();
        fill();
        const Scalar* x = inputs + stage * C::INPUT_STAGE;
        x += (warp_n * strip_warp_step<C>(a) + lane / 4 * C::STRIP) * C::W::IN_STEP;
        const int slab0 = depth_tap * C::SLABS + chunk * (C::CHANNELS / C::SLAB);
        const float* from = C::WEIGHTS == StripWeights::direct     ? packed + 1LL * slab0 * C::WEIGHT_SLAB
                            : C::WEIGHTS == StripWeights::resident ? weights + slab0 * C::WEIGHT_SLAB
                                                                   : weights + stage * C::WEIGHT_STAGE;
        from += warp_m * C::MA * C::PLANES_OF_A * 128 + lane * 4;
#pragma unroll 1
        for (int slab = 0; slab < C::CHANNELS / C::SLAB; ++slab, x += C::SLAB * C::PITCH, from += C::WEIGHT_SLAB)
#pragma unroll C::ROWS_UNROLLED
          for (int tap = 0; tap < C::H::TAPS; ++tap) {
            if (C::H::OUT_STEP > 1 && C::H::residue(tap) != tile.residue_h()) continue;
            const int rows = C::ROW_PLANES > 1 ? tap * C::CHANNELS * C::PITCH
                                               : C::H::offset(tap) * a.pitch * C::W::IN_STEP;
            const float* const of_row = from + tap * C::W::TAPS * C::MT * C::PLANES_OF_A * 128;
            if constexpr (C::THREE) {
              add_row<C>(few, x + rows, of_row, lane);
              if (++since == C::ROWS_KEPT) take_out<C>(few, sum), since = 0;
            } else if constexpr (C::HALVES) {
              add_row_of_halves<C>(sum, x + rows, of_row, lane);
            } else {
              add_row<C>(sum, x + rows, of_row, lane);
            }
          }
        stage = stage + 1 == C::STAGES ? 0 : stage + 1;
      }
    }
    if constexpr (C::THREE) take_out<C>(few, sum);
    if (a.out_vector == 4) {
      store_tile<C, 4>(a, tile, sum, cell, warp_m, warp_n, lane, image, any);
    } else if (a.out_vector == 2) {
      store_tile<C, 2>(a, tile, sum, cell, warp_m, warp_n, lane, image, any);
    } else {
      store_tile<C, 1>(a, tile, sum, cell, warp_m, warp_n, lane, image, any);
    }
  }
  cp_async_wait<0>();
}

// Compared with shared_weight_tiling:
// - The sums are matrix products on tensor cores: channels of the result x positions, summed over channels of the
//   source and taps. tf32x3 adds the products with the rounding errors. fp16 and bf16 multiply pairs of channels and
//   stay 16 bits wide in shared memory (halves.cuh).
// - cp.async copies the source some steps ahead into shared memory, where it serves every tap along W.
// - pack_fragments rounds the weights once and brings them into fragment order.
//
// forward: with a stride, output residue r is a convolution of stride 1 over the taps that meet r. A block sums all
// residues along W at once, from the same inputs. It lays them side by side in shared memory, with zeros for residues
// without taps, so rows are stored whole and once. Along D and H it does the residues one after the other.
// grad_input: grad_output is staged in whole rows. With a stride the lanes select their elements in shared memory, which
// costs nothing. With stride 1 along H the taps along H share the rows; else each tap stages the rows that it meets.
//
// thread -> data: a warp has FRAGMENTS_M x 16 channels and 8 x STRIP positions; a lane sums STRIP neighbours.
// Blocks are persistent: the cell (group, channel tile) is block % cells; a block takes tiles of positions in turn. The
// barriers are described at strip_block().
// Bytes: the source is read once for each channel tile and tap along D (in grad_input along H too, with a stride there).
// A result is written once. Weights stay in shared memory or L1.
template <class C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) implicit_gemm_mma(StripArgumentsOf<C> arguments) {
  extern __shared__ __align__(16) float implicit_gemm_shared[];
  strip_block<C>(arguments, implicit_gemm_shared);
}

// The largest of 8, 4, 2, 1 (at most `most`) that divides both the row length and the address, in values.
template <class Scalar>
int strip_vector(int row, const Scalar* address, int most) {
  const unsigned long long bits = reinterpret_cast<unsigned long long>(address) / sizeof(Scalar) | unsigned(row);
  while (bits % most != 0) most /= 2;
  return most;
}

template <class C>
StripArgumentsOf<C> strip_arguments(const Sizes& sizes, const typename C::Scalar* in, const float* packed,
                                    const typename C::Scalar* bias, typename C::Scalar* out) {
  StripArgumentsOf<C> a = {};
  a.in = in, a.packed = packed, a.bias = bias, a.out = out;
  a.in_d = C::FORWARD ? sizes.in_d : sizes.out_d, a.out_d = C::FORWARD ? sizes.out_d : sizes.in_d;
  a.in_h = C::FORWARD ? sizes.in_h : sizes.out_h, a.out_h = C::FORWARD ? sizes.out_h : sizes.in_h;
  a.in_w = C::FORWARD ? sizes.in_w : sizes.out_w, a.out_w = C::FORWARD ? sizes.out_w : sizes.in_w;
  a.depth = C::D::steps(a.out_d);
  a.rows = C::H::steps(a.out_h);
  const int steps = C::W::steps(a.out_w);
  // Positions of a row that have no results: the taps of the last results reach them.
  constexpr int HALO = ceil_div(C::W::REACH + C::LEAD, C::W::IN_STEP);
  constexpr int WIDEST = C::ROWS_APART > 0 ? C::MAX_PITCH : ceil_div(16384 + HALO, 4 * C::W::IN_STEP) * 4 + HALO + 4;
  static_assert((WIDEST - HALO) / C::PIECE > 0, "MAX_PITCH must be longer than the kernel along W");
  // If all rows of the result begin at a sector, tiles can begin at sectors too, without an overlap.
  const bool begin_sectors = a.out_w % C::SECTOR == 0 && C::W::CUT == 0 &&
                             reinterpret_cast<size_t>(out) % (C::SECTOR * sizeof(*out)) == 0;
  const bool room = WIDEST / C::SECTOR * C::SECTOR - HALO >= C::SECTOR;
  const int unit = C::OVERLAP > 0 && begin_sectors && room ? C::SECTOR : C::PIECE;
  const int most = (WIDEST / unit * unit - HALO) / unit * unit;
  a.overlap = unit == C::SECTOR ? 0 : C::OVERLAP;
  a.column_blocks = ceil_div(steps, most);
  a.columns = round_up(ceil_div(steps, a.column_blocks), unit);
  a.column_blocks = ceil_div(steps, a.columns);
  a.pitch = round_up(a.columns + HALO, unit);
  const int step = C::WARPS_N * (C::WARP_COLUMNS - a.overlap);
  a.tiles = int(ceil_div(1LL * (a.rows - 1) * a.pitch + a.columns, 1LL * step));
  a.by_pitch = unsigned((1ULL << 32) / a.pitch + 1);
  a.by_in_pitch = unsigned((1ULL << 32) / (a.pitch * C::W::IN_STEP) + 1);
  a.items = sizes.batch * a.depth * a.column_blocks * a.tiles;
  a.in_vector = strip_vector(a.in_w, in, C::PIECE);
  a.out_vector = strip_vector(a.out_w | C::W::CUT, out, 4);
  return a;
}

// The rows of the source that need padding, all channels counted; 0: none.
template <class C>
long long strip_rows_to_pad(const Sizes& sizes) {
  const int depth = C::FORWARD ? sizes.in_d : sizes.out_d, height = C::FORWARD ? sizes.in_h : sizes.out_h;
  const int width = C::FORWARD ? sizes.in_w : sizes.out_w;
  return C::PAD && width % 2 != 0 ? sizes.batch * C::GROUPS * C::K * depth * height : 0;
}

// Bytes of workspace: the packed weights, then the padded source.
template <class C>
long long strip_workspace(const Sizes& sizes) {
  const int width = C::FORWARD ? sizes.in_w : sizes.out_w;
  return 4 * C::CELLS * C::WEIGHT_TILE + 2LL * strip_rows_to_pad<C>(sizes) * round_up(width, 8);
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class C>
cudaError_t launch_strips(const Sizes& sizes, const typename C::Scalar* in, const typename C::Scalar* weight,
                          const typename C::Scalar* bias, typename C::Scalar* out, void* workspace,
                          cudaStream_t stream) {
  if (sizes.batch == 0) return cudaSuccess;
  const auto kernel = implicit_gemm_mma<C>;
  float* packed = static_cast<float*>(workspace);
  StripArgumentsOf<C> a = strip_arguments<C>(sizes, in, packed, bias, out);
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(C::SHARED_BYTES));
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, C::THREADS, size_t(C::SHARED_BYTES));
  if (error != cudaSuccess) return error;
  constexpr long long THREADS_TO_PACK = C::CELLS * C::WEIGHT_TILE / (4 * C::PLANES_OF_A);
  constexpr long long PACKERS = ceil_div(THREADS_TO_PACK, 256LL);
  pack_fragments<C><<<unsigned(PACKERS < 1024 ? PACKERS : 1024), 256, 0, stream>>>(weight, packed);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  if constexpr (C::PAD) {
    if (const long long rows = strip_rows_to_pad<C>(sizes)) {
      typename C::Scalar* padded = reinterpret_cast<typename C::Scalar*>(packed + C::CELLS * C::WEIGHT_TILE);
      const long long pieces = ceil_div(rows * (round_up(a.in_w, 8) / 8), 256LL);
      pad_rows<<<unsigned(pieces < 65536 ? pieces : 65536), 256, 0, stream>>>(in, padded, rows, a.in_w);
      error = cudaGetLastError();
      if (error != cudaSuccess) return error;
      a.in = padded, a.in_w = round_up(a.in_w, 8), a.in_vector = 8;
    }
  }
  // One wave; each channel tile gets the same number of blocks, and they share its tiles evenly.
  long long each = 1LL * processors * (blocks > 0 ? blocks : 1) / C::CELLS;
  if (each < 1) each = 1;
  if (each > a.items) each = a.items;
  each = ceil_div(a.items, ceil_div(a.items, each));
  kernel<<<unsigned(each * C::CELLS), C::THREADS, size_t(C::SHARED_BYTES), stream>>>(a);
  return cudaGetLastError();
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return strip_workspace<StripConfig<true, Layer, Tune>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_strips<StripConfig<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return strip_workspace<StripConfig<false, Layer, Tune>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_strips<StripConfig<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace,
                                                        stream);
}
#endif
