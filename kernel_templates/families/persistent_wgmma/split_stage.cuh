// The copying warps of grad_weight: they read both tensors as they lie and write stages for the products.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/persistent_wgmma/split_load.cuh"
#include "families/persistent_wgmma/split_tables.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/warps_meet.cuh"
#include "hardware/wgmma.cuh"

// Where an item (a vector of each of PER strips, for one channel) lies: vector i of its strip, chunk h.
struct GradSplitPlace {
  unsigned i, h, channel;
  bool there;
};

// thread -> data: items are counted vectors first, then chunks, then channels. What a warp does for a stage is a fixed
// list of jobs of 32 items; to the last one belong the edges, the single elements beside the stage's first and last
// strip. A job is brought to the warp's own part of shared memory without registers; AHEAD jobs later its lanes read an
// item each.
template <class Layer, class Tune>
struct GradSplitCopier : GradSplitTables<Layer, Tune> {
  using Tables = GradSplitTables<Layer, Tune>;
  using typename Tables::Bias;
  using typename Tables::Plan;
  using typename Tables::Tile;
  using Tables::sizes, Tables::tensors, Tables::work, Tables::x_flat, Tables::gy_flat, Tables::tile_of;
  using Scalar = typename Layer::scalar;
  using Item = GradSplitItem<Scalar>;
  static constexpr int PER = Plan::PER, CHUNKS = Plan::CHUNKS, STRIPS = Plan::STRIPS, ROWS = Plan::ROWS;
  static constexpr int STRIDE = Plan::STRIDE, THREADS = 32 * Plan::COPY_WARPS, SIZE = int(sizeof(Scalar));
  static constexpr int X_CHANNELS = Plan::MB * 64, GY_CHANNELS = Plan::OCTS * 8;
  static constexpr int X_ITEMS = X_CHANNELS * CHUNKS * Plan::X_VECTORS, GY_ITEMS = Bias::ITEMS;
  static constexpr int X_JOBS = Plan::X_JOBS, JOBS = Plan::JOBS, GY_JOBS = JOBS - X_JOBS;
  static constexpr int AHEAD = Tune::AHEAD && Tune::AHEAD < Plan::BUFFERS ? Tune::AHEAD : Plan::BUFFERS - 1;
  static constexpr int EDGES_AT = 2048 + (Plan::COUNTS ? 128 : 0);
  static constexpr int BATCH = Plan::COPY_WARPS;
  static_assert(STRIPS <= 32 && ROWS <= 15, "a lane decodes a strip; tap rows have bits");

  char* const shared;  // the stages
  char* const tables;  // of two batches of stages; warp w writes those of stage w of a batch
  char* const brought;  // the jobs of the warp that are on the way
  const unsigned lane, thread;
  // What is brought next.
  GradSplitStrip* table = nullptr;  // of the stage: [x, then each tap row][strip]
  int number;                                // of the work
  int index = 0, count = 0;                  // of its stages
  const Scalar *x = nullptr, *gy = nullptr;  // the first strip in channel 0 of the tile
  int first = 0;
  unsigned flags = 0;
  // The next batch of tables.
  int ahead_number, ahead_index = 0, ahead_count = 0;
  int batch = 0;
  // What is stored next.
  int own_number, own_left = 0;
  int own_strip = 0, strips_on, lane_on;  // the stage's first strip in its row; how far its next ones are in theirs
  unsigned linked = 0;                    // which strips follow the one before
  float bias[GY_JOBS] = {};

  __device__ __forceinline__ GradSplitCopier(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                             const GradSplitWork<Plan, Tune>& w, char* shared, char* tables,
                                             char* brought)
      : Tables{s, t, w, {}, {}}, shared(shared), tables(tables),
        brought(brought + (threadIdx.x / 32 - 4 * Plan::CONSUMERS) * (Plan::BUFFERS * Plan::JOB_BYTES)),
        lane(threadIdx.x % 32), thread(threadIdx.x - 128 * Plan::CONSUMERS),
        number(int(blockIdx.x) - int(gridDim.x)), ahead_number(number), own_number(number) {
    this->step = this->strip_at(BATCH * STRIPS);
    long long strips = STRIPS, own = lane;
    strips_on = take_remainder(strips, work.strips.in_w);
    lane_on = take_remainder(own, work.strips.in_w);
    write_batch();
  }

