/* variant
name      = "wgmma_residues"
computes  = ["forward"]
after     = "wgmma_ping_pong"
idea      = "Each residue along W has its own sum; all residues of a row are stored together in long runs."
precision = ["tf32"]
layer     = ["constant"]
needs     = ["layer.stride_d == 1 and layer.stride_h == 1 and layer.stride_w <= 32",
             "layer.kernel_d == 1 and layer.kernel_h == 1 and layer.padding_d == 0 and layer.padding_h == 0",
             "layer.dilation_d == 1 and layer.dilation_h == 1",
             "reach <= 64", "classes * cells <= 256", "TEAMS * cells > overlap", "smem_bytes <= 227 * 1024",
             "layer.groups * ceil_div(layer.out_channels // layer.groups, 64) <= 65536"]
min_sm    = 90
arch      = "sm_90a"

[tune]
CELLS   = {values = [0, 32, 64, 96, 128], default = 0, help = "input positions whose outputs a warpgroup sums (0: automatic)"}
TEAMS   = {values = [1, 2, 3], default = 2, help = "warpgroups of a block; more of them store longer runs of the result"}
BUFFERS = {values = [1, 2], default = 1, help = "buffers for staged inputs; with 2, one barrier per chunk instead of two"}
OWNED   = {values = [32, 128], default = 32, help = "each aligned piece of so many bytes of the result is written by one block"}

[derived]
classes     = "1 if layer.dilation_w % layer.stride_w == 0 else min(layer.kernel_w, layer.stride_w)"
cells       = "CELLS if CELLS > 0 else 128 if classes == 1 else 64 if classes == 2 else 32"
overlap     = "ceil_div(ceil_div(OWNED // 4 - 1, layer.stride_w), 4) * 4"
reach       = "(layer.kernel_w - 1) * layer.dilation_w // layer.stride_w"
slabs       = "ceil_div(layer.in_channels // layer.groups, 8)"
staged      = "min(slabs, 4)"
weights     = "ceil_div(slabs, staged) * staged * layer.kernel_w * 512"
inputs      = "BUFFERS * staged * 8 * (TEAMS * cells + reach)"
images      = "32 * (TEAMS * cells * layer.stride_w + OWNED // 4 + 8)"
threads     = "128 * TEAMS"
smem_bytes  = "4 * (weights + inputs + images + 66)"

[plan]
Plan        = "ResiduePlan<Layer, Tune>"
classes     = "Plan::CLASSES_AT_MOST"
slabs       = "Plan::ALL_SLABS"
staged      = "Plan::SLABS"
inputs      = "Plan::BUFFERS * Plan::BUFFER"
images      = ">= 4 * Plan::IMAGE"
smem_bytes  = ">= Plan::BYTES"
*/
#include "hardware/ptx.cuh"
#include "families/wgmma_residues/store.cuh"
#include "hardware/wgmma.cuh"

// families/wgmma_residues/README.md has a picture and the words.

// Stages the weights of all taps for the block's channels, rounded. thread -> data: values in the order of memory.
template <class P, class Layer>
__device__ __forceinline__ void residue_weights(const ResidueArguments& a, float* to, int group, int tile) {
  constexpr int ROW = 64 * P::KW, TOTAL = P::CHUNKS * P::SLABS * 8 * ROW;
#pragma unroll 12
  for (int i = threadIdx.x; i < TOTAL; i += P::THREADS) {
    const int ci = i / ROW, m = i % ROW / P::KW, tap = i % P::KW;
    float v = 0.0f;
    if (ci < P::K && tile * 64 + m < P::M)
      v = __ldg(a.weight + (1LL * group * P::K + ci) * (P::M * P::KW) + tile * ROW + i % ROW);
    to[(ci / 8 * P::KW + tap) * P::PRODUCT + ci / 4 % 2 * 256 + m * 4 + ci % 4] = round_for_tensor_cores(v, a.one);
  }
}

// One chunk of a tile's inputs between global and shared memory, in registers. thread -> data: four channels of a
// position at a time. Lanes are neighbours in memory, and their 16 bytes are neighbours in shared memory.
template <class P>
struct ResidueInputs {
  float value[P::UNITS + P::EXTRA][4];

