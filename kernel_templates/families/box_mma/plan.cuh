// How box_mma cuts a layer into products of 16 rows: all constants of layer, direction and config.
#pragma once
#include "contract/problem.cuh"

constexpr __host__ __device__ int box_divisor(int a, int b) { return b == 0 ? a : box_divisor(b, a % b); }
constexpr __host__ __device__ int box_multiple(int value, int multiple) { return ceil_div(value, multiple) * multiple; }
constexpr __host__ __device__ int box_least(int a, int b) { return a < b ? a : b; }

// One axis. A step meets IN_STEP grains of the source and OUT_STEP results. A grain is an element of the source that taps can
// meet. Grains are GRAIN elements apart: grain g is element ORIGIN + g * GRAIN. With tap k
//     forward:    output q * stride + residue(k) meets grain q + offset(k), where residue + padding - k * dilation is a
//                 multiple of the stride
//     grad_input: input q meets grain q * IN_STEP + offset(k)
// Residues that a tap meets are counted 0, 1, ...: classes. Each class has its own sums. A result of another residue is only
// the bias, or zero.
template <bool FORWARD, int KERNEL, int STRIDE, int PADDING, int DILATION>
struct BoxAxis {
  static constexpr int TAPS = KERNEL, GRAIN = FORWARD ? 1 : box_divisor(STRIDE, DILATION);
  static constexpr int IN_STEP = FORWARD ? 1 : STRIDE / GRAIN, OUT_STEP = FORWARD ? STRIDE : 1;
  static constexpr __host__ __device__ int residue(int tap) {
    return FORWARD ? ((tap * DILATION - PADDING) % STRIDE + STRIDE) % STRIDE : 0;
  }
  static constexpr __host__ __device__ int shift(int tap) {
    return FORWARD ? (residue(tap) + PADDING - tap * DILATION) / STRIDE : tap * DILATION / GRAIN;
  }
  static constexpr __host__ __device__ int farthest(int sign) {
    int found = shift(0);
    for (int tap = 1; tap < KERNEL; ++tap)
      if (sign * shift(tap) > sign * found) found = shift(tap);
    return found;
  }
  static constexpr int LEAST = farthest(-1), REACH = farthest(1) - LEAST, ORIGIN = FORWARD ? LEAST : -PADDING;
  static constexpr __host__ __device__ int offset(int tap) { return shift(tap) - LEAST; }
  static constexpr __host__ __device__ bool met(int r) {
    for (int tap = 0; tap < KERNEL; ++tap)
      if (residue(tap) == r) return true;
    return false;
  }
  static constexpr __host__ __device__ int class_of(int r) {
    int found = 0;
    for (int other = 0; other < r; ++other) found += met(other);
    return found;
  }
  static constexpr int CLASSES = class_of(OUT_STEP);
  static constexpr __host__ __device__ int class_of_tap(int tap) { return class_of(residue(tap)); }
  static constexpr __host__ __device__ bool first_at_its_offset(int tap) {
    for (int other = 0; other < tap; ++other)
      if (offset(other) == offset(tap)) return false;
    return true;
  }
  // Offsets that a tap has are counted 0, 1, ... in the order of their first taps. Taps of one offset are neighbours in
  // the order of ranks.
  static constexpr __host__ __device__ int number_of_offset(int tap) {
    int count = 0;
    for (int other = 0; offset(other) != offset(tap); ++other) count += first_at_its_offset(other);
    return count;
  }
  static constexpr __host__ __device__ int taps_before(int number) {  // taps of earlier offsets
    int count = 0;
    for (int other = 0; other < TAPS; ++other) count += number_of_offset(other) < number;
    return count;
  }
  static constexpr __host__ __device__ int rank(int tap) {
    int found = taps_before(number_of_offset(tap));
    for (int other = 0; other < tap; ++other) found += offset(other) == offset(tap);
    return found;
  }
  static constexpr __host__ __device__ int tap_of_rank(int wanted) {
    int tap = 0;
    while (rank(tap) != wanted) ++tap;
    return tap;
  }
  static constexpr __host__ __device__ int offset_at(int number) { return offset(tap_of_rank(taps_before(number))); }
  static constexpr __host__ __device__ int most_taps(int offsets) {  // of one offset
    int most = 0;
    for (int number = 0; number < offsets; ++number) {
      const int count = taps_before(number + 1) - taps_before(number);
      if (count > most) most = count;
    }
    return most;
  }
  // The tap of a class at an offset, or -1.
  static constexpr __host__ __device__ int tap_at(int from, int of_class) {
    for (int tap = 0; tap < TAPS; ++tap)
      if (offset(tap) == from && class_of_tap(tap) == of_class) return tap;
    return -1;
  }
  static constexpr __host__ __device__ int steps(int results) { return ceil_div(results, OUT_STEP); }
  static constexpr __host__ __device__ int grains(int steps) { return (steps - 1) * IN_STEP + REACH + 1; }
};

