"""Machine code as data: what nvdisasm of CUDA 13 printed of a small kernel, with its loop, control codes and source lines."""

from __future__ import annotations

import pytest

from workbench.core import sass

LISTING = r"""
_Z4tinyPK6float4Pfi:
.text._Z4tinyPK6float4Pfi:
 //## File "forward/tiny.cu", line 1
        /*0000*/  LDC R1, c[0x0][0x28] ;  /* 0x00000a00ff017b82 */
    /* 0x000fe20000000800 */
 //## File "forward/tiny.cu", line 13
        /*0010*/  S2R R5, SR_TID.X ;  /* 0x0000000000057919 */
    /* 0x000e2e0000002100 */
        /*0020*/  LDC.64 R2, c[0x0][0x218] ;  /* 0x00008600ff027b82 */
    /* 0x000e220000000a00 */
 //## File "forward/tiny.cu", line 5
        /*0030*/  ULDC UR8, c[0x0][0x220] ;  /* 0x0000880000087ab9 */
    /* 0x000fe20000000800 */
        /*0040*/  ULDC.64 UR6, c[0x0][0x208] ;  /* 0x0000820000067ab9 */
    /* 0x000fe20000000a00 */
        /*0050*/  ISETP.LT.AND P0, PT, RZ, UR8, PT ;  /* 0x00000008ff007c0c */
    /* 0x000fda000bf01270 */
        /*0090*/  @!P0 BRA `(.L_x_0) ;  /* 0x00000000005c8947 */
    /* 0x000fec0003800000 */
 //## File "forward/tiny.cu", line 6
.L_x_1:
        /*0150*/  IMAD.WIDE.U32 R8, R19, 0x10, R16 ;  /* 0x0000001013087825 */
    /* 0x004fcc00078e0010 */
        /*0160*/  LDG.E.128 R8, desc[UR6][R8.64] ;  /* 0x0000000608087981 */
    /* 0x000ea2000c1e1d00 */
 //## File "forward/tiny.cu", line 5
        /*0170*/  VIADD R18, R18, 0x1 ;  /* 0x0000000112127836 */
    /* 0x000fe20000000000 */
        /*0180*/  IADD3 R19, R19, 0x20, RZ ;  /* 0x0000002013137810 */
    /* 0x000fc80007ffe0ff */
        /*0190*/  ISETP.GE.AND P0, PT, R18, UR8, PT ;  /* 0x0000000812007c0c */
    /* 0x000fe2000bf06270 */
 //## File "forward/tiny.cu", line 6
        /*01a0*/  STS.128 [R0], R8 ;  /* 0x0000000800007388 */
    /* 0x004fe20000000c00 */
 //## File "forward/tiny.cu", line 7
        /*01b0*/  BAR.SYNC.DEFER_BLOCKING 0x0 ;  /* 0x0000000000007b1d */
    /* 0x000fec0000010000 */
 //## File "forward/tiny.cu", line 10
        /*01c0*/  LDS.128 R12, [R20] ;  /* 0x00000000140c7984 */
    /* 0x000e240000000c00 */
        /*01d0*/  HMMA.1688.F32.TF32 R4, R12, R12, R4 ;  /* 0x0000000c0c04723c */
    /* 0x001fe20000081004 */
 //## File "forward/tiny.cu", line 11
        /*01e0*/  BAR.SYNC.DEFER_BLOCKING 0x0 ;  /* 0x0000000000007b1d */
    /* 0x000fec0000010000 */
        /*01f0*/  NOP ;  /* 0x0000000000007918 */
    /* 0x000fc40000000000 */
 //## File "forward/tiny.cu", line 5
        /*0200*/  @!P0 BRA `(.L_x_1) ;  /* 0xfffffffc00d08947 */
    /* 0x000fde000383ffff */
.L_x_0:
 //## File "forward/tiny.cu", line 13
        /*0210*/  FADD R7, R4, R7 ;  /* 0x0000000704077221 */
    /* 0x000fca0000000000 */
        /*0220*/  STG.E desc[UR6][R2.64], R7 ;  /* 0x0000000702007986 */
    /* 0x000fe2000c101906 */
 //## File "forward/tiny.cu", line 14
        /*0230*/  EXIT ;  /* 0x000000000000794d */
    /* 0x000fea0003800000 */
.L_x_2:
        /*0240*/  BRA `(.L_x_2);  /* 0xfffffffc00fc7947 */
    /* 0x000fc0000383ffff */
"""
LIVE = r"""
.text._Z4tinyPK6float4Pfi:  // |  |  |  |
.L_x_1:  // |  15  |  |  3  |
        /*0150*/  IMAD.WIDE.U32 R8, R19, 0x10, R16 ;  // |  15  |  |  3  |
        /*0160*/  LDG.E.128 R8, desc[UR6][R8.64] ;  // |  17  |  |  3  |
        /*0170*/  VIADD R18, R18, 0x1 ;  // |  17  |  |  3  |
        /*0180*/  IADD3 R19, R19, 0x20, RZ ;  // |  17  |  |  3  |
        /*0190*/  ISETP.GE.AND P0, PT, R18, UR8, PT ;  // |  17  |  1  |  3  |
        /*01a0*/  STS.128 [R0], R8 ;  // |  17  |  1  |  3  |
        /*01b0*/  BAR.SYNC.DEFER_BLOCKING 0x0 ;  // |  13  |  1  |  3  |
        /*01c0*/  LDS.128 R12, [R20] ;  // |  17  |  1  |  3  |
        /*01d0*/  HMMA.1688.F32.TF32 R4, R12, R12, R4 ;  // |  17  |  1  |  3  |
        /*01e0*/  BAR.SYNC.DEFER_BLOCKING 0x0 ;  // |  13  |  1  |  3  |
        /*01f0*/  NOP ;  // |  13  |  1  |  3  |
        /*0200*/  @!P0 BRA `(.L_x_1) ;  // |  13  |  1  |  3  |
.L_x_0:  // |  5  |  |  2  |
        /*0210*/  FADD R7, R4, R7 ;  // |  5  |  |  2  |
        /*0220*/  STG.E desc[UR6][R2.64], R7 ;  // |  4  |  |  2  |
        /*0230*/  EXIT ;  // |  1  |  |  |
"""


