// Tensor-core products of a warpgroup (wgmma, sm_90a) whose first operand comes from registers. That operand needs no
// descriptor layout in shared memory, and rows of zeros take no memory at all. TF32 only.
#pragma once
#include "hardware/wgmma.cuh"

#ifndef __CUDACPU__
template <int columns>
struct RegisterWgmma;

#define KW_REGISTER_WGMMA(columns, names, a0, a1, a2, a3, b_place, keep_place, ...)                                    \
  template <>                                                                                                          \
  struct RegisterWgmma<columns> {                                                                                      \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], const float (&a)[4], unsigned long long b,   \
                                                 int keep) {                                                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep_place ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
                   "k8.f32.tf32.tf32 {" names "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_place ", p, 1, 1;\n}\n" \
                   : __VA_ARGS__                                                                                       \
                   : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),               \
                     "r"(__float_as_uint(a[3])), "l"(b), "r"(keep));                                                   \
    }                                                                                                                  \
  };
KW_REGISTER_WGMMA(64, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3, 32, 33, 34, 35, 36, 37, KW_D32(0))
KW_REGISTER_WGMMA(128, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5 ","
                  KW_NAMES_6 "," KW_NAMES_7, 64, 65, 66, 67, 68, 69, KW_D32(0), KW_D32(32))
#undef KW_REGISTER_WGMMA
#endif

// d = a * b, plus d unless `keep` is 0, as wgmma(); b by its descriptor. A lane's part of a, with row = lane / 4 of the
// warp's 16 rows and k = lane % 4:  a[0]: (row, k)  a[1]: (row + 8, k)  a[2]: (row, k + 4)  a[3]: (row + 8, k + 4)
// Asynchronous: a, too, belongs to the tensor cores until wgmma_wait().
template <int columns, int registers>
__device__ __forceinline__ void wgmma_from_registers(float (&d)[registers], const float (&a)[4], unsigned long long b,
                                                     int keep) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
#ifdef __CUDACPU__  // the emulator gathers the fragments of the four lanes that hold a row
  ptx_emulation::agree(0, b, keep);
  ptx_emulation::RegisterRows own;
  ptx_emulation::gather_rows(a, own);
  auto load = [](const char* at) -> float {
    return __uint_as_float(__float_as_uint(*reinterpret_cast<const float*>(at)) & 0xFFFFE000u);
  };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>();
  mine.add({d, 0, b, columns, keep, 4, load, mine.committed, true, own});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  RegisterWgmma<columns>::issue(d, a, b, keep);
#else
  __trap();
#endif
}
