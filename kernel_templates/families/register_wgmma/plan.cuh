// The constants of register_wgmma: the products of GatherPlan, and the layout of a stage: rows of the source as they lie in
// memory. README.md has the words.
#pragma once
#include "families/persistent_wgmma/gather_places.cuh"
#include "hardware/tensor_store.cuh"

template <class Layer, class Tune, bool is_forward>
struct SourceRowsPlan : GatherPlan<Layer, Tune, is_forward> {
  using Base = GatherPlan<Layer, Tune, is_forward>;
  using Scalar = typename Base::Scalar;
  static constexpr int SIZE = int(sizeof(Scalar)), E = Base::E, PACK = Base::PACK, CHANNELS = Base::CHANNELS;

  // Position q meets the elements from q * STEP + offset on, PACK of them.
  static constexpr int STEP = is_forward ? 1 : Base::S;
  static constexpr __host__ __device__ int offset_of(int plane, int shift) {
    return is_forward ? Base::LOW + shift : shift * Base::S + Base::phase_of(plane) - Base::PW;
  }
  static constexpr int FAR = is_forward ? Base::LOW + Base::REACH : (Base::KW - 1) * Base::DW - Base::PW;
  static constexpr int LEAD = is_forward ? -Base::LOW : Base::PW, BEFORE = LEAD > 0 ? ceil_div(LEAD, E) * E : 0;

  // store.cuh. HAS_ROOM: there is room for pieces, at most 16 KB for 8 channels. ORDERS: pieces are used, because every result
  // along W has a tap. With a dilation that can be false although there is room; the header knows only HAS_ROOM.
  static constexpr int RESULTS = is_forward ? Base::S : 1, OF_POSITION = RESULTS * SIZE;  // bytes
  static constexpr int PIECE = 8 * 64 * OF_POSITION * Base::MERGED;  // bytes of 8 channels
  static constexpr bool HAS_ROOM = Tune::DIRECT == 0 && Base::KW >= RESULTS && OF_POSITION <= 32 &&
                                   (RESULTS & (RESULTS - 1)) == 0 && PIECE <= 16384;
  static constexpr bool ORDERS = HAS_ROOM && (!is_forward || Base::SLOTS == Base::S);
  static constexpr int ROOM = HAS_ROOM ? 4 * PIECE : Base::ODD_BYTES;  // at least: two pieces for each multiplying warpgroup
  static constexpr int ALL_COLUMNS = Base::GROUPS * Base::TILES * Base::CT;
  static constexpr int BIASES = Base::HAS_BIAS && ALL_COLUMNS <= 1024 ? ALL_COLUMNS : 0;  // kept in shared memory, as floats
  static constexpr int BIAS_BYTES = (4 * BIASES + 127) / 128 * 128;
  static constexpr int SHARED = 227 * 1024 - 256 - ROOM - BIAS_BYTES;

  // A row of a stage: the elements that the tile's positions meet in one channel, then 16 bytes of zeros, which elements
  // beyond the ends of a source row are read from. Its length keeps the lanes of a warp in different banks.
  static constexpr int RUN = ceil_div(BEFORE + (Base::TILE - 1) * STEP + FAR + 1, E);  // in 16 bytes
  static constexpr int BANKS = CHANNELS == 1 ? 1 : 16 / CHANNELS;
  static constexpr int ROW = RUN + 1 + (BANKS / 2 + BANKS - (RUN + 1) % BANKS) % BANKS, ROW_BYTES = 16 * ROW;
  static constexpr int ZERO_AT = 16 * RUN;

