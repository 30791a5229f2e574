/* variant
name      = "box_mma"
computes  = ["forward", "grad_input"]
after     = "implicit_gemm_mma"
idea      = "A box of the source is staged once and serves all taps; all residues of the result are summed side by side."
precision = ["tf32", "tf32x3", "fp16", "bf16"]
layer     = ["constant"]
needs     = [
  "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28",
  "shifts <= 48",
  "mt <= 16",
  "max(2 * layer.kernel_d, layer.kernel_h) <= 16",
  "layer.kernel_d * layer.kernel_h <= 64",
  "(layer.stride_d * layer.stride_h if forward else 1) * eights <= 64",
  "cells * cell_out <= 64",
  "planes * row_bytes < 2 ** 31",
  "nt * cell_out <= 36",
  "fragments * nt <= 4096",
  "classes * mt * nt <= (16 if precision == 'tf32x3' else 32)",
  "precision != 'tf32x3' or used <= 16",
  "layer.groups * m8 * chunks * fragments <= 2 ** 24",
  "least <= 1024 * SHARED_KB",
  "RAW == 0 or element_bytes == 4 and grain_w == 1",
]

[tune]
STRIPS    = {values = [0, 1, 2, 3, 4], default = 0, help = "strips of a lane, which share its weights (0: automatic)"}
SUMS      = {values = [8, 16, 24, 32], default = 24, help = "products of 16 x 8 results of a warp, at most; 8 channels always"}
WARPS     = {values = [3, 4, 6, 8, 12, 16], default = 4, help = "warps of a block"}
STAGES    = {values = [2, 3, 4], default = 2, help = "boxes in flight or in use"}
SHARED_KB = {values = [72, 96, 110, 224], default = 110, help = "shared memory of a block in KB"}
SPLIT_D   = {values = [0, 1, 2], default = 0, help = "a step multiplies 1: all planes of a box, 2: one plane (0: automatic)"}
BLOCKS    = {values = [1, 2, 3], default = 2, help = "blocks that a multiprocessor should hold; it limits registers"}
RAW       = {values = [0, 1], default = 0, help = "1: copies vectors of 16 bytes whatever the alignment of rows"}

[grad_input.tune]
WARPS     = {values = [3, 4, 6, 8, 12, 16], default = 8, help = "warps of a block"}
SHARED_KB = {values = [72, 96, 110, 224], default = 224, help = "shared memory of a block in KB"}
BLOCKS    = {values = [1, 2, 3], default = 1, help = "blocks that a multiprocessor should hold; it limits registers"}

[derived]
forward   = "direction == 'forward'"
m         = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k         = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
narrow    = "element_bytes == 2"
vector    = "16 // element_bytes"
channels  = "16 if narrow else 8"
chunks    = "ceil_div(k, channels)"
grain_w   = "1 if forward else gcd(layer.stride_w, layer.dilation_w)"
grain_h   = "1 if forward else gcd(layer.stride_h, layer.dilation_h)"
grain_d   = "1 if forward else gcd(layer.stride_d, layer.dilation_d)"
far_w     = "(layer.kernel_w - 1) * layer.dilation_w"
far_h     = "(layer.kernel_h - 1) * layer.dilation_h"
far_d     = "(layer.kernel_d - 1) * layer.dilation_d"
pad_w     = "layer.padding_w"
pad_h     = "layer.padding_h"
pad_d     = "layer.padding_d"
reach_w   = "(far_w - pad_w) // layer.stride_w - (0 - pad_w) // layer.stride_w if forward else far_w // grain_w"
reach_h   = "(far_h - pad_h) // layer.stride_h - (0 - pad_h) // layer.stride_h if forward else far_h // grain_h"
reach_d   = "(far_d - pad_d) // layer.stride_d - (0 - pad_d) // layer.stride_d if forward else far_d // grain_d"
classes_w = "min(layer.kernel_w, layer.stride_w // gcd(layer.stride_w, layer.dilation_w)) if forward else 1"
classes_h = "min(layer.kernel_h, layer.stride_h // gcd(layer.stride_h, layer.dilation_h)) if forward else 1"
classes_d = "min(layer.kernel_d, layer.stride_d // gcd(layer.stride_d, layer.dilation_d)) if forward else 1"
classes   = "classes_d * classes_h"
m8        = "ceil_div(m, 8)"
cell      = "2 if m8 * classes_w == 1 else 1"
cell_in   = "cell * (1 if forward else layer.stride_w // grain_w)"
cell_out  = "cell * (layer.stride_w if forward else 1)"
slots     = "cell * classes_w"
shifts    = "(cell_in // 2 if cell == 2 else 0) + reach_w + 1"
used      = "min(shifts, cell * layer.kernel_w)"
one_cell  = "cell_out % vector == 0 and cell_in * element_bytes % 4 == 0"
cells     = "1 if one_cell else 2 if 2 * cell_out % vector == 0 else 8 if cell_out == 1 and narrow else 4"
strips    = "STRIPS if STRIPS > 0 else 1 if narrow or precision == 'tf32x3' else 2"
nt        = "strips * cells"
mt        = "min(ceil_div(m8 * slots, 2), max(SUMS // (classes * nt), ceil_div(slots, 2)))"
fragments = "layer.kernel_d * layer.kernel_h * used * mt"
words     = "fragments * (256 if precision == 'tf32x3' else 128)"
split     = "SPLIT_D == 2 or SPLIT_D == 0 and not forward and layer.kernel_d > 1"
streamed  = "max(min(4 * chunks * words, 512 * SHARED_KB), 4 * STAGES * words)"
eights    = "min(m8, max(1, 2 * mt // slots))"
planes    = "3 * (1 if forward else layer.stride_d // grain_d) + reach_d + 1"
row_bytes = "16 * channels * (ceil_div(8 * WARPS * strips * cells * cell_in + shifts, vector) + 10)"
weights   = "4 * words if chunks == 1 else streamed"
images    = "32 * WARPS * (8 * nt * cell_out + 4)"
window    = "(cells - 1) * cell_in + shifts + 2 * vector"
row       = "16 * channels * (ceil_div(window, vector) + 7)"
box       = "(1 if split else reach_d + 1) * (reach_h + 1) * row"
least     = "weights + images + STAGES * (box + 16)"
threads   = "32 * WARPS"
smem_bytes = "1024 * SHARED_KB"

[plan]
Plan      = "BoxPlan<true, Layer, Tune>"
m         = "Plan::M"
k         = "Plan::K"
chunks    = "Plan::CHUNKS"
vector    = "Plan::VECTOR"
channels  = "Plan::CHANNELS"
"eights planes row_bytes narrow far_w far_h far_d pad_w pad_h pad_d one_cell split streamed row box least" = ""
grain_w   = "Plan::W::GRAIN"
grain_h   = "Plan::H::GRAIN"
grain_d   = "Plan::D::GRAIN"
reach_w   = "Plan::W::REACH"
reach_h   = "Plan::H::REACH"
reach_d   = "Plan::D::REACH"
classes_w = "Plan::W::CLASSES"
classes_h = "Plan::H::CLASSES"
classes_d = "Plan::D::CLASSES"
classes   = "Plan::CLASSES"
m8        = "Plan::M8"
cell      = "Plan::CELL"
cell_in   = "Plan::CELL_IN"
cell_out  = "Plan::CELL_OUT"
slots     = "Plan::SLOTS"
shifts    = "Plan::SHIFTS"
used      = ">= Plan::USED"
cells     = "Plan::CELLS"
strips    = "Plan::STRIPS"
nt        = "Plan::NT"
mt        = ">= Plan::MT"
fragments = ">= Plan::FRAGMENTS"
words     = ">= Plan::CHUNK_WORDS"
weights   = ">= Plan::WEIGHT_BYTES"
images    = "Plan::IMAGE_BYTES"
window    = ">= Plan::WINDOW"
threads   = "Plan::THREADS"
smem_bytes = "Plan::SHARED_BYTES"

[grad_input.plan]
Plan      = "BoxPlan<false, Layer, Tune>"
*/
#include "families/box_mma/stage.cuh"
#include "families/box_mma/store.cuh"

