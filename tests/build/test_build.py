"""Source to library: what is built, what is taken from the cache, and what an error says."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tests.build.sources import ANSWER, TWICE, request
from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose
from workbench.core.replies import Event, FirstError
from workbench.core.template import render
from workbench.core.variants import find
from workbench.measure.build.build import build


def quiet(event: dict[str, Any]) -> None:
    del event


def test_a_kernel_runs_and_the_second_build_runs_no_compiler(shared_cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "live.log"
    asked = request(TWICE, shared_cache, symbols=["kw_twice"], log=str(log))
    first = build(asked, quiet)
    assert (first.status, first.cached) == ("OK", False), first
    assert log.read_text().count("$ g++") == 2, "one command compiles, one links"

    values, out = (ctypes.c_float * 100)(*range(100)), (ctypes.c_float * 100)()
    assert ctypes.CDLL(first.library).kw_twice(values, out, 100) == 0
    assert list(out) == [2.0 * i for i in range(100)]

    log.unlink()
    again = build(asked, quiet)
    assert (again.status, again.cached, again.library) == ("OK", True, first.library)
    kept = log.read_text()
    assert kept.startswith("# from the cache") and "$ g++" in kept, "the page shows the log of the build that was"


def test_the_shipped_template_builds_and_needs_no_torch_to_load(shared_cache: Path) -> None:
    layer = ConvTranspose(1, 32, 64, (5,), dilation=(3,))
    rendered = render(Candidate(find("naive_gather", "forward"), layer, "float32", {}))
    result = build(request(rendered.source, shared_cache, symbols=["kw_forward", "kw_forward_workspace"]), quiet)
    assert result.status == "OK", result
    assert b"libtorch" not in Path(result.library).read_bytes()
    assert (Path(result.library).with_name("source.cu")).read_text() == rendered.source


def test_foreign_initialisers_do_not_run_where_it_is_built(cache: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = f'#include <cstdio>\nstatic FILE* at_load = std::fopen("{mark}", "w");\n{ANSWER}'
    result = build(request(source, cache, symbols=["answer"]), quiet)
    assert result.status == "OK" and not mark.exists()
    assert ctypes.CDLL(result.library).answer() == 42 and mark.exists()


def test_flags_reach_the_compiler_as_they_are_and_make_another_library(cache: Path, tmp_path: Path) -> None:
    source = 'extern "C" const char* text() { return TEXT; }\n'
    nasty = f"$HOME $$ 'q' ; touch {tmp_path}/harm"
    plain = build(request(source, cache, flags=['-DTEXT="a"']), quiet)
    result = build(request(source, cache, flags=[f'-DTEXT="{nasty}"']), quiet)
    assert plain.status == result.status == "OK", result
    assert plain.key != result.key
    text = ctypes.CDLL(result.library).text
    text.restype = ctypes.c_char_p
    assert text().decode() == nasty and not (tmp_path / "harm").exists()


def test_address_sanitizer_is_another_library(cache: Path) -> None:
    plain, checked = (build(request(ANSWER, cache, sanitize=kind), quiet) for kind in ("", "address"))
    assert plain.key != checked.key
    assert b"__asan_init" in Path(checked.library).read_bytes()
    assert b"__asan_init" not in Path(plain.library).read_bytes()


def test_the_first_error_names_the_line_of_the_template(cache: Path) -> None:
    text = find("naive_gather", "forward").text.splitlines()
    line = next(i for i, s in enumerate(text, 1) if "const int tile =" in s)
    layer = ConvTranspose(1, 4, 4, (3,))
    source = render(Candidate(find("naive_gather", "forward"), layer, "float32", {})).source
    result = build(request(source.replace("const int tile =", "const int tile = smem_w +"), cache), quiet)
    assert result.status == "BUILD_FAILED" and not result.library
    assert result.headline == f"g++ stopped at naive_gather.cu, line {line}: 'smem_w' was not declared."
    assert result.advice == f"Correct line {line}."
    assert result.first_error == FirstError("forward/naive_gather.cu", line, "'smem_w' was not declared")


def test_an_error_inside_a_header_is_told_where_the_template_led_there(cache: Path) -> None:
    source = ('#line 1 "forward/sorted.cu"\n#include <algorithm>\nstruct Pair { int a; };\n'
              "void order(Pair* p) { std::sort(p, p + 2); }\n")
    result = build(request(source, cache), quiet)
    assert result.status == "BUILD_FAILED"
    assert (result.first_error.file, result.first_error.line) == ("forward/sorted.cu", 3), result


def test_a_static_assertion_shows_its_sentence(cache: Path) -> None:
    source = '#line 7 "forward/x.cu"\nstatic_assert(sizeof(int) == 3, "BLOCK is a multiple of 32");\n'
    assert build(request(source, cache), quiet).headline == (
        "g++ stopped at x.cu, line 7: static assertion failed: BLOCK is a multiple of 32.")


@pytest.mark.parametrize(("flags", "said"), [
    (["--no-such-flag"], "unrecognized command-line option '--no-such-flag'"),
    (["-std=c++99"], "unrecognized command-line option '-std=c++99'"),
])
def test_a_wrong_flag_is_the_compilers_own_sentence(cache: Path, flags: list[str], said: str) -> None:
    result = build(request(ANSWER, cache, flags=flags), quiet)
    assert (result.status, result.advice) == ("BUILD_FAILED", "Correct the compile flags.")
    assert result.headline.startswith(f"g++ stopped: {said}"), result


def test_the_linkers_error_is_told(cache: Path) -> None:
    hidden = '__attribute__((visibility("hidden"))) int nowhere();\nextern "C" int f() { return nowhere(); }\n'
    assert build(request(hidden, cache), quiet).headline == "g++ stopped: undefined reference to `nowhere()'."
    placed = build(request(f'#line 5 "forward/x.cu"\n{hidden}', cache, flags=["-g"]), quiet)
    assert placed.headline == "g++ stopped at x.cu, line 6: undefined reference to `nowhere()'."
    assert placed.first_error.file == "forward/x.cu"


def test_the_assemblers_error_is_told(cache: Path) -> None:
    source = '#line 5 "forward/x.cu"\nextern "C" int f() { asm("foo bar"); return 1; }\n'
    result = build(request(source, cache), quiet)
    assert result.headline == "g++ stopped at x.cu, line 5: no such instruction: `foo bar'.", result


def test_a_symbol_that_is_not_there_is_found_before_anyone_calls_it(cache: Path) -> None:
    result = build(request(ANSWER, cache, symbols=["kw_forward"]), quiet)
    assert (result.status, result.headline) == ("BUILD_FAILED", "The library does not export kw_forward.")


def test_a_failed_build_leaves_nothing_and_is_tried_again(cache: Path) -> None:
    assert build(request("int broken(", cache), quiet).status == "BUILD_FAILED"
    assert not list((cache / "building").iterdir())
    assert not (cache / "libraries").exists()
    assert build(request("int broken(", cache), quiet).status == "BUILD_FAILED"


def test_only_the_culprit_of_a_batch_fails(cache: Path, tmp_path: Path) -> None:
    def member(number: int, body: str) -> dict[str, str]:
        return {"symbol": f"kw_forward_{number}",
                "source": f'#line 1 "forward/m{number}.cu"\nextern "C" int kw_forward_{number}() {{ {body} }}\n'}

    members = [member(1, "return 1;"), member(2, "return nope;"), member(3, "return 3;")]
    asked = request("".join(m["source"] for m in members), cache, members=members, log=str(tmp_path / "log"),
                    symbols=[m["symbol"] for m in members])
    events: list[Event] = []
    result = build(asked, events.append)
    assert {s: r.status for s, r in result.members.items()} == {
        "kw_forward_1": "OK", "kw_forward_2": "BUILD_FAILED", "kw_forward_3": "OK"}
    assert result.members["kw_forward_2"].first_error.file == "forward/m2.cu"
    assert ctypes.CDLL(result.members["kw_forward_3"].library).kw_forward_3() == 3
    assert len(events) == 3

    good = [m for m in members if m["symbol"] != "kw_forward_2"]
    whole = build(request("".join(m["source"] for m in good), cache, members=good, symbols=[m["symbol"] for m in good]),
                  events.append)
    assert {r.library for r in whole.members.values()} == {whole.library} and len(events) == 3
