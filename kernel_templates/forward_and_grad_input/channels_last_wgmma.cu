/* variant
name      = "channels_last_wgmma"
computes  = ["forward", "grad_input"]
after     = "persistent_packed"
idea      = "In channels_last 8 channels are 16 bytes in memory, the unit of wgmma, so cp.async copies them unchanged."
precision = ["fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.kernel_w <= 32 and layer.stride_w <= 32", "reach <= 128", "blocks * n <= 256", "stages >= 2",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28", "packed <= 2 ** 26"]
min_sm    = 90
arch      = "sm_90a"
kernel    = "gather_rows"

[tune]
ROWS      = {values = [0, 64, 128], default = 0, help = "positions of a warpgroup (0: automatic)"}
COLUMNS   = {values = [0, 32, 64, 96, 128, 192, 256], default = 0, help = "channels times residues of a tile, at most (0: automatic)"}
UNITS     = {values = [0, 2, 4, 8], default = 0, help = "units of 8 channels in a stage (0: automatic)"}
CHANNELS_LAST = {values = [1], default = 1, help = "1: activations are channels_last in memory"}

[derived]
forward     = "direction == 'forward'"
m           = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k           = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
apart       = "1 if forward else layer.stride_w // gcd(layer.stride_w, layer.dilation_w)"
phases      = "min(layer.kernel_w, apart)"
taps        = "ceil_div(layer.kernel_w, apart)"
slots       = "min(layer.kernel_w, layer.stride_w) if forward else 1"
reach       = "((layer.kernel_w - 1) * layer.dilation_w - layer.padding_w) // layer.stride_w - (-layer.padding_w) // layer.stride_w if forward else (taps - 1) * (layer.dilation_w // gcd(layer.stride_w, layer.dilation_w))"
wide        = "COLUMNS if COLUMNS else 128 if ceil_div(taps, slots) > 8 else 256"
alike       = "forward and layer.kernel_d == layer.stride_d and layer.kernel_h == layer.stride_h and (layer.kernel_d == 1 or layer.dilation_d == 1) and (layer.kernel_h == 1 or layer.dilation_h == 1) and layer.padding_d % layer.stride_d == 0 and layer.padding_h % layer.stride_h == 0"
merged      = "layer.stride_d * layer.stride_h if alike and slots * layer.stride_d * layer.stride_h * 16 <= wide else layer.stride_h if alike and slots * layer.stride_h * 16 <= wide else 1"
most        = "max(8, wide // (slots * merged) // 8 * 8)"
ct          = "ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8"
n           = "slots * merged * ct"
blocks      = "(ROWS if ROWS else 64 if n > 128 else 128) // 64"
tile        = "128 * blocks"
unit_bytes  = "16 * (tile + reach + taps * merged * ct)"
all_units   = "ceil_div(k, 8) * (1 if forward else phases)"
units       = "UNITS if UNITS else 8 if 8 * unit_bytes <= 57344 and all_units > 4 else 4 if 4 * unit_bytes <= 57344 and all_units > 2 else 2"
stage_bytes = "ceil_div(units * unit_bytes, 1024) * 1024"
stages      = "min(8, (227 * 1024 - 256) // stage_bytes)"
packed      = "ceil_div(m, ct) * (layer.stride_d * layer.stride_h if forward else 1) * ct * layer.groups * (all_units + units) * layer.kernel_d * layer.kernel_h * taps"
threads     = "512"
smem_bytes  = "stages * stage_bytes + 256"

[plan]
Plan        = "RowPlan<Layer, Tune, true>"
k           = "Plan::Row::CHANNELS"
phases      = ""
apart       = ""
taps        = "Plan::KW"
slots       = "Plan::SLOTS_AT_MOST"
n           = "Plan::N_AT_MOST"
packed      = ">= Plan::PACKED_BYTES / 16"

[grad_input.plan]
Plan        = "RowPlan<Layer, Tune, false>"
phases      = "Plan::Row::PHASES"
apart       = "Plan::Row::APART"
*/
#include "families/channels_last_wgmma/row_stage.cuh"
#include "families/channels_last_wgmma/row_store.cuh"
#include "families/channels_last_wgmma/row_weights.cuh"
#include "contract/flat_grid.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/wgmma_swizzled.cuh"
#include "families/persistent_wgmma/gather_products.cuh"

