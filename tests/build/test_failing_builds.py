"""Builds that take long, fail or are killed: the log of a running compiler, two builds at once, what a machine may lack
(compilers, ninja, disk), and what is the machine's failure, not the source's."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.build.sources import ANSWER, PROGRAM, ROOT, TWICE, build_elsewhere, held_source, let_go, request, result_of
from tests.shared import require
from workbench.core.env import find_toolchain, ninja_problem, nvcc_problem, torch_info
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import JudgeOrder, ResourcesOrder
from workbench.core.replies import Built
from workbench.core.toolchain import Toolchain
from workbench.core.typed import read, to_json
from workbench.measure.build.build import build
from workbench.measure.build.resources import resources_op
from workbench.measure.kernel.judge import judge

WORD = "the compiler has begun"


def wait_until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def wait_for(text: str, file: Path) -> bool:
    return wait_until(lambda: file.exists() and text in file.read_text(errors="replace"))


def running_on(folder: Path) -> list[str]:
    """Command lines that name `folder`: compilers at work there."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(folder) in line]


def test_a_line_is_in_the_log_while_the_compiler_runs(cache: Path, tmp_path: Path) -> None:
    source, pipe = held_source(tmp_path)
    log = tmp_path / "live.log"
    process = build_elsewhere(request(source, cache, log=str(log)))
    try:
        assert wait_for("$ g++", log), "the command line"
        assert wait_for(WORD, log), "the message"
        assert process.poll() is None and not list(cache.glob("libraries/*/library.so")), "and it compiles still"
        let_go(pipe)
        assert result_of(process).status == "OK"
    finally:
        process.kill()
    assert WORD in next(cache.glob("libraries/*/log.txt")).read_text()


def test_a_killed_build_is_no_hindrance_and_leaves_no_half_library(cache: Path, tmp_path: Path) -> None:
    source, pipe = held_source(tmp_path)
    asked = request(source, cache, symbols=["answer"], log=str(tmp_path / "first.log"))
    process = build_elsewhere(asked)
    assert wait_for(WORD, tmp_path / "first.log")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not running_on(cache)), running_on(cache)
    left = list((cache / "building").iterdir())
    assert len(left) == 1 and (left[0] / "work/lock").exists(), "load_inline's lock, on which it would wait for ever"
    assert not (cache / "libraries").exists()

    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(build, replace(asked, log=tmp_path / "second.log"), lambda event: None)
        assert wait_for(WORD, tmp_path / "second.log"), "it compiles again, and waited for nobody"
        let_go(pipe)
        result = again.result()
    assert (result.status, result.cached) == ("OK", False)
    assert ctypes.CDLL(result.library).answer() == 42
    assert not list((cache / "building").iterdir()), "what the killed build left is gone"


def test_two_builders_of_one_key_both_get_the_one_library(cache: Path, tmp_path: Path) -> None:
    source, pipe = held_source(tmp_path)
    asked = [request(source, cache, symbols=["answer"], log=str(tmp_path / f"{number}.log")) for number in range(2)]
    processes = [build_elsewhere(one) for one in asked]
    assert all(wait_for(WORD, one.log) for one in asked), "both compile"
    let_go(pipe)
    results = [result_of(p) for p in processes]
    assert [r.status for r in results] == ["OK", "OK"]
    assert results[0].library == results[1].library
    assert len(list((cache / "libraries").iterdir())) == 1 and not list((cache / "building").iterdir())
    assert build(asked[0], lambda event: None).cached


