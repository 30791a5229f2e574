"""Worker operation "check": the first foreign processes start before anything else, also before torch is imported here."""

from __future__ import annotations

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

# More processes with the reference, to time it: with cudnn.benchmark, with torch.compile, and when the file's process is gone.
OF_A_GPU = ("benchmark", "compiler", "spare")
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
    confine.confinement(order.device)  # it raises for a wrong setting, before anything is made
    temporary = Path(tempfile.gettempdir())
    sweep(temporary.glob(f"{_SCRATCH}.*"))  # of checks that were killed
    begun = Begun(*owned_folder(temporary, _SCRATCH, mode=0o700))
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        others = OF_A_GPU if order.time and order.device != "cpu" else ()
        for name in ("reference", "candidate", *others):
            if name == "compiler" and order.effort == "quick":
                continue
            begun.launched[name] = confine.launch(begun.scratch / name, order.device, order.memory_bytes)
        from . import check_file
        return check_file.check(order, emit, begun)
    finally:
        begun.end()
        signal.signal(signal.SIGTERM, before)


def _ended(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)