  // The next stage to bring: where its strips lie. False if there is none.
  __device__ __forceinline__ bool prepare() {
    if (index == count) {
      number += gridDim.x;
      if (number >= work.works() || work.stages == 0) return false;
      index = 0;
      count = this->stages_of(number);
    }
    if (index % BATCH == 0) {
      warps_meet<THREADS>(1);  // this batch of tables is written, and all warps have read the one before
      write_batch();
    }
    char* const own = tables + (batch % 2 * BATCH + index % BATCH) * Plan::TABLE;
    const GradSplitStart start = *reinterpret_cast<const GradSplitStart*>(own);
    table = this->table_at(own);
    x = tensors.x + start.x;
    gy = tensors.gy + start.gy;
    first = start.first;
    flags = start.flags;
    ++index;
    return true;
  }

  // The warp's table of the batch after the one that is in use.
  __device__ __forceinline__ void write_batch() {
    ++batch;
    const int warp = thread / 32;
    if (ahead_index >= ahead_count) {
      if (ahead_number + int(gridDim.x) >= work.works() || work.stages == 0) return;
      ahead_number += gridDim.x;
      ahead_index = 0;
      ahead_count = this->stages_of(ahead_number);
      this->at = this->strip_at((this->first_stage(ahead_number) + warp) * STRIPS + lane);
    } else {
      this->go_on();
    }
    if (ahead_index + warp < ahead_count)
      this->write_table(tables + ((batch + 1) % 2 * BATCH + warp) * Plan::TABLE, ahead_number, lane);
    ahead_index += BATCH;
  }

  // The next stage to store. False if there is none.
  __device__ __forceinline__ bool next_stage() {
    if (own_left == 0) {
      own_number += gridDim.x;
      if (own_number >= work.works()) return false;
      own_left = this->stages_of(own_number);
      if constexpr (Plan::EXTRA > 0) {
        long long strip = this->first_stage(own_number) * STRIPS;
        own_strip = take_remainder(strip, work.strips.in_w);
      }
    } else if constexpr (Plan::EXTRA > 0) {
      own_strip += strips_on;
      if (own_strip >= work.strips.in_w) own_strip -= work.strips.in_w;
    }
    --own_left;
    if constexpr (Plan::EXTRA > 0) {
      const int column = own_strip + lane_on;
      linked = __ballot_sync(0xffffffffu, column != 0 && column != work.strips.in_w);
    }
    return true;
  }
  // Whether a work has ended with that stage.
  __device__ __forceinline__ bool ends() const { return own_left == 0; }

