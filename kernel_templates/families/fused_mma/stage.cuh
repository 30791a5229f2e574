// Copies rows into shared memory as families/split_mma/stage.cuh does, for a kernel whose registers are full of sums:
// where a thread reads and writes is computed at each call instead of being kept between calls.
#pragma once
#include "contract/computed_anew.cuh"
#include "hardware/mbarrier.cuh"
#include "families/split_mma/stage.cuh"

// A barrier of all threads of a block, callable from different places in the code. __syncthreads() requires that all
// threads stand at the same place, and two kinds of warps with loops of their own do not. `barrier` counts all threads.
// `turn` is 0 at its first use, 1 at the second, 0 at the third. Afterwards all threads see what each thread wrote
// before, and the copies that it waited for.
__device__ __forceinline__ void meet_from_anywhere(unsigned barrier, int turn) {
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, turn);
}

// Rounds to the nearest TF32, ties away from zero, as round_to_tf32() does. But the lower 13 bits, which mma ignores,
// are undefined. Without them an infinity is unchanged. A NaN is replaced by 0x7FFFFFFF.
__device__ __forceinline__ float rounded_for_mma(float x) {
  return __uint_as_float(x != x ? 0x7FFFFFFFu : __float_as_uint(x) + 0x1000u);
}

// Calls body(row, column, turn) for the vectors of ROWS x VECTORS that belong to this thread. If possible that is one
// column of them, and each turn is STRIDE rows further.
template <int THREADS, int ROWS, int VECTORS>
struct OwnVectors {
  static constexpr bool COLUMN = THREADS % VECTORS == 0;
  static constexpr int STRIDE = COLUMN ? THREADS / VECTORS : 1, TURNS = COLUMN ? ceil_div(ROWS, STRIDE) : 1;

  template <class Body>
  __device__ __forceinline__ static void each(const Body& body) {
    const int thread = computed_anew(threadIdx.x);
    if constexpr (COLUMN) {
      const int row = thread / VECTORS, column = thread % VECTORS;
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn)
        if (ROWS % STRIDE == 0 || row + turn * STRIDE < ROWS) body(row, column, turn);
    } else {
#pragma unroll 2
      for (int e = thread; e < ROWS * VECTORS; e += THREADS) body(e / VECTORS, e % VECTORS, 0);
    }
  }
};

// CHANNELS is the number of channels, unless from.channels is 0.
template <int THREADS, int ROWS, int CHANNELS, int COLUMNS, int PITCH, int STEP, int WIDTH, class Scalar>
__device__ __forceinline__ void stage_rows_by(float* to, const RowSource<Scalar>& from) {
  using Own = OwnVectors<THREADS, ROWS, COLUMNS / WIDTH>;
  const Scalar* next = from.row;  // of the next turn; not moved if the column is outside the row
  long long further = 0;
  bool there = false;
  Own::each([&](int row, int vector, int turn) {
    const int at = from.first + vector * WIDTH * STEP;
    if (turn == 0) {
      there = from.channels > 0 && unsigned(at) < unsigned(from.length);
      next = there ? from.row + row * from.plane + at : from.row;
      further = there ? Own::STRIDE * from.plane : 0;
    } else {
      next += further;
    }
    const bool in = there && (ROWS <= CHANNELS || row + turn * Own::STRIDE < CHANNELS);
    const Scalar* source = ROWS <= CHANNELS || in ? next : from.row;
    float* target = to + (row + turn * Own::STRIDE) * PITCH + vector * WIDTH;
    if constexpr (sizeof(Scalar) == 4) {
      cp_async<WIDTH * 4>(target, source, in ? WIDTH * 4 : 0);
    } else {
      *target = in ? widen(*source) : 0.f;  // exact: TF32 holds either type
    }
  });
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int WIDTH>
__device__ __forceinline__ void round_staged_by(float* rows) {
  using Own = OwnVectors<THREADS, ROWS, COLUMNS / WIDTH>;
  Own::each([&](int row, int vector, int turn) {
    float* at = rows + (row + turn * Own::STRIDE) * PITCH + vector * WIDTH;
    float v[WIDTH];
    if constexpr (WIDTH == 4) {
      const float4 whole = *reinterpret_cast<float4*>(at);
      v[0] = whole.x, v[1] = whole.y, v[2] = whole.z, v[3] = whole.w;
    } else if constexpr (WIDTH == 2) {
      const float2 whole = *reinterpret_cast<float2*>(at);
      v[0] = whole.x, v[1] = whole.y;
    } else {
      v[0] = *at;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v[i] = rounded_for_mma(v[i]);
    if constexpr (WIDTH == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
    } else if constexpr (WIDTH == 2) {
      *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
    } else {
      *at = v[0];
    }
  });
}

// All threads of the block call these with the same `width`. A thread rounds exactly what it copied itself, so between
// the two it needs cp_async_wait() but no barrier.
template <int THREADS, int ROWS, int CHANNELS, int COLUMNS, int PITCH, int STEP, class Scalar>
__device__ __forceinline__ void stage_rows(float* to, const RowSource<Scalar>& from, int width) {
  if constexpr (STEP == 1 && sizeof(Scalar) == 4) {
    if (width == 4) return stage_rows_by<THREADS, ROWS, CHANNELS, COLUMNS, PITCH, 1, 4>(to, from);
    if (width == 2) return stage_rows_by<THREADS, ROWS, CHANNELS, COLUMNS, PITCH, 1, 2>(to, from);
  }
  stage_rows_by<THREADS, ROWS, CHANNELS, COLUMNS, PITCH, STEP, 1>(to, from);
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP>
__device__ __forceinline__ void round_staged(float* rows, int width) {
  if constexpr (STEP == 1) {
    if (width == 4) return round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 4>(rows);
    if (width == 2) return round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 2>(rows);
  }
  round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 1>(rows);
}
