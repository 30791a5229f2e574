/* variant
name      = "persistent_wgmma"
computes  = ["forward", "grad_input"]
after     = "wgmma_packed"
idea      = "Staging warps transpose the source, copies bring packed weights, and wgmma sums all taps of a tile of positions."
precision = ["tf32", "fp16", "bf16"]
layer     = ["constant"]
needs     = ["layer.kernel_w <= 32 and layer.stride_w <= 32", "reach <= 128", "blocks * n <= 256", "stages >= 2",
             "planes * (tile + reach) <= 1536",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28", "packed <= 2 ** 26"]
min_sm    = 90
arch      = "sm_90a"
kernel    = "persistent_gather"

[tune]
ROWS      = {values = [0, 64, 128], default = 0, help = "positions of a warpgroup (0: automatic)"}
COLUMNS   = {values = [0, 32, 64, 96, 128, 192, 256], default = 0, help = "channels times residues of a tile, at most (0: automatic)"}
UNITS     = {values = [0, 2, 4, 8, 16], default = 0, help = "units of 16 bytes of K in a stage (0: automatic)"}

[derived]
forward     = "direction == 'forward'"
m           = "(layer.out_channels if forward else layer.in_channels) // layer.groups"
k           = "(layer.in_channels if forward else layer.out_channels) // layer.groups"
e           = "16 // element_bytes"
packs       = "not forward and layer.kernel_w % layer.stride_w == 0 and layer.dilation_w == 1"
pack        = "1 if not packs else 8 if e == 8 and layer.stride_w % 8 == 0 and layer.padding_w % 8 == 0 else 4 if layer.stride_w % 4 == 0 and layer.padding_w % 4 == 0 else 2 if layer.stride_w % 2 == 0 and layer.padding_w % 2 == 0 else 1"
slots       = "min(layer.kernel_w, layer.stride_w) if forward else 1"
planes      = "1 if forward else layer.stride_w // pack if pack > 1 else min(layer.kernel_w, layer.stride_w)"
reach       = "((layer.kernel_w - 1) * layer.dilation_w - layer.padding_w) // layer.stride_w - (-layer.padding_w) // layer.stride_w if forward else (layer.kernel_w - 1) * layer.dilation_w // layer.stride_w"
wide        = "COLUMNS if COLUMNS else 128 if ceil_div(layer.kernel_w // pack, slots) > 8 else 256"
alike       = "forward and layer.kernel_d == layer.stride_d and layer.kernel_h == layer.stride_h and (layer.kernel_d == 1 or layer.dilation_d == 1) and (layer.kernel_h == 1 or layer.dilation_h == 1) and layer.padding_d % layer.stride_d == 0 and layer.padding_h % layer.stride_h == 0"
merged      = "layer.stride_d * layer.stride_h if alike and slots * layer.stride_d * layer.stride_h * 16 <= wide else layer.stride_h if alike and slots * layer.stride_h * 16 <= wide else 1"
most        = "max(8, wide // (slots * merged) // 8 * 8)"
ct          = "ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8"
n           = "slots * merged * ct"
blocks      = "(ROWS if ROWS else 64 if n > 128 or planes > 2 or (reach == 0 and e == 4) else 128) // 64"
tile        = "128 * blocks"
unit_bytes  = "16 * (planes * (tile + reach + (7 if planes > 1 else 0)) + layer.kernel_w // pack * merged * ct)"
all_units   = "ceil_div(k * pack, e)"
odd_bytes   = "512 * layer.stride_w * (8 + element_bytes) if forward and layer.stride_w in (3, 5, 7) else 0"
shared      = "227 * 1024 - 256 - odd_bytes"
large       = "shared // 3 if blocks == 1 and reach > 0 else 49152"
units       = "UNITS if UNITS else 16 if 16 * unit_bytes <= large and all_units > 8 else 8 if 8 * unit_bytes <= large and all_units > 4 else 4 if 4 * unit_bytes <= large and all_units > 2 else 2"
fit         = "shared // (units * unit_bytes)"
stages      = "8 if fit >= 8 else fit // 2 * 2 if fit > 3 else fit"
packed      = "ceil_div(m, ct) * (layer.stride_d * layer.stride_h if forward else 1) * ct * layer.groups * (all_units + units) * layer.kernel_d * layer.kernel_h * (layer.kernel_w // pack)"
threads     = "512"
smem_bytes  = "stages * units * unit_bytes + 256 + odd_bytes"

[plan]
Plan        = "GatherPlan<Layer, Tune, true>"
packs       = ""
slots       = "Plan::SLOTS_AT_MOST"
planes      = "Plan::PLANES_AT_MOST"
n           = "Plan::N_AT_MOST"
packed      = ">= Plan::PACKED_BYTES / 16"

[forward]
idea      = "Staging warps transpose, copies bring packed weights, and wgmma sums all residues along W of a tile of positions."

[grad_input]
idea      = "Staging warps transpose phases of grad_output, copies bring packed weights, and wgmma sums all taps of a tile of positions."
# kernel < stride with a dilation spills registers
needs     = ["layer.kernel_w >= layer.stride_w or layer.dilation_w == 1", "layer.kernel_w <= 32 and layer.stride_w <= 32",
             "reach <= 128", "blocks * n <= 256", "stages >= 2", "planes * (tile + reach) <= 1536",
             "max(layer.padding_w, layer.padding_h, layer.padding_d) < 2 ** 28", "packed <= 2 ** 26"]

[grad_input.plan]
Plan        = "GatherPlan<Layer, Tune, false>"
*/
#include "families/persistent_wgmma/gather_stage.cuh"
#include "families/persistent_wgmma/gather_store.cuh"
#include "families/persistent_wgmma/gather_weights.cuh"
#include "contract/flat_grid.cuh"
#include "hardware/early_launch.cuh"
#include "hardware/guarded_load.cuh"
#include "hardware/wgmma_more_shapes.cuh"
#include "families/persistent_wgmma/gather_products.cuh"

