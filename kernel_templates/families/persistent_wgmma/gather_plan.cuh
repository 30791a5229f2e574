// Compile-time constants of the gather kernel of persistent_wgmma, for forward and grad_input: which products the taps
// along W are, how wide a tile is, and how a stage lies in shared memory. README.md has the words.
//
//     forward:    result q * stride + r     gets tap k from source q + shift(k), for the taps of residue r
//     grad_input: result q                  gets tap k from source (q + shift(k)) * stride + phase(k) - padding
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// The sum of a range of columns over all channels of a stage, for one shift along W.
struct GatherProduct {
  int plane, shift;    // which rows of the staged window it reads
  int first, columns;  // which sums it adds to
  int before;          // columns of the products before it: where its weights lie in a stage
};

// The taps along D or H of a row of results: tap number i meets the source row `at` + i * `step` beyond the row's own.
struct GatherTaps {
  int count, at;
};
template <bool is_forward, int KERNEL, int STRIDE, int PADDING, int DILATION>
struct GatherAxis {
  static constexpr __host__ __device__ int divisor() {
    int a = STRIDE, b = DILATION;
    while (b != 0) {
      const int rest = a % b;
      a = b, b = rest;
    }
    return a;
  }
  static constexpr int APART = is_forward ? STRIDE / divisor() : 1;            // taps of one residue
  static constexpr int STEP = is_forward ? -(DILATION / divisor()) : DILATION;  // in the source
  static constexpr int MOST = ceil_div(KERNEL, APART);
  static constexpr __host__ __device__ int residue(int tap) {
    return (tap * DILATION + PADDING / STRIDE * STRIDE + STRIDE - PADDING) % STRIDE;
  }
  static constexpr __host__ __device__ int first(int r) {
    int tap = 0;
    while (is_forward && tap < KERNEL && residue(tap) != r) ++tap;
    return tap;
  }
  static constexpr __host__ __device__ GatherTaps taps(int r) {
    if (first(r) >= KERNEL) return {0, 0};
    return {ceil_div(KERNEL - first(r), APART), is_forward ? (r + PADDING - first(r) * DILATION) / STRIDE : -PADDING};
  }
};

template <class Layer, class Tune, bool is_forward>
struct GatherPlan {
  using Scalar = typename Layer::scalar;
  static constexpr Precision precision = Tune::precision;
  static constexpr bool FORWARD = is_forward, HAS_BIAS = is_forward && Layer::has_bias != 0;
  static constexpr int GROUPS = Layer::groups;
  static constexpr int K = (is_forward ? Layer::in_channels : Layer::out_channels) / GROUPS;  // summed, of a group
  static constexpr int M = (is_forward ? Layer::out_channels : Layer::in_channels) / GROUPS;  // of the result
  static constexpr int KD = Layer::kernel_d, KH = Layer::kernel_h, KW = Layer::kernel_w, TAPS = KD * KH * KW;
  static constexpr int SD = Layer::stride_d, SH = Layer::stride_h, S = Layer::stride_w;
  static constexpr int PD = Layer::padding_d, PH = Layer::padding_h, PW = Layer::padding_w;
  static constexpr int DD = Layer::dilation_d, DH = Layer::dilation_h, DW = Layer::dilation_w;
  static constexpr int SOURCE_D = is_forward ? 1 : SD, SOURCE_H = is_forward ? 1 : SH;  // source rows a step

  // A unit: 16 bytes of K, that is CHANNELS channels in PACK neighbouring phases.
  static constexpr int E = 16 / int(sizeof(Scalar));
  static constexpr __host__ __device__ bool packs(int phases) {
    return !is_forward && KW % S == 0 && DW == 1 && phases <= E && S % phases == 0 && PW % phases == 0;
  }
  static constexpr int PACK = packs(8) ? 8 : packs(4) ? 4 : packs(2) ? 2 : 1;
  static constexpr int CHANNELS = E / PACK, TAP_UNITS = KW / PACK;

