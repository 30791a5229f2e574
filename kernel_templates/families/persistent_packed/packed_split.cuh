// Compile-time constants of grad_weight of persistent_packed: the tiles and sums of GradSplitPlan, how x and gy are packed,
// and a stage of both. Positions are the summed index. README.md has the words.
#pragma once
#include "families/persistent_packed/packed_source.cuh"
#include "families/persistent_wgmma/split_plan.cuh"
#include "contract/weight_launch.cuh"

// Constants that GradSplitPlan needs in addition to the tunables. One warp of four issues copies.
template <class Tune>
struct PackedSplitTune : Tune {
  static constexpr int COPY_WARPS = 4, STRIP = 64, CHUNKS = 2, AHEAD = 1;
  static constexpr bool ASYNC = false;
};

template <class Layer, class Tune>
struct PackedSplitPlan : GradSplitPlan<Layer, PackedSplitTune<Tune>> {
  using Base = GradSplitPlan<Layer, PackedSplitTune<Tune>>;
  using AlongD = PackedAxis<false, Layer::kernel_d, Layer::stride_d, Layer::padding_d, Layer::dilation_d>;
  using AlongH = PackedAxis<false, Layer::kernel_h, Layer::stride_h, Layer::padding_h, Layer::dilation_h>;
  using AlongW = PackedAxis<false, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;

  // A stage: POSITIONS of 8 channels of x, for each of X_UNITS; then WINDOW of each oct and residue of gy.
  static constexpr int POSITIONS = Tune::POSITIONS, WINDOW = POSITIONS + Base::FAR / Base::STRIDE;
  static constexpr int X_UNITS = 8 * Base::MB, GY_UNITS = Base::OCTS * Base::STRIDE, COPIES = X_UNITS + GY_UNITS;
  static constexpr int X_STAGE = 16 * X_UNITS * POSITIONS, STAGE = X_STAGE + 16 * GY_UNITS * WINDOW;
  static constexpr int ROOM = 227 * 1024 - 256, HELD = ROOM / STAGE, STAGES = HELD < 8 ? HELD : 8;
  static constexpr int BARRIERS_AT = STAGES * STAGE, SHARED_BYTES = BARRIERS_AT + 16 * STAGES;
  static constexpr int PROMOTE = ceil_div(4096, POSITIONS);  // stages that tensor cores add up
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");
};

template <class Layer, class Tune>
struct PackedX {
  using Scalar = typename Layer::scalar;
  static constexpr bool LAST = Tune::CHANNELS_LAST != 0;
  static constexpr int PACK = 1, CHANNELS = 8, PLANES = 1, GROUPS = 1, K = Layer::in_channels, UNITS = ceil_div(K, 8);
  static constexpr int PHASES = 1, STEP_D = 1, STEP_H = 1, STEP_W = 1, BEFORE_D = 0, BEFORE_H = 0, BEFORE_W = 0;
  static constexpr __host__ __device__ int phase_of(int) { return 0; }
};

// Residues of gy along W are planes, those along D and H are phases.
template <class Layer, class Tune>
struct PackedGy {
  using Scalar = typename Layer::scalar;
  static constexpr bool LAST = Tune::CHANNELS_LAST != 0;
  static constexpr int PACK = 1, CHANNELS = 8, GROUPS = 1, K = Layer::out_channels, UNITS = ceil_div(K, 8);
  static constexpr int STEP_D = Layer::stride_d, STEP_H = Layer::stride_h, STEP_W = Layer::stride_w, PLANES = STEP_W;
  static constexpr int PHASES = STEP_D * STEP_H;
  static constexpr int BEFORE_D = Layer::padding_d, BEFORE_H = Layer::padding_h, BEFORE_W = Layer::padding_w;
  static constexpr __host__ __device__ int phase_of(int plane) { return plane; }
};

// What the host decides: the grid, and how many shares of the stages there are.
template <class Plan, class Tune>
struct PackedSplitWork {
  PackedGrid grid = {};
  long long stages = 0, each = 0, more = 0;  // in all; of each share; the first shares have one more
  int shares = 1;
  bool serves;

  explicit PackedSplitWork(const Sizes& s) {
    const int steps[3] = {s.in_d, s.in_h, s.in_w}, source[3] = {s.out_d, s.out_h, s.out_w};
    serves = packed_grid<typename Plan::AlongD, typename Plan::AlongH, typename Plan::AlongW, Plan::POSITIONS>(s.batch, steps,
                                                                                                          source, grid);
    if (!serves) return;
    stages = ceil_div(1LL * grid.rows * grid.row, Plan::POSITIONS);
    const int most = share_count(MORE_SHARES * Tune::GRID / Plan::TILES, stages);
    for (int n = 2; n <= most; ++n)
      if (nanoseconds(n) < nanoseconds(shares)) shares = n;
    each = stages / shares, more = stages % shares;
  }
  __host__ __device__ long long first_stage(int share) const { return share * each + (share < more ? share : more); }
  __host__ __device__ long long stages_of(int share) const { return each + (share < more); }
  __host__ __device__ int works() const { return shares * Plan::TILES; }
  // One share, short enough for the tensor cores: results are stored directly.
  __host__ __device__ bool direct() const { return Plan::DIRECT && shares == 1 && stages <= Plan::PROMOTE; }
  long long slots() const { return direct() ? 0 : 16 * Plan::SLOT * works(); }

 private:
  // Bytes per ns that a block stages, that all blocks write or read of partial sums; the time of a second launch.
  static constexpr double BYTES_OF_BLOCK = 50, BYTES_OF_ALL = 4000, SECOND_LAUNCH = 3000;
  static constexpr int MORE_SHARES = 8;  // more shares than blocks may distribute the work more evenly
  double nanoseconds(int of_shares) const {
    constexpr double OF_STAGE = Plan::STAGE / BYTES_OF_BLOCK, OF_SLOT = 16. * Plan::SLOT / BYTES_OF_ALL;
    const long long parts = 1LL * of_shares * Plan::TILES;
    const double staged = OF_STAGE * ceil_div(parts, 1LL * Tune::GRID) * ceil_div(stages, 1LL * of_shares);
    const bool stored = Plan::DIRECT && of_shares == 1 && stages <= Plan::PROMOTE;
    return staged + (stored ? OF_SLOT * parts : 2 * OF_SLOT * parts + SECOND_LAUNCH);
  }
};
