"""A build that takes long: its log grows while the compiler runs, it may be killed, and two may race."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.build.sources import build_elsewhere, held_source, let_go, request, result_of
from workbench.measure.build.build import build

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
