// The copying warps of grad_weight: they read both tensors as they lie and write stages for the products.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/persistent_wgmma/split_plan.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"
#include "hardware/wgmma.cuh"

// Where a strip lies: its offset from the image of the stage's first strip, and its first column in the row. Of a row
// that does not exist the first column is far outside.
struct GradSplitStrip {
  int offset, first;
};

// What a lane has on the way: four neighbouring elements of each of PER strips. `counts`: bit l, if strip l counts for
// grad_bias.
template <class Scalar>
struct GradSplitLoad {
  static constexpr int PER = 16 / int(sizeof(Scalar));
  Pack<Scalar, 4> value[PER];
  unsigned counts;
};

// Element e of every strip: one chunk of 16 bytes.
__device__ __forceinline__ Pack<float, 4> grad_split_chunk(const GradSplitLoad<float>& from, int e, float one) {
  Pack<float, 4> to;
#pragma unroll
  for (int l = 0; l < 4; ++l) to.value[l] = round_for_tensor_cores(from.value[l].value[e], one);
  return to;
}
template <class Scalar>
__device__ __forceinline__ Pack<Scalar, 8> grad_split_chunk(const GradSplitLoad<Scalar>& from, int e, float) {
  Pack<Scalar, 8> to;
#pragma unroll
  for (int l = 0; l < 8; ++l) to.value[l] = from.value[l].value[e];
  return to;
}

// Elements at .. at + 3 of a row of `length` elements; `row` points at element `at`. Outside the row they are zero.
// `width`: so many neighbours are loaded together, and lie inside together.
template <int WIDTH, class Scalar>
__device__ __forceinline__ void load_four(Pack<Scalar, 4>& to, const Scalar* row, int at, int length) {
#pragma unroll
  for (int e = 0; e < 4; e += WIDTH) {
    Pack<Scalar, WIDTH> part;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) part.value[i] = Scalar(0.f);
    if (unsigned(at + e) < unsigned(length)) part = *reinterpret_cast<const Pack<Scalar, WIDTH>*>(row + e);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to.value[e + i] = part.value[i];
  }
}

template <class Layer, class Tune>
struct GradSplitTensors {
  using Scalar = typename Layer::scalar;
  const Scalar *x, *gy;
  int x_width, gy_width;
  float* bias_partials;  // null: grad_bias is not added up here
  float one;
};

// thread -> data: eight lanes have eight neighbouring channels, so that their chunks are 128 neighbouring bytes. Four
// groups of eight lanes have neighbouring vectors of a row. What a thread does for a stage is a fixed list of jobs of
// four vectors (or, for what lies around the cores, of four single elements of each strip).
template <class Layer, class Tune>
struct GradSplitCopier {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  using Load = GradSplitLoad<Scalar>;
  static constexpr int PER = Plan::PER, CHUNKS = Plan::CHUNKS, STRIPS = Plan::STRIPS, ROWS = Plan::ROWS;
  static constexpr int STRIDE = Plan::STRIDE, WARPS = Plan::COPY_WARPS, SIDE = 4 * WARPS;
  static constexpr int X_VECTORS = Plan::STRIP / 4, GY_VECTORS = Plan::CORE / 4;
  static constexpr int X_ITEMS = Plan::MB * 8 * CHUNKS * X_VECTORS, GY_ITEMS = Plan::OCTS * CHUNKS * GY_VECTORS;
  static constexpr int EXTRA_ITEMS = Plan::OCTS * CHUNKS * Plan::EXTRA;
  static constexpr int X_JOBS = ceil_div(X_ITEMS, SIDE), GY_JOBS = ceil_div(GY_ITEMS, SIDE);
  static constexpr int JOBS = X_JOBS + GY_JOBS + ceil_div(EXTRA_ITEMS, 4 * SIDE);
  static constexpr int AHEAD = Tune::AHEAD < JOBS ? Tune::AHEAD : JOBS;
  static_assert(STRIPS <= 32, "a lane decodes a strip");
  static constexpr int FAR_OUT = 1 << 30;

