"""The sandbox of a foreign process: which of bwrap, Landlock and another user work on this machine, and a sentence about it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from . import landlock, seccomp
from .errors import BadRequest

VARIABLE = "KERNEL_WORKBENCH_CONFINE"  # its value: the sandboxes of SANDBOXES that may be used, or "none"; if it is unset, all
SANDBOXES = ("bwrap", "landlock", "user", "seccomp")
# Options that take rights away. Without them root would keep its capabilities and could remount the disk as writable.
BWRAP_TAKES = ("--cap-drop", "ALL", "--unshare-user-try", "--unshare-net", "--unshare-ipc", "--unshare-uts")
_ALONE = "in its own process, with limits of time and memory"


@dataclass(frozen=True)
class Confinement:
    """The sandbox of one process. `sockets`: which sockets were refused: "all", "internet" (with CUDA), or "" (none).
    `own_shm`: the process had its own /dev/shm, without bwrap. `landlock`: the version of Landlock's interface, 0 if it was not
    used. `user`: the number of the other user, 0 if none. `reads`: that user could read everything, because the interpreter
    lies in root's own folder. `why`: why bwrap was not used, and what else was missing."""

    bwrap: bool = False
    landlock: int = 0
    user: int = 0
    reads: bool = False
    sockets: str = ""
    own_shm: bool = False
    why: str = ""

    @property
    def sentence(self) -> str:
        """Which sandbox was used, and what it did not restrict."""
        if self.bwrap:
            return "the file ran in bwrap: no network, own scratch folder, the rest of the disk read-only"
        if not self.landlock and not self.user:
            return f"the file was not confined: {self.why}; it ran with your rights, {_ALONE}{self._no_network}"
        how = " ".join([*(["under Landlock"] if self.landlock else []), *([f"as user {self.user}"] if self.user else [])])
        return f"the file ran {how}: {self.held} ({self.why})"

    @property
    def held(self) -> str:
        """For a process without bwrap: where it could write, and whether it had a network."""
        folders = "its own scratch folder" if self.own_shm else "its own scratch folder and /dev/shm"
        where = f"it could write only to {folders}" if self.landlock else \
            "it could write only to its own scratch folder and to folders open to every user, not to your files"
        if 0 < self.landlock < landlock.HOLDS_TRUNCATION and not self.user:
            where += ", but it could truncate your files"
        if self.sockets:
            return f"{where}{self._no_network}"
        network = "TCP was blocked, other network was not" if self.landlock >= landlock.HOLDS_TCP else \
            "the network was not blocked"
        return f"{where}; {network}"


    @property
    def _no_network(self) -> str:
        return {"": "", "internet": "; it had no network", "all": "; it had no network and no other sockets"}[self.sockets]


def bwrap() -> str:
    """Its path, or ""."""
    return shutil.which("bwrap") or ""


def may_use(way: str) -> str:
    """"" if $KERNEL_WORKBENCH_CONFINE allows this sandbox, else its value. Raises `BadRequest` for an unknown word in it."""
    words = os.environ.get(VARIABLE, "").replace(",", " ").split() or SANDBOXES
    unknown = [w for w in words if w not in (*SANDBOXES, "none")]
    if unknown:
        raise BadRequest(f"{VARIABLE} has {unknown[0]!r}; it takes {', '.join(SANDBOXES)}, or none.")
    return "" if way in words else f"{VARIABLE} is '{' '.join(words)}'"


def bwrap_problem() -> str:
    """"" if bwrap can be used, else the reason."""
    return may_use("bwrap") or _bwrap_tried()


def landlock_problem() -> str:
    """"" if Landlock can be used, else the reason."""
    return may_use("landlock") or landlock.problem()


def seccomp_problem() -> str:
    """"" if sockets and other system calls can be refused, else the reason. seccomp is used together with each of the others.
    """
    return may_use("seccomp") or seccomp.problem()


def user_problem() -> str:
    """"" if the file can run as another user, else the reason. Only root can change its user."""
    return may_use("user") or ("" if os.geteuid() == 0 else "only root can run the file as another user")


@lru_cache(maxsize=1)
def _bwrap_tried() -> str:
    if not bwrap():
        return "bwrap is not installed"
    try:
        tried = subprocess.run([bwrap(), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *BWRAP_TAKES,
                                "--unshare-pid", "true"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not work here ({type(error).__name__})"
    if tried.returncode == 0:
        return ""
    return f"bwrap does not work here ({(tried.stderr.strip().splitlines() or ['it said nothing'])[0][:120]})"
