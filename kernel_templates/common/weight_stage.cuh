// Weights on their way into shared memory: what fits at once, and the copy.
#pragma once
#include "common/pack.cuh"
#include "common/problem.cuh"
#include "common/scalar.cuh"

// The part of the reduction whose weights are in shared memory at one time: this many channels x this many taps.
struct Chunk {
  int channels, taps;
};

// The largest chunk of at most `capacity` packs: all taps of as many channels as fit, or else some taps of one.
constexpr __host__ __device__ Chunk chunk_of(int capacity, int channels, int taps) {
  const int t = taps < capacity ? taps : capacity;
  const int c = capacity / t;
  return {c < channels ? c : channels, t};
}

// staged[channel * chunk.taps + tap].value[member] = weight[channel * channel_pitch + member * member_pitch + tap],
// already in the accumulator's type; 0 for a member that does not exist. All threads of the block call it, between two
// barriers. Neighbouring threads read neighbouring taps, which are neighbours in memory.
template <int BLOCK, int MEMBERS, class Sum, class Scalar>
__device__ __forceinline__ void stage_weights(Pack<Sum, MEMBERS>* staged, const Scalar* __restrict__ weight,
                                              Chunk chunk, long long channel_pitch, int members,
                                              long long member_pitch) {
  for (int e = threadIdx.x; e < chunk.channels * chunk.taps * MEMBERS; e += BLOCK) {
    const int tap = e % chunk.taps;
    const int member = e / chunk.taps % MEMBERS;
    const int channel = e / chunk.taps / MEMBERS;
    staged[channel * chunk.taps + tap].value[member] =
        member < members ? Sum(widen(weight[channel * channel_pitch + member * member_pitch + tap])) : Sum(0);
  }
}