  const Sizes& sizes;
  const GradSplitTensors<Layer, Tune>& tensors;
  const GradSplitWork<Plan, Tune>& work;
  char* const shared;
  GradSplitStrip* const table;  // [x, then each tap row][strip]
  unsigned* const canonical;    // for each tap row a bit for each strip: here gy's row counts for grad_bias
  const int lane, side;         // side: which of the block's groups of eight lanes
  Position at{};
  int left = 0;  // stages of this share that are not begun
  int number, m_tile = 0, oct0 = 0, row0 = 0;
  bool bias = false;
  const Scalar *x = nullptr, *gy = nullptr;

  __device__ __forceinline__ GradSplitCopier(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                             const GradSplitWork<Plan, Tune>& w, char* shared, char* tables, int warp)
      : sizes(s), tensors(t), work(w), shared(shared),
        table(reinterpret_cast<GradSplitStrip*>(tables + warp * Plan::TABLE)),
        canonical(reinterpret_cast<unsigned*>(table + (1 + ROWS) * STRIPS)), lane(threadIdx.x % 32),
        side(warp * 4 + lane / 8), number(int(blockIdx.x) - int(gridDim.x)) {}

  // The next stage: its strips go into the table. False if there is none.
  __device__ __forceinline__ bool prepare() {
    if (left == 0) {
      number += gridDim.x;
      if (number >= work.works()) return false;
      const int tile = number % Plan::TILES, share = number / Plan::TILES;
      m_tile = tile % Plan::M_TILES;
      oct0 = tile / Plan::M_TILES * Plan::OCTS;
      row0 = oct0 / Plan::CO8;
      bias = tensors.bias_partials && m_tile == 0;
      const long long begin = work.stages * share / work.shares;
      left = int(work.stages * (share + 1) / work.shares - begin);
      at = position_at(begin * STRIPS + (lane < STRIPS ? lane : 0), work.strips);
    }
    --left;
    const long long n = __shfl_sync(0xffffffffu, at.n, 0);
    x = tensors.x + n * Plan::CI * work.in_plane;
    gy = tensors.gy + n * Plan::CO * work.out_plane;
    __syncwarp();
    const bool there = lane < STRIPS && at.n < sizes.batch;
    const int q = at.w * Plan::STRIP;
    if (lane < STRIPS) {
      const int offset = int((at.n - n) * Plan::CI * work.in_plane + input_index(sizes, at)) - at.w + q;
      table[lane] = {offset, there ? q : FAR_OUT};
    }
#pragma unroll
    for (int g = 0; g < ROWS; ++g) {
      const int tap_row = row0 + g, kd = tap_row / Layer::kernel_h, kh = tap_row % Layer::kernel_h;
      const int d = at.d * Layer::stride_d - Layer::padding_d + kd * Layer::dilation_d;
      const int h = at.h * Layer::stride_h - Layer::padding_h + kh * Layer::dilation_h;
      const bool met = there && unsigned(d) < unsigned(sizes.out_d) && unsigned(h) < unsigned(sizes.out_h) && q < sizes.in_w;
      const int first = q * STRIDE - Layer::padding_w + Plan::HEAD;
      if (lane < STRIPS) {
        const int offset = met ? int((at.n - n) * Plan::CO * work.out_plane + (1LL * d * sizes.out_h + h) * sizes.out_w) + first : 0;
        table[(1 + g) * STRIPS + lane] = {offset, met ? first : -FAR_OUT};
      }
      if constexpr (Layer::has_bias) {
        // Of all (position, tap) that meet a row of gy, the last position counts.
        const bool counts = met && (kd < Layer::stride_d || at.d + 1 >= sizes.in_d) &&
                            (kh < Layer::stride_h || at.h + 1 >= sizes.in_h);
        const unsigned all = __ballot_sync(0xffffffffu, counts);
        if (lane == 0) canonical[g] = all;
      }
    }
    advance(at, work.step, work.strips);
    __syncwarp();
    return true;
  }

