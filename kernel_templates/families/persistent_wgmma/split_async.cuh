// How grad_weight's copying warps load by cp.async: straight to shared memory, many jobs ahead. Only where whole vectors
// or halves of them can be copied.
#pragma once
#include "families/persistent_wgmma/split_copier.cuh"
#include "contract/scalar.cuh"
#include "hardware/pack.cuh"
#include "hardware/ptx.cuh"

// How grad_weight's copying warps copy vectors of four elements to shared memory unchanged, and read them back.
// Where the vectors of a warp's job lie. A job has 32 items; an item is one vector of each of PER strips, OF_CHANNEL
// items have the same channel, and warps have whole channels or parts of one. Vectors of a channel are counted as they
// lie in memory: vector u belongs to strip u / VECTORS. If the items of a channel are fewer than 128 bytes, neighbouring
// lanes bring neighbouring vectors of all strips instead of their own; the places are permuted so that reading an item
// later uses all banks.
template <class Scalar, int OF_CHANNEL>
struct GradSplitJob {
  static constexpr int BYTES = 4 * int(sizeof(Scalar)), PER = 16 / int(sizeof(Scalar)), MASK = 128 / BYTES - 1;
  static constexpr int ROW = PER * OF_CHANNEL;
  static constexpr bool BY_ROWS = OF_CHANNEL <= MASK && (OF_CHANNEL & (OF_CHANNEL - 1)) == 0;
  struct Vector {
    unsigned channel, u, at;  // `channel` counts from the warp's first item; `at` is its place in the job's memory
  };
  // Vector `lane` of turn l, as they are brought. `first` is the warp's first item.
  static __device__ __forceinline__ Vector brought(unsigned first, int l, unsigned lane) {
    if constexpr (BY_ROWS) {
      const unsigned g = l * 32 + lane, channel = g / ROW;
      return {first / OF_CHANNEL + channel, g % ROW, g ^ (channel * OF_CHANNEL & MASK)};
    } else {
      const unsigned item = first + lane;
      return {item / OF_CHANNEL, l * OF_CHANNEL + item % OF_CHANNEL, l * 32 + lane};
    }
  }
  // The place of strip l's vector of item `lane`.
  static __device__ __forceinline__ unsigned read_at(int l, unsigned lane) {
    if constexpr (!BY_ROWS) return l * 32 + lane;
    const unsigned channel = lane / OF_CHANNEL;
    return (channel * ROW + l * OF_CHANNEL + lane % OF_CHANNEL) ^ (channel * OF_CHANNEL & MASK);
  }
};

// An item in registers: a vector of each of PER strips, as bits.
template <class Scalar>
struct GradSplitItem {
  static constexpr int PER = 16 / int(sizeof(Scalar)), WORDS = int(sizeof(Scalar));
  unsigned word[PER][WORDS];

