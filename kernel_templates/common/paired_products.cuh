// The products of wgmma_strided: weights come from shared memory through registers, staged rows by their descriptors. A
// row of A is a channel and a residue along W, a column of B a position; a tap is a shift. paired_plan.cuh has the words.
#pragma once
#include "common/const_loop.cuh"
#include "common/paired_plan.cuh"
#include "common/wgmma_registers.cuh"

// Products of one class of outputs of a cell. A group of up to four slabs has the same taps; while it is multiplied the
// fragments of the next one are loaded. `slot0`: where the cell's first unit lies.
template <class P, int RD, int RH>
struct PairedProducts {
  static constexpr int SLAB_GROUPS = ceil_div(P::SLABS, 4), ROWS = P::D::count(RD) * P::H::count(RH);
  static constexpr int GROUPS = ROWS * P::W::SLICES * SLAB_GROUPS;

  // What group i multiplies.
  static constexpr int slab0(int i) { return i % SLAB_GROUPS * 4; }
  static constexpr int slabs(int i) { return P::SLABS - slab0(i) < 4 ? P::SLABS - slab0(i) : 4; }
  static constexpr int slice(int i) { return i / SLAB_GROUPS % P::W::SLICES; }
  static constexpr int row(int i) { return i / SLAB_GROUPS / P::W::SLICES; }
  // Taps along H from the farthest shift to the nearest: the unit that came last is read last.
  static constexpr int kh(int i) { return P::H::tap(RH, P::H::count(RH) - 1 - row(i) / P::D::count(RD)); }
  static constexpr int kd(int i) { return P::D::tap(RD, row(i) % P::D::count(RD)); }
  static constexpr int unit(int i) { return (P::H::REACH - P::H::shift(kh(i))) * P::PLANES + P::D::shift_number(kd(i)); }

  template <int I>
  static __device__ __forceinline__ void load(float (&A)[4][4], const float* weights) {
    constexpr int SLICE = slice(I), RESIDUE = P::W::tap_of(SLICE, 0) < P::KW ? 0 : 1;
    const float* from = weights + (kd(I) * P::KH + kh(I)) * P::ROW_FLOATS + P::slice_at(SLICE);
    const_loop<0, slabs(I)>([&](auto slab) {
      constexpr int S = decltype(slab)::value;
      float(&to)[4] = A[S];
      if constexpr (P::both(SLICE)) {
        const float4 v = *reinterpret_cast<const float4*>(from + (slab0(I) + S) * 512 + threadIdx.x % 128 * 4);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      } else {
        const float2 v = *reinterpret_cast<const float2*>(from + (slab0(I) + S) * 256 + threadIdx.x % 128 * 2);
        to[RESIDUE] = v.x, to[RESIDUE + 2] = v.y, to[1 - RESIDUE] = 0.0f, to[3 - RESIDUE] = 0.0f;
      }
    });
  }

  static __device__ __forceinline__ void run(float (&sum)[P::TILE / 2], const float* weights, unsigned ring, int slot0) {
    if constexpr (GROUPS == 0) {
#pragma unroll
      for (int i = 0; i < P::TILE / 2; ++i) sum[i] = 0.0f;
    } else {
      float A[2][4][4];
      load<0>(A[0], weights);
      const_loop<0, GROUPS>([&](auto group) {
        constexpr int I = decltype(group)::value;
        int slot = slot0 + unit(I);
        if (slot >= P::RING) slot -= P::RING;
        const unsigned long long x = matrix_descriptor(ring + slot * (4 * P::UNIT), P::PLANE * 16, 128);
        wgmma_fence();
        const_loop<0, slabs(I)>([&](auto slab) {
          constexpr int S = decltype(slab)::value;
          constexpr int SHIFT = 2 * (slab0(I) + S) * P::PLANE + P::W::slice_offset(slice(I));
          wgmma_from_registers<P::TILE>(sum, A[I % 2][S], x + SHIFT, I > 0 || S > 0);
        });
        wgmma_commit();
        if constexpr (I + 1 < GROUPS) {
          wgmma_wait<1>();  // the group before, whose fragments are overwritten now
          load<I + 1>(A[(I + 1) % 2], weights);
        }
      });
      wgmma_wait<0>();
      wgmma_own(sum);
    }
  }
};
