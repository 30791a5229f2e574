"""Whether an unprivileged user can do what a foreign file needs: a process tries it.

    python -m workbench.measure.check.foreign.other_user DEVICE < HANDLE

It imports what `host` imports, writes into its folder, and on a GPU writes to the judge's memory: drivers may refuse CUDA
IPC between two users.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .confine import Start

_LIMIT_S = 180
_BYTES = 256


def words(device: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", f"{__package__}.other_user", device]


def tried(start: Start, device: str) -> str:
    """"" when it could do everything, else what it could not. `start`: arguments of `subprocess.run`."""
    shared, handle = None, b""
    if device != "cpu":
        import torch  # a check starts its processes before
        from torch.multiprocessing.reductions import reduce_tensor
        shared = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
        handle = pickle.dumps(reduce_tensor(shared))
    try:
        done = subprocess.run(**start, input=handle, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:200]
    if shared is not None and int(shared.sum()) != _BYTES:
        return "the other process does not see its writes to shared GPU memory"
    return ""


def main(argv: list[str]) -> int:
    from ..host import host  # noqa: F401  everything a foreign process imports
    Path("tried").write_text("", encoding="utf-8")
    if argv[0] != "cpu":
        import torch
        torch.cuda.set_device(argv[0])
        rebuild, arguments = pickle.loads(sys.stdin.buffer.read())
        rebuild(*arguments).fill_(1)
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