  static constexpr __host__ __device__ int floor_quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
  static constexpr __host__ __device__ int shift(int k) {
    return is_forward ? -floor_quotient(k * DW - PW, S) : k * DW / S;
  }
  // forward: the residue of the results that tap k meets; grad_input: its phase.
  static constexpr __host__ __device__ int residue(int k) {
    return is_forward ? k * DW - PW + shift(k) * S : k * DW % S;
  }
  static constexpr int LOW = is_forward ? shift(KW - 1) : 0;
  static constexpr int REACH = (is_forward ? shift(0) : shift(KW - 1)) - LOW;
  static constexpr __host__ __device__ int number_of(int r) {  // among the residues that a tap meets
    int found = 0;
    for (int other = 0; other < r; ++other)
      for (int k = 0; k < KW; ++k)
        if (residue(k) == other) {
          ++found;
          break;
        }
    return found;
  }
  static constexpr int RESIDUES = number_of(S), RESIDUES_AT_MOST = KW < S ? KW : S;

  static constexpr int PLANES_AT_MOST = is_forward ? 1 : PACK > 1 ? S / PACK : RESIDUES_AT_MOST;

  // Columns of a product: [slot][row residue][channel]. A slot is a residue along W that a tap meets.
  static constexpr int SLOTS = is_forward ? RESIDUES : 1, SLOTS_AT_MOST = is_forward ? RESIDUES_AT_MOST : 1;
  // With many taps the weights would fill a stage, so there are fewer columns.
  static constexpr int WIDE = Tune::COLUMNS != 0 ? Tune::COLUMNS : ceil_div(TAP_UNITS, SLOTS_AT_MOST) > 8 ? 128 : 256;
  // kernel = stride: all residues along D and H need the same source, so they are columns of one product if at
  // least 16 channels of each fit.
  static constexpr bool ALIKE = is_forward && KD == SD && KH == SH && (KD == 1 || DD == 1) && (KH == 1 || DH == 1) &&
                                PD % SD == 0 && PH % SH == 0;
  static constexpr int MERGED = ALIKE && SLOTS_AT_MOST * SD * SH * 16 <= WIDE ? SD * SH
                                : ALIKE && SLOTS_AT_MOST * SH * 16 <= WIDE    ? SH
                                                                              : 1;
  static constexpr int ROOM = WIDE / (SLOTS_AT_MOST * MERGED) / 8 * 8, MOST = ROOM > 8 ? ROOM : 8;
  static constexpr int TILES = ceil_div(M, MOST), CT = ceil_div(ceil_div(M, TILES), 8) * 8;
  static constexpr int ROW_GROUPS = is_forward ? SD * SH / MERGED : 1;
  static constexpr int CLASSES = SLOTS * MERGED, N = CLASSES * CT, N_AT_MOST = SLOTS_AT_MOST * MERGED * CT;
  static constexpr int VARIETIES = GROUPS * ROW_GROUPS * TILES;
  // Items without a halo are bound by memory: small ones overlap loads and stores of different items.
  static constexpr int ROWS = Tune::ROWS != 0 ? Tune::ROWS : N_AT_MOST > 128 || PLANES_AT_MOST > 2 || (REACH == 0 && E == 4) ? 64 : 128;
  static constexpr int BLOCKS = ROWS / 64;
  static constexpr int TILE = 2 * ROWS;
  static_assert(BLOCKS * N <= 256, "the sums of a thread must fit in registers");