  // Calls f(values, quad of channels, position, whether it is staged).
  template <class F>
  __device__ __forceinline__ void each(const F& f) {
    const int across = P::ACROSS == P::THREADS ? threadIdx.x : threadIdx.x % P::ACROSS;
    const int first_quad = P::ACROSS == P::THREADS ? 0 : threadIdx.x / P::ACROSS;
#pragma unroll
    for (int i = 0; i < P::UNITS; ++i) {
      const int quad = first_quad + i / P::COPIES * P::QUADS_AT_ONCE, position = across + i % P::COPIES * P::ACROSS;
      f(value[i], quad, position,
        (P::QUADS % P::QUADS_AT_ONCE == 0 || quad < P::QUADS) && (P::MAIN <= P::POSITIONS || position < P::POSITIONS));
    }
    if constexpr (P::EXTRA > 0) {
#pragma unroll
      for (int i = 0; i < P::EXTRA; ++i) {
        const int unit = threadIdx.x + i * P::THREADS, quad = unit / P::BEHIND;
        f(value[P::UNITS + i], quad, P::MAIN + unit % P::BEHIND, quad < P::QUADS);
      }
    }
  }
  __device__ __forceinline__ void load(const ResidueArguments& a, const ResidueTile& t, int group, int groups, int chunk) {
    const int left = t.tile * P::STEP + P::W::BASE;
    const float* const from = a.input + ((1LL * t.n * groups + group) * P::K + chunk * P::SLABS * 8) * a.in_plane +
                              1LL * t.row * a.in_w + left;
    each([&](float (&to)[4], int quad, int position, bool staged) {
      const bool inside = unsigned(left + position) < unsigned(a.in_w) && staged;
      const float* at = from + quad * 4 * a.in_plane + position;
#pragma unroll
      for (int c = 0; c < 4; ++c, at += a.in_plane)
        to[c] = inside && (P::WHOLE || chunk * P::SLABS * 8 + quad * 4 + c < P::K) ? __ldg(at) : 0.0f;
    });
  }
  __device__ __forceinline__ void put(float* buffer, float one) {
    each([&](const float (&v)[4], int quad, int position, bool staged) {
      if (staged)
        reinterpret_cast<float4*>(buffer)[quad * P::POSITIONS + position] =
            make_float4(round_for_tensor_cores(v[0], one), round_for_tensor_cores(v[1], one),
                        round_for_tensor_cores(v[2], one), round_for_tensor_cores(v[3], one));
    });
  }
};

// Multiplies one chunk. A tap is a shift of the inputs' descriptor by some positions; taps of one residue share their
// sums.
template <class P>
__device__ __forceinline__ void residue_products(float (&sum)[P::CLASSES][P::CELLS / 2], unsigned weights, unsigned inputs,
                                                 int chunk) {
  const unsigned long long w0 = matrix_descriptor(weights, 1024, 128);
  const unsigned long long x0 = matrix_descriptor(inputs, P::POSITIONS * 16, 128);
  wgmma_fence();
#pragma unroll
  for (int slab = 0; slab < P::SLABS; ++slab)
    const_loop<0, P::KW>([&](auto which) {
      constexpr int TAP = decltype(which)::value, C = P::W::class_of(P::W::residue(TAP));
      wgmma<Precision::tf32, float, P::CELLS>(
          sum[C], w0 + ((chunk * P::SLABS + slab) * P::KW + TAP) * (P::PRODUCT / 4),
          x0 + (slab * 2 * P::POSITIONS + P::W::offset(TAP)), slab == 0 && TAP == P::first_tap_of(C) ? chunk : 1);
    });
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int c = 0; c < P::CLASSES; ++c) wgmma_own(sum[c]);
}

