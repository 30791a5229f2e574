// The copying warps of grad_weight: they read both tensors as they lie and write stages for the products.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/persistent_wgmma/split_bias.cuh"
#include "families/persistent_wgmma/split_load.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/short_division.cuh"
#include "hardware/warps_meet.cuh"
#include "hardware/wgmma.cuh"

template <class Layer, class Tune>
struct GradSplitTensors {
  using Scalar = typename Layer::scalar;
  const Scalar *x, *gy;
  int x_width, gy_width;
  float* bias_partials;  // null: grad_bias is not added up here
  float one;
};

// Where an item (a vector of each of PER strips, for one channel) lies: vector i of its strip, chunk h.
struct GradSplitPlace {
  unsigned i, h, channel;
  bool there;
};

// thread -> data: items are counted vectors first, then chunks, then channels, so neighbouring lanes read neighbouring
// bytes. What a thread does for a stage is a fixed list of jobs: one item, or four of the single elements beside the
// cores.
template <class Layer, class Tune>
struct GradSplitCopier {
  using Plan = GradSplitPlan<Layer, Tune>;
  using Bias = GradSplitBias<Layer, Tune>;
  using Scalar = typename Layer::scalar;
  using Load = GradSplitLoad<Scalar>;
  static constexpr int PER = Plan::PER, CHUNKS = Plan::CHUNKS, STRIPS = Plan::STRIPS, ROWS = Plan::ROWS;
  static constexpr int STRIDE = Plan::STRIDE, THREADS = 32 * Plan::COPY_WARPS;
  static constexpr int X_ITEMS = Plan::MB * 64 * CHUNKS * Plan::X_VECTORS, GY_ITEMS = Bias::ITEMS;
  static constexpr int EXTRA_ITEMS = Plan::OCTS * 8 * CHUNKS * Plan::EXTRA;
  static constexpr int X_JOBS = ceil_div(X_ITEMS, THREADS), GY_JOBS = ceil_div(GY_ITEMS, THREADS);
  static constexpr int FIRST_EXTRA = X_JOBS + GY_JOBS, JOBS = FIRST_EXTRA + ceil_div(EXTRA_ITEMS, 4 * THREADS);
  // With more of them ptxas spills.
  static constexpr int WANTED = Tune::AHEAD ? Tune::AHEAD : Plan::SUMS <= 64 ? 3 : Plan::ALIGNED ? 2 : 1;
  static constexpr int AHEAD = WANTED < JOBS ? WANTED : JOBS;
  static constexpr int BATCH = Plan::COPY_WARPS;
  static_assert(STRIPS <= 32 && ROWS <= 15, "a lane decodes a strip; tap rows have bits");
  static constexpr int FAR_OUT = 1 << 30;

  const Sizes& sizes;
  const GradSplitTensors<Layer, Tune>& tensors;
  const GradSplitWork<Plan, Tune>& work;
  char* const shared;
  char* const tables;  // of the next BATCH stages; warp w writes the one of stage w
  const unsigned lane, thread;
  GradSplitStrip* table = nullptr;  // of the stage: [x, then each tap row][strip]
  int number;                                // of the work
  int index = 0, count = 0;                  // of its stages
  const Scalar *x = nullptr, *gy = nullptr;  // the first strip in channel 0 of the tile
  int first = 0;
  unsigned flags = 0;
  float bias[GY_JOBS] = {};

  __device__ __forceinline__ GradSplitCopier(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                             const GradSplitWork<Plan, Tune>& w, char* shared, char* tables)
      : sizes(s), tensors(t), work(w), shared(shared), tables(tables), lane(threadIdx.x % 32),
        thread(threadIdx.x - 128 * Plan::CONSUMERS), number(int(blockIdx.x) - int(gridDim.x)) {}

  __device__ __forceinline__ bool ends() const { return index == count; }

  // The next stage: where its strips lie. False if there is none.
  __device__ __forceinline__ bool prepare() {
    if (ends()) {
      number += gridDim.x;
      if (number >= work.works() || work.stages == 0) return false;
      const int share = number / Plan::TILES;
      index = 0;
      count = int(work.stages * (share + 1) / work.shares - work.stages * share / work.shares);
    }
    if (index % BATCH == 0) {
      warps_meet<THREADS>(1);  // all warps have read the tables of the stages before
      const int ahead = thread / 32;
      if (index + ahead < count) write_table(ahead);
      warps_meet<THREADS>(1);
    }
    char* const own = tables + index % BATCH * Plan::TABLE;
    const GradSplitStart start = *reinterpret_cast<const GradSplitStart*>(own);
    table = table_at(own);
    x = tensors.x + start.x;
    gy = tensors.gy + start.gy;
    first = start.first;
    flags = start.flags;
    ++index;
    return true;
  }

