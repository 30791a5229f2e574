"""Worker operation "check": the first foreign processes start before anything else, also before torch is imported here."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ...core.orders import CheckOrder, Emit
from ...core.owned_folder import owned_folder, sweep
from ...core.replies import Checked
from .foreign import confine
from .foreign.confine import Launched

# Further processes with the reference for the timing: one with cudnn.benchmark (on a GPU), one with torch.compile, and one for
# times after the file's process has ended.
OF_TIMES = ("benchmark", "compiler", "spare")
# A text with one of these words is most likely emulated on the CPU, where such a file is not timed.
_OF_CUDA = ("load_inline", "cpp_extension", "triton")
_SCRATCH = "kernel-workbench-check"


@dataclass(frozen=True)
class Begun:
    """The folder of a check, and the processes that have started in it."""

    scratch: Path
    lock: int
    launched: dict[str, Launched] = field(default_factory=dict)

    def end(self) -> None:
        """End what is left of the processes, and remove the folder."""
        for one in self.launched.values():
            one.process.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self.lock)


def check(order: CheckOrder, emit: Emit) -> Checked:
    """Worker operation "check"."""
    confine.adopt_orphans()
    confine.confinement(order.device)  # it raises an error for a wrong setting before anything is created
    temporary = Path(tempfile.gettempdir())
    sweep(temporary.glob(f"{_SCRATCH}.*"))  # files of checks that were killed
    begun = Begun(*owned_folder(temporary, _SCRATCH, mode=0o700))
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        for name in ("reference", "candidate", *_others(order)):
            begun.launched[name] = confine.launch(begun.scratch / name, order.device, order.memory_bytes)
        gc.disable()  # no garbage collection while torch is imported: it would free nothing and take an eighth of the time
        try:
            from . import check_file
        finally:
            gc.enable()
        return check_file.check(order, emit, begun)
    finally:
        begun.end()
        signal.signal(signal.SIGTERM, before)


def _others(order: CheckOrder) -> tuple[str, ...]:
    """The processes of `OF_TIMES` that start at once, because their work takes long. The others start when they are needed."""
    compiled = order.effort != "quick"
    if not order.time:
        return ()
    if order.device != "cpu":
        return tuple(name for name in OF_TIMES if compiled or name != "compiler")
    return ("compiler",) if compiled and not any(word in order.text for word in _OF_CUDA) else ()


def _ended(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)
