/* variant
name      = "register_wgmma"
computes  = ["forward", "grad_input"]
after     = "persistent_wgmma"
idea      = "Rows of the source are copied as they lie in memory; each multiplying warp loads its operand of wgmma into registers."
precision = ["tf32", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.kernel_w <= 32 and layer.stride_w <= 32", "reach <= 128", "blocks * n <= 256", "stages >= 2",
             "base_stages >= 2", "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28", "packed <= 2 ** 26"]
min_sm    = 90
arch      = "sm_90a"
kernel    = "multiply_source_rows"

[tune]
ROWS      = {values = [0, 64, 128], default = 0, help = "positions of a warpgroup (0: automatic)"}
COLUMNS   = {values = [0, 32, 64, 96, 128, 192, 256], default = 0, help = "channels times residues of a tile, at most (0: automatic)"}
UNITS     = {values = [0, 2, 4, 8, 16], default = 0, help = "units of 16 bytes of K in a stage (0: automatic)"}
DIRECT    = {values = [0, 1], default = 0, help = "1: each thread stores its own results; 0: through shared memory, where that is possible"}

[derived]
forward     = "direction == 'forward'"
m           = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k           = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
e           = "16 // element_bytes"
packs       = "not forward and layer.kernel_w % layer.stride_w == 0 and layer.dilation_w == 1"
pack        = "1 if not packs else 8 if e == 8 and layer.stride_w % 8 == 0 and layer.padding_w % 8 == 0 else 4 if layer.stride_w % 4 == 0 and layer.padding_w % 4 == 0 else 2 if layer.stride_w % 2 == 0 and layer.padding_w % 2 == 0 else 1"
channels    = "e // pack"
slots       = "min(layer.kernel_w, layer.stride_w) if forward else 1"
planes      = "1 if forward else layer.stride_w // pack if pack > 1 else min(layer.kernel_w, layer.stride_w)"
low         = "-(((layer.kernel_w - 1) * layer.dilation_w - layer.padding_w) // layer.stride_w) if forward else 0"
reach       = "((layer.kernel_w - 1) * layer.dilation_w - layer.padding_w) // layer.stride_w - (-layer.padding_w) // layer.stride_w if forward else (layer.kernel_w - 1) * layer.dilation_w // layer.stride_w"
wide        = "COLUMNS if COLUMNS else 128 if ceil_div(layer.kernel_w // pack, slots) > 8 else 256"
alike       = "forward and layer.kernel_d == layer.stride_d and layer.kernel_h == layer.stride_h and (layer.kernel_d == 1 or layer.dilation_d == 1) and (layer.kernel_h == 1 or layer.dilation_h == 1) and layer.padding_d % layer.stride_d == 0 and layer.padding_h % layer.stride_h == 0"
merged      = "layer.stride_d * layer.stride_h if alike and slots * layer.stride_d * layer.stride_h * 16 <= wide else layer.stride_h if alike and slots * layer.stride_h * 16 <= wide else 1"
most        = "max(8, wide // (slots * merged) // 8 * 8)"
ct          = "ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8"
n           = "slots * merged * ct"
blocks      = "(ROWS if ROWS else 64 if n > 128 or planes > 2 or (reach == 0 and e == 4) else 128) // 64"
tile        = "128 * blocks"
step        = "1 if forward else layer.stride_w"
before      = "ceil_div(max(0, -low if forward else layer.padding_w), e) * e"
far         = "low + reach if forward else (layer.kernel_w - 1) * layer.dilation_w - layer.padding_w"
run         = "ceil_div(before + (tile - 1) * step + far + 1, e)"
banks       = "1 if channels == 1 else 16 // channels"
row         = "run + 1 + (banks // 2 + banks - (run + 1) % banks) % banks"
columns     = "layer.kernel_w // pack * merged * ct"
unit_bytes  = "16 * (channels * row + columns)"
all_units   = "ceil_div(k * pack, e)"
odd_bytes   = "512 * layer.stride_w * (8 + element_bytes) if forward and layer.stride_w in (3, 5, 7) else 0"
of_position = "(layer.stride_w if forward else 1) * element_bytes"
has_room    = "DIRECT == 0 and (not forward or layer.kernel_w >= layer.stride_w) and of_position in (2, 4, 8, 16, 32) and merged * of_position <= 32"
room        = "2048 * merged * of_position if has_room else odd_bytes"
biases      = "layer.groups * ceil_div(m, ct) * ct if forward and layer.has_bias == 1 else 0"
bias_bytes  = "ceil_div(4 * biases, 128) * 128 if biases <= 1024 else 0"
shared      = "227 * 1024 - 256 - room - bias_bytes"
large       = "shared // 2 if reach > 0 else 57344"
units       = "UNITS if UNITS else 16 if 16 * unit_bytes <= large and all_units > 8 else 8 if 8 * unit_bytes <= large and all_units > 4 else 4 if 4 * unit_bytes <= large and all_units > 2 else 2"
stage_bytes = "units * unit_bytes"
fit         = "min(3, shared // stage_bytes)"
stored_most = "1 if not has_room else min(blocks * ct // 2, (shared + room - fit * stage_bytes) // (room // 8))"
pieces      = "128 if ct % 128 == 0 and stored_most >= 128 else 64 if ct % 64 == 0 and stored_most >= 64 else 32 if ct % 32 == 0 and stored_most >= 32 else 16 if ct % 16 == 0 and stored_most >= 16 else 8"
room_bytes  = "room // 8 * pieces"
stages      = "min(8, (shared + room - room_bytes) // stage_bytes)"
base_bytes  = "16 * (planes * (tile + reach + (7 if planes > 1 else 0)) + columns)"
base_stages = "(227 * 1024 - 256 - odd_bytes) // ((UNITS if UNITS else 2) * base_bytes)"
packed      = "ceil_div(m, ct) * (layer.stride_d * layer.stride_h if forward else 1) * ct * layer.groups * (all_units + units) * layer.kernel_d * layer.kernel_h * (layer.kernel_w // pack)"
threads     = "384"
smem_bytes  = "room_bytes + bias_bytes + stages * stage_bytes + 256"

[plan]
Plan        = "SourceRowsPlan<Layer, Tune, true>"
packs       = ""
slots       = "Plan::SLOTS_AT_MOST"
planes      = "Plan::PLANES_AT_MOST"
n           = "Plan::N_AT_MOST"
biases      = ""
fit         = ""
stored_most = ""
pieces      = "Plan::channels_chosen()"
columns     = "Plan::WEIGHT_COLUMNS"
base_bytes  = "Plan::Base::UNIT_BYTES"
base_stages = ""
packed      = ">= Plan::PACKED_BYTES / 16"

[forward]
idea      = "Rows of the input are copied as they lie in memory; each multiplying warp loads its operand of wgmma into registers."

[grad_input]
idea      = "Rows of grad_output are copied as they lie in memory; each multiplying warp loads its operand of wgmma into registers."

[grad_input.plan]
Plan        = "SourceRowsPlan<Layer, Tune, false>"
*/
#include "families/register_wgmma/copy.cuh"
#include "families/persistent_wgmma/gather_products.cuh"
#include "families/register_wgmma/store.cuh"
#include "contract/flat_grid.cuh"
#include "hardware/wgmma_fragments.cuh"