def built(cache: Path, **more: object) -> dict[str, object]:
    return build(request(ANSWER, cache, symbols=["answer"], **more), lambda event: None)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    for name in ("CXX", "KERNEL_WORKBENCH_CXX", "KERNEL_WORKBENCH_NINJA"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "only"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_no_compiler(only: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = built(cache)
    assert result.status == "NO_COMPILER"
    assert result.headline == "No C++ compiler was found, so nothing can be built: install g++."
    monkeypatch.undo()
    assert built(cache).status == "OK"


def test_a_compiler_that_is_named_and_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    result = built(cache)
    assert (result.status, result.headline) == (
        "NO_COMPILER", "CXX is 'g++-99', which is not a program here: correct or unset CXX.")


def test_the_named_compiler_is_the_one_that_runs(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "my-g++"
    mine.symlink_to(shutil.which("g++") or "")
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", f"ccache {mine}")
    log = tmp_path / "log"
    result = built(cache, log=str(log))
    assert result.status == "OK" and str(result.compiler).startswith("my-g++ ")
    assert "$ my-g++ " in log.read_text()


def test_no_ninja(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ninja_problem(Toolchain()) == "No ninja was found, so nothing can be built: pip install ninja."
    monkeypatch.setenv("KERNEL_WORKBENCH_NINJA", "/nowhere/ninja")
    result = built(cache)
    assert (result.status, result.headline) == ("NO_COMPILER", "KERNEL_WORKBENCH_NINJA is '/nowhere/ninja', "
                                                      "which is not a program here: correct or unset "
                                                      "KERNEL_WORKBENCH_NINJA.")
    monkeypatch.undo()
    assert built(cache).status == "OK"


def test_ninja_beside_python_serves_when_path_has_none(only: Path, cache: Path) -> None:
    require((Path(sys.prefix) / "bin/ninja").exists(), "pip's ninja")
    for tool in ("g++", "as", "ld", "sh", "mv"):
        (only / tool).symlink_to(shutil.which(tool, path="/usr/bin:/bin") or "")
    result = built(cache)
    assert result.status == "OK", result


def test_nvcc_of_another_major_version() -> None:
    tools = Toolchain(nvcc=Path("/opt/cuda/bin/nvcc"), nvcc_version="12.4.131")
    assert nvcc_problem(tools, "13.0") == ("nvcc 12.4.131 cannot build for this PyTorch, which has CUDA 13.0: install "
                                           "the CUDA toolkit 13 and set CUDA_HOME to it.")
    assert nvcc_problem(tools, "12.8") is None and nvcc_problem(tools, None) is None
    assert nvcc_problem(Toolchain(), "13.0") == (
        "No nvcc was found, so nothing can be built for cuda: install the CUDA toolkit.")


def test_a_torch_without_cuda_cannot_build_for_cuda(cache: Path) -> None:
    if torch_info().cuda:
        pytest.skip(f"this PyTorch has CUDA {torch_info().cuda}")
    result = built(cache, device="cuda", arch="sm_90")
    assert result.status == "NO_COMPILER" and "has no CUDA" in str(result.headline)


def test_a_full_disk_where_the_log_is_written(cache: Path) -> None:
    result = built(cache, log="/dev/full")
    assert result.status == "MACHINE_FAILED"
    assert str(result.headline).startswith("The disk is full: ")
    assert built(cache).status == "OK"


def test_a_full_disk_where_the_compiler_writes(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$@"', str(small)]
    allowed = subprocess.run([*mount, "true"], capture_output=True, check=False).returncode == 0
    if not allowed:
        pytest.skip("this container may not mount a small file system")
    many = "".join(f'extern "C" int f{i}() {{ return {i}; }}\n' for i in range(3000))
    source = tmp_path / "order.json"
    source.write_text(to_json(request(many, small)))
    program = PROGRAM.replace("sys.argv[1]", "open(sys.argv[1]).read()")
    done = subprocess.run([*mount, sys.executable, "-c", program, str(source)], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ}, check=False)
    result = read(Built, json.loads(done.stdout.splitlines()[-1]))
    assert result.status == "MACHINE_FAILED" and result.headline.startswith("The disk is full: "), result


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = built(tmp_path / "file" / "cache")
    assert result.status == "MACHINE_FAILED"
    assert "cannot be written: Not a directory." in str(result.headline)


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