  // A stage: the rows of UNITS units of K, then their weights.
  static constexpr int UNIT_BYTES = CHANNELS * ROW_BYTES + 16 * Base::WEIGHT_COLUMNS;
  // With a halo along W arithmetic takes most of the time, and fewer stages cost less.
  static constexpr int LARGE = Base::REACH > 0 ? SHARED / 2 : 57344;
  static constexpr int units_chosen() {
    for (int units = 16; units > 2; units /= 2)
      if (units * UNIT_BYTES <= LARGE && Base::ALL_UNITS > units / 2) return units;
    return 2;
  }
  static constexpr int UNITS = Tune::UNITS != 0 ? Tune::UNITS : units_chosen(), STEPS = ceil_div(Base::ALL_UNITS, UNITS);
  static constexpr int ROWS_OF_STAGE = UNITS * CHANNELS, WINDOW_BYTES = ROWS_OF_STAGE * ROW_BYTES;
  static constexpr int WEIGHT_BYTES = 16 * UNITS * Base::WEIGHT_COLUMNS, STAGE_BYTES = UNITS * UNIT_BYTES;
  static constexpr int FIT = SHARED / STAGE_BYTES;
  // channels_chosen(): of a piece, if a warpgroup has two. It doubles while three stages fit, or as many as fit beside the smallest
  // pieces. If two pieces hold all results of a warpgroup with one block of 64 positions, they become one of STORED channels.
  static constexpr __host__ __device__ int fit_with(int channels) { return (SHARED + ROOM - ROOM / 8 * channels) / STAGE_BYTES; }
  static constexpr __host__ __device__ int channels_chosen() {
    int channels = 8;
    while (HAS_ROOM && 4 * channels <= Base::BLOCKS * Base::CT && Base::CT % (2 * channels) == 0 &&
           fit_with(2 * channels) >= (FIT < 3 ? FIT : 3))
      channels *= 2;
    return channels;
  }
  static constexpr int ROOM_BYTES = ROOM / 8 * channels_chosen();
  static constexpr int STORED = Base::BLOCKS == 1 && Base::CT == 2 * channels_chosen() ? Base::CT : channels_chosen();
  static constexpr int STAGES = fit_with(channels_chosen()) < 8 ? fit_with(channels_chosen()) : 8;
  static constexpr int RING_AT = ROOM_BYTES + BIAS_BYTES, SMEM_BYTES = RING_AT + STAGES * STAGE_BYTES + 256;
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");
  static constexpr long long PACKED_BYTES = 1LL * Base::VARIETIES * Base::SEGMENTS * STEPS * WEIGHT_BYTES;

  // Warpgroups 0 and 1 multiply, 2 copies. A block is launched with 168 registers a thread.
  static constexpr int STAGERS = 128, THREADS = Base::CONSUMERS + STAGERS, KEPT = 72, TAKEN = 216;

  // Neighbouring products of the same elements are one, so the tensor cores read the registers once. But two products must
  // have the same sums or none in common: so not if residues have different shifts.
  static constexpr __host__ __device__ typename Base::Products products() {
    typename Base::Products all = {};
    for (int i = 0; i < Base::COUNT; ++i) {
      const GatherProduct p = Base::PRODUCTS.at[i];
      GatherProduct* const last = all.count > 0 ? &all.at[all.count - 1] : nullptr;
      if ((!is_forward || Base::REACH == 0) && last != nullptr && last->plane == p.plane && last->shift == p.shift &&
          last->first + last->columns == p.first) {
        last->columns += p.columns;
      } else {
        all.at[all.count++] = p;
      }
      all.columns += p.columns;
    }
    return all;
  }
  static constexpr typename Base::Products PRODUCTS = products();
  static constexpr int COUNT = PRODUCTS.count;

  // Operands: what a warp loads into registers, for all products that read the same elements.
  struct Operands {
    int offset[96], plane[96], shift[96], count;
  };
  static constexpr __host__ __device__ Operands operands() {
    Operands all = {};
    for (int i = 0; i < COUNT; ++i) {
      const GatherProduct p = PRODUCTS.at[i];
      bool known = false;
      for (int o = 0; o < all.count; ++o) known = known || (all.plane[o] == p.plane && all.shift[o] == p.shift);
      if (known) continue;
      all.plane[all.count] = p.plane, all.shift[all.count] = p.shift;
      all.offset[all.count++] = offset_of(p.plane, p.shift);
    }
    return all;
  }
  static constexpr Operands OPERANDS = operands();
  static constexpr int TURNS = OPERANDS.count * (UNITS / 2);  // operands of a stage: 32 bytes of K each
  // Whether some positions of a source row meet elements beyond its ends.
  static constexpr __host__ __device__ bool crosses(int offset) { return offset < 0 || offset + PACK > STEP; }
  // kernel = stride without padding: the source is one long row of each image, if the sizes allow it.
  static constexpr bool FLAT =
      is_forward && Base::ALIKE && Base::PD == 0 && Base::PH == 0 && Base::LOW == 0 && Base::REACH == 0;
};