// Compared with wgmma_ping_pong, for layers that are limited by memory:
// - Each output residue along W has its own sum over the same staged inputs; a tap is a shift of a descriptor. Residues
//   without taps are zeros (or the bias), which lie in the images from the first tile on.
// - No warp has a special duty: all load, multiply and store together. Meanwhile the next tile's inputs are loaded into
//   registers. No warp waits for stores.
// - All warpgroups of a block store into the same rows, side by side along W: runs of 2 KB of a row (two teams, stride
//   2). Neighbouring tiles overlap by a few cells, so each sector of 32 bytes has one writer.
// - A block takes the next tile when it has finished one, so tiles that run at the same time are neighbours in memory. Results
//   do not depend on which block has which tile.
// - Shared memory that blocks do not use is L1 cache, where loads that are not aligned to sectors find their neighbours.
//
// thread -> data: a warp has 16 channels of its team's cells.
// Barriers of the block: inputs are complete before they are multiplied, and multiplied before they are overwritten.
// Barriers of the warps that share rows: an image is complete before it is stored, and stored before it is overwritten.
// Bytes: inputs once for each channel tile, results once; weights stay in shared memory.
template <class Layer, class Tune>
__global__ void __launch_bounds__(ResiduePlan<Layer, Tune>::THREADS, ResiduePlan<Layer, Tune>::BLOCKS)
    wgmma_residues(ResidueArguments a) {
  using P = ResiduePlan<Layer, Tune>;
  extern __shared__ __align__(1024) float residue_memory[];
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32, team = warp / 4;
  const int variety = blockIdx.x % P::VARIETIES, worker = blockIdx.x / P::VARIETIES, workers = gridDim.x / P::VARIETIES;
  const int group = variety / P::CHANNEL_TILES, channel = variety % P::CHANNEL_TILES * 64;  // of the group
  float* const buffers = residue_memory + P::INPUTS_AT;
  float* const bias = residue_memory + P::BIAS_AT;
  ResidueInputs<P> inputs;
  if (worker < a.items) inputs.load(a, ResidueTile(a, worker), group, Layer::groups, 0);
  residue_weights<P, Layer>(a, residue_memory, group, variety % P::CHANNEL_TILES);
  if (P::HAS_BIAS && threadIdx.x < 64)
    bias[threadIdx.x] = channel + int(threadIdx.x) < P::M ? __ldg(a.bias + group * P::M + channel + threadIdx.x) : 0.0f;

  // A block takes the next tile when it has finished one, so tiles that run at the same time are neighbours in memory.
  int* const taken = reinterpret_cast<int*>(bias + 64);
  int next = 0, ticket = 0, turn = 0, buffer = 0;
  if (threadIdx.x == 0) ticket = workers + atomicAdd(a.tickets + variety, 1);

  float* const image = residue_memory + P::IMAGES_AT + warp % 4 * P::IMAGE;
  int filled = -1;
#pragma unroll 1
  for (int item = worker; item < a.items; item = next) {
    const ResidueTile tile(a, item);
    float sum[P::CLASSES][P::CELLS / 2];  // the first products do not read them
#pragma unroll 1
    for (int chunk = 0; chunk < P::CHUNKS; ++chunk) {
      inputs.put(buffers + buffer * P::BUFFER, a.one);
      products_see_writes();
      if (chunk == 0 && threadIdx.x == 0) taken[turn] = ticket;
      __syncthreads();
      if (chunk == 0) {
        next = taken[turn];
        turn ^= 1;
        if (threadIdx.x == 0) ticket = workers + atomicAdd(a.tickets + variety, 1);
      }
      const bool same = chunk + 1 < P::CHUNKS;
      if (same || next < a.items)
        inputs.load(a, ResidueTile(a, same ? item : next), group, Layer::groups, same ? chunk + 1 : 0);
      residue_products<P>(sum, shared_address(residue_memory),
                          shared_address(buffers + buffer * P::BUFFER) + team * P::CELLS * 16, chunk);
      if constexpr (P::BUFFERS == 1) {
        if (chunk + 1 < P::CHUNKS) __syncthreads();
      } else {
        buffer ^= 1;
      }
    }
    const int first = channel + warp % 4 * 16;
    residue_store<P>(
        a, sum, image, filled, bias + warp % 4 * 16,
        a.output + ((1LL * tile.n * Layer::groups + group) * P::M + first) * a.out_plane + 1LL * tile.row * a.out_w,
        tile.tile, P::M - first, warp, lane);
    if constexpr (P::BUFFERS == 1) __syncthreads();
  }
}

template <class Layer, class Tune>
long long forward_workspace(Layer, Sizes) {
  return 4 * ResiduePlan<Layer, Tune>::VARIETIES;
}

template <class Layer, class Tune>
cudaError_t forward(Layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
                    const typename Layer::scalar* bias, typename Layer::scalar* output, void* workspace,
                    cudaStream_t stream) {
  using P = ResiduePlan<Layer, Tune>;
  if (sizes.batch == 0) return cudaSuccess;
  const long long rows = 1LL * sizes.in_d * sizes.in_h;
  if (rows > 1LL << 30) return cudaErrorInvalidValue;  // counted in int, as tiles are
  ResidueArguments a = {input, weight, bias, output, sizes.in_w, sizes.out_w, int(rows)};
  a.in_plane = 1LL * a.rows * a.in_w, a.out_plane = 1LL * a.rows * a.out_w, a.one = 1.0f;
  const int cells = P::W::steps(sizes.out_w);
  a.tiles = cells <= P::SPAN ? 1 : ceil_div(cells - P::OVERLAP, P::STEP);
  const long long items = sizes.batch * a.rows * a.tiles;
  if (items > 1LL << 30) return cudaErrorInvalidValue;  // counted in int
  a.items = int(items);
  a.tickets = static_cast<int*>(workspace);
  if (const cudaError_t error = cudaMemsetAsync(workspace, 0, 4 * P::VARIETIES, stream)) return error;
  const auto kernel = wgmma_residues<Layer, Tune>;
  int device = 0, processors = 1, blocks = 1;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, P::THREADS, P::BYTES);
  if (error != cudaSuccess) return error;
  long long workers = 1LL * processors * (blocks < 1 ? 1 : blocks < P::BLOCKS ? blocks : P::BLOCKS) / P::VARIETIES;
  workers = workers < 1 ? 1 : workers < items ? workers : items;
  kernel<<<unsigned(workers * P::VARIETIES), P::THREADS, P::BYTES, stream>>>(a);
  return cudaGetLastError();
}
