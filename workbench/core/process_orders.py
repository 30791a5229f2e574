"""Messages to the two processes that fork others, and messages to and from the process that runs a kernel's host code.

`measure/fork_server` forks workers. `measure/emulator/host_process` forks a process for the host code of each candidate. The
orders to the workers themselves are in `orders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class ForkOrder:
    """Be `python -u -m` these words, in that folder, with these variables and no others."""

    words: tuple[str, ...]
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class LauncherOrder:
    """Load the launcher of one candidate. `arguments`: how many it takes."""

    library: Path
    symbol: str
    arguments: int


@dataclass(frozen=True)
class WorkspaceAsked:
    """How many bytes of workspace does the launcher want? `problem`: the members of `struct Problem`."""

    operation: ClassVar[str] = "workspace"
    problem: tuple[int, ...]


@dataclass(frozen=True)
class LaunchAsked:
    """Launch. `offsets`: where in the shared memory of `size` bytes each tensor begins; None for one that is not there."""

    operation: ClassVar[str] = "launch"
    threads: str                       # their order; "" is the usual one
    environment: dict[str, str]
    problem: tuple[int, ...]
    offsets: tuple[int | None, ...]
    size: int


@dataclass(frozen=True)
class ErrorAsked:
    """What is the latest error of a launch? It is then forgotten."""

    operation: ClassVar[str] = "last_error"


HostAsked = WorkspaceAsked | LaunchAsked | ErrorAsked


@dataclass(frozen=True)
class HostAnswer:
    """`number`: bytes, or a CUDA error code, which `text` explains. `loaded`: the answer to the `LauncherOrder`."""

    number: int = 0
    text: str = ""
    loaded: str = ""                   # "" | "loaded" | "missing" (the symbol) | "not loaded"
