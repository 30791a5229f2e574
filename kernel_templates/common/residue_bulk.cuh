// How a warp of wgmma_residues hands its sums to the copy engine: 8 channels of all cells of a strip lie in an image in
// shared memory as they will in the result, each row shifted so that its first whole sector of 32 bytes is aligned. A
// row then leaves as one bulk copy of whole sectors. Only lanes of one warp meet.
#pragma once
#include "common/bulk_store.cuh"
#include "common/const_loop.cuh"
#include "common/residue_plan.cuh"

// What a warp remembers of its images: where residues without taps lie in them, by lane / 4. They keep what they hold.
template <class P>
struct ResidueImages {
  float* first;
  int filled[P::IMAGES];

  __device__ __forceinline__ explicit ResidueImages(float* memory) : first(memory) {
#pragma unroll
    for (int i = 0; i < P::IMAGES; ++i) filled[i] = -1;
  }
};

// thread -> data: row lane / 4 of the image gets the sums as tensor cores leave them; lane r copies row r.
template <class P>
__device__ __forceinline__ void residue_bulk(const ResidueArguments& a, const float (&sum)[P::CLASSES][P::CELLS / 2],
                                             ResidueImages<P>& images, const float* bias, float* rows, int strip,
                                             int channels, int lane) {
  constexpr int S = P::S, AT = 8;  // where in an image row its first whole sector begins
  const int place = strip * P::STEP * S - P::W::CUT;  // of the strip's first output, in its row
  const bool last = strip + 1 == a.strips;
  const unsigned phase = unsigned(reinterpret_cast<size_t>(rows) / 4), plane = unsigned(a.out_plane);
  const auto skipped_of = [&](int m) { return int(0u - (phase + unsigned(m) * plane + unsigned(place)) & 7u); };
  const_loop<0, 2>([&](auto which) {
    constexpr int HALF = decltype(which)::value, TURN = HALF % P::IMAGES;
    float* const image = images.first + TURN * P::IMAGE;
    const int g = lane / 4, skipped = skipped_of(HALF * 8 + g);
    const float added = P::HAS_BIAS ? bias[HALF * 8 + g] : 0.0f;
    bulk_store_wait_read<P::IMAGES - 1>();
    __syncwarp();
    if constexpr (P::CLASSES < S) {
      const bool other = skipped % S != images.filled[TURN] || (P::HAS_BIAS && P::IMAGES == 1);
      images.filled[TURN] = skipped % S;
      if (__any_sync(~0u, other)) {
        for (int i = lane; i < P::IMAGE / 4; i += 32) {
          const float v = P::HAS_BIAS ? bias[HALF * 8 + i / (P::PITCH / 4)] : 0.0f;
          reinterpret_cast<float4*>(image)[i] = make_float4(v, v, v, v);
        }
        __syncwarp();
      }
    }
    float* const to = image + g * P::PITCH + AT - skipped + lane % 4 * 2 * S;
    const_loop<0, P::CLASSES>([&](auto number) {
      constexpr int C = decltype(number)::value, R = P::residue_of(C);
#pragma unroll
      for (int i = 0; i < P::CELLS / 8; ++i) {
        to[i * 8 * S + R] = sum[C][i * 4 + HALF * 2] + added;
        to[i * 8 * S + S + R] = sum[C][i * 4 + HALF * 2 + 1] + added;
      }
    });
    copy_engine_sees_stores();
    __syncwarp();
    if (lane < 8 && HALF * 8 + lane < channels) {
      float* const row = rows + (HALF * 8 + lane) * a.out_plane;
      const unsigned mine = phase + unsigned(HALF * 8 + lane) * plane;  // alignment of the row
      const auto up = [&](int w) { return w + int(0u - (mine + unsigned(w)) & 7u); };
      const int begin = up(place), end = last ? a.out_w : up(place + P::STEP * S);
      const float* const from = image + lane * P::PITCH + AT - begin;  // from[w] leaves to row[w]
      const int whole = strip == 0 ? up(0) : begin, whole_end = end - int(mine + unsigned(end) & 7u);
      if (whole_end > whole) bulk_store(row + whole, from + whole, (whole_end - whole) * 4);
      if (strip == 0)
        for (int w = 0; w < min(whole, end); ++w) row[w] = from[w];
      if (last)
        for (int w = max(whole, whole_end); w < end; ++w) row[w] = from[w];
    }
    bulk_store_commit();
  });
}
