"""A subset of the matrix under AddressSanitizer, which sees what guard zones cannot: reads beside a tensor.

The tests run this file in a process that has AddressSanitizer loaded: every variant over a few layers; it prints `ran N`.

Usage: python -m tests.kernels.test_asan TEMPLATES FOLDER [VARIANT_KEY | some | every]

A variant that is compiled for each layer runs on one of them, with `every` on all. `some`: every third variant.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.awkward import CASES, FEW
from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import Workload
from workbench.core.variants import TEMPLATES, Variant, discover
from workbench.measure.emulator import ASAN_FLAGS, asan_environment, translate

from .harness import build_emulated, candidate, compile_quickly, label, run

_ROOT = Path(__file__).resolve().parents[2]


def _run(templates: Path, folder: Path, *only: str) -> subprocess.CompletedProcess[str]:
    preload = asan_environment()
    require(preload, "g++ with AddressSanitizer (libasan) was not found")
    return subprocess.run([sys.executable, "-m", "tests.kernels.test_asan", str(templates), str(folder), *only],
                          cwd=_ROOT, env={**os.environ, **(preload or {})}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("which", ["some", pytest.param("every", marks=pytest.mark.long)])
def test_variants_are_clean(which: str, tmp_path: Path) -> None:
    started = time.monotonic()
    done = _run(TEMPLATES, tmp_path, which)
    print(f"\n{done.stdout.strip()} under AddressSanitizer: {time.monotonic() - started:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_a_read_beside_the_input_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    broken = root / "forward/naive_gather.cu"
    text = broken.read_text(encoding="utf-8")
    ends = "tw / layer.stride_w >= sizes.in_w"
    assert ends in text, f"naive_gather.cu no longer contains {ends!r}: name another test to take out"
    broken.write_text(text.replace(ends, "false"), encoding="utf-8")
    done = _run(root, tmp_path / "build", "forward/naive_gather")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


def test_a_misaligned_access_ends_the_process(tmp_path: Path) -> None:
    """In all kernel tests, also without AddressSanitizer; the product names the place (tests/emulator/test_faults.py)."""
    source, library = tmp_path / "wide.cpp", tmp_path / "wide.so"
    source.write_text(translate('extern "C" int wide(const char* at) { return reinterpret_cast<const int4*>(at)->x; }'))
    made = compile_quickly(source, library)
    assert made.returncode == 0, made.stderr
    read = ("import ctypes, sys; buffer = ctypes.create_string_buffer(64); start = -(-ctypes.addressof(buffer) // 16) * 16; "
            f"ctypes.CDLL({str(library)!r}).wide(ctypes.c_void_p(start + int(sys.argv[1])))")
    codes = [subprocess.run([sys.executable, "-c", read, str(beyond)], check=False).returncode for beyond in (0, 4)]
    assert codes == [0, -signal.SIGILL]


def served(variant: Variant, number: int, *, every: bool) -> list[tuple[Candidate, Workload]]:
    """Of a few layers those that the variant serves, else the first of all that it does. The variant's `number` says which it
    gets if it gets one."""
    dtype = variant.dtypes[0]
    one_each = "runtime" not in variant.forms   # each layer is one more instance to compile

    def among(works: Sequence[Workload]) -> list[tuple[Candidate, Workload]]:
        found = [(candidate(variant, work, form=variant.forms[-1]), work) for work in (replace(w, dtype=dtype) for w in works)]
        return [(one, work) for one, work in found if why_not(one, sm=EMULATED_SM) is None]

    found = among(FEW[::4] if one_each else FEW) or among(CASES)[:1]
    return [found[number % len(found)]] if one_each and not every else found


def main(templates: Path, folder: Path, only: str = "") -> int:
    """0 when every run was right; an invalid access ends the process before that, with a report on stderr."""
    chosen = [v for v in discover(templates) if only in ("", "some", "every", v.key)][::3 if only == "some" else 1]
    members = [member for n, variant in enumerate(chosen) for member in served(variant, n, every=only == "every")]
    # A report names lines, and no variables. A function checks each access: g++ takes three quarters of the time.
    flags = (*ASAN_FLAGS, "-g1", "--param", "asan-instrumentation-with-call-threshold=0")
    library = build_emulated(list(dict.fromkeys(one for one, _ in members)), folder, flags=flags)
    wrong = 0
    for one, work in members:
        outcome = run(library, one, work)
        if outcome.status != "OK":
            wrong += 1
            print(one.variant.key, label(work), outcome)
    print(f"ran {len(members)}")
    return 1 if wrong or not members else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