// families/persistent_wgmma/README.md has a picture and the words.

// A warpgroup multiplies its ROWS positions of the tile. A stage is freed when its products are done and those of
// the next stage have been issued.
template <class P>
__device__ __forceinline__ void gather_multiply(const GatherArguments<typename P::Scalar>& a, unsigned ring,
                                                GatherBarriers barriers, char* room, int warpgroup) {
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
      gather_products<P>(sum, ring + place.stage * P::STAGE_BYTES, warpgroup);
      wgmma_commit();
      wgmma_wait<1>();
      if (speaks && at > item.first) mbarrier_arrive(before);
      before = barriers.empty + 8 * place.stage;
      place.next();
    }
    wgmma_wait<0>();
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
        gather_targets<P>(a, item, threadIdx.x, BLOCK, targets);
        gather_store<P, P::CT / 8>(a, item, targets, item.channel, room, value);
      }
    });
  }
}

// Blocks are persistent and take items in turn. Neighbouring blocks have the varieties of a tile: they read one source.
// warpgroup -> data: 0 and 1 multiply, half of the tile each, and store; the others stage. They meet at mbarriers.
// Bytes: the source once for each variety and each row of taps, mostly from L2; the result once.
template <class P>
__global__ void __launch_bounds__(P::THREADS, 1) persistent_gather(const GatherArguments<typename P::Scalar> a) {
  extern __shared__ __align__(1024) char gather_memory[];
  const unsigned base = shared_address(gather_memory), bars = base + P::STAGES * P::STAGE_BYTES;
  const GatherBarriers barriers = {bars, bars + 8 * P::STAGES};
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::STAGES; ++i)
      mbarrier_init(barriers.full + 8 * i, 4 + 1), mbarrier_init(barriers.empty + 8 * i, P::CONSUMERS / 32);
    mbarrier_init_done();
  }
  __syncthreads();
  if (warpgroup >= 2) {
    give_registers<P::KEPT>();
    gather_stage<P>(a, gather_memory, barriers);
  } else {
    take_registers<P::TAKEN>();
    gather_multiply<P>(a, base, barriers, gather_memory + P::STAGES * P::STAGE_BYTES + 256, warpgroup);
  }
}

template <class P>
long long gather_workspace(const Sizes& sizes) {
  GatherArguments<typename P::Scalar> a = {};
  if (sizes.batch == 0 || !gather_sizes<P>(sizes, 1, a)) return 0;
  return P::PACKED_BYTES + 4LL * (a.items - a.unsplit) * P::TILE * P::N;
}

template <class P>
cudaError_t gather_launch(const Sizes& sizes, const typename P::Scalar* source, const typename P::Scalar* weight,
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
  constexpr int WIDE = P::FORWARD && P::S % 8 == 0 && sizeof(Scalar) == 2 ? 8 : 4;  // neighbours that are stored together
  a.wide_stores = a.result_w % WIDE == 0 && size_t(result) % 16 == 0;
  const long long units = P::PACKED_BYTES / 16 / P::SEGMENTS * (P::KD * P::KH) / P::ROW_GROUPS;
  pack_gather_weights<P><<<flat_grid(ceil_div(units, 256)), 256, 0, stream>>>(weight, packed, 1.0f);
  error = cudaGetLastError();
  const auto kernel = persistent_gather<P>;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SMEM_BYTES);
  if (error != cudaSuccess) return error;
  error = launch_early(kernel, dim3(unsigned(a.items < processors ? a.items : processors)), P::THREADS, P::SMEM_BYTES, stream, a);
  if (error != cudaSuccess || a.items == a.unsplit) return error;
  const long long pieces = 1LL * (a.items - a.unsplit) / a.splits.divisor * P::BLOCKS * (P::CT / 8);
  return launch_early(add_gather_parts<P>, flat_grid(pieces), P::CONSUMERS, 0, stream, a);
}

#ifdef KW_FORWARD
// The columns of a product are channels and residues along W.
template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes sizes) {
  return gather_workspace<GatherPlan<Layer, Tune, true>>(sizes);
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  return gather_launch<GatherPlan<Layer, Tune, true>>(sizes, input, weight, bias, output, workspace, stream);
}
#else
// The columns of a product are channels; phases along W are planes of the staged window.
template <class Layer, class Tune>
long long grad_input_workspace(Layer, Sizes sizes) {
  return gather_workspace<GatherPlan<Layer, Tune, false>>(sizes);
}

template <class Layer, class Tune>
cudaError_t grad_input(Layer, Sizes sizes, const typename Layer::scalar* grad_output,
                       const typename Layer::scalar* weight, typename Layer::scalar* grad_input_out, void* workspace,
                    cudaStream_t stream) {
  return gather_launch<GatherPlan<Layer, Tune, false>>(sizes, grad_output, weight, nullptr, grad_input_out, workspace, stream);
}
#endif
