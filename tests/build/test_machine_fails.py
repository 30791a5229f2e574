"""What ends a build and is not the source's fault (a killed compiler, a cache that goes away) is the machine's failure."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.build.sources import ANSWER, TWICE, build_elsewhere, held_source, let_go, request, result_of
from tests.build.test_live_and_killed import WORD, wait_for, wait_until
from tests.shared import require
from workbench.core.env import find_toolchain
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import JudgeOrder, ResourcesOrder
from workbench.measure.build.build import build
from workbench.measure.build.resources import resources_op
from workbench.measure.kernel.judge import judge


def ends_by(name: str, folder: Path, tool: str = "g++") -> Path:
    """A compiler that compiles nothing: it is ended by that signal."""
    real = {"g++": shutil.which("g++"), "nvcc": find_toolchain().nvcc}[tool]
    wrapper = folder / tool
    wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*|*" -cubin "*) kill -{name} $$;; esac\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.mark.parametrize(("name", "sentence"), [
    ("KILL", "g++ was killed (signal 9): out of memory?"), ("TERM", "g++ was ended by signal 15 (SIGTERM) from outside."),
    ("XFSZ", "g++ was ended by signal 25 (SIGXFSZ) from outside.")])
def test_a_compiler_that_is_killed_says_nothing_about_the_source(name: str, sentence: str, cache: Path, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", str(ends_by(name, tmp_path)))
    result = build(request(ANSWER, cache), lambda event: None)
    assert (result.status, result.headline) == ("MACHINE_FAILED", sentence)
    assert "nothing about the kernel" in result.advice
    monkeypatch.delenv("KERNEL_WORKBENCH_CXX")
    assert build(request(ANSWER, cache), lambda event: None).status == "OK"


def test_a_compiler_that_crashes_by_itself_has_refused_the_source(cache: Path, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", str(ends_by("SEGV", tmp_path)))
    assert build(request(ANSWER, cache), lambda event: None).status == "BUILD_FAILED"


@pytest.mark.parametrize("victim", ["cc1plus", "script", "ninja"])
def test_whichever_process_of_a_build_is_killed(victim: str, cache: Path, tmp_path: Path) -> None:
    """cc1plus by the system for want of memory; ninja and the script before the compiler leave no word behind."""
    process = build_elsewhere(request(held_source(tmp_path)[0], cache, log=str(tmp_path / "log")))
    try:
        assert wait_for(WORD, tmp_path / "log")
        assert wait_until(lambda: bool(compiling(process.pid)))
        chain = compiling(process.pid)
        os.kill({"cc1plus": chain[0], "script": chain[2], "ninja": named("ninja", chain)}[victim], signal.SIGKILL)
        result = result_of(process)
    finally:
        process.kill()
    assert result.status == "MACHINE_FAILED", result
    if victim == "cc1plus":
        assert result.headline == "g++ was killed (signal 9): out of memory?"


def test_a_cache_that_is_removed_meanwhile(cache: Path, tmp_path: Path) -> None:
    source, pipe = held_source(tmp_path)
    process = build_elsewhere(request(source, cache, log=str(tmp_path / "log")))
    try:
        assert wait_for(WORD, tmp_path / "log")
        shutil.rmtree(cache)
        let_go(pipe)
        result = result_of(process)
    finally:
        process.kill()
    assert result.status == "MACHINE_FAILED" and str(cache) in result.headline, result


def test_a_killed_batch_is_built_one_by_one(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All together may want more memory than each alone."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) grep -q second main.cpp && grep -q first main.cpp && '
                       f'kill -KILL $$;; esac\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", str(wrapper))
    one, two = (f'extern "C" int {name}() {{ return 1; }}\n' for name in ("first", "second"))
    members = [{"symbol": "first", "source": one}, {"symbol": "second", "source": two}]
    result = build(request(one + two, cache, symbols=["first", "second"], members=members), lambda event: None)
    assert result.status == "MACHINE_FAILED"
    assert {m.status for m in result.members.values()} == {"OK"}


def test_registers_that_a_killed_nvcc_did_not_tell(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(find_toolchain().nvcc, "nvcc")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("CUDA_HOME", str(ends_by("KILL", tmp_path / "bin", "nvcc").parents[1]))
    answer = resources_op(ResourcesOrder(TWICE, ("sm_80",), cache), lambda event: None)
    assert (answer.status, answer.headline) == ("MACHINE_FAILED", "nvcc was killed (signal 9): out of memory?")


def test_a_library_that_is_gone_before_it_is_judged(tmp_path: Path) -> None:
    order = JudgeOrder(tmp_path / "library.so", "kw_forward", "forward", Workload(ConvTranspose(1, 3, 5, 3), 1, (9,)), "cpu",
                       "ieee", scratch=tmp_path)
    result = judge(order, lambda event: None)
    assert result.status == "MACHINE_FAILED" and "the cache was emptied after the build" in result.headline


def compiling(root: int) -> list[int]:
    """From the real compiler upwards: cc1plus, g++, the script before g++, ..., the process that builds."""
    found: dict[int, tuple[str, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            found[int(stat.parent.name)] = (name, int(rest.split()[1]))
    for pid in (p for p, (name, _) in found.items() if name == "cc1plus"):
        chain = [pid]
        while chain[-1] in found and chain[-1] != root:
            chain.append(found[chain[-1]][1])
        if chain[-1] == root:
            return chain
    return []


def named(name: str, chain: list[int]) -> int:
    return next(p for p in chain if Path(f"/proc/{p}/comm").read_text().strip() == name)
