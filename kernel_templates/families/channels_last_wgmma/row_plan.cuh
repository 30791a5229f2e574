// The constants of channels_last_wgmma: the products of GatherPlan, and the layout of a stage, which is that of channels_last
// rows. README.md has the words.
#pragma once
#include "families/persistent_wgmma/gather_plan.cuh"

// grad_input reads rows of grad_output with a stride. In channels_last the elements of a step along W are neighbours, so
// its phases are channels of a row that is read without a stride:
//     tap k = phase + i * APART meets element (q + i * DW) * stride + phase * dilation - padding of the row
template <class Layer>
struct PhasesAsChannels : Layer {
  using Taps = GatherAxis<true, Layer::kernel_w, Layer::stride_w, Layer::padding_w, Layer::dilation_w>;
  static constexpr int APART = Taps::APART;  // taps of one phase
  static constexpr int PHASES = Layer::kernel_w < APART ? Layer::kernel_w : APART;
  static constexpr int OF_PHASE = ceil_div(Layer::out_channels / Layer::groups, 8);  // units
  static constexpr int out_channels = Layer::groups * PHASES * OF_PHASE * 8;
  static constexpr int kernel_w = Taps::MOST, stride_w = 1, padding_w = 0, dilation_w = -Taps::STEP;
};

template <class Layer, bool is_forward>
struct RowLayer {
  using type = PhasesAsChannels<Layer>;
  static constexpr int CHANNELS = Layer::out_channels / Layer::groups, KERNEL = Layer::kernel_w;
  static constexpr int STEP = Layer::stride_w, BEFORE = Layer::padding_w, PHASE_STEP = Layer::dilation_w;
  static constexpr int APART = type::APART, PHASES = type::PHASES, OF_PHASE = type::OF_PHASE;
};
template <class Layer>
struct RowLayer<Layer, true> {
  using type = Layer;
  static constexpr int CHANNELS = Layer::in_channels / Layer::groups, KERNEL = Layer::kernel_w;
  static constexpr int STEP = 1, BEFORE = 0, PHASE_STEP = 0, APART = 1, PHASES = 1, OF_PHASE = ceil_div(CHANNELS, 8);
};

template <class Layer, class Tune, bool is_forward>
struct RowPlan : GatherPlan<typename RowLayer<Layer, is_forward>::type, Tune, is_forward> {
  using Base = GatherPlan<typename RowLayer<Layer, is_forward>::type, Tune, is_forward>;
  using Row = RowLayer<Layer, is_forward>;
  static_assert(Base::PLANES == 1 && Base::PACK == 1, "a unit is 8 channels, a window one plane");

  // A stage: UNITS units of K of the window, those of a position side by side (swizzled), then their weights.
  static constexpr int UNIT_BYTES = 16 * (Base::WINDOW + Base::WEIGHT_COLUMNS);
  static constexpr int units_chosen() {
    for (int units = 8; units > 2; units /= 2)
      if (units * UNIT_BYTES <= 57344 && Base::ALL_UNITS > units / 2) return units;
    return 2;
  }
  static constexpr int UNITS = Tune::UNITS != 0 ? Tune::UNITS : units_chosen(), STEPS = ceil_div(Base::ALL_UNITS, UNITS);
  static constexpr int ROW_BYTES = 16 * UNITS, WINDOW_BYTES = ROW_BYTES * Base::WINDOW;
  static constexpr int WEIGHT_BYTES = 16 * UNITS * Base::WEIGHT_COLUMNS;
  static constexpr int STAGE_BYTES = ceil_div(UNITS * UNIT_BYTES, 1024) * 1024;
  static constexpr int FIT = (227 * 1024 - 256) / STAGE_BYTES, STAGES = FIT < 8 ? FIT : 8;
  static constexpr int SMEM_BYTES = STAGES * STAGE_BYTES + 256;
  static_assert(STAGES >= 2, "a stage is given back only after the next has begun");
  static constexpr long long PACKED_BYTES = 1LL * Base::VARIETIES * Base::SEGMENTS * STEPS * WEIGHT_BYTES;
};
