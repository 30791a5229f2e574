// A run of results from the registers of each lane to memory. Lanes exchange their runs through shared memory first, so
// that neighbouring lanes store neighbouring pieces and a store fills whole sectors.
#pragma once
#include "contract/scalar.cuh"
#include "families/depthwise_rows/axis.cuh"
#include "hardware/pack.cuh"

// Stores the first `count` elements of `run` at `to`, V at a time. V divides count and the address.
template <int V, int RUN, class Scalar>
__device__ __forceinline__ void store_own_run(const Scalar (&run)[RUN], Scalar* to, int count) {
#pragma unroll
  for (int i = 0; i < RUN; i += V) {
    Pack<Scalar, V> part;
#pragma unroll
    for (int e = 0; e < V; ++e) part.value[e] = run[i + e];
    if (i < count) *reinterpret_cast<Pack<Scalar, V>*>(to + i) = part;
  }
}

// The same for a whole warp; count may be negative. `image` holds a run for each lane, PITCH elements apart. Where all
// runs of the warp lie one behind the other, lanes need no addresses of other lanes.
// The barriers: a run is complete before other lanes read it, and read before the next one overwrites it.
template <int V, int PITCH, int RUN, class Scalar>
__device__ __forceinline__ void store_runs(const Scalar (&run)[RUN], Scalar* image, Scalar* to, int count, int lane) {
  constexpr int OWN = run_vector(RUN, int(sizeof(Scalar))), PIECES = RUN / V;
  static_assert(PITCH % OWN == 0, "runs begin at whole vectors");
  const auto piece_at = [&](int piece) {
    return *reinterpret_cast<const Pack<Scalar, V>*>(image + piece / PIECES * PITCH + piece % PIECES * V);
  };
  store_own_run<OWN>(run, image + lane * PITCH, RUN);
  const auto address = reinterpret_cast<unsigned long long>(to);
  const auto behind = address - lane * (RUN * sizeof(Scalar));
  __syncwarp();
  // One behind the other: in one row, or in several rows whose ends no run crosses.
  const bool full = __all_sync(0xffffffffu, count >= RUN);
  const int in_row = full ? 32 * RUN : __shfl_sync(0xffffffffu, count, 0);
  if (__all_sync(0xffffffffu, behind == __shfl_sync(0xffffffffu, behind, 0) && (full || count + lane * RUN == in_row))) {
    const int left = in_row - lane * V;
    Scalar* const target = to - lane * (RUN - V);
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
      if (i * 32 * V < left) *reinterpret_cast<Pack<Scalar, V>*>(target + i * 32 * V) = piece_at(i * 32 + lane);
  } else {
#pragma unroll 2
    for (int i = 0; i < PIECES; ++i) {
      const int piece = i * 32 + lane, owner = piece / PIECES, first = piece % PIECES * V;
      auto* const target = reinterpret_cast<Scalar*>(__shfl_sync(0xffffffffu, address, owner)) + first;
      const int left = __shfl_sync(0xffffffffu, count, owner);
      if (first < left) *reinterpret_cast<Pack<Scalar, V>*>(target) = piece_at(piece);
    }
  }
  __syncwarp();
}

// V is the widest of MOST, MOST / 2, ... that is at most `together`: the host has found out how rows lie.
template <int MOST, bool EXCHANGES, int PITCH, int RUN, class Scalar>
__device__ __forceinline__ void store_runs_by(int together, const Scalar (&run)[RUN], Scalar* image, Scalar* to,
                                              int count, int lane) {
  if constexpr (MOST > 1) {
    if (together < MOST) return store_runs_by<MOST / 2, EXCHANGES, PITCH>(together, run, image, to, count, lane);
  }
  if constexpr (EXCHANGES && RUN > MOST)
    store_runs<MOST, PITCH>(run, image, to, count, lane);
  else
    store_own_run<MOST>(run, to, count);
}