template <bool IS_FORWARD, class Layer, class Tune>
struct BoxPlan {
  using Scalar = typename Layer::scalar;
  using Word = std::conditional_t<sizeof(Scalar) == 2, unsigned, float>;  // what an operand of a product takes
  using D = BoxAxis<IS_FORWARD, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using H = BoxAxis<IS_FORWARD, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using W = BoxAxis<IS_FORWARD, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  static constexpr bool FORWARD = IS_FORWARD, THREE = Tune::precision == Precision::tf32x3;
  static constexpr bool NARROW = sizeof(Scalar) == 2, BFLOAT = Tune::precision == Precision::bf16;
  static constexpr bool HAS_BIAS = FORWARD && Layer::has_bias;
  static constexpr int BYTES = int(sizeof(Scalar)), GROUPS = Layer::groups, PLANES_OF_A = THREE ? 2 : 1;
  static constexpr int M = (FORWARD ? Layer::out_channels : Layer::in_channels) / GROUPS;  // channels of the result
  static constexpr int K = (FORWARD ? Layer::in_channels : Layer::out_channels) / GROUPS;  // channels of the source
  static constexpr int CHANNELS = NARROW ? 16 : 8, CHUNKS = ceil_div(K, CHANNELS);         // that a product sums

  // A cell is CELL steps along W. It has a slot for each of its steps and classes of residues.
  static constexpr int M8 = ceil_div(M, 8), CELL = M8 * W::CLASSES == 1 ? 2 : 1;
  static constexpr int CELL_IN = CELL * W::IN_STEP, CELL_OUT = CELL * W::OUT_STEP, SLOTS = CELL * W::CLASSES;
  static constexpr int SHIFTS = (CELL - 1) * W::IN_STEP + W::REACH + 1;
  static constexpr __host__ __device__ int tap_of(int slot, int shift) {
    return W::tap_at(shift - slot / W::CLASSES * W::IN_STEP, slot % W::CLASSES);
  }
  static constexpr __host__ __device__ bool used(int shift) {
    for (int slot = 0; slot < SLOTS; ++slot)
      if (tap_of(slot, shift) >= 0) return true;
    return false;
  }
  static constexpr __host__ __device__ int number_of(int shift) {
    int count = 0;
    for (int other = 0; other < shift; ++other) count += used(other);
    return count;
  }
  static constexpr int USED = number_of(SHIFTS);

  static constexpr int CLASSES = D::CLASSES * H::CLASSES;
  // A strip is CELLS neighbouring cells, if possible as many as fill a vector of the result. A lane has STRIPS strips.
  static constexpr int VECTOR = 16 / BYTES;
  static constexpr __host__ __device__ int cells_of() {  // 16-bit elements are read in pairs
    if (CELL_OUT % VECTOR == 0 && CELL_IN * BYTES % 4 == 0) return 1;
    return 2 * CELL_OUT % VECTOR == 0 ? 2 : CELL_OUT == 1 && NARROW ? 8 : 4;
  }
  static constexpr int CELLS = cells_of(), STRIPS = Tune::STRIPS > 0 ? Tune::STRIPS : NARROW || THREE ? 1 : 2;
  static constexpr int NT = STRIPS * CELLS, STRIP_IN = CELLS * CELL_IN;
  // The 16 rows of a product are two halves. A half is 8 channels of one slot, the slot running fastest.
  static constexpr __host__ __device__ int tiles(int eights) { return ceil_div(eights * SLOTS, 2); }
  static constexpr __host__ __device__ int eights_of() {
    const int most = Tune::SUMS / (CLASSES * NT);
    for (int parts = 1; parts < M8; ++parts)
      if (tiles(ceil_div(M8, parts)) <= most) return ceil_div(M8, parts);
    return 1;
  }
  static constexpr int EIGHTS = eights_of(), M_PARTS = ceil_div(M8, EIGHTS), MT = tiles(EIGHTS);
  static constexpr int KINDS = GROUPS * M_PARTS;
  static constexpr __host__ __device__ bool meets(int tile, int shift) {
    for (int half = 2 * tile; half < 2 * tile + 2 && half < EIGHTS * SLOTS; ++half)
      if (tap_of(half % SLOTS, shift) >= 0) return true;
    return false;
  }
  static constexpr int TAP_WORDS = H::TAPS * USED * MT * PLANES_OF_A * 128;  // weights of a tap along D, of a chunk
  static constexpr int FRAGMENTS = D::TAPS * H::TAPS * USED * MT, CHUNK_WORDS = D::TAPS * TAP_WORDS;

  // A step multiplies a chunk of channels, of all planes of a box or of one.
  static constexpr bool SPLIT = Tune::SPLIT_D == 2 || (Tune::SPLIT_D == 0 && !FORWARD && D::TAPS > 1);
  static constexpr int OFFSETS = D::number_of_offset(D::tap_of_rank(D::TAPS - 1)) + 1;
  static constexpr int PLANES = SPLIT ? OFFSETS : 1, STEPS = CHUNKS * PLANES;
  static constexpr int STEP_WORDS = SPLIT ? D::most_taps(OFFSETS) * TAP_WORDS : CHUNK_WORDS;

