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
    """Fork a process that runs `python -u -m` with these words, in that folder, with only these environment variables."""

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
    """Ask how many bytes of workspace the launcher needs. `problem`: the members of `struct Problem`."""

    operation: ClassVar[str] = "workspace"
    problem: tuple[int, ...]


@dataclass(frozen=True)
class LaunchAsked:
    """Launch. `offsets`: where each tensor begins in the shared memory of `size` bytes; None for a tensor that the launch does
    not have. `pages`: the parts of the memory (offset and bytes, whole pages) that a kernel may touch; none: all of it.
    `watched`: find bytes that two blocks change."""

    operation: ClassVar[str] = "launch"
    threads: str                       # the order in which blocks run; "" is the usual one
    environment: dict[str, str]
    problem: tuple[int, ...]
    offsets: tuple[int | None, ...]
    size: int
    pages: tuple[tuple[int, int], ...] = ()
    watched: bool = False


@dataclass(frozen=True)
class ErrorAsked:
    """Ask for the latest error of a launch. The answer clears it."""

    operation: ClassVar[str] = "last_error"


HostAsked = WorkspaceAsked | LaunchAsked | ErrorAsked


@dataclass(frozen=True)
class HostAnswer:
    """`number`: bytes, or a CUDA error code, which `text` explains. `loaded`: the answer to the `LauncherOrder`. `fault`:
    what is wrong with an access to the shared memory, and `place`: where (the emulator's device_memory.h has the numbers).
    `allocated`: how many pieces of memory the launcher has allocated and not freed."""

    number: int = 0
    text: str = ""
    fault: int = 0
    place: int = 0
    allocated: int = 0
    loaded: str = ""                   # "" | "loaded" | "missing" (the symbol) | "not loaded"