  template <int JOB>
  __device__ __forceinline__ void load(Load& to) const {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = place<JOB, Plan::X_VECTORS, X_ITEMS>();
      const bool there =
          own.there && (Plan::CI % (64 * Plan::MB) == 0 ||
                        number % Plan::TILES % Plan::M_TILES * (64 * Plan::MB) + int(own.channel) < Plan::CI);
      const Scalar* const from = x + own.channel * work.in_plane + 4 * own.i;
      if (x_flat(flags))
        to.template set_strips<CHUNKS * Plan::STRIP>(from + own.h * Plan::STRIP, there);
      else
        load_vectors(to, from, 4 * own.i, there ? sizes.in_w : 0, table + own.h, tensors.x_width);
    } else if constexpr (JOB < FIRST_EXTRA) {
      const GradSplitPlace own = place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
      int g;
      const int channel = gy_channel(own.channel, g);
      const Scalar* const from = gy + channel * work.out_plane + 4 * own.i;
      if (gy_flat(flags))
        to.template set_strips<CHUNKS * Plan::CORE>(from + own.h * Plan::CORE + of_tap(g),
                                                    own.there && channel >= 0 && meets(g));
      else
        load_vectors(to, from, 4 * own.i, own.there && channel >= 0 ? sizes.out_w : 0, table + (1 + g) * STRIPS + own.h,
                     tensors.gy_width);
      if constexpr (Bias::HERE)
        to.counts = gy_flat(flags) ? 0u - (flags >> (17 + g) & 1) : counted_at(table)[g] >> own.h;
    } else {
      const unsigned own_thread = computed_anew(thread);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const GradSplitPlace own = extra<JOB>(e, own_thread);
        const int v = extra_at(own.i) - Plan::HEAD;
        int g;
        const int channel = gy_channel(own.channel, g);
        const Scalar* const from = gy + channel * work.out_plane + v;
        if (gy_flat(flags)) {
          constexpr int NEXT = CHUNKS * Plan::CORE;
          const int column = first + v + int(own.h) * Plan::CORE;
          const int length = own.there && channel >= 0 && meets(g) ? sizes.out_w : 0;
          const Scalar* const row = from + own.h * Plan::CORE + of_tap(g);
#pragma unroll
          for (int l = 0; l < PER; ++l)
            to.set(l, e, row + l * NEXT, unsigned(column + l * NEXT) < unsigned(length));
        } else {
          const int length = own.there && channel >= 0 ? sizes.out_w : 0;
          const GradSplitStrip* const strips = table + (1 + g) * STRIPS + own.h;
#pragma unroll
          for (int l = 0; l < PER; ++l) {
            const GradSplitStrip strip = strips[CHUNKS * l];
            to.set(l, e, from + strip.offset, unsigned(strip.first + v) < unsigned(length));
          }
        }
      }
    }
  }

  // Writes what load() has read into a stage.
  template <int JOB>
  __device__ __forceinline__ void store(const Load& from, char* stage) {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = place<JOB, Plan::X_VECTORS, X_ITEMS>();
      char* const to = stage + 4 * own.i * Plan::X_BLOCK + own.h * Plan::X_CHUNK + own.channel * 16;
      if (!own.there) return;
#pragma unroll
      for (int e = 0; e < 4; ++e) put(to + e * Plan::X_BLOCK, from, e);
    } else if constexpr (JOB < FIRST_EXTRA) {
      const GradSplitPlace own = place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
      if (!own.there) return;
      char* const to = gy_place(stage, own);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned v = Plan::HEAD + 4 * own.i + e;
        if (Plan::HEAD + Plan::CORE <= Plan::LENGTH || v < Plan::LENGTH) put(to + of_element(v), from, e);
      }
      if constexpr (Bias::HERE) {
        float& sum = bias[JOB - X_JOBS];
        if (from.counts != 0) {
#pragma unroll
          for (int l = 0; l < PER; ++l)
            if (from.counts >> CHUNKS * l & 1)
              sum += from.value(l, 0) + from.value(l, 1) + (from.value(l, 2) + from.value(l, 3));
        }
      }
    } else {
      const unsigned own_thread = computed_anew(thread);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const GradSplitPlace own = extra<JOB>(e, own_thread);
        if (own.there) put(gy_place(stage, own) + of_element(extra_at(own.i)), from, e);
      }
    }
  }

  // The sums of a work, of share and tile `of`, become partial sums.
  __device__ __forceinline__ void store_bias(int of) {
    if constexpr (Bias::HERE) {
      const int tile = of % Plan::TILES, share = of / Plan::TILES;
      float* const sums = tensors.bias_partials + (1LL * share * Plan::N_TILES + tile / Plan::M_TILES) * GY_ITEMS;
      const_loop<0, GY_JOBS>([&](auto job) {
        constexpr int JOB = decltype(job)::value;
        const GradSplitPlace own = place<JOB, Plan::VECTORS, GY_ITEMS>();
        if (tensors.bias_partials && tile % Plan::M_TILES == 0 && own.there)
          sums[JOB * THREADS + thread] = bias[JOB];
        bias[JOB] = 0.f;
      });
    }
  }

 private:
  static __device__ __forceinline__ bool x_flat(unsigned flags) { return flags & 1; }
  static __device__ __forceinline__ bool gy_flat(unsigned flags) { return flags & 2; }
  __device__ __forceinline__ bool meets(int g) const { return flags >> (2 + g) & 1; }
  struct Tile {
    int m, oct0, row0;
  };
  __device__ __forceinline__ Tile own_tile() const {
    const int n = number % Plan::TILES / Plan::M_TILES;
    return {number % Plan::TILES % Plan::M_TILES, n * Plan::OCTS, n * Plan::OCTS / Plan::CO8};
  }
  __device__ __forceinline__ long long stage_number() const {
    return work.stages * (number / Plan::TILES) / work.shares + index;
  }
  __device__ __forceinline__ Position strip_at(long long strip) const {
    Position at;
    at.w = take_remainder(strip, work.strips.in_w);
    at.h = take_remainder(strip, sizes.in_h);
    at.d = take_remainder(strip, sizes.in_d);
    at.n = strip;
    return at;
  }
  // Whether tap row g of the tile meets gy from there; and whether the row of gy counts for grad_bias: of all positions
  // and taps that meet it, the last position does.
  __device__ __forceinline__ bool meets(const Position& from, int row0, int g, bool& counts) const {
    const int kd = (row0 + g) / Layer::kernel_h, kh = (row0 + g) % Layer::kernel_h;
    const int d = from.d * Layer::stride_d - Layer::padding_d + kd * Layer::dilation_d;
    const int h = from.h * Layer::stride_h - Layer::padding_h + kh * Layer::dilation_h;
    const bool met = unsigned(d) < unsigned(sizes.out_d) && unsigned(h) < unsigned(sizes.out_h);
    counts = met && (kd < Layer::stride_d || from.d + 1 >= sizes.in_d) &&
             (kh < Layer::stride_h || from.h + 1 >= sizes.in_h);
    return met;
  }
  // How far tap row `row` is behind tap row 0 in gy.
  __device__ __forceinline__ long long of_tap_row(int row) const {
    const int d = row / Layer::kernel_h * Layer::dilation_d, h = row % Layer::kernel_h * Layer::dilation_h;
    return (1LL * d * sizes.out_h + h) * sizes.out_w;
  }
  // How far tap row g of the tile is behind the start in gy.
  __device__ __forceinline__ long long of_tap(int g) const {
    return Plan::ONE_ROW ? 0 : of_tap_row(own_tile().row0 + g) - of_tap_row(own_tile().row0);
  }
  // The place of a position in its plane of gy, for tap (0, 0), and for the first column of its strip's core.
  __device__ __forceinline__ int first_of(const Position& at) const {
    return at.w * Plan::STRIP * STRIDE - Layer::padding_w + Plan::HEAD;
  }
  __device__ __forceinline__ long long in_gy(const Position& at) const {
    const int d = at.d * Layer::stride_d - Layer::padding_d, h = at.h * Layer::stride_h - Layer::padding_h;
    return (1LL * d * sizes.out_h + h) * sizes.out_w + first_of(at);
  }
  __device__ __forceinline__ long long in_x(const Position& at) const {
    return (1LL * at.d * sizes.in_h + at.h) * sizes.in_w + at.w * Plan::STRIP;
  }
  __device__ __forceinline__ GradSplitStart start_of(long long stage, const Tile& of) const {
    const Position at = strip_at(stage * STRIPS);
    GradSplitStart to;
    to.first = first_of(at);
    to.x = (at.n * Plan::CI + of.m * (64 * Plan::MB)) * work.in_plane + in_x(at);
    to.gy = at.n * Plan::CO * work.out_plane + in_gy(at) + of_tap_row(of.row0);
    if constexpr (Plan::ONE_ROW) to.gy += (of.oct0 - of.row0 * Plan::CO8) * 8 * work.out_plane;
    const bool one_row = at.w + STRIPS <= work.strips.in_w && at.w * Plan::STRIP + STRIPS * Plan::STRIP <= sizes.in_w;
    const long long in_image = (1LL * at.d * sizes.in_h + at.h) * work.strips.in_w + at.w;
    const bool inside = at.n < sizes.batch;
    const bool whole_rows = sizes.in_w == work.strips.in_w * Plan::STRIP && in_image + STRIPS <= work.image_strips;
    const bool x_flat = inside && tensors.x_width == 4 && (one_row || whole_rows);
    const bool gy_flat = inside && tensors.gy_width == 4 && one_row && to.first >= 0 &&
                         to.first + STRIPS * Plan::CORE <= sizes.out_w;
    to.flags = (x_flat ? 1u : 0u) | (gy_flat ? 2u : 0u);
#pragma unroll
    for (int g = 0; g < ROWS; ++g) {
      bool counts;
      if (meets(at, of.row0, g, counts)) to.flags |= 1u << (2 + g);
      if (Bias::HERE && counts && of.m == 0) to.flags |= 1u << (17 + g);
    }
    return to;
  }
  static __device__ __forceinline__ GradSplitStrip* table_at(char* own) {
    return reinterpret_cast<GradSplitStrip*>(own + sizeof(GradSplitStart));
  }
  // For each tap row a bit for each strip: here gy's row counts for grad_bias.
  static __device__ __forceinline__ unsigned* counted_at(GradSplitStrip* table) {
    return reinterpret_cast<unsigned*>(table + (1 + ROWS) * STRIPS);
  }
  // What all warps read of a stage to come. Each lane writes a strip. Offsets count from the stage's start.
  __device__ __forceinline__ void write_table(int ahead) const {
    const Tile of = own_tile();
    char* const own = tables + ahead * Plan::TABLE;
    GradSplitStrip* const table = table_at(own);
    const GradSplitStart start = start_of(stage_number() + ahead, of);
    if (lane == 0) *reinterpret_cast<GradSplitStart*>(own) = start;
    if (x_flat(start.flags) && gy_flat(start.flags)) return;
    const Position at = strip_at((stage_number() + ahead) * STRIPS + lane);
    const long long x0 = __shfl_sync(0xffffffffu, in_x(at), 0), gy0 = __shfl_sync(0xffffffffu, in_gy(at), 0);
    const long long n = at.n - __shfl_sync(0xffffffffu, at.n, 0);
    const bool there = lane < STRIPS && at.n < sizes.batch && at.w * Plan::STRIP < sizes.in_w;
    if (lane < STRIPS)
      table[lane] = {int(n * Plan::CI * work.in_plane + in_x(at) - x0), there ? at.w * Plan::STRIP : FAR_OUT};
#pragma unroll
    for (int g = 0; g < ROWS; ++g) {
      bool counts;
      const bool met = meets(at, of.row0, g, counts) && there;
      if (lane < STRIPS)
        table[(1 + g) * STRIPS + lane] = {int(n * Plan::CO * work.out_plane + of_tap(g) + in_gy(at) - gy0),
                                          met ? first_of(at) : -FAR_OUT};
      if constexpr (Bias::HERE) {
        const unsigned all = __ballot_sync(0xffffffffu, counts && there && of.m == 0);
        if (lane == 0) counted_at(table)[g] = all;
      }
    }
  }
  // Item JOB * THREADS + thread.
  template <int JOB, int VECTORS, int ITEMS>
  __device__ __forceinline__ GradSplitPlace place() const {
    constexpr int OF_CHANNEL = VECTORS * CHUNKS;
    if constexpr (THREADS % OF_CHANNEL == 0) {  // what the jobs of a thread have in common is the same number here
      const unsigned own = computed_anew(thread), channel = own / OF_CHANNEL + JOB * (THREADS / OF_CHANNEL);
      return {own % VECTORS, own / VECTORS % CHUNKS, channel, ITEMS % THREADS == 0 || JOB * THREADS + own < ITEMS};
    } else {
      const unsigned item = JOB * THREADS + computed_anew(thread);
      return {item % VECTORS, item / VECTORS % CHUNKS, item / OF_CHANNEL, ITEMS % THREADS == 0 || item < ITEMS};
    }
  }
  template <int JOB>
  __device__ __forceinline__ GradSplitPlace extra(int e, unsigned own) const {
    constexpr int COUNT = Plan::EXTRA > 0 ? Plan::EXTRA : 1, OF_CHANNEL = COUNT * CHUNKS;
    const int turn = (JOB - FIRST_EXTRA) * 4 + e;
    const unsigned within = own % 8;  // eight channels: here neighbouring stores count, not neighbouring loads
    if constexpr (THREADS % (8 * OF_CHANNEL) == 0)
      return {own / 8 % COUNT, own / 8 / COUNT % CHUNKS,
              own / (8 * OF_CHANNEL) * 8 + within + turn * (THREADS / OF_CHANNEL),
              EXTRA_ITEMS % THREADS == 0 ? turn < EXTRA_ITEMS / THREADS : turn * THREADS + own < EXTRA_ITEMS};
    const unsigned item = turn * THREADS + own, rest = item / 8;
    return {rest % COUNT, rest / COUNT % CHUNKS, rest / OF_CHANNEL * 8 + within, item < EXTRA_ITEMS};
  }
  __device__ __forceinline__ void put(char* to, const Load& from, int e) const {
    *reinterpret_cast<uint4*>(to) = from.chunk(e, tensors.one);
  }
  static __device__ __forceinline__ void load_vectors(Load& to, const Scalar* from, int more, int length,
                                                      const GradSplitStrip* strip, int width) {
    if (width == 4) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        to.template set_four<4>(l, from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    } else if (width == 2) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        to.template set_four<2>(l, from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    } else {
#pragma unroll
      for (int l = 0; l < PER; ++l)
        to.template set_four<1>(l, from + strip[CHUNKS * l].offset, strip[CHUNKS * l].first + more, length);
    }
  }
  // Channel c of the tile's octs: its place in gy, -1 if there is none; and its tap row among the tile's. With
  // one tap row in a tile, gy points at the first of these channels.
  __device__ __forceinline__ int gy_channel(unsigned c, int& g) const {
    if constexpr (Plan::ONE_ROW) {
      g = 0;
      return Plan::WHOLE || own_tile().oct0 % Plan::CO8 * 8 + int(c) < Plan::CO ? int(c) : -1;
    }
    const Tile of = own_tile();
    const unsigned o = c / 8;
    constexpr bool WHOLE = Plan::OCTS % Plan::CO8 == 0;  // every tile begins with a tap row
    const unsigned oct = WHOLE ? o : of.oct0 - of.row0 * Plan::CO8 + o;
    g = int(oct / Plan::CO8);
    const int channel = int(oct % Plan::CO8) * 8 + c % 8;
    const bool there = of.row0 + g < Plan::TAP_ROWS && (Plan::CO % 8 == 0 || channel < Plan::CO);
    if (g >= ROWS) g = ROWS - 1;  // behind the last oct
    return there ? channel : -1;
  }
  static __device__ __forceinline__ unsigned extra_at(unsigned i) { return i < Plan::HEAD ? i : i + Plan::CORE; }
  __device__ __forceinline__ char* gy_place(char* stage, const GradSplitPlace& own) const {
    return stage + Plan::X_STAGE + own.h * Plan::GY_CHUNK + own.channel / 8 * (128 * STRIDE) + own.channel % 8 * 16;
  }
  static __device__ __forceinline__ unsigned of_element(unsigned v) {
    return v / STRIDE * Plan::GY_BLOCK + v % STRIDE * 128;
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
    const int number = copier.number;
    const bool ends = copier.ends();
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
    if (ends) copier.store_bias(number);
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