// families/register_wgmma/README.md has a picture and the words.

// What a lane loads for a turn: 32 bytes of K of one operand, for all positions of the warp.
template <class P>
struct RawFragments {
  static constexpr bool HALVES = P::SIZE == 2 && P::PACK == 1;  // two channels make a word
  unsigned low[P::BLOCKS][4], high[HALVES ? P::BLOCKS : 1][4];
};
// Whether 8 positions of a channel are 16 aligned bytes.
template <class P, int OFFSET>
constexpr bool IS_ALIGNED = RawFragments<P>::HALVES && P::STEP == 1 && OFFSET % 8 == 0 && !P::crosses(OFFSET);

// `rows`: the stage. `position`: the lane's first one. `own`: where that position and the lane's first value of K lie in a
// stage. `w`: the first element of each position in its source row.
template <class P, int TURN>
__device__ __forceinline__ void load_raw(const SourceRowsArguments<typename P::Scalar>& a, const char* rows, int own,
                                         int position, const int (&w)[P::BLOCKS][2], RawFragments<P>& raw) {
  constexpr int OPERAND = TURN % P::OPERANDS.count, UNIT = TURN / P::OPERANDS.count * 2;
  constexpr int OFFSET = P::OPERANDS.offset[OPERAND], UNIT_AT = P::CHANNELS * P::ROW_BYTES;
  if constexpr (IS_ALIGNED<P, OFFSET>) {
    const int lane = threadIdx.x % 32;
    const char* const from = rows + (UNIT + lane / 16) * UNIT_AT + lane % 8 * P::ROW_BYTES +
                             (position - lane / 4 + lane / 8 % 2 * 8 + P::BEFORE + OFFSET) * 2;
#pragma unroll
    for (int block = 0; block < P::BLOCKS; ++block) load_transposed(raw.low[block], from + block * 128);
  } else {
#pragma unroll
    for (int i = 0; i < P::BLOCKS * 2; ++i) {
      int at = own + ((i / 2 * 64 + i % 2 * 8) * P::STEP + OFFSET) * P::SIZE;
      if constexpr (P::crosses(OFFSET))
        if (unsigned(w[i / 2][i % 2] + OFFSET) >= unsigned(a.source_w))
          at = own + P::ZERO_AT - (position * P::STEP + P::BEFORE) * P::SIZE;
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        const char* const from = rows + at + (UNIT + unit) * UNIT_AT;
        if constexpr (RawFragments<P>::HALVES) {
          raw.low[i / 2][i % 2 + unit * 2] = *reinterpret_cast<const unsigned short*>(from);
          raw.high[i / 2][i % 2 + unit * 2] = *reinterpret_cast<const unsigned short*>(from + P::ROW_BYTES);
        } else {
          raw.low[i / 2][i % 2 + unit * 2] = *reinterpret_cast<const unsigned*>(from);
        }
      }
    }
  }
}