  template <int JOB>
  __device__ __forceinline__ void load(char* to) {
    if constexpr (JOB < X_JOBS) {
      constexpr int VECTORS = Plan::X_VECTORS;
      const int real = Plan::CI % X_CHANNELS == 0 ? X_CHANNELS : Plan::CI - tile_of(number).m * X_CHANNELS;
      const auto flat = [&](unsigned channel, unsigned u, unsigned e, const Scalar*& from) {
        from = x + channel * work.in_plane + (4 * u + e);
        return int(channel) < real;
      };
      const auto looked_up = [&](unsigned channel, unsigned u, unsigned e, const Scalar*& from) {
        const GradSplitStrip strip = table[u / VECTORS];
        from = x + channel * work.in_plane + strip.offset + (4 * (u % VECTORS) + e);
        return unsigned(strip.first + int(4 * (u % VECTORS) + e)) < unsigned(sizes.in_w) && int(channel) < real;
      };
      bring_job<JOB, VECTORS, X_CHANNELS>(to, x_flat(flags), tensors.x_width, flat, looked_up);
    } else {
      constexpr int VECTORS = Plan::VECTORS;
      const auto flat = [&](unsigned c, unsigned u, unsigned e, const Scalar*& from) {
        int g;
        const int channel = gy_channel(c, g);
        from = gy + channel * work.out_plane + this->of_tap(tile_of(number).row0, g) + (4 * u + e);
        return channel >= 0 && meets(g);
      };
      const auto looked_up = [&](unsigned c, unsigned u, unsigned e, const Scalar*& from) {
        int g;
        const int channel = gy_channel(c, g);
        const GradSplitStrip strip = table[(1 + g) * STRIPS + u / VECTORS];
        from = gy + channel * work.out_plane + strip.offset + (4 * (u % VECTORS) + e);
        return unsigned(strip.first + int(4 * (u % VECTORS) + e)) < unsigned(sizes.out_w) && channel >= 0;
      };
      bring_job<JOB - X_JOBS, VECTORS, GY_CHANNELS>(to, gy_flat(flags), tensors.gy_width, flat, looked_up);
      if constexpr (Plan::COUNTS) {
        const GradSplitPlace own = place<JOB - X_JOBS, VECTORS, GY_ITEMS>();
        int g;
        gy_channel(own.channel, g);
        reinterpret_cast<unsigned*>(to + 2048)[lane] =
            gy_flat(flags) ? 0u - (flags >> (17 + g) & 1) : this->counted_at(table)[g] >> own.h;
      }
      if constexpr (Plan::EDGE_TURNS > 0 && JOB + 1 == JOBS) {
#pragma unroll
        for (int turn = 0; turn < Plan::EDGE_TURNS; ++turn) bring_edge(to + EDGES_AT + turn * Plan::EDGE_BYTES, turn);
      }
    }
  }

  // An item of what load() has brought.
  template <int JOB>
  __device__ __forceinline__ Item read(const char* from) const {
    using Job = GradSplitJob<Scalar, (JOB < X_JOBS ? Plan::X_VECTORS : Plan::VECTORS) * CHUNKS>;
    Item item;
    const unsigned own = computed_anew(lane);
#pragma unroll
    for (int l = 0; l < PER; ++l) item.read(l, from + Job::read_at(l, own) * Job::BYTES);
    return item;
  }

