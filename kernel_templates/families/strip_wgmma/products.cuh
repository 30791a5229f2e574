// The walk over tiles, and how sums are added: for packed_wgmma and strip_wgmma.
#pragma once
#include "families/strip_wgmma/plan.cuh"
#include "hardware/wgmma.cuh"
#include "hardware/wgmma_more_shapes.cuh"

// A tile of U: row (n, d, h), tile w of it. h runs fastest.
struct TileWalk {
  long long n, left;  // left: tiles of the share from here on
  int d, h, w, u_d, u_h;
  TileWalk() = default;
  __device__ TileWalk(const Sizes& sizes, bool u_is_gy, long long tile, long long end, int row_tiles)
      : left(end - tile), u_d(u_is_gy ? sizes.out_d : sizes.in_d), u_h(u_is_gy ? sizes.out_h : sizes.in_h) {
    h = int(tile % u_h);
    w = int(tile / u_h % row_tiles);
    d = int(tile / u_h / row_tiles % u_d);
    n = tile / u_h / row_tiles / u_d;
  }
  __device__ __forceinline__ void advance(int row_tiles) {
    --left;
    if (++h < u_h) return;
    h = 0;
    if (++w < row_tiles) return;
    w = 0;
    if (++d < u_d) return;
    d = 0;
    ++n;
  }
};

// *to += more, as one piece of assembly. Otherwise the compiler loads many values ahead into registers, which the sums
// already fill.
__device__ __forceinline__ void add_in_memory(float4* to, const float4& more) {
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