// The same as operands of wgmma.
template <class P, int TURN>
__device__ __forceinline__ void settle(const RawFragments<P>& raw, float one, unsigned (&fragment)[P::BLOCKS][4]) {
#pragma unroll
  for (int i = 0; i < P::BLOCKS * 4; ++i) {
    unsigned word = raw.low[i / 4][i % 4];
    if constexpr (P::SIZE == 4) word = __float_as_uint(round_for_tensor_cores(__uint_as_float(word), one));
    if constexpr (RawFragments<P>::HALVES && !IS_ALIGNED<P, P::OPERANDS.offset[TURN % P::OPERANDS.count]>)
      word |= raw.high[i / 4][i % 4] << 16;
    fragment[i / 4][i % 4] = word;
  }
}

// All products of a turn, issued back to back. `b0` describes the weights of the stage.
template <class P, int TURN>
__device__ __forceinline__ void multiply_fragments(float (&sum)[P::BLOCKS][P::N / 2], const unsigned (&fragment)[P::BLOCKS][4],
                                                   unsigned long long b0) {
  constexpr int OPERAND = TURN % P::OPERANDS.count, UNIT = TURN / P::OPERANDS.count * 2;
  const_loop<0, P::COUNT>([&](auto number) {
    constexpr GatherProduct PRODUCT = P::PRODUCTS.at[decltype(number)::value];
    if constexpr (PRODUCT.plane == P::OPERANDS.plane[OPERAND] && PRODUCT.shift == P::OPERANDS.shift[OPERAND]) {
      constexpr int COLUMNS = PRODUCT.columns, WEIGHTS_AT = PRODUCT.before * P::UNITS + UNIT * COLUMNS;
      const_loop<0, P::BLOCKS>([&](auto block) {
        constexpr int BLOCK = decltype(block)::value;
        wgmma_of_fragment<P::precision, typename P::Scalar, COLUMNS>(
            reinterpret_cast<float(&)[COLUMNS / 2]>(sum[BLOCK][PRODUCT.first / 2]), fragment[BLOCK],
            b0 + (static_cast<unsigned long long>(COLUMNS) << 16) + WEIGHTS_AT);
      });
    }
  });
}

// Sums begin with the bias, as in gather_begin(). `biases`: those of all columns.
template <class P>
__device__ __forceinline__ void begin_with(const GatherItem<P>& item, const float* biases, float (&sum)[P::BLOCKS][P::N / 2]) {
  const float* const from = biases + item.group * (P::TILES * P::CT) + item.channel + threadIdx.x % 4 * 2;
#pragma unroll
  for (int eight = 0; eight < P::CT / 8; ++eight) {
    const float2 pair = item.part == 0 ? *reinterpret_cast<const float2*>(from + eight * 8) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < P::BLOCKS * P::CLASSES * 4; ++i)
      sum[i / 4 / P::CLASSES][(i / 4 % P::CLASSES * (P::CT / 8) + eight) * 4 + i % 4] = i % 2 == 0 ? pair.x : pair.y;
  }
}