// The run-time arguments: those of GatherArguments, and how rows of the source are copied.
template <class Scalar>
struct SourceRowsArguments : GatherArguments<Scalar> {
  // A line is a row of the source, or a whole image (FLAT). In the window one line follows the other.
  GatherDivisor line, lines_d, lines_h;  // elements of a line, with those that follow it; lines along D and H
  int line_d, line_h, line_w;            // the size of the source, counted in lines and in elements of a line
  int lines;                             // of all images
  int copied;                            // bytes of one copy: 16, 8, 4 or 2, as lines are aligned
  int stored;                            // how_to_store()
  TensorMap boxes;                       // of the result
};

// Fills in all but the pointers; `source` is there already. Returns false if there are too many positions.
template <class P>
bool source_rows_sizes(const Sizes& s, int processors, SourceRowsArguments<typename P::Scalar>& a) {
  constexpr bool F = P::FORWARD;
  a.source_d = F ? s.in_d : s.out_d, a.source_h = F ? s.in_h : s.out_h, a.source_w = F ? s.in_w : s.out_w;
  a.result_d = F ? s.out_d : s.in_d, a.result_h = F ? s.out_h : s.in_h, a.result_w = F ? s.out_w : s.in_w;
  a.source_volume = 1LL * a.source_d * a.source_h * a.source_w, a.result_volume = 1LL * a.result_d * a.result_h * a.result_w;
  const int steps_d = F ? ceil_div(a.result_d, P::SD) : a.result_d, steps_h = F ? ceil_div(a.result_h, P::SH) : a.result_h;
  a.steps_w = F ? ceil_div(a.result_w, P::S) : a.result_w;
  const bool exact = 1LL * a.steps_w * P::STEP == a.source_w;
  long long pitch = a.steps_w;
  if (pitch * P::STEP < a.source_w) pitch = ceil_div(a.source_w, P::STEP);
  if (!exact) pitch = (pitch + P::E - 1) / P::E * P::E;
  const long long rows = s.batch * steps_d * steps_h;
  if (rows >= (1LL << 31) - P::TILE || pitch * P::STEP >= 1LL << 30) return false;
  const long long tiles = (rows * pitch - 1) / P::TILE + 1, whole = tiles * P::VARIETIES;
  if (whole >= 1LL << 26) return false;
  // The last items, which do not fill all multiprocessors, are split along K. The cost is estimated in cycles.
  const int stages = P::SEGMENTS * P::STEPS;
  const long long stage = P::TILE * P::WEIGHT_COLUMNS / 256 * P::UNITS * 3 / 2, full = whole / 132 * 132;
  long long best = -1;
  int chosen = 1;
  for (long long unsplit = full; unsplit >= 0 && unsplit >= full - 132; unsplit -= 132)
    for (int splits = 1; splits <= 32 && splits <= stages; ++splits) {
      const long long rest = (whole - unsplit) * splits, sums = splits == 1 ? 0 : 6000 + rest * (P::TILE * P::N / 512);
      const long long cycles = unsplit / 132 * (stages * stage + 3000) +
                               ceil_div(rest, 132) * (ceil_div(stages, splits) * stage + 3000) + sums;
      if (best < 0 || cycles < best) best = cycles, chosen = splits, a.unsplit = int(splits == 1 ? whole : unsplit);
    }
  a.rows = int(rows), a.items = int(a.unsplit + (whole - a.unsplit) * chosen), a.one = 1.0f;
  a.pitch = GatherDivisor(int(pitch)), a.steps_d = GatherDivisor(steps_d), a.steps_h = GatherDivisor(steps_h);
  a.splits = GatherDivisor(chosen);
  // Varieties may take different times, so a block does not get the same one in each turn.
  a.turns = GatherDivisor(processors % P::VARIETIES == 0 ? processors : P::VARIETIES);
  a.wide_loads = 0;
  a.line = GatherDivisor(int(pitch * P::STEP)), a.lines_d = a.steps_d, a.lines_h = a.steps_h, a.lines = a.rows;
  a.line_d = a.source_d, a.line_h = a.source_h, a.line_w = a.source_w;
  if (P::FLAT && exact && steps_d == a.source_d && steps_h == a.source_h && a.source_volume < 1LL << 30) {
    a.line = GatherDivisor(int(a.source_volume)), a.lines_d = a.lines_h = GatherDivisor(1), a.lines = int(s.batch);
    a.line_d = a.line_h = 1, a.line_w = int(a.source_volume);
  }
  a.copied = 16;
  while (a.copied > P::SIZE && (1LL * a.line_w * P::SIZE % a.copied != 0 || size_t(a.source) % a.copied != 0)) a.copied /= 2;
  return true;
}