  // Writes it into a stage.
  template <int JOB>
  __device__ __forceinline__ void store(Item& item, const char* from, char* stage) {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = place<JOB, Plan::X_VECTORS, X_ITEMS>();
      char* const to = stage + 4 * own.i * Plan::X_BLOCK + own.h * Plan::X_CHUNK + own.channel * 16;
      if (!own.there) return;
      item.round(tensors.one);
#pragma unroll
      for (int e = 0; e < 4; ++e) put(to + e * Plan::X_BLOCK, item.chunk(e));
    } else {
      if constexpr (Plan::EDGE_TURNS > 0 && JOB + 1 == JOBS) {
#pragma unroll
        for (int turn = 0; turn < Plan::EDGE_TURNS; ++turn)
          store_edge(from + EDGES_AT + turn * Plan::EDGE_BYTES, turn, stage);
      }
      const GradSplitPlace own = place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
      if (!own.there) return;
      if constexpr (Bias::HERE) {
        unsigned counts = ~0u;
        if constexpr (Plan::COUNTS) counts = reinterpret_cast<const unsigned*>(from + 2048)[lane];
        float& sum = bias[JOB - X_JOBS];
#pragma unroll
        for (int l = 0; l < PER; ++l)
          if (counts >> CHUNKS * l & 1) sum += item.value(l, 0) + item.value(l, 1) + (item.value(l, 2) + item.value(l, 3));
      }
      item.round(tensors.one);
      char* const to = gy_place(stage, own.channel);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned v = Plan::HEAD + 4 * own.i + e;
        if (Plan::HEAD + Plan::CORE <= Plan::LENGTH || v < Plan::LENGTH)
          put(to + own.h * Plan::GY_CHUNK + of_element(v), item.chunk(e));
        // The end of a strip lies before the next strip's core, and the beginning behind the core of the one before.
        if constexpr (Plan::HEAD > 0)
          if (e >= 4 - Plan::HEAD && v >= unsigned(Plan::CORE)) {
            const uint4 chunk = item.template chunk<CHUNKS>(e, linked >> own.h >> 1);
            char* const other = to + of_element(v - Plan::CORE);
            if (own.h + 1 < CHUNKS) put(other + (own.h + 1) * Plan::GY_CHUNK, chunk);
            else put_later<Scalar>(other, chunk);
          }
        if constexpr (Plan::TAIL > 0)
          if (e < Plan::TAIL && v < unsigned(Plan::HEAD + Plan::TAIL)) {
            const uint4 chunk = item.template chunk<CHUNKS>(e, linked >> own.h);
            char* const other = to + of_element(v + Plan::CORE);
            if (own.h > 0) put(other + (own.h - 1) * Plan::GY_CHUNK, chunk);
            else put_earlier<Scalar>(other + (CHUNKS - 1) * Plan::GY_CHUNK, chunk);
          }
      }
    }
  }

  // The sums of a work, of share and tile `of`, become partial sums.
  __device__ __forceinline__ void store_bias() {
    if constexpr (Bias::HERE) {
      const int tile = own_number % Plan::TILES, share = own_number / Plan::TILES;
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
  __device__ __forceinline__ bool meets(int g) const { return flags >> (2 + g) & 1; }
  // All vectors of a warp's job, in `width` neighbouring elements at a time.
  template <int TURN, int VECTORS, int CHANNELS, class Flat, class LookedUp>
  __device__ __forceinline__ void bring_job(char* to, bool is_flat, int width, const Flat& flat,
                                            const LookedUp& looked_up) const {
    if (is_flat) bring_pieces<TURN, VECTORS, CHANNELS, 4>(to, flat);
    else if (width == 4) bring_pieces<TURN, VECTORS, CHANNELS, 4>(to, looked_up);
    else if (width == 2) bring_pieces<TURN, VECTORS, CHANNELS, 2>(to, looked_up);
    else bring_pieces<TURN, VECTORS, CHANNELS, 1>(to, looked_up);
  }
  template <int TURN, int VECTORS, int CHANNELS, int WIDTH, class Source>
  __device__ __forceinline__ void bring_pieces(char* to, const Source& source) const {
    using Job = GradSplitJob<Scalar, VECTORS * CHUNKS>;
    constexpr int PIECES = 4 / WIDTH, ALL = PER * PIECES;
    constexpr bool WAITS = WIDTH * SIZE < 4;  // cp.async takes no two bytes
    const unsigned own = computed_anew(thread), own_lane = own % 32;  // else places of all jobs fill the registers
    const auto vector = [&](int turn) {
      return Job::brought(TURN * THREADS + own / 32 * 32, turn / PIECES, turn % PIECES * (32 / PIECES) + own_lane / PIECES);
    };
    const unsigned e = own_lane % PIECES * WIDTH;
    // Places of a few turns first: single elements look up the same ones. Two bytes wait in registers.
    constexpr int TOGETHER = WAITS ? 16 : WIDTH == 1 ? 4 : 1;
#pragma unroll
    for (int turn = 0; turn < ALL; turn += TOGETHER) {
      const Scalar* from[TOGETHER];
      bool there[TOGETHER];
      unsigned short bits[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        const auto one = vector(turn + i);
        there[i] = source(one.channel, one.u, e, from[i]);
        if (CHANNELS * VECTORS * CHUNKS % THREADS != 0) there[i] = there[i] && one.channel < CHANNELS;
        if constexpr (WAITS) bits[i] = there[i] ? *reinterpret_cast<const unsigned short*>(from[i]) : 0;
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        char* const place = to + vector(turn + i).at * Job::BYTES + e * SIZE;
        if constexpr (WAITS) *reinterpret_cast<unsigned short*>(place) = bits[i];
        else cp_async<WIDTH * SIZE>(place, from[i], there[i] ? WIDTH * SIZE : 0);
      }
    }
  }
  // cp.async takes no two bytes, so of 16-bit types the word around the edge is brought, and told which half it is.
  __device__ __forceinline__ void bring_edge(char* to, int turn) const {
    const GradSplitPlace own = edge_place(turn);
    if (!own.there) return;
    const bool head = int(own.i) < Plan::HEAD;
    int g;
    const int channel = gy_channel(own.channel, g), v = extra_at(own.i) - Plan::HEAD;
    const Scalar* from = gy + channel * work.out_plane + v;
    int column = v;
    if (gy_flat(flags)) {
      const int strip = head ? 0 : (STRIPS - 1) * Plan::CORE;
      column = meets(g) ? column + first + strip : -1;
      from += this->of_tap(tile_of(number).row0, g) + strip;
    } else {
      const GradSplitStrip strip = table[(1 + g) * STRIPS + (head ? 0 : STRIPS - 1)];
      column += strip.first;
      from += strip.offset;
    }
    const bool there = channel >= 0 && unsigned(column) < unsigned(sizes.out_w);
    if constexpr (SIZE == 4) {
      cp_async<4>(to + 4 * lane, from, there ? 4 : 0);
    } else {
      const unsigned half = reinterpret_cast<unsigned long long>(from) / 2 % 2;
      cp_async<4>(to + 4 * lane, from - half, there ? 2 + 2 * half : 0);
      reinterpret_cast<unsigned*>(to + 128)[lane] = 16 * half;
    }
  }
  __device__ __forceinline__ void store_edge(const char* from, int turn, char* stage) const {
    const GradSplitPlace own = edge_place(turn);
    if (!own.there) return;
    char* to = gy_place(stage, own.channel) + of_element(extra_at(own.i));
    if (int(own.i) >= Plan::HEAD) to += (CHUNKS - 1) * Plan::GY_CHUNK + (PER - 1) * SIZE;
    const unsigned bits = reinterpret_cast<const unsigned*>(from)[lane];
    if constexpr (SIZE == 4)
      *reinterpret_cast<float*>(to) = round_for_tensor_cores(__uint_as_float(bits), tensors.one);
    else
      *reinterpret_cast<unsigned short*>(to) =
          static_cast<unsigned short>(bits >> reinterpret_cast<const unsigned*>(from + 128)[lane]);
  }
  // Item JOB * THREADS + thread.
  template <int JOB, int VECTORS, int ITEMS>
  __device__ __forceinline__ GradSplitPlace place() const {
    constexpr int OF_CHANNEL = VECTORS * CHUNKS;
    const unsigned own = computed_anew(thread);
    if constexpr (THREADS % OF_CHANNEL == 0) {  // what the jobs of a thread have in common is the same number here
      return {own % VECTORS, own / VECTORS % CHUNKS, own / OF_CHANNEL + JOB * (THREADS / OF_CHANNEL),
              ITEMS % THREADS == 0 || JOB * THREADS + own < ITEMS};
    } else {
      const unsigned item = JOB * THREADS + own;
      return {item % VECTORS, item / VECTORS % CHUNKS, item / OF_CHANNEL, ITEMS % THREADS == 0 || item < ITEMS};
    }
  }
  // Of eight channels an element, then of the same channels the next.
  __device__ __forceinline__ GradSplitPlace edge_place(int turn) const {
    const unsigned item = turn * THREADS + computed_anew(thread), rest = item / 8;
    return {rest % Plan::EXTRA_OR_1, 0, rest / Plan::EXTRA_OR_1 * 8 + item % 8, item < unsigned(Plan::EDGES)};
  }
  static __device__ __forceinline__ void put(char* to, const uint4& chunk) { *reinterpret_cast<uint4*>(to) = chunk; }
  // Channel c of the tile's octs: its place in gy, -1 if there is none; and its tap row among the tile's. With
  // one tap row in a tile, gy points at the first of these channels.
  __device__ __forceinline__ int gy_channel(unsigned c, int& g) const {
    if constexpr (Plan::ONE_ROW) {
      g = 0;
      return Plan::WHOLE || tile_of(number).oct0 % Plan::CO8 * 8 + int(c) < Plan::CO ? int(c) : -1;
    }
    const Tile of = tile_of(number);
    const unsigned o = c / 8;
    constexpr bool WHOLE = Plan::OCTS % Plan::CO8 == 0;  // every tile begins with a tap row
    const unsigned oct = WHOLE ? o : of.oct0 - of.row0 * Plan::CO8 + o;
    g = int(oct / Plan::CO8);
    const int channel = int(oct % Plan::CO8) * 8 + c % 8;
    const bool there = of.row0 + g < Plan::TAP_ROWS && (Plan::CO % 8 == 0 || channel < Plan::CO);
    if (g >= ROWS) g = ROWS - 1;  // behind the last oct
    return there ? channel : -1;
  }
  static __device__ __forceinline__ int extra_at(unsigned i) { return int(i) < Plan::HEAD ? i : i + Plan::CORE; }
  __device__ __forceinline__ char* gy_place(char* stage, unsigned channel) const {
    return stage + Plan::X_STAGE + channel / 8 * (128 * STRIDE) + channel % 8 * 16;
  }
  static __device__ __forceinline__ unsigned of_element(unsigned v) {
    return v / STRIDE * Plan::GY_BLOCK + v % STRIDE * 128;
  }
};

// All stages of all works of the block, through a ring. What is brought runs AHEAD jobs ahead of the stores.
template <class Layer, class Tune>
__device__ __forceinline__ void copy_grad_split(GradSplitCopier<Layer, Tune>& copier, unsigned barriers) {
  using Copier = GradSplitCopier<Layer, Tune>;
  using Plan = typename Copier::Plan;
  constexpr int JOBS = Copier::JOBS, AHEAD = Copier::AHEAD;
  bool more = copier.prepare();
  if (!more) return;
  int in = 0, out = 0;
  const auto place = [&](int& number) {
    char* const at = copier.brought + number * Plan::JOB_BYTES;
    number = number == AHEAD ? 0 : number + 1;
    return at;
  };
  const auto bring = [&](auto job) {  // the next job; a stage goes on behind the one before
    constexpr int JOB = decltype(job)::value;
    if constexpr (JOB > 0 && JOB % JOBS == 0) more = more && copier.prepare();
    char* const to = place(in);
    if (more) copier.template load<JOB % JOBS>(to);
    cp_async_commit();
  };
  const_loop<0, AHEAD>(bring);
  int stage = 0, parity = 1;
#pragma unroll 1
  while (copier.next_stage()) {
    mbarrier_await(barriers + 8 * (Plan::STAGES + stage), parity);
    char* const to = copier.shared + stage * Plan::STAGE;
    const_loop<0, JOBS>([&](auto job) {
      constexpr int JOB = decltype(job)::value;
      cp_async_wait<AHEAD - 1>();
      __syncwarp();  // all lanes have brought their part of this job, and read the job before
      bring(Constant<JOB + AHEAD>{});
      const char* const from = place(out);
      typename Copier::Item item = copier.template read<JOB>(from);
      copier.template store<JOB>(item, from, to);
    });
    products_see_writes();
    __syncwarp();
    if (copier.lane == 0) mbarrier_arrive(barriers + 8 * stage);
    if (copier.ends()) copier.store_bias();
    if (++stage == Plan::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
}