// families/channels_last_wgmma/README.md has a picture and the words.

// All products of a warpgroup in one stage, issued back to back. A shift along W is a shift of the descriptor.
template <class P>
__device__ __forceinline__ void row_products(float (&sum)[P::BLOCKS][P::N / 2], unsigned stage, int warpgroup) {
  const unsigned long long a0 = swizzled_descriptor<P::ROW_BYTES>(stage + warpgroup * P::ROWS * P::ROW_BYTES);
  const unsigned long long b0 = matrix_descriptor(stage + P::WINDOW_BYTES, 0, 128);
  const_loop<0, P::COUNT * (P::UNITS / 2)>([&](auto number) {
    constexpr int WHICH = decltype(number)::value / (P::UNITS / 2), UNIT = decltype(number)::value % (P::UNITS / 2) * 2;
    constexpr int COLUMNS = P::PRODUCTS.at[WHICH].columns, FIRST = P::PRODUCTS.at[WHICH].first;
    constexpr int WEIGHTS_AT = P::PRODUCTS.at[WHICH].before * P::UNITS + UNIT * COLUMNS;
    constexpr int WINDOW_AT = P::PRODUCTS.at[WHICH].shift * P::UNITS + UNIT;
    const_loop<0, P::BLOCKS>([&](auto block) {
      constexpr int BLOCK = decltype(block)::value;
      wgmma_swizzled<P::precision, typename P::Scalar, COLUMNS>(
          reinterpret_cast<float(&)[COLUMNS / 2]>(sum[BLOCK][FIRST / 2]), a0 + (WINDOW_AT + 64 * BLOCK * P::UNITS),
          b0 + (static_cast<unsigned long long>(COLUMNS) << 16) + WEIGHTS_AT);
    });
  });
}

// A warpgroup multiplies its ROWS positions of the tile. A stage is freed when its products are done and those of
// the next stage have been issued.
template <class P>
__device__ __forceinline__ void multiply_rows(const GatherArguments<typename P::Scalar>& a, unsigned ring,
                                              GatherBarriers barriers, int warpgroup) {
  GatherRing<P::STAGES> place;
  const bool speaks = threadIdx.x % 32 == 0;
#pragma unroll 1
  for (int number = blockIdx.x; number < a.items; number += gridDim.x) {
    const GatherItem<P> item(a, number);
    float sum[P::BLOCKS][P::N / 2];
    gather_begin<P>(a, item, item.part == 0, sum);
    unsigned before = 0;
#pragma unroll 1
    for (int at = item.first; at < item.end; ++at) {
      mbarrier_await(barriers.full + 8 * place.stage, place.parity);
      wgmma_fence();
      row_products<P>(sum, ring + place.stage * P::STAGE_BYTES, warpgroup);
      swizzled_commit();
      swizzled_wait<1>();
      if (speaks && at > item.first) mbarrier_arrive(before);
      before = barriers.empty + 8 * place.stage;
      place.next();
    }
    swizzled_wait<0>();
    if (speaks && item.end > item.first) mbarrier_arrive(before);
#pragma unroll
    for (int block = 0; block < P::BLOCKS; ++block) wgmma_own(sum[block]);

    const_loop<0, P::BLOCKS>([&](auto block) {
      constexpr int BLOCK = decltype(block)::value;
      const auto value = [&](auto which, auto eight, int i) {
        return sum[BLOCK][(decltype(which)::value * (P::CT / 8) + decltype(eight)::value) * 4 + i];
      };
      if (item.parts > 1) {
        const_loop<0, P::CT / 8>([&](auto eight) {
          float4* const to =
              a.partial + gather_partial<P>(item.parts, item.number - a.unsplit, item.part, BLOCK, decltype(eight)::value) + threadIdx.x;
          const_loop<0, P::CLASSES>([&](auto which) {
            to[decltype(which)::value * P::CONSUMERS] =
                make_float4(value(which, eight, 0), value(which, eight, 1), value(which, eight, 2), value(which, eight, 3));
          });
        });
      } else {
        GatherTarget targets[2];
        row_targets<P>(a, item, threadIdx.x, BLOCK, targets);
        row_store<P, P::CT / 8>(a, item, targets, item.channel, value);
      }
    });
  }
}