  template <int JOB>
  __device__ __forceinline__ void load(Load& to) const {
    if constexpr (JOB < X_JOBS) {
      const unsigned y = JOB * SIDE + own_side(), i = y % X_VECTORS, h = y / X_VECTORS % CHUNKS;
      const int channel = m_tile * (64 * Plan::MB) + int(y / (X_VECTORS * CHUNKS)) * 8 + lane % 8;
      const bool there = (X_ITEMS % SIDE == 0 || y < X_ITEMS) && channel < Plan::CI;
      load_vectors(to, x + channel * work.in_plane + 4 * i, 4 * i, there ? sizes.in_w : 0, table + h, tensors.x_width);
    } else if constexpr (JOB < X_JOBS + GY_JOBS) {
      const unsigned y = (JOB - X_JOBS) * SIDE + own_side(), i = y % GY_VECTORS, h = y / GY_VECTORS % CHUNKS;
      int g;
      const int channel = gy_channel(y / (GY_VECTORS * CHUNKS), g);
      const bool there = (GY_ITEMS % SIDE == 0 || y < GY_ITEMS) && channel >= 0;
      load_vectors(to, gy + channel * work.out_plane + 4 * i, 4 * i, there ? sizes.out_w : 0, table + (1 + g) * STRIPS + h,
                   tensors.gy_width);
      if constexpr (Layer::has_bias) to.counts = bias ? canonical[g] >> h : 0;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned y = ((JOB - X_JOBS - GY_JOBS) * 4 + e) * SIDE + own_side();
        const unsigned h = y / Plan::EXTRA_OR_1 % CHUNKS;
        const int v = extra_at(y % Plan::EXTRA_OR_1) - Plan::HEAD;
        int g;
        const int channel = gy_channel(y / (Plan::EXTRA_OR_1 * CHUNKS), g);
        const int length = y < EXTRA_ITEMS && channel >= 0 ? sizes.out_w : 0;
        const Scalar* const from = gy + channel * work.out_plane + v;
#pragma unroll
        for (int l = 0; l < PER; ++l) {
          const GradSplitStrip strip = table[(1 + g) * STRIPS + h + CHUNKS * l];
          to.value[l].value[e] = Scalar(0.f);
          if (unsigned(strip.first + v) < unsigned(length)) to.value[l].value[e] = from[strip.offset];
        }
      }
    }
  }

  // Writes what load() has read into a stage.
  template <int JOB>
  __device__ __forceinline__ void store(const Load& from, char* stage) const {
    if constexpr (JOB < X_JOBS) {
      const unsigned y = JOB * SIDE + own_side(), i = y % X_VECTORS, h = y / X_VECTORS % CHUNKS;
      char* const to = stage + h * Plan::X_CHUNK + y / (X_VECTORS * CHUNKS) * 128 + lane % 8 * 16;
      if (X_ITEMS % SIDE != 0 && y >= X_ITEMS) return;
#pragma unroll
      for (int e = 0; e < 4; ++e) put(to + (4 * i + e) * (CHUNKS * Plan::X_CHUNK), from, e);
    } else if constexpr (JOB < X_JOBS + GY_JOBS) {
      const unsigned y = (JOB - X_JOBS) * SIDE + own_side(), i = y % GY_VECTORS, h = y / GY_VECTORS % CHUNKS;
      char* const to = gy_place(stage, y / (GY_VECTORS * CHUNKS), h);
      if (GY_ITEMS % SIDE != 0 && y >= GY_ITEMS) return;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned v = Plan::HEAD + 4 * i + e;
        if (Plan::HEAD + Plan::CORE <= Plan::LENGTH || v < Plan::LENGTH) put(to + of_element(v), from, e);
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned y = ((JOB - X_JOBS - GY_JOBS) * 4 + e) * SIDE + own_side();
        if (y < EXTRA_ITEMS)
          put(gy_place(stage, y / (Plan::EXTRA_OR_1 * CHUNKS), y / Plan::EXTRA_OR_1 % CHUNKS) +
                  of_element(extra_at(y % Plan::EXTRA_OR_1)),
              from, e);
      }
    }
  }

 private:
  // Places are computed for each job: kept for a whole stage they would take too many registers.
  __device__ __forceinline__ unsigned own_side() const { return computed_anew(side); }
  __device__ __forceinline__ void put(char* to, const Load& from, int e) const {
    using Chunk = Pack<Scalar, PER>;
    *reinterpret_cast<Chunk*>(to) = grad_split_chunk(from, e, tensors.one);
  }
  static __device__ __forceinline__ void load_vectors(Load& to, const Scalar* from, int more, int length,
                                                      const GradSplitStrip* strip, int width) {
    if (width == 4) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        load_four<4>(to.value[l], from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    } else if (width == 2) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        load_four<2>(to.value[l], from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    } else {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        load_four<1>(to.value[l], from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    }
  }
  // The lane's channel of oct `o` of the tile, -1 if there is none; and its tap row among the tile's.
  __device__ __forceinline__ int gy_channel(unsigned o, int& g) const {
    const unsigned oct = oct0 + o;
    g = ROWS == 1 ? 0 : int(oct / Plan::CO8) - row0;
    if (g >= ROWS) g = ROWS - 1;  // behind the last oct
    const int channel = int(oct % Plan::CO8) * 8 + lane % 8;
    return oct < unsigned(Plan::ALL_OCTS) && channel < Plan::CO ? channel : -1;
  }
  static __device__ __forceinline__ int extra_at(unsigned i) {
    return int(i) < Plan::HEAD ? int(i) : int(i) + Plan::CORE;
  }
  __device__ __forceinline__ char* gy_place(char* stage, unsigned o, unsigned h) const {
    return stage + Plan::X_STAGE + h * Plan::GY_CHUNK + o * (128 * STRIDE) + lane % 8 * 16;
  }
  static __device__ __forceinline__ unsigned of_element(unsigned v) {
    return v / STRIDE * (CHUNKS * Plan::GY_CHUNK) + v % STRIDE * 128;
  }
};