// A warpgroup multiplies its ROWS positions of the tile. While the products of a turn run, the fragments of the next one are
// loaded. No product runs from one stage to the next: see wgmma_of_fragment(). Meanwhile the other warpgroup multiplies.
template <class P>
__device__ __forceinline__ void multiply_rows(const SourceRowsArguments<typename P::Scalar>& a, const char* ring,
                                              GatherBarriers barriers, char* room, const float* biases, int warpgroup) {
  GatherRing<P::STAGES> place;
  const int lane = threadIdx.x % 32, position = warpgroup * P::ROWS + int(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const int word = lane % 4 * (4 / P::SIZE);  // the lane's first value of a unit
  const int own = (position * P::STEP + P::BEFORE + word % P::PACK) * P::SIZE + word / P::PACK * P::ROW_BYTES;
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    const GatherItem<P> item(a, number);
    float sum[P::BLOCKS][P::N / 2];
    if constexpr (P::BIASES > 0) begin_with<P>(item, biases, sum);
    else gather_begin<P>(a, item, item.part == 0, sum);
    int w[P::BLOCKS][2];
#pragma unroll
    for (int i = 0; i < P::BLOCKS * 2; ++i)
      w[i / 2][i % 2] = gather_step(a, item.row0, item.step0, position + i / 2 * 64 + i % 2 * 8).w * P::STEP;
    unsigned fragment[2][P::BLOCKS][4];
#pragma unroll 1
    for (int at = item.first; at < item.end; ++at, place.next()) {
      const char* const rows = ring + place.stage * P::STAGE_BYTES;
      const unsigned long long b0 = matrix_descriptor(shared_address(rows) + P::WINDOW_BYTES, 0, 128);
      RawFragments<P> raw;
      mbarrier_await(barriers.full + 8 * place.stage, place.parity);
      load_raw<P, 0>(a, rows, own, position, w, raw);
      const_loop<0, P::TURNS>([&](auto turn) {
        constexpr int TURN = decltype(turn)::value;
        settle<P, TURN>(raw, a.one, fragment[TURN % 2]);
        wgmma_fence();
        multiply_fragments<P, TURN>(sum, fragment[TURN % 2], b0);
        fragment_commit();
        if constexpr (TURN + 1 < P::TURNS) {
          load_raw<P, TURN + 1>(a, rows, own, position, w, raw);
          fragment_wait<1>();
        }
      });
      fragment_wait<0>();
      mbarrier_arrive(barriers.empty + 8 * place.stage);
    }
#pragma unroll
    for (int block = 0; block < P::BLOCKS; ++block) wgmma_own(sum[block]);

    const auto value = [&](auto block, auto which, auto eight, int i) {
      return sum[decltype(block)::value][(decltype(which)::value * (P::CT / 8) + decltype(eight)::value) * 4 + i];
    };
    if constexpr (P::ORDERS) {
      if (item.parts == 1 && a.stored != 0) {
        store_whole_rows<P>(a, item, room, value);
        continue;
      }
    }
    const_loop<0, P::BLOCKS>([&](auto block) {
      const auto of_block = [&](auto which, auto eight, int i) { return value(block, which, eight, i); };
      if (item.parts > 1) {
        const_loop<0, P::CT / 8>([&](auto eight) {
          float4* const to = a.partial + threadIdx.x +
                             gather_partial<P>(item.parts, item.number - a.unsplit, item.part, decltype(block)::value,
                                               decltype(eight)::value);
          const_loop<0, P::CLASSES>([&](auto which) {
            to[decltype(which)::value * P::CONSUMERS] = make_float4(of_block(which, eight, 0), of_block(which, eight, 1),
                                                                    of_block(which, eight, 2), of_block(which, eight, 3));
          });
        });
      } else {
        GatherTarget targets[2];
        gather_targets<P>(a, item, threadIdx.x, decltype(block)::value, targets);
        gather_store<P, P::CT / 8>(a, item, targets, item.channel, room, of_block);
      }
    });
  }
  if (P::ORDERS) tensor_store_wait<0>();
}