// families/box_mma/README.md has a picture and the words.

// Compared with implicit_gemm_mma:
// - A step multiplies all taps of a chunk of channels, or those that meet one plane (SPLIT_D). Residues along D, H and W are
//   summed side by side, so a source row is copied and loaded once for all residues.
// - Rows of a product are channels of several residues or positions, so that 8 channels fill 16 rows.
//
// thread -> data: a warp has STRIPS x 8 strips of the tile and all channels of its kind. A lane loads windows of its
// strips, and multiplies them with each fragment of weights that it has loaded.
// Bytes: a box overlaps its neighbours by what the taps reach. If a step takes one plane, a tile
// copies a plane for each offset along D, and tiles share no planes. A result is written once.
// The barrier: all copies of a step have arrived before it is multiplied, and all warps have multiplied the step whose
// place is filled next.
template <class Plan>
__global__ void __launch_bounds__(Plan::THREADS, Plan::BLOCKS) box_mma(BoxArguments<typename Plan::Scalar> a) {
  using Scalar = typename Plan::Scalar;
  using D = typename Plan::D;
  using H = typename Plan::H;
  extern __shared__ float4 box_mma_shared[];
  float* const weights = reinterpret_cast<float*>(box_mma_shared);
  float* const image = weights + Plan::WEIGHT_BYTES / 4 + threadIdx.x / 32 * 8 * Plan::IMAGE_PITCH;
  Scalar* const boxes =
      reinterpret_cast<Scalar*>(reinterpret_cast<char*>(box_mma_shared) + Plan::WEIGHT_BYTES + Plan::IMAGE_BYTES);
  constexpr int BOX = Plan::BOX_BYTES / Plan::BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int kind = blockIdx.x % Plan::KINDS;
  const long long first = blockIdx.x / Plan::KINDS, apart = gridDim.x / Plan::KINDS;

  // Where this lane's strips lie in a box: a strip that does not exist is computed and not stored.
  constexpr int PAIRS = Plan::NARROW ? 2 : 1;
  int place[Plan::STRIPS];
#pragma unroll
  for (int i = 0; i < Plan::STRIPS; ++i) {
    const BoxStrip own = box_strip(a, (warp * Plan::STRIPS + i) * 8 + Plan::strip_of_column(lane / 4));
    place[i] = ((own.deep < 0 ? 0 : own.deep * D::IN_STEP) * a.rows + own.high * H::IN_STEP) * a.row +
               own.strip * Plan::STRIP_IN + lane % 4 * PAIRS * a.pitch + lane % 4 * PAIRS / 2 * a.pair;
  }
  std::conditional_t<Plan::RAW, RawPlaces<Plan>, const int(&)[Plan::STRIPS]> places = place;
  if constexpr (Plan::RAW) places.turn(a, warp, lane);

  BoxTile<Scalar> ahead, tile;
  ahead.at(a, first);
  int step_ahead = 0, filled = 0;
  const auto fill = [&] {
    if (ahead.tile < a.tiles) {
      copy_box_step<Plan>(a, ahead, step_ahead, kind, boxes + filled * BOX, weights + filled * Plan::STEP_WORDS);
      if (++step_ahead == Plan::STEPS) {
        step_ahead = 0;
        ahead.at(a, ahead.tile + apart);
      }
    }
    if (++filled == Plan::STAGES) filled = 0;
    cp_async_commit();
  };
  if constexpr (Plan::RESIDENT) {
    const float* const from = a.packed + 1LL * kind * Plan::CHUNKS * Plan::CHUNK_WORDS;
    for (int i = 4 * threadIdx.x; i < Plan::CHUNKS * Plan::CHUNK_WORDS; i += 4 * Plan::THREADS)
      cp_async<16>(weights + i, from + i);
  }
  for (int i = 0; i < Plan::STAGES - 1; ++i) fill();

  int stage = 0;
#pragma unroll 1
  for (tile.at(a, first); tile.tile < a.tiles; tile.at(a, tile.tile + apart)) {
    BoxSums<Plan> sum = {};
    if constexpr (Plan::RAW) places.of_tile = box_phase<Plan>(a, tile, kind / Plan::M_PARTS);
#pragma unroll 1
    for (int step = 0; step < Plan::STEPS; ++step) {
      cp_async_wait<Plan::STAGES - 2>();
      __syncthreads();
      fill();
      const float* const of_step =
          weights + (Plan::RESIDENT ? step / Plan::PLANES * Plan::CHUNK_WORDS : stage * Plan::STEP_WORDS);
      multiply_box_step<Plan>(sum, boxes + stage * BOX, places, reinterpret_cast<const float4*>(of_step) + lane, step, a);
      if (++stage == Plan::STAGES) stage = 0;
    }
    constexpr int MOST = Plan::LENGTH % Plan::VECTOR == 0 ? Plan::VECTOR : 4;
    if (a.out_vector >= MOST) {
      store_box<Plan, MOST>(a, tile, sum, kind, image);
    } else if (Plan::NARROW && a.out_vector == 4) {
      store_box<Plan, 4>(a, tile, sum, kind, image);
    } else {
      store_box<Plan, 1>(a, tile, sum, kind, image);
    }
  }
  cp_async_wait<0>();
}