// Blocks are persistent and take items in turn. Neighbouring blocks have the varieties of a tile: they read one source.
// warpgroup -> data: 0 and 1 multiply, half of the tile each, and store; the others stage. They meet at mbarriers.
// Bytes: the source once for each variety and each row of taps, mostly from L2; the result once.
template <class P>
__global__ void __launch_bounds__(P::THREADS, 1) gather_rows(const GatherArguments<typename P::Scalar> a) {
  extern __shared__ __align__(1024) char row_memory[];
  const unsigned base = shared_address(row_memory), bars = base + P::STAGES * P::STAGE_BYTES;
  const GatherBarriers barriers = {bars, bars + 8 * P::STAGES};
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::STAGES; ++i)
      mbarrier_init(barriers.full + 8 * i, P::STAGERS / 32 + 1), mbarrier_init(barriers.empty + 8 * i, P::CONSUMERS / 32);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup >= 2) {
    give_registers<P::KEPT>();
    stage_rows<P>(a, row_memory, barriers);
  } else {
    take_registers<P::TAKEN>();
    multiply_rows<P>(a, base, barriers, warpgroup);
  }
}

template <class P>
long long row_workspace(const Sizes& sizes) {
  GatherArguments<typename P::Scalar> a = {};
  if (sizes.batch == 0 || !gather_sizes<P>(sizes, 1, a)) return 0;
  return P::PACKED_BYTES + 4LL * (a.items - a.unsplit) * P::TILE * P::N;
}

template <class P>
cudaError_t row_launch(const Sizes& sizes, const typename P::Scalar* source, const typename P::Scalar* weight,
                       const typename P::Scalar* bias, typename P::Scalar* result, void* workspace, cudaStream_t stream) {
  using Scalar = typename P::Scalar;
  if (sizes.batch == 0) return cudaSuccess;
  GatherArguments<Scalar> a = {};
  char* const packed = static_cast<char*>(workspace);
  a.source = source, a.weights = packed, a.bias = bias, a.result = result;
  a.partial = reinterpret_cast<float4*>(packed + P::PACKED_BYTES);
  int device = 0, processors = 1;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (!gather_sizes<P>(sizes, processors, a)) return cudaErrorInvalidValue;
  a.wide_loads = size_t(source) % 16 == 0;
  a.wide_stores = P::M % 8 == 0 && size_t(result) % 16 == 0;

  const long long units = P::PACKED_BYTES / 16 / P::SEGMENTS * (P::KD * P::KH) / P::ROW_GROUPS;
  if constexpr (P::FORWARD) pack_gather_weights<P><<<flat_grid(ceil_div(units, 256)), 256, 0, stream>>>(weight, packed, 1.0f);
  else pack_row_weights<P><<<flat_grid(ceil_div(units, 256)), 256, 0, stream>>>(weight, packed);
  error = cudaGetLastError();
  const auto kernel = gather_rows<P>;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SMEM_BYTES);
  if (error != cudaSuccess) return error;
  error = launch_early(kernel, dim3(unsigned(a.items < processors ? a.items : processors)), P::THREADS, P::SMEM_BYTES, stream, a);
  if (error != cudaSuccess || a.items == a.unsplit) return error;
  const long long pieces = 1LL * (a.items - a.unsplit) / a.splits.divisor * P::BLOCKS * (P::CT / 8);
  return launch_early(add_row_parts<P>, flat_grid(pieces), P::CONSUMERS, 0, stream, a);
}

#ifdef KW_FORWARD
// The columns of a product are channels and residues along W.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return row_workspace<RowPlan<Layer, Tune, true>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return row_launch<RowPlan<Layer, Tune, true>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
// The columns of a product are channels; phases along W are summed channels.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return row_workspace<RowPlan<Layer, Tune, false>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                       cudaStream_t stream) {
  return row_launch<RowPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace, stream);
}
#endif
