// Packs rows of a tensor into strips (families/strip_wgmma/plan.cuh), rounded to TF32.
#pragma once
#include "contract/flat_grid.cuh"
#include "hardware/ptx.cuh"
#include "contract/scalar.cuh"
#include "families/strip_wgmma/plan.cuh"

// Eight rows (channels) of 16 bytes lie one after the other; then come the 16 bytes of the strips' second half. Chunks
// are counted (row, tile, group, part). `with_zeros` adds one chunk of zeros behind the last.
// thread -> data: a block packs one chunk. First its threads read along the positions, then they write 16 bytes each.
// The barrier stands between the two.
template <class Scalar, int CHANNELS, int BLOCKS, int STRIP, int DILATION, Precision precision, class Plan>
__global__ void __launch_bounds__(256) pack_strips(const Scalar* __restrict__ tensor, char* __restrict__ packed,
                                                   long long chunks, bool with_zeros, int row_tiles, int groups,
                                                   int parts, int channels, long long plane_rows, int length,
                                                   long long low) {
  constexpr int STRIPS = 32 / int(sizeof(Scalar)), HALF = STRIPS / 2, WIDTH = STRIPS * STRIP + BLOCKS - STRIP;
  constexpr int PITCH = sizeof(Scalar) == 4 ? WIDTH | 1 : (WIDTH + 1) / 2 % 2 == 1 ? WIDTH + WIDTH % 2
                                                                                     : WIDTH + WIDTH % 2 + 2;
  extern __shared__ float4 strip_rows[];
  Scalar* const rows = reinterpret_cast<Scalar*>(strip_rows);
  const long long chunk = flat_block();
  if (chunk >= chunks + with_zeros) return;
  const bool zeros = chunk >= chunks;
  const int part = int(chunk % parts), group = int(chunk / parts % groups);
  const int tile = int(chunk / parts / groups % row_tiles);
  const long long row = chunk / parts / groups / row_tiles, n = row / plane_rows;
  const int per_part = parts == 1 ? channels : CHANNELS;  // channels: of a group
  const int first = part * per_part, count = channels - first < per_part ? channels - first : per_part;
  const Scalar* from = tensor + ((n * groups + group) * channels + first) * plane_rows * length +
                       (row - n * plane_rows) * length;
  const long long start = 1LL * tile * STRIPS * STRIP + low;
#pragma unroll 4
  for (int e = threadIdx.x; e < CHANNELS * WIDTH; e += 256) {
    const int c = e / WIDTH, p = e % WIDTH;
    const long long at = start + p;
    const bool there = !zeros && c < count && at >= 0 && at < length;
    rows[c * PITCH + p] = there ? from[c * plane_rows * length + at] : narrow<Scalar>(0.f);
  }
  __syncthreads();
  constexpr bool SPLIT = precision == Precision::tf32x3;
  char* const to = packed + chunk * (32LL * CHANNELS * BLOCKS * (SPLIT ? 2 : 1));
#pragma unroll 2
  for (int e = threadIdx.x; e < 2 * CHANNELS * BLOCKS; e += 256) {
    const int r = e % 8, half = e / 8 % 2, c = e / 16 % (CHANNELS / 8) * 8 + r, block = e / (2 * CHANNELS);
    const Scalar* source = rows + c * PITCH + half * HALF * STRIP + block;
    alignas(16) Scalar value[HALF], rest[SPLIT ? HALF : 1];
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      if constexpr (SPLIT) {
        value[i] = round_to_tf32(source[i * STRIP]);
        rest[i] = value[i] == source[i * STRIP] ? 0.f : round_to_tf32(source[i * STRIP] - value[i]);
      } else if constexpr (precision == Precision::tf32) {
        value[i] = round_to_tf32(source[i * STRIP]);
      } else {
        value[i] = source[i * STRIP];
      }
    }
    int place = block / DILATION;
    for (int residue = 0; residue < block % DILATION; ++residue) place += ceil_div(BLOCKS - residue, DILATION);
    *reinterpret_cast<float4*>(to + 32LL * CHANNELS * place + (c / 8 * 16 + half * 8 + r) * 16) =
        *reinterpret_cast<const float4*>(value);
    if constexpr (SPLIT)
      *reinterpret_cast<float4*>(to + 32LL * CHANNELS * (BLOCKS + place) + (c / 8 * 16 + half * 8 + r) * 16) =
          *reinterpret_cast<const float4*>(rest);
  }
}

template <class Layer, class Tune, bool IS_U>
cudaError_t pack_operand(const typename Layer::scalar* tensor, char* packed, const Sizes& sizes, cudaStream_t stream) {
  using Plan = StripPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  const StripSizes<Layer, Tune> all(sizes);
  constexpr int CHANNELS = IS_U ? Plan::U_CHANNELS : Plan::V_CHANNELS, BLOCKS = IS_U ? Plan::STRIP : Plan::V_BLOCKS;
  constexpr int PARTS = IS_U ? Plan::U_PARTS : Plan::V_PARTS;
  constexpr bool OF_INPUT = IS_U != Plan::U_IS_GY;
  const long long chunks = (IS_U ? all.u_rows : all.v_rows) * all.row_tiles * Layer::groups * PARTS;
  const auto kernel =
      pack_strips<Scalar, CHANNELS, BLOCKS, Plan::STRIP, IS_U ? 1 : Plan::DILATION, Tune::precision, Plan>;
  const int bytes = CHANNELS * (Plan::STRIPS * Plan::STRIP + BLOCKS - Plan::STRIP + 4) * int(sizeof(Scalar));
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
    return error;
  kernel<<<flat_grid(chunks + !IS_U), 256, bytes, stream>>>(
      tensor, packed, chunks, !IS_U, all.row_tiles, Layer::groups, PARTS, OF_INPUT ? Plan::CI : Plan::CO,
      OF_INPUT ? 1LL * sizes.in_d * sizes.in_h : 1LL * sizes.out_d * sizes.out_h, OF_INPUT ? sizes.in_w : sizes.out_w,
      IS_U ? 0LL : Plan::LOW);
  return cudaGetLastError();
}