  static constexpr __host__ __device__ bool meets(int r, int by) {
    for (int k = 0; k < KW; ++k)
      if (residue(k) == r && shift(k) == by) return true;
    return false;
  }
  static constexpr __host__ __device__ int first_shift(int r) {
    int by = LOW;
    while (by <= LOW + REACH && !meets(r, by)) ++by;
    return by;
  }
  static constexpr __host__ __device__ int last_shift(int r) {
    int by = LOW + REACH;
    while (by >= LOW && !meets(r, by)) --by;
    return by;
  }
  // Residues with equal shifts are neighbours, so one product serves them.
  static constexpr __host__ __device__ bool sooner(int a, int b) {
    const int first = first_shift(a) - first_shift(b), last = last_shift(a) - last_shift(b);
    return first != 0 ? first < 0 : last != 0 ? last < 0 : a < b;
  }
  static constexpr __host__ __device__ int slot_of(int r) {
    if (!is_forward) return 0;
    if (first_shift(r) > LOW + REACH) return -1;
    int slot = 0;
    for (int other = 0; other < S; ++other) slot += first_shift(other) <= LOW + REACH && sooner(other, r);
    return slot;
  }

  // Whether the taps of these residues have the same shifts.
  static constexpr __host__ __device__ bool like(int a, int b) {
    for (int by = LOW; by <= LOW + REACH; ++by)
      if (meets(a, by) != meets(b, by)) return false;
    return true;
  }
  // ptxas gives the sums of a product neighbouring registers. So two products have the same sums or none in common. It
  // rejects a product of 256 columns if a block is launched with 128 registers a thread.
  static constexpr int WIDTH = MERGED * CT, PRODUCT = 128;
  static constexpr __host__ __device__ int part_of(int columns) {
    return ceil_div(ceil_div(columns, ceil_div(columns, PRODUCT)), 8) * 8;
  }

  // Planes of the window: forward has one. grad_input has one for each phase, or for PACK neighbours.
  static constexpr int PLANES = is_forward ? 1 : PACK > 1 ? S / PACK : RESIDUES;
  static constexpr __host__ __device__ int phase_of(int plane) {
    int r = plane * PACK;
    while (PACK == 1 && number_of(r + 1) <= plane) ++r;
    return r;
  }

  struct Products {
    GatherProduct at[96];
    int count, columns;
  };
  static constexpr __host__ __device__ Products products() {
    Products all = {};
    if (is_forward) {
      int slots[32] = {};
      for (int r = 0; r < S; ++r)
        if (slot_of(r) >= 0) slots[slot_of(r)] = r;
      for (int begin = 0, end = 0; begin < SLOTS; begin = end) {
        for (end = begin + 1; end < SLOTS && like(slots[begin], slots[end]);) ++end;
        const int part = part_of((end - begin) * WIDTH);
        for (int from = 0; from < (end - begin) * WIDTH; from += part)
          for (int by = LOW; by <= LOW + REACH; ++by) {
            if (!meets(slots[begin], by)) continue;
            const int rest = (end - begin) * WIDTH - from, columns = rest < part ? rest : part;
            all.at[all.count++] = {0, by - LOW, begin * WIDTH + from, columns, all.columns};
            all.columns += columns;
          }
      }
    } else {
      for (int plane = 0; plane < PLANES; ++plane)
        for (int unit = 0; unit < TAP_UNITS; ++unit) {
          if (residue(unit * PACK) != phase_of(plane)) continue;
          for (int from = 0; from < CT; from += part_of(CT)) {
            const int columns = CT - from < part_of(CT) ? CT - from : part_of(CT);
            all.at[all.count++] = {plane, shift(unit * PACK), from, columns, all.columns};
            all.columns += columns;
          }
        }
    }
    return all;
  }
  static constexpr Products PRODUCTS = products();
  static constexpr __host__ __device__ int plane_of(int k) {
    if (is_forward) return 0;
    for (int plane = 0; plane < PLANES; ++plane)
      if (phase_of(plane) == residue(k)) return plane;
    return 0;
  }
  static constexpr int COUNT = PRODUCTS.count, WEIGHT_COLUMNS = TAP_UNITS * MERGED * CT;

