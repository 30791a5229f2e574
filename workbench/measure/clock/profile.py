"""What Nsight Compute counts of one launch: `ncu` starts this module as its own process, which launches the candidate.

    ncu OPTIONS python -m workbench.measure.clock.profile ORDER WORKER     ORDER: a file; WORKER: the process that asked
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import torch

from ...core.orders import Emit, JudgeOrder, ProfileOrder
from ...core.plain_text import plain
from ...core.profile import ASKED, KernelCounters, read_csv
from ...core.replies import Event, Profiled
from ...core.typed import read, to_json
from ..build.resources import short_name
from ..kernel.findings import Finding
from ..kernel.inputs import NORMAL
from ..kernel.judge import open_stage

_NOT_PERMITTED = ("The driver does not permit this user to read the GPU's counters (ERR_NVGPUCTRPERM). An administrator can "
                  "permit it: the option NVreg_RestrictProfilingToAdminUsers=0 of the module nvidia; in a container SYS_ADMIN.")
_FAILED = "The launch under ncu failed: "
_MOST_SAID = 240


def profile(order: ProfileOrder, emit: Emit) -> Profiled:
    """Worker operation "profile". Nothing that ncu does is an error here: it counted, or a sentence says why not."""
    emit(Event("profile", "ncu counts"))
    order.of.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profile-", dir=order.of.scratch) as place:
        folder = Path(place)
        (folder / "order.json").write_text(to_json(order.of), encoding="utf-8")
        log = folder / "ncu.csv"   # the candidate may print, too
        try:
            done = subprocess.run([*_command(order, log), sys.executable, "-m", __name__, str(folder / "order.json"),
                                   str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                                  env={**os.environ, "TMPDIR": place, "LC_ALL": "C"})  # its lock file may be another user's
        except OSError as error:
            return Profiled(why_not=f"{order.ncu} cannot be started: {error.strerror}.")
        said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    kernels = tuple(_shortened(k) for k in read_csv(said) if k.values)
    if why := _why_not(f"{done.stdout}\n{said}", done.returncode, any_counted=bool(kernels)):
        return Profiled(why_not=why)
    return Profiled(kernels, version=_version(order.ncu))


def main(argv: list[str]) -> int:
    """The process that ncu watches: it counts the launch between the profiler's start and stop alone."""
    threading.Thread(target=_die_with, args=(int(argv[1]),), daemon=True).start()
    order = read(JudgeOrder, json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    cuda = order.device != "cpu"
    if cuda:
        torch.cuda.set_device(order.device)
    try:
        stage = open_stage(order)
        stage.fill(NORMAL)
        stage.run()                      # the module is loaded, and memory is there
        if cuda:
            torch.cuda.cudart().cudaProfilerStart()
        stage.run()
        if cuda:
            torch.cuda.cudart().cudaProfilerStop()
    except Finding as finding:
        print(f"{_FAILED}{finding.headline}")
        return 3
    return 0


def _command(order: ProfileOrder, log: Path) -> list[str]:
    return [str(order.ncu), "--csv", "--page", "raw", "--print-units", "base", "--metrics", ASKED, "--clock-control", "none",
            "--cache-control", "all" if order.of.cold_l2 else "none", "--profile-from-start", "off",
            "--launch-count", str(order.launches), "--log-file", str(log)]


def _why_not(text: str, code: int, *, any_counted: bool) -> str:
    """Why there are no counters, as a sentence; "" where there are."""
    if "ERR_NVGPUCTRPERM" in text:
        return _NOT_PERMITTED
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if failed := next((line for line in lines if line.startswith(_FAILED)), ""):
        return plain(failed)[:_MOST_SAID]
    if code == 0:
        return "" if any_counted else "ncu counted no kernel of the launch."
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    told = next((line for line in lines if line.startswith("==ERROR==")), next(
        (line for line in reversed(lines) if not line.startswith(("==PROF==", '"'))), ""))
    words = plain(told.removeprefix("==ERROR==").strip().rstrip("."))[:_MOST_SAID]
    return f"ncu ended with {how}{f': {words}' if words else ''}."


def _shortened(kernel: KernelCounters) -> KernelCounters:
    """ncu writes `pack<(int)4>(Sizes)`, nvcc `pack<4>`."""
    return replace(kernel, name=short_name(re.sub(r"\((?:unsigned )?(?:int|bool|long)\)(?=\d)", "", kernel.name)))


def _version(ncu: Path) -> str:
    said = subprocess.run([str(ncu), "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          check=False).stdout
    found = re.search(r"Version (\d[\d.]*)", said)
    return found[1] if found else ""


def _die_with(worker: int) -> None:
    """ncu may give this process a group of its own, so that the end of the worker's group would leave it."""
    try:
        ended = os.pidfd_open(worker)
    except ProcessLookupError:
        os._exit(1)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
