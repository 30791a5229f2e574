// What the multiplying warpgroups of grad_weight do: products of a stage, and where sums go. Their loop is in the .cu.
#pragma once
#include "families/persistent_wgmma/split_plan.cuh"
#include "hardware/const_loop.cuh"
#include "hardware/mbarrier_await.cuh"
#include "hardware/pack.cuh"
#include "hardware/wgmma.cuh"
#include "hardware/wgmma_more_shapes.cuh"

// A warpgroup's sums: 64 channels of x times OCTS_WG octs of gy for all taps of a row.
template <class Plan>
struct GradSplitSums {
  static constexpr int WIDE = Plan::WIDE * Plan::PARTS;
  float wide[WIDE > 0 ? WIDE : 1][Plan::PART_N / 2];
  float narrow[Plan::NARROW > 0 ? Plan::NARROW : 1][Plan::NARROW_N / 2];

  __device__ __forceinline__ void own() {
    const_loop<0, WIDE>([&](auto j) { wgmma_own(wide[decltype(j)::value]); });
    const_loop<0, Plan::NARROW>([&](auto t) { wgmma_own(narrow[decltype(t)::value]); });
  }
  // Value i (0 to 3) of the eight columns of oct o and tap k; all three are constants.
  __device__ __forceinline__ float at(int o, int k, int i) const {
    constexpr int OF_WIDE = Plan::WIDE * Plan::STRIDE, EIGHTS = Plan::PART_N / 8;
    const int group = Plan::group_of(o, k);
    if (k < OF_WIDE) return wide[group / EIGHTS][group % EIGHTS * 4 + i];
    return narrow[Plan::NARROW > 0 ? k - OF_WIDE : 0][o * 4 + i];
  }
};

// All products of a stage. x and gy are descriptors of what the warpgroup owns of them; `keep` 0 starts the sums anew.
template <class Plan, Precision precision, class Scalar>
__device__ __forceinline__ void multiply_grad_split(GradSplitSums<Plan>& sums, unsigned x, unsigned gy, int keep) {
  constexpr int X_CHUNK = Plan::X_CHUNK, GY_CHUNK = Plan::GY_CHUNK, GY_BLOCK = Plan::GY_BLOCK, STRIDE = Plan::STRIDE;
  const unsigned long long x_at = matrix_descriptor(x, X_CHUNK, 128);
  const unsigned long long wide_at = matrix_descriptor(gy, GY_CHUNK, 128);
  const unsigned long long narrow_at = matrix_descriptor(gy, GY_CHUNK, 128 * STRIDE);
#pragma unroll
  for (int position = 0; position < Plan::STRIP; ++position)
#pragma unroll
    for (int pair = 0; pair < Plan::CHUNKS; pair += 2) {
      const unsigned long long a = x_at + ((position * Plan::X_BLOCK + pair * X_CHUNK) >> 4);
      const int from = position == 0 && pair == 0 ? keep : 1;
      const_loop<0, Plan::WIDE * Plan::PARTS>([&](auto j) {
        constexpr int J = decltype(j)::value / Plan::PARTS, PART = decltype(j)::value % Plan::PARTS;
        wgmma<precision, Scalar, Plan::PART_N>(
            sums.wide[decltype(j)::value], a,
            wide_at + (((position + J) * GY_BLOCK + pair * GY_CHUNK + PART * Plan::PART_N * 16) >> 4), from);
      });
      const_loop<0, Plan::NARROW>([&](auto t) {
        constexpr int T = decltype(t)::value, V = Plan::narrow_at(T);
        wgmma<precision, Scalar, Plan::NARROW_N>(
            sums.narrow[T], a,
            narrow_at + (((position + V / STRIDE) * GY_BLOCK + pair * GY_CHUNK + V % STRIDE * 128) >> 4), from);
      });
    }
}

// *to += more, as one piece of assembly: otherwise the compiler loads many values ahead, and registers do not suffice.
__device__ __forceinline__ void add_to_memory(float4* to, const float4& more) {
#ifdef __CUDACPU__
  *to = make_float4(to->x + more.x, to->y + more.y, to->z + more.z, to->w + more.w);
#else
  asm volatile(
      "{\n.reg .f32 x, y, z, w;\nld.global.v4.f32 {x, y, z, w}, [%0];\nadd.f32 x, x, %1;\nadd.f32 y, y, %2;\n"
      "add.f32 z, z, %3;\nadd.f32 w, w, %4;\nst.global.v4.f32 [%0], {x, y, z, w};\n}"
      :
      : "l"(to), "f"(more.x), "f"(more.y), "f"(more.z), "f"(more.w)
      : "memory");
#endif
}

// Stores sums in the workspace in their order in registers: to[128 * group]. Later sums are added.
template <class Plan>
__device__ __forceinline__ void promote_grad_split(const GradSplitSums<Plan>& sums, float4* to, bool first) {
#pragma unroll
  for (int o = 0; o < Plan::OCTS_WG; ++o)
#pragma unroll
    for (int k = 0; k < Plan::K; ++k) {
      const float4 own = make_float4(sums.at(o, k, 0), sums.at(o, k, 1), sums.at(o, k, 2), sums.at(o, k, 3));
      float4* const place = to + 128 * Plan::group_of(o, k);
      if (first)
        *place = own;
      else
        add_to_memory(place, own);
    }
}

// Stores sums in grad_weight. A thread has all taps of a row for four (ci, co), each a run of K neighbours. All channels
// exist (Plan::DIRECT), so all places but the first are constants.
template <class Layer, class Plan, int RUN>
__device__ __forceinline__ void store_grad_split(const GradSplitSums<Plan>& sums, typename Layer::scalar* grad_weight,
                                                 int ci0, int oct0) {
  using Scalar = typename Layer::scalar;
  using Run = Pack<Scalar, RUN>;
  constexpr int OF_CO = Plan::TAP_ROWS * Plan::K;
  const int lane = threadIdx.x % 32, ci = ci0 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int tap_row = oct0 / Plan::CO8, co = oct0 % Plan::CO8 * 8 + lane % 4 * 2;
  Scalar* const to = grad_weight + ((1LL * ci * Plan::CO + co) * Plan::TAP_ROWS + tap_row) * Plan::K;
#pragma unroll
  for (int o = 0; o < Plan::OCTS_WG; ++o)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < Plan::K; k += RUN) {
        Run run;
#pragma unroll
        for (int e = 0; e < RUN; ++e) run.value[e] = narrow<Scalar>(sums.at(o, k + e, i));
        *reinterpret_cast<Run*>(to + (i / 2 * 8LL * Plan::CO + o * 8 + i % 2) * OF_CO + k) = run;
      }
}