  // A stage: UNITS units of K of the window (all planes), then their weights.
  static constexpr int WINDOW = TILE + REACH, ELEMENTS = WINDOW * PLANES;
  static constexpr int PLANE_MOST = PLANES_AT_MOST == 1 ? WINDOW : WINDOW + 7;
  // Eight neighbours in memory fall into planes; their 16 bytes lie in different banks.
  static constexpr __host__ __device__ int conflicts(int rows) {
    int worst = 0;
    for (int begin = 0; begin < PLANES; ++begin) {
      int met[8] = {};
      for (int x = begin; x < begin + 8; ++x) {
        const int now = ++met[(x / PLANES + x % PLANES * rows) % 8];
        worst = now > worst ? now : worst;
      }
    }
    return worst;
  }
  static constexpr __host__ __device__ int plane_rows() {
    int best = WINDOW;
    for (int rows = WINDOW; rows <= PLANE_MOST; ++rows)
      if (conflicts(rows) < conflicts(best)) best = rows;
    return best;
  }
  static constexpr int PLANE_ROWS = plane_rows(), UNIT_ROWS = PLANES * PLANE_ROWS;  // in 16 bytes
  static constexpr int UNIT_BYTES = 16 * (PLANES_AT_MOST * PLANE_MOST + WEIGHT_COLUMNS);
  static constexpr int ALL_UNITS = ceil_div(K, CHANNELS);
  // Odd strides are stored through shared memory: places and values of 4 channels at 16 positions for each of 8 warps.
  static constexpr bool ODD = is_forward && (S == 3 || S == 5 || S == 7);
  static constexpr int ODD_BYTES = ODD ? 8 * 4 * 16 * S * (8 + int(sizeof(Scalar))) : 0;
  static constexpr int SHARED = 227 * 1024 - 256 - ODD_BYTES;  // bytes of the ring, at most
  // Small tiles with a halo load little per stage, so they have larger stages if three fit.
  static constexpr int LARGE = BLOCKS == 1 && REACH > 0 ? SHARED / 3 : 49152;
  static constexpr int units_chosen() {
    for (int units = 16; units > 2; units /= 2)
      if (units * UNIT_BYTES <= LARGE && ALL_UNITS > units / 2) return units;
    return 2;
  }
  static constexpr int UNITS = Tune::UNITS != 0 ? Tune::UNITS : units_chosen();
  static constexpr int STEPS = ceil_div(ALL_UNITS, UNITS);  // stages for one (kd, kh)
  static constexpr int STAGE_BYTES = UNITS * UNIT_BYTES, WINDOW_BYTES = 16 * UNITS * UNIT_ROWS;
  static constexpr int WEIGHT_BYTES = 16 * UNITS * WEIGHT_COLUMNS;
  static constexpr int FIT = SHARED / STAGE_BYTES;
  // Even if possible: then each place of the ring belongs to one of the two staging warpgroups.
  static constexpr int STAGES = FIT >= 8 ? 8 : FIT > 3 ? FIT / 2 * 2 : FIT;
  static constexpr int SMEM_BYTES = STAGES * STAGE_BYTES + 256 + ODD_BYTES;
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");

  // Warpgroups 0 and 1 multiply, 2 and 3 stage.
  static constexpr int CONSUMERS = 256, STAGERS = 256, THREADS = CONSUMERS + STAGERS;
  // Registers of a thread that stages, and of one that multiplies; a block is launched with 128. Where sums take few,
  // the staging warps have more.
  static constexpr bool FEW = BLOCKS * N <= 128;
  static constexpr int KEPT = FEW ? 120 : 80, TAKEN = 256 - KEPT;

  using D = GatherAxis<is_forward, KD, SD, PD, DD>;
  using H = GatherAxis<is_forward, KH, SH, PH, DH>;
  static constexpr int SEGMENTS = D::MOST * H::MOST;  // of an item, at most
  static constexpr long long PACKED_BYTES = 1LL * VARIETIES * SEGMENTS * STEPS * WEIGHT_BYTES;
};
