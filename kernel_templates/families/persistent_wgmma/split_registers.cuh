// How grad_weight's copying warps load by way of registers: any type, any row.
#pragma once
#include "families/persistent_wgmma/split_copier.cuh"
#include "hardware/pack.cuh"

// What a lane has on the way: four neighbouring elements of each of PER strips, as bits. `counts`: bit l, if strip l
// counts for grad_bias.
template <class Scalar>
struct GradSplitLoad {
  static constexpr int PER = 16 / int(sizeof(Scalar)), WORDS = int(sizeof(Scalar));
  unsigned word[PER][WORDS];
  unsigned counts;

  // Element e of every strip: one chunk of 16 bytes. `one` is 1 (round_for_tensor_cores()).
  __device__ __forceinline__ uint4 chunk(int e, float one) const {
    if constexpr (WORDS == 4)
      return make_uint4(rounded(0, e, one), rounded(1, e, one), rounded(2, e, one), rounded(3, e, one));
    else return make_uint4(pair(0, e), pair(2, e), pair(4, e), pair(6, e));
  }
  __device__ __forceinline__ float value(int l, int e) const {
    if constexpr (WORDS == 4) return __uint_as_float(word[l][e]);
    else return half_value(word[l][e / 2] >> e % 2 * 16);
  }
  __device__ __forceinline__ float sum(int l) const { return value(l, 0) + value(l, 1) + (value(l, 2) + value(l, 3)); }
  __device__ __forceinline__ void set(int l, int e, const Scalar* from, bool there) {
    if constexpr (WORDS == 4) {
      word[l][e] = there ? *reinterpret_cast<const unsigned*>(from) : 0u;
    } else {
      const unsigned bits = there ? *reinterpret_cast<const unsigned short*>(from) : 0u;
      word[l][e / 2] = e % 2 == 0 ? bits : word[l][e / 2] | bits << 16;
    }
  }
  // Elements at .. at + 3 of a row of `length` elements; `row` points at element `at`. Outside the row they are zero.
  // WIDTH neighbours are loaded together, and lie inside together.
  template <int WIDTH>
  __device__ __forceinline__ void set_four(int l, const Scalar* row, int at, int length) {
    if constexpr (WIDTH * WORDS < 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) set(l, e, row + e, unsigned(at + e) < unsigned(length));
    } else {
      constexpr int TOGETHER = WIDTH * WORDS / 4;
#pragma unroll
      for (int e = 0; e < 4; e += WIDTH) {
        Pack<unsigned, TOGETHER> part = {};
        if (unsigned(at + e) < unsigned(length)) part = *reinterpret_cast<const Pack<unsigned, TOGETHER>*>(row + e);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) word[l][e * WORDS / 4 + i] = part.value[i];
      }
    }
  }
  // Four elements of each strip; strips are APART elements apart.
  template <int APART>
  __device__ __forceinline__ void set_strips(const Scalar* from, bool there) {
    if (there) {
#pragma unroll
      for (int l = 0; l < PER; ++l) {
        const auto part = *reinterpret_cast<const Pack<unsigned, WORDS>*>(from + l * APART);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[l][i] = part.value[i];
      }
    } else {
#pragma unroll
      for (int l = 0; l < PER; ++l)
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[l][i] = 0u;
    }
  }

 private:
  __device__ __forceinline__ unsigned rounded(int l, int e, float one) const {
    return __float_as_uint(round_for_tensor_cores(__uint_as_float(word[l][e]), one));
  }
  static __device__ __forceinline__ float half_value(unsigned bits) {
    const unsigned short low = static_cast<unsigned short>(bits);
    return widen(*reinterpret_cast<const Scalar*>(&low));
  }
  __device__ __forceinline__ unsigned pair(int l, int e) const {
    return __byte_perm(word[l][e / 2], word[l + 1][e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// A job is one item of each thread, or four of the single elements beside the cores. AHEAD jobs are on the way in
// registers.
template <class Layer, class Tune>
struct GradSplitRegisterLoader : GradSplitCopier<Layer, Tune> {
  using Copier = GradSplitCopier<Layer, Tune>;
  using typename Copier::Bias;
  using typename Copier::Plan;
  using typename Copier::Scalar;
  using Item = GradSplitLoad<Scalar>;
  using Copier::sizes, Copier::tensors, Copier::work, Copier::table, Copier::number, Copier::x, Copier::gy, Copier::first;
  using Copier::flags, Copier::thread, Copier::bias, Copier::PER, Copier::CHUNKS, Copier::STRIPS, Copier::THREADS;
  using Copier::X_CHANNELS, Copier::GY_CHANNELS, Copier::X_ITEMS, Copier::GY_ITEMS, Copier::X_JOBS, Copier::VECTOR_JOBS;
  using Copier::of_element, Copier::x_flat, Copier::gy_flat, Copier::tile_of, Copier::meets;
  using Copier::gy_channel, Copier::gy_place, Copier::extra_at;
  static constexpr int EXTRA_ITEMS = GY_CHANNELS * CHUNKS * Plan::EXTRA;
  static constexpr int JOBS = VECTOR_JOBS + ceil_div(EXTRA_ITEMS, 4 * THREADS);
  // With more of them ptxas spills.
  static constexpr int WANTED = Tune::AHEAD ? Tune::AHEAD : Plan::SUMS <= 64 ? 3 : Plan::ALIGNED ? 2 : 1;
  static constexpr int AHEAD = WANTED < JOBS ? WANTED : JOBS, BUFFERS = AHEAD + 1, TURN = JOBS % BUFFERS;

  Item items[BUFFERS];

  __device__ __forceinline__ GradSplitRegisterLoader(const Sizes& s, const GradSplitTensors<Layer, Tune>& t,
                                                     const GradSplitWork<Plan, Tune>& w, char* tables, char*)
      : Copier(s, t, w, tables) {}

  // The next stage to store. False if there is none.
  __device__ __forceinline__ bool next_stage() {
    this->own_number = number;
    this->own_ends = this->left == 0;
    return this->more;
  }

  // Begins to load a job; `more` false: there is none. Jobs are counted from those of the stage that is stored.
  template <int JOB>
  __device__ __forceinline__ void load(bool more) {
    if (more) begin<JOB % JOBS>(items[JOB % BUFFERS]);
  }
  __device__ __forceinline__ void await() const {}
  template <int JOB>
  __device__ __forceinline__ void store(char* stage) {
    write<JOB>(items[JOB % BUFFERS], stage);
  }
  // Rotates the items, so that job 0 of the next stage is items[0].
  __device__ __forceinline__ void end_stage() {
    if constexpr (TURN != 0) {
      Item turned[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) turned[i] = items[(i + TURN) % BUFFERS];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) items[i] = turned[i];
    }
  }

 private:
  template <int JOB>
  __device__ __forceinline__ void begin(Item& to) const {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = this->template place<JOB, Plan::X_VECTORS, X_ITEMS>();
      const bool there =
          own.there && (Plan::CI % X_CHANNELS == 0 ||
                        tile_of(number).m * X_CHANNELS + int(own.channel) < Plan::CI);
      const Scalar* const from = x + own.channel * work.in_plane + 4 * own.i;
      if (x_flat(flags))
        to.template set_strips<CHUNKS * Plan::STRIP>(from + own.h * Plan::STRIP, there);
      else
        load_vectors(to, from, 4 * own.i, there ? sizes.in_w : 0, table + own.h, tensors.x_width);
    } else if constexpr (JOB < VECTOR_JOBS) {
      const GradSplitPlace own = this->template place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
      int g;
      const int channel = gy_channel(own.channel, g);
      const Scalar* const from = gy + channel * work.out_plane + 4 * own.i;
      if (gy_flat(flags))
        to.template set_strips<CHUNKS * Plan::CORE>(from + own.h * Plan::CORE + of_tap(g),
                                                    own.there && channel >= 0 && meets(g));
      else
        load_vectors(to, from, 4 * own.i, own.there && channel >= 0 ? sizes.out_w : 0, table + (1 + g) * STRIPS + own.h,
                     tensors.gy_width);
      if constexpr (Plan::COUNTS)
        to.counts = gy_flat(flags) ? 0u - (flags >> (17 + g) & 1) : this->counted_at(table)[g] >> own.h;
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
          const int column = first() + v + int(own.h) * Plan::CORE;
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

  // Writes what begin() has read into a stage.
  template <int JOB>
  __device__ __forceinline__ void write(const Item& from, char* stage) {
    if constexpr (JOB < X_JOBS) {
      const GradSplitPlace own = this->template place<JOB, Plan::X_VECTORS, X_ITEMS>();
      char* const to = stage + 4 * own.i * Plan::X_BLOCK + own.h * Plan::X_CHUNK + own.channel * 16;
      if (!own.there) return;
#pragma unroll
      for (int e = 0; e < 4; ++e) put(to + e * Plan::X_BLOCK, from, e);
    } else if constexpr (JOB < VECTOR_JOBS) {
      const GradSplitPlace own = this->template place<JOB - X_JOBS, Plan::VECTORS, GY_ITEMS>();
      if (!own.there) return;
      char* const to = gy_place(stage, own.channel) + own.h * Plan::GY_CHUNK;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned v = Plan::HEAD + 4 * own.i + e;
        if (Plan::HEAD + Plan::CORE <= Plan::LENGTH || v < Plan::LENGTH) put(to + of_element(v), from, e);
      }
      if constexpr (Bias::HERE) {
        float& sum = bias[JOB - X_JOBS];
        if constexpr (Plan::COUNTS) {
          if (from.counts != 0) {
#pragma unroll
            for (int l = 0; l < PER; ++l)
              if (from.counts >> CHUNKS * l & 1) sum += from.sum(l);
          }
        } else {
#pragma unroll
          for (int l = 0; l < PER; ++l) sum += from.sum(l);
        }
      }
    } else {
      const unsigned own_thread = computed_anew(thread);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const GradSplitPlace own = extra<JOB>(e, own_thread);
        if (own.there) put(gy_place(stage, own.channel) + own.h * Plan::GY_CHUNK + of_element(extra_at(own.i)), from, e);
      }
    }
  }

  // How far tap row g of the tile is behind the start in gy.
  __device__ __forceinline__ long long of_tap(int g) const { return Copier::of_tap(tile_of(number).row0, g); }
  template <int JOB>
  __device__ __forceinline__ GradSplitPlace extra(int e, unsigned own) const {
    constexpr int COUNT = Plan::EXTRA > 0 ? Plan::EXTRA : 1, OF_CHANNEL = COUNT * CHUNKS;
    const int turn = (JOB - VECTOR_JOBS) * 4 + e;
    const unsigned within = own % 8;  // eight channels: here neighbouring stores count, not neighbouring loads
    if constexpr (THREADS % (8 * OF_CHANNEL) == 0)
      return {own / 8 % COUNT, own / 8 / COUNT % CHUNKS,
              own / (8 * OF_CHANNEL) * 8 + within + turn * (THREADS / OF_CHANNEL),
              EXTRA_ITEMS % THREADS == 0 ? turn < EXTRA_ITEMS / THREADS : turn * THREADS + own < EXTRA_ITEMS};
    const unsigned item = turn * THREADS + own, rest = item / 8;
    return {rest % COUNT, rest / COUNT % CHUNKS, rest / OF_CHANNEL * 8 + within, item < EXTRA_ITEMS};
  }
  __device__ __forceinline__ void put(char* to, const Item& from, int e) const {
    *reinterpret_cast<uint4*>(to) = from.chunk(e, tensors.one);
  }
  static __device__ __forceinline__ void load_vectors(Item& to, const Scalar* from, int more, int length,
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
};
