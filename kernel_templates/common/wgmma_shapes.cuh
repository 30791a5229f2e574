// Shapes of wgmma (sm_90a): one struct for each number of columns. Written by pattern: only the register lists differ.
#pragma once
#include "common/problem.cuh"

#ifndef __CUDACPU__

// d[i] is register i of the accumulators: its list of names for the text, its list of operands for the compiler.
#define KW_NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KW_NAMES_1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define KW_NAMES_2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define KW_NAMES_3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define KW_NAMES_4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define KW_NAMES_5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define KW_NAMES_6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define KW_NAMES_7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define KW_NAMES_8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define KW_NAMES_9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define KW_NAMES_10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define KW_NAMES_11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define KW_NAMES_12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define KW_NAMES_13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define KW_NAMES_14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define KW_NAMES_15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define KW_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KW_D8(i) KW_D4(i), KW_D4(i + 4)
#define KW_D32(i) KW_D8(i), KW_D8(i + 8), KW_D8(i + 16), KW_D8(i + 24)

// A and B are descriptors of shared memory, both with K running fastest; `keep` 0 starts the sum anew.
#define KW_WGMMA_TEXT(columns, depth, types, names, a, b, keep, tail)                                       \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k" #depth     \
  ".f32." types " {" names "}, %" #a ", %" #b ", p, 1, 1" tail ";\n}\n"

#define KW_WGMMA_SHAPE(columns, names, a_place, b_place, keep_place, ...)                                            \
  template <>                                                                                                        \
  struct WgmmaShape<columns> {                                                                                       \
    template <Precision precision>                                                                                   \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], unsigned long long a, unsigned long long b, \
                                                 int keep) {                                                         \
      if constexpr (precision == Precision::fp16) {                                                                  \
        asm volatile(KW_WGMMA_TEXT(columns, 16, "f16.f16", names, a_place, b_place, keep_place, ", 0, 0")            \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      } else if constexpr (precision == Precision::bf16) {                                                           \
        asm volatile(KW_WGMMA_TEXT(columns, 16, "bf16.bf16", names, a_place, b_place, keep_place, ", 0, 0")          \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      } else {                                                                                                       \
        asm volatile(KW_WGMMA_TEXT(columns, 8, "tf32.tf32", names, a_place, b_place, keep_place, "")                 \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      }                                                                                                              \
    }                                                                                                                \
  };

template <int columns>
struct WgmmaShape;

KW_WGMMA_SHAPE(8, "%0,%1,%2,%3", 4, 5, 6, KW_D4(0))
KW_WGMMA_SHAPE(16, KW_NAMES_0, 8, 9, 10, KW_D8(0))
KW_WGMMA_SHAPE(24, KW_NAMES_0 "," "%8,%9,%10,%11", 12, 13, 14, KW_D8(0), KW_D4(8))
KW_WGMMA_SHAPE(32, KW_NAMES_0 "," KW_NAMES_1, 16, 17, 18, KW_D8(0), KW_D8(8))
KW_WGMMA_SHAPE(48, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2, 24, 25, 26, KW_D8(0), KW_D8(8), KW_D8(16))
KW_WGMMA_SHAPE(64, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3, 32, 33, 34, KW_D32(0))
KW_WGMMA_SHAPE(96, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5, 48, 49, 50,
               KW_D32(0), KW_D8(32), KW_D8(40))
KW_WGMMA_SHAPE(128, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5 ","
               KW_NAMES_6 "," KW_NAMES_7, 64, 65, 66, KW_D32(0), KW_D32(32))
KW_WGMMA_SHAPE(256, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5 ","
               KW_NAMES_6 "," KW_NAMES_7 "," KW_NAMES_8 "," KW_NAMES_9 "," KW_NAMES_10 "," KW_NAMES_11 "," KW_NAMES_12
               "," KW_NAMES_13 "," KW_NAMES_14 "," KW_NAMES_15, 128, 129, 130, KW_D32(0), KW_D32(32), KW_D32(64),
               KW_D32(96))

#undef KW_WGMMA_SHAPE
#undef KW_WGMMA_TEXT
#endif