// All stages of all works of the block, through a ring. Loads run AHEAD jobs ahead of stores.
template <class Layer, class Tune>
__device__ __forceinline__ void copy_grad_split(GradSplitCopier<Layer, Tune>& copier, unsigned barriers) {
  using Copier = GradSplitCopier<Layer, Tune>;
  using Plan = typename Copier::Plan;
  constexpr int JOBS = Copier::JOBS, AHEAD = Copier::AHEAD, BUFFERS = AHEAD + 1, TURN = JOBS % BUFFERS;
  typename Copier::Load loads[BUFFERS];
  bool more = copier.prepare();
  if (!more) return;
  const_loop<0, AHEAD>([&](auto job) { copier.template load<decltype(job)::value>(loads[decltype(job)::value]); });
  int stage = 0, parity = 1;
#pragma unroll 1
  while (more) {
    mbarrier_await(barriers + 8 * (Plan::STAGES + stage), parity);
    char* const to = copier.shared + stage * Plan::STAGE;
    const_loop<0, JOBS>([&](auto job) {
      constexpr int OWN = decltype(job)::value, NEXT = OWN + AHEAD;
      if constexpr (NEXT < JOBS) {
        copier.template load<NEXT>(loads[NEXT % BUFFERS]);
      } else {
        if constexpr (NEXT == JOBS) more = copier.prepare();
        if (more) copier.template load<NEXT - JOBS>(loads[NEXT % BUFFERS]);
      }
      copier.template store<OWN>(loads[OWN % BUFFERS], to);
    });
    products_see_writes();
    __syncwarp();
    if (copier.lane == 0) mbarrier_arrive(barriers + 8 * stage);
    if constexpr (TURN != 0) {
      typename Copier::Load turned[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) turned[i] = loads[(i + TURN) % BUFFERS];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) loads[i] = turned[i];
    }
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
}
