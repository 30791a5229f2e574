// More shapes of wgmma (sm_90a): every number of columns that hardware/wgmma.cuh leaves out, in the same pattern.
#pragma once
#include "hardware/wgmma.cuh"

#ifndef __CUDACPU__

// The first 4 n registers of the accumulators: their names for the text, the operands for the compiler.
#define KW_TEXT_1 "%0,%1,%2,%3"
#define KW_SUMS_1 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define KW_TEXT_2 KW_TEXT_1 "," "%4,%5,%6,%7"
#define KW_SUMS_2 KW_SUMS_1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define KW_TEXT_3 KW_TEXT_2 "," "%8,%9,%10,%11"
#define KW_SUMS_3 KW_SUMS_2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define KW_TEXT_4 KW_TEXT_3 "," "%12,%13,%14,%15"
#define KW_SUMS_4 KW_SUMS_3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define KW_TEXT_5 KW_TEXT_4 "," "%16,%17,%18,%19"
#define KW_SUMS_5 KW_SUMS_4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define KW_TEXT_6 KW_TEXT_5 "," "%20,%21,%22,%23"
#define KW_SUMS_6 KW_SUMS_5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define KW_TEXT_7 KW_TEXT_6 "," "%24,%25,%26,%27"
#define KW_SUMS_7 KW_SUMS_6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define KW_TEXT_8 KW_TEXT_7 "," "%28,%29,%30,%31"
#define KW_SUMS_8 KW_SUMS_7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define KW_TEXT_9 KW_TEXT_8 "," "%32,%33,%34,%35"
#define KW_SUMS_9 KW_SUMS_8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define KW_TEXT_10 KW_TEXT_9 "," "%36,%37,%38,%39"
#define KW_SUMS_10 KW_SUMS_9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define KW_TEXT_11 KW_TEXT_10 "," "%40,%41,%42,%43"
#define KW_SUMS_11 KW_SUMS_10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define KW_TEXT_12 KW_TEXT_11 "," "%44,%45,%46,%47"
#define KW_SUMS_12 KW_SUMS_11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define KW_TEXT_13 KW_TEXT_12 "," "%48,%49,%50,%51"
#define KW_SUMS_13 KW_SUMS_12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define KW_TEXT_14 KW_TEXT_13 "," "%52,%53,%54,%55"
#define KW_SUMS_14 KW_SUMS_13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define KW_TEXT_15 KW_TEXT_14 "," "%56,%57,%58,%59"
#define KW_SUMS_15 KW_SUMS_14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define KW_TEXT_16 KW_TEXT_15 "," "%60,%61,%62,%63"
#define KW_SUMS_16 KW_SUMS_15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define KW_TEXT_17 KW_TEXT_16 "," "%64,%65,%66,%67"
#define KW_SUMS_17 KW_SUMS_16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define KW_TEXT_18 KW_TEXT_17 "," "%68,%69,%70,%71"
#define KW_SUMS_18 KW_SUMS_17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define KW_TEXT_19 KW_TEXT_18 "," "%72,%73,%74,%75"
#define KW_SUMS_19 KW_SUMS_18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define KW_TEXT_20 KW_TEXT_19 "," "%76,%77,%78,%79"
#define KW_SUMS_20 KW_SUMS_19, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define KW_TEXT_21 KW_TEXT_20 "," "%80,%81,%82,%83"
#define KW_SUMS_21 KW_SUMS_20, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define KW_TEXT_22 KW_TEXT_21 "," "%84,%85,%86,%87"
#define KW_SUMS_22 KW_SUMS_21, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define KW_TEXT_23 KW_TEXT_22 "," "%88,%89,%90,%91"
#define KW_SUMS_23 KW_SUMS_22, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define KW_TEXT_24 KW_TEXT_23 "," "%92,%93,%94,%95"
#define KW_SUMS_24 KW_SUMS_23, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define KW_TEXT_25 KW_TEXT_24 "," "%96,%97,%98,%99"
#define KW_SUMS_25 KW_SUMS_24, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define KW_TEXT_26 KW_TEXT_25 "," "%100,%101,%102,%103"
#define KW_SUMS_26 KW_SUMS_25, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define KW_TEXT_27 KW_TEXT_26 "," "%104,%105,%106,%107"
#define KW_SUMS_27 KW_SUMS_26, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define KW_TEXT_28 KW_TEXT_27 "," "%108,%109,%110,%111"
#define KW_SUMS_28 KW_SUMS_27, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define KW_TEXT_29 KW_TEXT_28 "," "%112,%113,%114,%115"
#define KW_SUMS_29 KW_SUMS_28, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define KW_TEXT_30 KW_TEXT_29 "," "%116,%117,%118,%119"
#define KW_SUMS_30 KW_SUMS_29, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define KW_TEXT_31 KW_TEXT_30 "," "%120,%121,%122,%123"
#define KW_SUMS_31 KW_SUMS_30, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])

