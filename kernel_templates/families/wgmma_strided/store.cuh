// How a warp of wgmma_strided stores its sums, without other warps: whole sectors, in long runs of a row. plan.cuh has
// the words.
#pragma once
#include "hardware/const_loop.cuh"
#include "families/wgmma_strided/plan.cuh"

// What a warp stores of a row: results 0 to `end` of the tile's, in whole sectors of 32 bytes. `goes_on`: the next row
// follows it in memory and is stored next, so the values of its first sector stay in the image until then. `continues`:
// the previous row has `goes_on`.
struct PairedRun {
  int end;
  bool continues, goes_on;
};

// Stores eight channels of a row, 32 results of each at a time ("a part"), through the warp's own shared memory. A lane
// holds four neighbours of one channel, but 32 lanes write 32 neighbours. The image holds two parts, as a ring, because
// what is stored begins at a sector, up to 7 values before the part. `full`: all 8 channels exist, and all lanes store
// everything but the ends of the row.
template <class P, bool full>
__device__ __forceinline__ void paired_store(const float (&sum)[P::TILE / 2], float* memory, int image_at, float* out,
                                             long long volume, int channels, PairedRun run, float bias) {
  constexpr int PART = 32, LENGTH = 2 * PART, PARTS = 2 * P::TILE / PART;
  static_assert(P::IMAGES_AT % LENGTH == 0 && P::IMAGE_FLOATS == 8 * LENGTH, "halves of an image differ in one bit");
  // Where result `at` of channel c lies, in bytes. Four results lie as products leave them: first both of one residue.
  // Odd channels have the halves of a part exchanged, so no two writing lanes meet in a bank.
  const auto place_of = [&](int c, int at) {
    const int four = at & (LENGTH - 4), one = (at & 1) << 1 | (at >> 1 & 1);
    return 4 * (image_at + c * LENGTH + ((four | one) ^ (c % 2 * 16)));
  };
  const auto value_at = [&](int place) -> float& {
    return *reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + place);
  };
  const int lane = threadIdx.x % 32;
  const unsigned begin = unsigned(reinterpret_cast<size_t>(out) / 4);
  float* to[8];         // where the lane's value of part 0 goes
  int from[8];          // its place in the image
  unsigned before = 0;  // channels whose value of part 0 lies before the row
#pragma unroll
  for (int c = 0; c < 8; ++c, out += volume) {
    const int at = lane - int(reinterpret_cast<size_t>(out) / 4 % 8);
    to[c] = out + at, from[c] = place_of(c, at);
    before |= (!run.continues && at < 0 ? 1u : 0u) << c;
  }
  const auto inside = [&](int c, int part) {
    const unsigned first = begin + c * unsigned(volume);
    const int at = lane + part * PART - int(first % 8);
    return at < run.end - (run.goes_on ? int((first + run.end) % 8) : 0) && (full || c < channels);
  };
  const_loop<0, PARTS + 1>([&](auto number) {
    constexpr int NUMBER = decltype(number)::value, HALF = NUMBER % 2 * PART;
    if ((!full || NUMBER == PARTS) && NUMBER * PART >= run.end + (run.goes_on ? 0 : 7)) return;
    if constexpr (NUMBER < PARTS) {
#pragma unroll
      for (int i = 0; i < PART / 16; ++i) {
        const int at = 4 * (NUMBER * (PART / 16) + i);
        float4 v = make_float4(sum[at], sum[at + 1], sum[at + 2], sum[at + 3]);
        if constexpr (P::HAS_BIAS) v.x += bias, v.y += bias, v.z += bias, v.w += bias;
        *reinterpret_cast<float4*>(&value_at(place_of(lane / 4, HALF + i * 16 + lane % 4 * 4))) = v;
      }
    }
    __syncwarp();
    float value[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) value[c] = value_at(from[c] ^ 4 * HALF);
#pragma unroll
    for (int c = 0; c < 8; ++c)
      if (((full && NUMBER < PARTS - 1) || inside(c, NUMBER)) && (NUMBER > 0 || (before >> c & 1) == 0))
        __stcs(to[c] + NUMBER * PART, value[c]);
    __syncwarp();
  });
  if (run.goes_on) {  // the values left are moved before the place of the next row
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) value[i] = value_at(place_of(4 * i + lane / 8, run.end - 8 + lane % 8));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) value_at(place_of(4 * i + lane / 8, lane % 8 - 8)) = value[i];
    __syncwarp();
  }
}
