// The end of a strip GEMM on Hopper: sums go to an image in shared memory, from where the copy engine takes each row of
// it to the result, while the warp goes on with the next image or tile. As strip_store.cuh, with these differences:
// - The copy engine wants 16 aligned bytes on both sides. So an image row is shifted as its row of the result is: by
//   0 to 3 values, and by 4 more for each row of the plane before it in the run. What lies before the first 16 aligned
//   bytes and behind the last ones is stored value by value.
// - Values are stored to the image one by one. Neighbouring strips fall into the same banks, so lane t of a quad of
//   lanes stores the values of a quad in another order: i ^ t.
#pragma once
#include "common/bulk_store.cuh"
#include "common/strip_store.cuh"

// Where element 0 of a warp's run would lie in a channel's plane, were all of the run in that row: from row `row0` on.
template <class C>
__device__ __forceinline__ int run_offset(const StripArgumentsOf<C>& a, const StripTile<C>& tile, int along0,
                                          int rows_on) {
  const int column = tile.block * a.columns + along0 - rows_on * a.pitch;
  return rows_on * C::H::OUT_STEP * a.out_w + column * C::W::OUT_STEP - C::W::CUT;
}

// The lane's row of the image: 2 STRIPs of positions. shift: by quad of positions.
template <class C>
__device__ __forceinline__ void fill_shifted(float* row, const StripSums<C>& sum, int m, int half, int t,
                                             const int (&shift)[2][C::STRIP / 4], float bias) {
  const bool odd = t & 1, high = t & 2;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    strip_unrolled<C::STRIP * C::W::OUT_STEP / 4>([&](auto part) {
      constexpr int FIRST = decltype(part)::value * 4, QUAD = FIRST / (4 * C::W::OUT_STEP);
      float v[4];
      strip_unrolled<4>([&](auto which) {
        constexpr int AT = FIRST + decltype(which)::value, J = AT / C::W::OUT_STEP, R = AT % C::W::OUT_STEP;
        if constexpr (C::W::met(R)) {
          v[AT - FIRST] = sum[C::W::class_of(R)][m][J][2 * half + e];
        } else {
          v[AT - FIRST] = 0.0f;
        }
        if constexpr (C::HAS_BIAS) v[AT - FIRST] += bias;
      });
      const float a[4] = {odd ? v[1] : v[0], odd ? v[0] : v[1], odd ? v[3] : v[2], odd ? v[2] : v[3]};
      float* to = row + (2 * t + e) * C::STRIP * C::W::OUT_STEP + shift[e][QUAD] + FIRST;
      to[t] = high ? a[2] : a[0];
      to[t ^ 1] = high ? a[3] : a[1];
      to[t ^ 2] = high ? a[0] : a[2];
      to[t ^ 3] = high ? a[1] : a[3];
    });
}

// images: of this warp, IMAGES of them, used in turn; zeros: an image row of zeros. Lane r + 8 s stores row r of the
// image as far as it lies in the s-th row of the plane that the warp's run meets.
template <class C>
__device__ __forceinline__ void store_tile_in_bulk(const StripArgumentsOf<C>& a, const StripTile<C>& tile,
                                                   const StripSums<C>& sum, int cell, int warp_m, int warp_n, int lane,
                                                   float* images, const float* zeros, bool any, int& image_turn) {
  const int g = lane / 4, t = lane % 4, r = lane % 8, segment = lane / 8;
  const long long plane = 1LL * a.out_h * a.out_w, volume = plane * a.out_d;
  const int channel0 = cell % C::M_TILES * C::TILE_M + warp_m * C::MA * 16;
  const int first = cell / C::M_TILES * C::M;  // of the group
  const int row0 = tile.row * C::H::OUT_STEP + tile.residue_h() - C::H::CUT;
  float* const to = a.out + (tile.n * (C::GROUPS * C::M) + first + channel0) * volume + tile.out_d() * plane +
                    1LL * row0 * a.out_w;
  const int along0 = tile.column + warp_n * C::WARP_COLUMNS;
  const int rows0 = divided(along0, a.by_pitch);

  // What this lane takes out: elements begin to end of the run.
  const int rows_on = rows0 + segment, offset = run_offset<C>(a, tile, along0, rows_on);
  const int w0 = offset - rows_on * C::H::OUT_STEP * a.out_w, row_start = (rows_on * a.pitch - along0) * C::W::OUT_STEP;
  const int h = row0 + rows_on * C::H::OUT_STEP;
  const int begin = max(max(row_start, -w0), 0);
  const int end = min(min(row_start + a.columns * C::W::OUT_STEP, a.out_w - w0), C::IMAGE_WIDTH);
  const int length = unsigned(h) < unsigned(a.out_h) ? max(end - begin, 0) : 0;
  // Alignment of the result's rows, in values: of channel 0 here, and from channel to channel.
  const unsigned base = unsigned(reinterpret_cast<unsigned long long>(to) / 4), by_channel = unsigned(volume);

  // What this lane fills, by quad of positions: alignment in channel 0, and 4 for each row before.
  unsigned in_quad[2][C::STRIP / 4];
  if (any || C::HAS_BIAS) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int q = 0; q < C::STRIP / 4; ++q) {
        const int rows = divided(along0 + (2 * t + e) * C::STRIP + 4 * q, a.by_pitch);
        in_quad[e][q] = (base + unsigned(run_offset<C>(a, tile, along0, rows))) % 4 + 4 * unsigned(rows - rows0);
      }
  }
#pragma unroll
  for (int m = 0; m < C::MA; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = m * 16 + half * 8;
      const float* image = zeros;
      int row_pitch = 0;
      if (any || C::HAS_BIAS) {
        float* const fill = images + image_turn * (8 * C::IMAGE_PITCH);
        image_turn = image_turn + 1 == C::IMAGES ? 0 : image_turn + 1;
        bulk_store_wait_read<C::IMAGES - 1>();
        __syncwarp();
        int shift[2][C::STRIP / 4];
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int q = 0; q < C::STRIP / 4; ++q)
            shift[e][q] = int((in_quad[e][q] + unsigned(channel + g) * by_channel) % 4 + in_quad[e][q] / 4 * 4);
        float bias = 0.0f;
        if constexpr (C::HAS_BIAS)
          if (channel0 + channel + g < C::M) bias = widen(__ldg(a.bias + first + channel0 + channel + g));
        fill_shifted<C>(fill + g * C::IMAGE_PITCH, sum, m, half, t, shift, bias);
        copy_engine_sees_stores();
        __syncwarp();
        image = fill, row_pitch = C::IMAGE_PITCH;
      }
      if (C::M % C::TILE_M == 0 || channel0 + channel + r < C::M) {
        float* const out = to + (channel + r) * volume + offset + begin;
        const int at = int((base + unsigned(channel + r) * by_channel + unsigned(offset)) % 4) + 4 * segment + begin;
        const float* const from = image + r * row_pitch + at;
        const int head = min(-at & 3, length), whole = (length - head) & ~3, tail = length - head - whole;
        if (whole > 0) bulk_store(out + head, from + head, whole * 4);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          if (i < head) __stcs(out + i, from[i]);
          if (i < tail) __stcs(out + head + whole + i, from[head + whole + i]);
        }
      }
      bulk_store_commit();
    }
}