  // Column n of a product is this strip of eight. With a stride, the four lanes that hold results of one channel hold
  // neighbouring strips, so they store neighbours.
  static constexpr __host__ __device__ int strip_of_column(int n) {
    return FORWARD && CELL_OUT > 1 ? n % 2 * 4 + n / 2 : n;
  }

  // RAW: rows of the box are rows of the source, in vectors of 16 bytes as they lie in memory. So the first grain of a row is
  // any element of its first vector.
  static constexpr bool RAW = Tune::RAW != 0;
  static_assert(!RAW || (!NARROW && W::GRAIN == 1), "a lane loads single elements of 4 bytes, and each element is a grain");

  // A lane holds the window of each strip, in two channels (16 bits: in two pairs of channels).
  static constexpr int READ_BYTES = RAW ? BYTES : box_divisor(16, STRIP_IN * BYTES), READ = READ_BYTES / BYTES;
  static constexpr int LEAD = W::GRAIN == 1 ? (W::ORIGIN % READ + READ) % READ : 0;
  static constexpr int WINDOW = box_multiple(STRIP_IN - CELL_IN + SHIFTS + LEAD, READ);
  static constexpr bool HELD = STRIPS * WINDOW <= (THREE ? 24 : 48);  // else each shift loads its own elements

  // Where a channel lies in a row of the box: pitch * c + pair * (c / 2), in vectors of 16 bytes. Their best values
  // depend only on the vectors of a row modulo 8.
  struct Skew {
    int more, pair;
  };
  // Turns of shared memory, for one load of a warp. `apart`: elements from channel to channel in memory, modulo VECTOR.
  static constexpr int turns(int pitch, int pair, int apart) {
    constexpr int BYTES_READ = READ_BYTES < 4 ? 4 : READ_BYTES, LANES = 128 / BYTES_READ < 32 ? 128 / BYTES_READ : 32;
    int sum = 0;
    for (int first = 0; first < 32; first += LANES) {
      int hits[32] = {}, most = 0;
      for (int lane = first; lane < first + LANES; ++lane) {
        const int channel = NARROW ? 2 * (lane % 4) : lane % 4;
        const int element = strip_of_column(lane / 4) * STRIP_IN + channel * apart % VECTOR;
        const int byte = (channel * pitch + channel / 2 * pair) * 16 + element * BYTES;
        for (int word = 0; word < BYTES_READ / 4; ++word) {
          int& here = hits[(byte / 4 + word) % 32];
          if (++here > most) most = here;
        }
      }
      sum += most;
    }
    return sum;
  }
  static constexpr Skew best_skew(int vectors) {
    Skew best = {0, 0};
    int fewest = 1000;
    for (int more = 0; more < 4; ++more)
      for (int pair = 0; pair < 8; ++pair) {
        int found = more * 4 + pair;
        for (int apart = 0; apart < (RAW ? VECTOR : 1); ++apart) found += 64 * turns(vectors + more, pair, apart);
        if (found < fewest) fewest = found, best = {more, pair};
      }
    return best;
  }
  struct Skews {
    Skew of[8];
  };
  static constexpr Skews all_skews() {
    Skews all = {};
    for (int i = 0; i < 8; ++i) all.of[i] = best_skew(i + 8);
    return all;
  }
  static constexpr Skews SKEWS = all_skews();

  static constexpr int WARPS = Tune::WARPS, BLOCKS = Tune::BLOCKS, THREADS = 32 * WARPS, STAGES = Tune::STAGES;
  static constexpr bool RESIDENT = CHUNKS == 1 || 4LL * CHUNKS * CHUNK_WORDS <= 512LL * Tune::SHARED_KB;
  static constexpr int WEIGHT_BYTES = 4 * (RESIDENT ? CHUNKS * CHUNK_WORDS : STAGES * STEP_WORDS);
  static constexpr int SHARED_BYTES = 1024 * Tune::SHARED_KB;
  // The image: 8 channels of a warp's results, for rows that cannot be stored in vectors.
  static_assert(CELLS * CELL_OUT % 4 == 0, "results of a strip fill vectors");
  static constexpr int LENGTH = CELLS * CELL_OUT, IMAGE_PITCH = 8 * STRIPS * LENGTH + 4;
  static constexpr int IMAGE_BYTES = 4 * WARPS * 8 * IMAGE_PITCH;
  static constexpr int BOX_BYTES = (SHARED_BYTES - WEIGHT_BYTES - IMAGE_BYTES) / STAGES / 16 * 16;  // room for one box
  static_assert(BOX_BYTES > 0, "weights and image do not fit into SHARED_KB");
};