@pytest.fixture
def kernel() -> sass.Kernel:
    found, = sass.read(LISTING, LIVE)
    return found


def test_each_instruction_has_its_line_and_the_registers_in_use(kernel) -> None:
    at = {i.address: i for i in kernel.code}
    assert kernel.name == "_Z4tinyPK6float4Pfi"
    product = at[0x1D0]
    assert (product.opcode, product.file, product.line, product.live) == ("HMMA.1688.F32.TF32", "forward/tiny.cu", 10, 17)
    assert at[0x90].opcode == "BRA" and at[0x90].target == 0x210, "a predicate is no opcode"
    assert kernel.most_live.live == 17 and at[0x10].live is None, "the second listing does not have it"


def test_control_codes(kernel) -> None:
    """S2R sets barrier 0 until its result is written and stalls 7; HMMA waits for barrier 0, which LDS.128 has set."""
    at = {i.address: i.control for i in kernel.code}
    assert at[0x10] == sass.Control(stall=7, yields=False, write_barrier=0, read_barrier=None, waits=())
    assert at[0x1C0].write_barrier == 0 and at[0x1D0].waits == (0,) and at[0x1D0].text == "B0-----:R-:W-:-:S01"
    assert at[0x1A0].waits == (2,) and at[0x1A0].text == "B--2---:R-:W-:-:S01"
    assert at[0x50].text == "B------:R-:W-:Y:S13"


