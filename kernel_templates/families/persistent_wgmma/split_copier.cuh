// What grad_weight's copying warps do with either loader: stages in turn, the places of items, the sums of grad_bias.
#pragma once
#include "contract/computed_anew.cuh"
#include "families/persistent_wgmma/split_tables.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/warps_meet.cuh"

// Where an item (a vector of each of PER strips, for one channel) lies: vector i of its strip, chunk h.
struct GradSplitPlace {
  unsigned i, h, channel;
  bool there;
};

// thread -> data: items are counted vectors first, then chunks, then channels, so neighbouring lanes read neighbouring
// bytes. What a warp does for a stage is a fixed list of jobs of 32 items, first those of x.
template <class Layer, class Tune>
struct GradSplitCopier : GradSplitTables<Layer, Tune> {
  using Tables = GradSplitTables<Layer, Tune>;
  using typename Tables::Bias;
  using typename Tables::Plan;
  using typename Tables::Tile;
  using Tables::sizes, Tables::tensors, Tables::work, Tables::x_flat, Tables::gy_flat, Tables::tile_of;
  using Scalar = typename Layer::scalar;
  static constexpr int PER = Plan::PER, CHUNKS = Plan::CHUNKS, STRIPS = Plan::STRIPS, ROWS = Plan::ROWS;
  static constexpr int STRIDE = Plan::STRIDE, THREADS = 32 * Plan::COPY_WARPS, SIZE = int(sizeof(Scalar));
  static constexpr int X_CHANNELS = Plan::MB * 64, GY_CHANNELS = Plan::OCTS * 8;
  static constexpr int X_ITEMS = X_CHANNELS * CHUNKS * Plan::X_VECTORS, GY_ITEMS = Bias::ITEMS;
  static constexpr int X_JOBS = Plan::X_JOBS, VECTOR_JOBS = Plan::JOBS, GY_JOBS = VECTOR_JOBS - X_JOBS;
  static constexpr int BATCH = Plan::COPY_WARPS;
  static_assert(STRIPS <= 32 && ROWS <= 15, "a lane decodes a strip; tap rows have bits");

  char* const tables;  // of two batches of stages; warp w writes those of stage w of a batch
  const unsigned lane, thread;
  // What is loaded next.
  bool more = true;
  GradSplitStrip* table = nullptr;           // of the stage: [x, then each tap row][strip]
  int number, left = 0;                      // of the pair (share, tile); its stages after this one
  int slot = 0;                              // the next stage's table
  const Scalar *x = nullptr, *gy = nullptr;  // the first strip in channel 0 of the tile
  unsigned flags = 0;
  // What is stored next.
  int own_number = 0;
  bool own_ends = false;  // it is the last stage of its pair (share, tile)
  float bias[GY_JOBS] = {};

  __device__ __forceinline__ GradSplitCopier(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                             const GradSplitWork<Plan, Tune>& w, char* tables)
      : Tables{s, t, w}, tables(tables), lane(threadIdx.x % 32), thread(threadIdx.x - 128 * Plan::CONSUMERS),
        number(int(blockIdx.x) - int(gridDim.x)) {
    write_batch(0);
  }

  // The next stage to load: where its strips lie. `more` becomes false if there is none.
  __device__ __forceinline__ void prepare() {
    if (left == 0) {
      number += gridDim.x;
      more = number < work.works() && work.stages > 0;
      if (!more) return;
      left = this->stages_of(number);
      slot = (slot + BATCH - 1) / BATCH * BATCH % (2 * BATCH);
    }
    if (slot % BATCH == 0) {
      warps_meet<THREADS>(1);  // this batch of tables is written, and all warps have read the one before
      write_batch(BATCH - slot);
    }
    char* const own = tables + slot * Plan::TABLE;
    const GradSplitStart start = *reinterpret_cast<const GradSplitStart*>(own);
    table = this->table_at(own);
    x = tensors.x + start.x;
    gy = tensors.gy + start.gy;
    flags = start.flags;
    slot = (slot + 1) % (2 * BATCH);
    --left;
  }

  // The warp's table of the batch after the one that is in use; that batch begins at slot `begin`.
  __device__ __forceinline__ void write_batch(int begin) {
    const int warp = thread / 32;
    const bool goes_on = left > BATCH;
    int next = number, stages = left - BATCH;
    if (!goes_on) {
      next += gridDim.x;
      if (next >= work.works() || work.stages == 0) return;
      stages = this->stages_of(next);
    }
    // A lane's strip of the warp's next table lies in shared memory: registers are few.
    Position* const kept = reinterpret_cast<Position*>(tables + 2 * BATCH * Plan::TABLE) + warp * STRIPS + lane;
    Position at = {};
    if (lane < STRIPS) {
      if (goes_on) at = *kept, this->go_on(at);
      else at = this->strip_at((this->first_stage(next) + warp) * STRIPS + lane);
      *kept = at;
    }
    if (warp < stages)
      this->write_table(tables + (begin + warp) * Plan::TABLE, at, next, lane);
  }

  // Stores the sums of a pair (share, tile) as partial sums.
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

 protected:
  // The first column of the stage's first strip in gy.
  __device__ __forceinline__ int first() const {
    return reinterpret_cast<const GradSplitStart*>(reinterpret_cast<const char*>(table) - sizeof(GradSplitStart))->first;
  }
  __device__ __forceinline__ bool meets(int g) const { return flags >> (2 + g) & 1; }
  // Item JOB * THREADS + thread.
  template <int JOB, int VECTORS, int ITEMS>
  __device__ __forceinline__ GradSplitPlace place() const {
    constexpr int OF_CHANNEL = VECTORS * CHUNKS;
    const unsigned own = computed_anew(thread);
    if constexpr (THREADS % OF_CHANNEL == 0) {  // then the first two numbers are the same in all jobs of a thread
      return {own % VECTORS, own / VECTORS % CHUNKS, own / OF_CHANNEL + JOB * (THREADS / OF_CHANNEL),
              ITEMS % THREADS == 0 || JOB * THREADS + own < ITEMS};
    } else {
      const unsigned item = JOB * THREADS + own;
      return {item % VECTORS, item / VECTORS % CHUNKS, item / OF_CHANNEL, ITEMS % THREADS == 0 || item < ITEMS};
    }
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