#define KW_WGMMA_ISSUE(columns, depth, types, quads, a_place, b_place, keep_place, tail)                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep_place ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns  \
               "k" #depth ".f32." types " {" KW_TEXT_##quads "}, %" #a_place ", %" #b_place ", p, 1, 1" tail ";\n}\n" \
               : KW_SUMS_##quads                                                                                     \
               : "l"(a), "l"(b), "r"(keep))

#define KW_WGMMA_SHAPE(columns, quads, a_place, b_place, keep_place)                                                 \
  template <>                                                                                                        \
  struct WgmmaShape<columns> {                                                                                       \
    template <Precision precision>                                                                                   \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], unsigned long long a, unsigned long long b, \
                                                 int keep) {                                                         \
      if constexpr (precision == Precision::fp16) {                                                                  \
        KW_WGMMA_ISSUE(columns, 16, "f16.f16", quads, a_place, b_place, keep_place, ", 0, 0");                       \
      } else if constexpr (precision == Precision::bf16) {                                                           \
        KW_WGMMA_ISSUE(columns, 16, "bf16.bf16", quads, a_place, b_place, keep_place, ", 0, 0");                     \
      } else {                                                                                                       \
        KW_WGMMA_ISSUE(columns, 8, "tf32.tf32", quads, a_place, b_place, keep_place, "");                            \
      }                                                                                                              \
    }                                                                                                                \
  };

KW_WGMMA_SHAPE(40, 5, 20, 21, 22)
KW_WGMMA_SHAPE(56, 7, 28, 29, 30)
KW_WGMMA_SHAPE(72, 9, 36, 37, 38)
KW_WGMMA_SHAPE(80, 10, 40, 41, 42)
KW_WGMMA_SHAPE(88, 11, 44, 45, 46)
KW_WGMMA_SHAPE(104, 13, 52, 53, 54)
KW_WGMMA_SHAPE(112, 14, 56, 57, 58)
KW_WGMMA_SHAPE(120, 15, 60, 61, 62)
KW_WGMMA_SHAPE(136, 17, 68, 69, 70)
KW_WGMMA_SHAPE(144, 18, 72, 73, 74)
KW_WGMMA_SHAPE(152, 19, 76, 77, 78)
KW_WGMMA_SHAPE(160, 20, 80, 81, 82)
KW_WGMMA_SHAPE(168, 21, 84, 85, 86)
KW_WGMMA_SHAPE(176, 22, 88, 89, 90)
KW_WGMMA_SHAPE(184, 23, 92, 93, 94)
KW_WGMMA_SHAPE(192, 24, 96, 97, 98)
KW_WGMMA_SHAPE(200, 25, 100, 101, 102)
KW_WGMMA_SHAPE(208, 26, 104, 105, 106)
KW_WGMMA_SHAPE(216, 27, 108, 109, 110)
KW_WGMMA_SHAPE(224, 28, 112, 113, 114)
KW_WGMMA_SHAPE(232, 29, 116, 117, 118)
KW_WGMMA_SHAPE(240, 30, 120, 121, 122)
KW_WGMMA_SHAPE(248, 31, 124, 125, 126)

#undef KW_WGMMA_SHAPE
#undef KW_WGMMA_ISSUE
#endif