  __device__ __forceinline__ void read(int l, const char* from) {
    const auto vector = *reinterpret_cast<const Pack<unsigned, WORDS>*>(from);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) word[l][i] = vector.value[i];
  }
  // `one` is 1 (round_for_tensor_cores()).
  __device__ __forceinline__ void round(float one) {
    if constexpr (WORDS == 4) {
#pragma unroll
      for (int l = 0; l < PER; ++l)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          word[l][e] = __float_as_uint(round_for_tensor_cores(__uint_as_float(word[l][e]), one));
    }
  }
  __device__ __forceinline__ float value(int l, int e) const {
    if constexpr (WORDS == 4) return __uint_as_float(word[l][e]);
    else return half_value(word[l][e / 2] >> e % 2 * 16);
  }
  // Element e of every strip: one chunk of 16 bytes.
  __device__ __forceinline__ uint4 chunk(int e) const {
    if constexpr (WORDS == 4) return make_uint4(word[0][e], word[1][e], word[2][e], word[3][e]);
    else return make_uint4(pair(0, e), pair(2, e), pair(4, e), pair(6, e));
  }
  // The same; strip l is zero unless bit APART * l of `there` is set.
  template <int APART>
  __device__ __forceinline__ uint4 chunk(int e, unsigned there) const {
    const uint4 all = chunk(e);
    constexpr int STEP = PER / 4 * APART;
    return make_uint4(all.x & mask<APART>(there), all.y & mask<APART>(there >> STEP),
                      all.z & mask<APART>(there >> 2 * STEP), all.w & mask<APART>(there >> 3 * STEP));
  }

 private:
  template <int APART>
  static __device__ __forceinline__ unsigned mask(unsigned there) {
    if constexpr (WORDS == 4) return there & 1 ? ~0u : 0u;
    else return (there & 1 ? 0xFFFFu : 0u) | (there >> APART & 1 ? 0xFFFF0000u : 0u);
  }
  static __device__ __forceinline__ float half_value(unsigned bits) {
    const unsigned short low = static_cast<unsigned short>(bits);
    return widen(*reinterpret_cast<const Scalar*>(&low));
  }
  __device__ __forceinline__ unsigned pair(int l, int e) const {
    return __byte_perm(word[l][e / 2], word[l + 1][e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// Writes strips 0 .. PER - 2 of a chunk as strips 1 .. PER - 1 of another; strip 0 there stays.
template <class Scalar>
__device__ __forceinline__ void put_later(char* to, const uint4& chunk) {
  if constexpr (sizeof(Scalar) == 4) {
    *reinterpret_cast<unsigned*>(to + 4) = chunk.x;
    *reinterpret_cast<uint2*>(to + 8) = make_uint2(chunk.y, chunk.z);
  } else {
    *reinterpret_cast<unsigned short*>(to + 2) = static_cast<unsigned short>(chunk.x);
    *reinterpret_cast<unsigned*>(to + 4) = __byte_perm(chunk.x, chunk.y, 0x5432);
    *reinterpret_cast<uint2*>(to + 8) =
        make_uint2(__byte_perm(chunk.y, chunk.z, 0x5432), __byte_perm(chunk.z, chunk.w, 0x5432));
  }
}

// Writes strips 1 .. PER - 1 of a chunk as strips 0 .. PER - 2 of another; strip PER - 1 there stays.
template <class Scalar>
__device__ __forceinline__ void put_earlier(char* to, const uint4& chunk) {
  if constexpr (sizeof(Scalar) == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(chunk.y, chunk.z);
    *reinterpret_cast<unsigned*>(to + 8) = chunk.w;
  } else {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(__byte_perm(chunk.x, chunk.y, 0x5432), __byte_perm(chunk.y, chunk.z, 0x5432));
    *reinterpret_cast<unsigned*>(to + 8) = __byte_perm(chunk.z, chunk.w, 0x5432);
    *reinterpret_cast<unsigned short*>(to + 12) = static_cast<unsigned short>(chunk.w >> 16);
  }
}

// A job is copied to the warp's own part of shared memory unchanged; AHEAD jobs later its lanes read an item each. Heads
// and tails are written with the cores of the strips beside them. The last job also brings the edges: the single
// elements beside the stage's first and last strip.
template <class Layer, class Tune>
struct GradSplitAsyncLoader : GradSplitCopier<Layer, Tune> {
  using Copier = GradSplitCopier<Layer, Tune>;
  using typename Copier::Bias;
  using typename Copier::Plan;
  using typename Copier::Scalar;
  using Item = GradSplitItem<Scalar>;
  using Copier::sizes, Copier::tensors, Copier::work, Copier::table, Copier::number, Copier::x, Copier::gy, Copier::first;
  using Copier::flags, Copier::lane, Copier::thread, Copier::bias, Copier::PER, Copier::CHUNKS, Copier::STRIPS;
  using Copier::THREADS, Copier::SIZE, Copier::X_CHANNELS, Copier::GY_CHANNELS, Copier::X_ITEMS, Copier::GY_ITEMS;
  using Copier::X_JOBS, Copier::put, Copier::of_element, Copier::x_flat, Copier::gy_flat, Copier::tile_of, Copier::meets;
  using Copier::gy_channel, Copier::gy_place, Copier::extra_at;
  static constexpr int JOBS = Plan::JOBS;
  static constexpr int AHEAD = Tune::AHEAD && Tune::AHEAD < Plan::BUFFERS ? Tune::AHEAD : Plan::BUFFERS - 1;
  static constexpr int EDGES_AT = 2048 + (Plan::COUNTS ? 128 : 0);
  static_assert(SIZE == 4 || Plan::EXTRA == 0, "cp.async takes no two bytes");

  char* const brought;  // the jobs of the warp that are on the way
  int in = 0, out = 0;  // which of them is copied and read next
  int own_left = 0;
  int own_strip = 0, strips_on, lane_on;  // places in their rows: of the stage's first strip, of its next ones
  unsigned linked = 0;                    // which strips follow the one before

  __device__ __forceinline__ GradSplitAsyncLoader(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                                  const GradSplitWork<Plan, Tune>& w, char* tables, char* jobs)
      : Copier(s, t, w, tables),
        brought(jobs + (threadIdx.x / 32 - 4 * Plan::CONSUMERS) * (Plan::BUFFERS * Plan::JOB_BYTES)) {
    long long strips = STRIPS, own = lane;
    strips_on = take_remainder(strips, work.strips.in_w);
    lane_on = take_remainder(own, work.strips.in_w);
    this->own_number = number;
  }

  // The next stage to store. False if there is none.
  __device__ __forceinline__ bool next_stage() {
    const bool anew = own_left == 0;
    if (anew) {
      this->own_number += gridDim.x;
      if (this->own_number >= work.works()) return false;
      own_left = this->stages_of(this->own_number);
    }
    this->own_ends = --own_left == 0;
    if constexpr (Plan::EXTRA > 0) {
      if (anew) {
        long long strip = this->first_stage(this->own_number) * STRIPS;
        own_strip = take_remainder(strip, work.strips.in_w);
      } else {
        own_strip += strips_on;
        if (own_strip >= work.strips.in_w) own_strip -= work.strips.in_w;
      }
      const int column = own_strip + lane_on;
      linked = __ballot_sync(0xffffffffu, column != 0 && column != work.strips.in_w);
    }
    return true;
  }

  // Begins to load a job; `more` false: there is none.
  template <int JOB>
  __device__ __forceinline__ void load(bool more) {
    char* const to = place_of(in);
    if (more) bring<JOB % JOBS>(to);
    cp_async_commit();
  }
  // The next job to store has been loaded.
  __device__ __forceinline__ void await() const {
    cp_async_wait<AHEAD - 1>();
    __syncwarp();  // all lanes have brought their part of this job, and read the job before
  }
  template <int JOB>
  __device__ __forceinline__ void store(char* stage) {
    const char* const from = place_of(out);
    Item item = read<JOB>(from);
    write<JOB>(item, from, stage);
  }
  __device__ __forceinline__ void end_stage() {}

 private:
  __device__ __forceinline__ char* place_of(int& job) const {
    char* const at = brought + job * Plan::JOB_BYTES;
    job = job == AHEAD ? 0 : job + 1;
    return at;
  }
  template <int JOB>
  __device__ __forceinline__ void bring(char* to) {
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
        const GradSplitPlace own = this->template place<JOB - X_JOBS, VECTORS, GY_ITEMS>();
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

  // An item of what bring() has brought.
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
  __device__ __forceinline__ void write(Item& item, const char* from, char* stage) {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = this->template place<JOB, Plan::X_VECTORS, X_ITEMS>();
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
      const GradSplitPlace own = this->template place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
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
        // The end of a core is also the head of the next strip, and its beginning the tail of the previous strip.
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

  // All vectors of a warp's job: whole ones, or halves where a row is no multiple of whole ones.
  template <int TURN, int VECTORS, int CHANNELS, class Flat, class LookedUp>
  __device__ __forceinline__ void bring_job(char* to, bool is_flat, int width, const Flat& flat,
                                            const LookedUp& looked_up) const {
    if (is_flat) return bring_pieces<TURN, VECTORS, CHANNELS, 4>(to, flat);
    if constexpr (SIZE == 4)
      if (width == 2) return bring_pieces<TURN, VECTORS, CHANNELS, 2>(to, looked_up);
    bring_pieces<TURN, VECTORS, CHANNELS, 4>(to, looked_up);
  }
  template <int TURN, int VECTORS, int CHANNELS, int WIDTH, class Source>
  __device__ __forceinline__ void bring_pieces(char* to, const Source& source) const {
    using Job = GradSplitJob<Scalar, VECTORS * CHUNKS>;
    constexpr int PIECES = 4 / WIDTH;
    const unsigned own = computed_anew(thread), own_lane = own % 32;  // else the places of all jobs fill the registers
    const unsigned e = own_lane % PIECES * WIDTH;
#pragma unroll
    for (int turn = 0; turn < PER * PIECES; ++turn) {
      const auto vector = Job::brought(TURN * THREADS + own / 32 * 32, turn / PIECES,
                                       turn % PIECES * (32 / PIECES) + own_lane / PIECES);
      const Scalar* from;
      bool there = source(vector.channel, vector.u, e, from);
      if (CHANNELS * VECTORS * CHUNKS % THREADS != 0) there = there && vector.channel < CHANNELS;
      cp_async<WIDTH * SIZE>(to + vector.at * Job::BYTES + e * SIZE, from, there ? WIDTH * SIZE : 0);
    }
  }
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
      column = meets(g) ? column + first() + strip : -1;
      from += this->of_tap(tile_of(number).row0, g) + strip;
    } else {
      const GradSplitStrip strip = table[(1 + g) * STRIPS + (head ? 0 : STRIPS - 1)];
      column += strip.first;
      from += strip.offset;
    }
    const bool there = channel >= 0 && unsigned(column) < unsigned(sizes.out_w);
    cp_async<4>(to + 4 * lane, from, there ? 4 : 0);
  }
  __device__ __forceinline__ void store_edge(const char* from, int turn, char* stage) const {
    const GradSplitPlace own = edge_place(turn);
    if (!own.there) return;
    char* to = gy_place(stage, own.channel) + of_element(extra_at(own.i));
    if (int(own.i) >= Plan::HEAD) to += (CHUNKS - 1) * Plan::GY_CHUNK + (PER - 1) * SIZE;
    const float value = reinterpret_cast<const float*>(from)[lane];
    *reinterpret_cast<float*>(to) = round_for_tensor_cores(value, tensors.one);
  }
  // One element of each of eight channels, then the next element of the same channels.
  __device__ __forceinline__ GradSplitPlace edge_place(int turn) const {
    const unsigned item = turn * THREADS + computed_anew(thread), rest = item / 8;
    return {rest % Plan::EXTRA_OR_1, 0, rest / Plan::EXTRA_OR_1 * 8 + item % 8, item < unsigned(Plan::EDGES)};
  }
};
