// Rows on their way into shared memory as in split_mma_stage.cuh, for a kernel whose registers are full of sums: where a
// thread reads and writes is worked out at each call instead of being kept from call to call.
#pragma once
#include "common/split_mma_stage.cuh"

// The value, but not known to be what it was before: the compiler does not keep what it computes from it.
__device__ __forceinline__ int not_kept(int value) {
#ifndef __CUDACPU__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// body(row, column) for the vectors of ROWS x VECTORS that belong to this thread.
template <int THREADS, int ROWS, int VECTORS, class Body>
__device__ __forceinline__ void for_fresh_vectors(const Body& body) {
  const int thread = not_kept(threadIdx.x);
  if constexpr (THREADS % VECTORS == 0) {
    constexpr int STRIDE = THREADS / VECTORS, TURNS = ceil_div(ROWS, STRIDE);
    const int row = thread / VECTORS, column = thread % VECTORS;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      if (ROWS % STRIDE == 0 || row + turn * STRIDE < ROWS) body(row + turn * STRIDE, column);
  } else {
#pragma unroll 2
    for (int e = thread; e < ROWS * VECTORS; e += THREADS) body(e / VECTORS, e % VECTORS);
  }
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP, int WIDTH, class Scalar>
__device__ __forceinline__ void stage_rows_by(float* to, const RowSource<Scalar>& from) {
  for_fresh_vectors<THREADS, ROWS, COLUMNS / WIDTH>([&](int row, int vector) {
    const int at = from.first + vector * WIDTH * STEP;
    const bool there = row < from.channels && unsigned(at) < unsigned(from.length);
    const Scalar* source = there ? from.row + row * from.plane + at : from.row;
    float* target = to + row * PITCH + vector * WIDTH;
    if constexpr (sizeof(Scalar) == 4) {
      cp_async<WIDTH * 4>(target, source, there ? WIDTH * 4 : 0);
    } else {
      *target = there ? widen(*source) : 0.f;  // exact: TF32 holds either type
    }
  });
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int WIDTH>
__device__ __forceinline__ void round_staged_by(float* rows) {
  for_fresh_vectors<THREADS, ROWS, COLUMNS / WIDTH>([&](int row, int vector) {
    float* at = rows + row * PITCH + vector * WIDTH;
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
    for (int i = 0; i < WIDTH; ++i) v[i] = round_to_tf32(v[i]);
    if constexpr (WIDTH == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
    } else if constexpr (WIDTH == 2) {
      *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
    } else {
      *at = v[0];
    }
  });
}

// All threads of the block call these with the same `width`; a thread rounds exactly what it copied itself, so between
// the two it needs cp_async_wait() and no barrier.
template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP, class Scalar>
__device__ __forceinline__ void stage_rows(float* to, const RowSource<Scalar>& from, int width) {
  if constexpr (STEP == 1 && sizeof(Scalar) == 4) {
    if (width == 4) return stage_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1, 4>(to, from);
    if (width == 2) return stage_rows_by<THREADS, ROWS, COLUMNS, PITCH, 1, 2>(to, from);
  }
  stage_rows_by<THREADS, ROWS, COLUMNS, PITCH, STEP, 1>(to, from);
}

template <int THREADS, int ROWS, int COLUMNS, int PITCH, int STEP>
__device__ __forceinline__ void round_staged(float* rows, int width) {
  if constexpr (STEP == 1) {
    if (width == 4) return round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 4>(rows);
    if (width == 2) return round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 2>(rows);
  }
  round_staged_by<THREADS, ROWS, COLUMNS, PITCH, 1>(rows);
}