// The largest of 8, 4, 2, 1 (at most `most`) that divides both the row length and the address, in elements.
template <class Scalar>
int box_vector(int row, const Scalar* address, int most) {
  const unsigned long long bits = reinterpret_cast<unsigned long long>(address) / sizeof(Scalar) | unsigned(row);
  while (bits % most != 0) most /= 2;
  return most;
}

template <class Plan>
long long box_workspace() {
  return 4LL * Plan::KINDS * Plan::CHUNKS * Plan::CHUNK_WORDS;
}

// `bias` is not read by grad_input, nor if the layer has none.
template <class Plan>
cudaError_t launch_boxes(const Sizes& sizes, const typename Plan::Scalar* in, const typename Plan::Scalar* weight,
                         const typename Plan::Scalar* bias, typename Plan::Scalar* out, void* workspace,
                         cudaStream_t stream) {
  using Scalar = typename Plan::Scalar;
  if (sizes.batch == 0) return cudaSuccess;
  float* const packed = static_cast<float*>(workspace);
  BoxArguments<Scalar> a = {};
  a.in = in, a.packed = packed, a.bias = bias, a.out = out;
  a.in_d = Plan::FORWARD ? sizes.in_d : sizes.out_d, a.out_d = Plan::FORWARD ? sizes.out_d : sizes.in_d;
  a.in_h = Plan::FORWARD ? sizes.in_h : sizes.out_h, a.out_h = Plan::FORWARD ? sizes.out_h : sizes.in_h;
  a.in_w = Plan::FORWARD ? sizes.in_w : sizes.out_w, a.out_w = Plan::FORWARD ? sizes.out_w : sizes.in_w;
  if (!box_shape<Plan>(a)) return cudaErrorInvalidConfiguration;
  a.tiles *= sizes.batch;
  if (Plan::RAW)
    a.in_vector = Plan::VECTOR;
  else
    a.in_vector = Plan::W::GRAIN > 1 ? 1 : box_vector(a.in_w, in, Plan::READ);
  a.out_vector = box_vector(a.out_w, out, Plan::VECTOR);
  a.pieces = ceil_div(a.width, a.in_vector);
  const auto inverse = [](int divisor) { return unsigned((1U << 31) / divisor + 1); };
  a.by_pieces = inverse(a.pieces), a.by_rows = inverse(a.rows);
  a.by_strips = inverse(a.strips), a.by_high = inverse(a.high);
  const auto kernel = box_mma<Plan>;
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::SHARED_BYTES);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, Plan::THREADS, size_t(Plan::SHARED_BYTES));
  if (error != cudaSuccess) return error;
  constexpr long long PACKERS = 32LL * Plan::KINDS * Plan::CHUNKS * Plan::FRAGMENTS;
  pack_box_weights<Plan><<<unsigned(ceil_div(PACKERS, 256LL)), 256, 0, stream>>>(weight, packed);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  // One wave, if all kinds fit on the GPU at once; each kind gets the same number of blocks, and they share its tiles evenly.
  long long each = 1LL * processors * (blocks > 0 ? blocks : 1) / Plan::KINDS;
  if (each < 1) each = 1;
  if (each > a.tiles) each = a.tiles;
  each = ceil_div(a.tiles, ceil_div(a.tiles, each));
  kernel<<<unsigned(each * Plan::KINDS), Plan::THREADS, size_t(Plan::SHARED_BYTES), stream>>>(a);
  return cudaGetLastError();
}

#ifdef KW_FORWARD
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return box_workspace<BoxPlan<true, Layer, Tune>>();
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return launch_boxes<BoxPlan<true, Layer, Tune>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes) {
  return box_workspace<BoxPlan<false, Layer, Tune>>();
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return launch_boxes<BoxPlan<false, Layer, Tune>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace,
                                                   stream);
}
#endif