// Blocks are persistent and take items in turn. Neighbouring blocks have the varieties of a tile: they read one source.
// warpgroup -> data: 0 and 1 multiply, half of the tile each, and store; 2 copies. They meet at mbarriers.
// Bytes: the source once for each variety and each row of taps, mostly from L2; the result once.
template <class P>
__global__ void __launch_bounds__(P::THREADS, 1)
    multiply_source_rows(const __grid_constant__ SourceRowsArguments<typename P::Scalar> a) {
  extern __shared__ __align__(1024) char rows_memory[];  // results on their way, biases, the ring, barriers
  char* const ring = rows_memory + P::RING_AT;
  float* const biases = reinterpret_cast<float*>(rows_memory + P::ROOM_BYTES);
  const unsigned bars = shared_address(ring) + P::STAGES * P::STAGE_BYTES;
  const GatherBarriers barriers = {bars, bars + 8 * P::STAGES};
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::STAGES; ++i)
      mbarrier_init(barriers.full + 8 * i, P::STAGERS + 1), mbarrier_init(barriers.empty + 8 * i, P::CONSUMERS);
    mbarrier_init_done();
  }
  for (int i = threadIdx.x; i < P::STAGES * P::ROWS_OF_STAGE; i += P::THREADS) {
    const int stage = i / P::ROWS_OF_STAGE, row = i - stage * P::ROWS_OF_STAGE;
    *reinterpret_cast<uint4*>(ring + stage * P::STAGE_BYTES + row * P::ROW_BYTES + P::ZERO_AT) = make_uint4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < P::BIASES; i += P::THREADS) {
    const int group = i / (P::TILES * P::CT), channel = i - group * (P::TILES * P::CT);
    biases[i] = channel < P::M ? float(widen(guarded_load(a.bias + group * P::M + channel))) : 0.0f;
  }
  __syncthreads();
  if (warpgroup >= 2) {
    give_registers<P::KEPT>();
    copy_by_alignment<P>(a, ring, barriers);
  } else {
    take_registers<P::TAKEN>();
    multiply_rows<P>(a, ring, barriers, rows_memory, biases, warpgroup);
  }
}

template <class P>
long long source_rows_workspace(const Sizes& sizes) {
  SourceRowsArguments<typename P::Scalar> a = {};
  if (sizes.batch == 0 || !source_rows_sizes<P>(sizes, 1, a)) return 0;
  return P::PACKED_BYTES + 4LL * (a.items - a.unsplit) * P::TILE * P::N;
}

template <class P>
cudaError_t source_rows_launch(const Sizes& sizes, const typename P::Scalar* source, const typename P::Scalar* weight,
                               const typename P::Scalar* bias, typename P::Scalar* result, void* workspace,
                               cudaStream_t stream) {
  using Scalar = typename P::Scalar;
  if (sizes.batch == 0) return cudaSuccess;
  SourceRowsArguments<Scalar> a = {};
  char* const packed = static_cast<char*>(workspace);
  a.source = source, a.weights = packed, a.bias = bias, a.result = result;
  a.partial = reinterpret_cast<float4*>(packed + P::PACKED_BYTES);
  int device = 0, processors = 1;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (!source_rows_sizes<P>(sizes, processors, a)) return cudaErrorInvalidValue;
  constexpr int WIDE = P::FORWARD && P::S % 8 == 0 && sizeof(Scalar) == 2 ? 8 : 4;  // neighbours that are stored together
  a.wide_stores = a.result_w % WIDE == 0 && size_t(result) % 16 == 0;
  a.stored = how_to_store<P>(a, sizes.batch);
  const long long units = P::PACKED_BYTES / 16 / P::SEGMENTS * (P::KD * P::KH) / P::ROW_GROUPS;
  pack_gather_weights<P><<<flat_grid(ceil_div(units, 256)), 256, 0, stream>>>(weight, packed, 1.0f);
  error = cudaGetLastError();
  const auto kernel = multiply_source_rows<P>;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SMEM_BYTES);
  if (error != cudaSuccess) return error;
  error = launch_early(kernel, dim3(unsigned(a.items < processors ? a.items : processors)), P::THREADS, P::SMEM_BYTES, stream,
                       a);
  if (error != cudaSuccess || a.items == a.unsplit) return error;
  const long long pieces = 1LL * (a.items - a.unsplit) / a.splits.divisor * P::BLOCKS * (P::CT / 8);
  const GatherArguments<Scalar>& parts = a;
  return launch_early(add_gather_parts<P>, flat_grid(pieces), P::CONSUMERS, 0, stream, parts);
}

#ifdef KW_FORWARD
// The columns of a product are channels and residues along W.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return source_rows_workspace<SourceRowsPlan<Layer, Tune, true>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return source_rows_launch<SourceRowsPlan<Layer, Tune, true>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
// The columns of a product are channels; each phase along W is an operand of its own.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return source_rows_workspace<SourceRowsPlan<Layer, Tune, false>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return source_rows_launch<SourceRowsPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace,
                                                                stream);
}
#endif