def test_the_loop_and_what_it_issues(kernel) -> None:
    loop, = kernel.loops
    assert (loop.first, loop.last, loop.depth, loop.place) == (0x150, 0x200, 1, ("forward/tiny.cu", 5, 11))
    assert loop.counts == {"HMMA.1688.F32.TF32": 1, "LDG.128": 1, "STS.128": 1, "LDS.128": 1, "BAR": 2}
    assert sass.sentence(kernel) == (
        "The main loop issues 1 HMMA.1688.F32.TF32, 2 BAR, 1 LDG.128, 1 LDS.128, 1 STS.128, no local memory; about 2.0 loads "
        "for each product. At most 17 registers are in use, at forward/tiny.cu:6.")
    assert sass.loop_rows(kernel) == [("1", "1", "forward/tiny.cu:5-11", "12",
                                       "1 HMMA.1688.F32.TF32, 2 BAR, 1 LDG.128, 1 LDS.128, 1 STS.128"),
                                      ("–", "0", "outside of loops", "11", "1 STG")], "a store outside of all loops, too"
    first, outside, both = sass.kinds_by_loop(kernel)
    assert (first["loop"], first["source"], first["BAR"], first["STG"], first["other"]) == (
        "1, depth 1", "forward/tiny.cu:5-11", 2, 0, 6)
    assert (outside["loop"], outside["BAR"], outside["STG"], outside["instructions"]) == ("outside of loops", 0, 1, 11)
    assert list(both)[3] == "HMMA.1688.F32.TF32", "products first"
    assert all(both[k] == first[k] + outside[k] for k in both if k not in ("loop", "source"))
    assert sum(n for k, n in both.items() if k not in ("loop", "source", "instructions")) == both["instructions"] == 23


def test_a_sentence_says_how_many_instructions_it_leaves_out() -> None:
    more = "".join(f"        /*01d{n}*/  {code} ;\n" for n, code in zip("89abc", (
        "LDSM.16.M88.4 R4, [R1]", "STS [R1], R2", "LDL R2, [R1]", "STL [R1], R2", "WARPSYNC R1"), strict=True))
    kernel, = sass.read(LISTING.replace("        /*01e0*/", f"{more}        /*01e0*/"))
    assert "1 LDSM, 4 of other kinds, 2 accesses to local memory" in sass.sentence(kernel)
    _, _, both = sass.kinds_by_loop(kernel)
    assert [both[k] for k in ("LDSM", "STS", "LDL", "STL", "WARPSYNC")] == [1] * 5, "no kind is left out"
    assert "LDSM" in sass.loop_rows(kernel)[0][4] and "WARPSYNC" in sass.loop_rows(kernel)[0][4]


def test_an_inner_loop_does_not_count_for_the_outer_one() -> None:
    """A second branch back, around the loop; a branch to itself behind EXIT is none."""
    outer = LISTING.replace("/*0230*/  EXIT ;", "/*0230*/  @P1 BRA `(.L_x_9) ;").replace(
        '        /*0090*/', '.L_x_9:\n        /*0090*/', 1) + "        /*0240*/  BRA `(.L_x_2);"
    kernel, = sass.read(outer)
    first, second = kernel.loops
    assert (first.first, first.last, first.depth) == (0x90, 0x230, 1) and (second.first, second.depth) == (0x150, 2)
    assert first.products == 0 and second.products == 1 and kernel.main_loop is second
    assert {i.address for i in first.own}.isdisjoint(i.address for i in second.own)


def test_the_difference_is_told_by_loop(kernel) -> None:
    twice = "        /*01d8*/  HMMA.1688.F32.TF32 R4, R12, R12, R4 ;\n        /*01dc*/  LDL R9, [R1] ;\n        /*01e0*/"
    other, = sass.read(LISTING.replace("        /*01e0*/", twice).replace("STG.E ", "STG.E.64 "))
    assert sass.differences(kernel, other) == [
        ("loop 1", "HMMA.1688.F32.TF32", 1, 2), ("loop 1", "LDL", 0, 1), ("loop 1", "all instructions", 12, 14),
        ("outside of loops", "STG", 1, 0), ("outside of loops", "STG.64", 0, 1)]
    assert sass.differences(kernel, kernel) == [] and "1 accesses to local memory" not in sass.sentence(kernel)
    assert "1 access to local memory in the kernel" in sass.sentence(other)
