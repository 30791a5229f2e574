"""Foreign processes that are forked from one that has imported torch already, and what torch imports at its first use: the
imports are most of what a check costs.

The host, its pipes, limits, Landlock, deadlines and deaths are the real ones. A new interpreter and bwrap, which needs one,
are left out: the tests of confinement and of broken files start these.

    python -m tests.check.forked KIND REQUEST_FD REPLY_FD        the worker, whose checks fork them
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # noqa: F401  # torch.autograd.grad imports it, and sympy, at its first call

from workbench.measure import worker
from workbench.measure.check import begin, check_file
from workbench.measure.check.foreign import confine
from workbench.measure.check.foreign.process import ForeignProcess
from workbench.measure.check.host import host


def forked(args: Sequence[str], *, env: Mapping[str, str], preexec_fn: Callable[[], None], pass_fds: Sequence[int],
           **how: Any) -> subprocess.Popen[bytes]:
    """As `subprocess.Popen` for `python -m MODULE ...`, but the module runs in the fork, where it would be replaced."""
    *_, python, option, module, request_fd, reply_fd, device, name = args  # before them may stand bwrap's, which are left out
    assert (python, option, module) == (sys.executable, "-m", host.__package__), args

    def instead_of_exec() -> None:
        preexec_fn()
        _close_all_but(*pass_fds)  # among them the pipe that tells the parent of the exec
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        faulthandler.disable()
        torch.set_num_threads(1)   # threads of an OpenMP pool do not survive a fork
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(os.dup(fd), mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
        sys.stdout.reconfigure(line_buffering=True)
        sys.argv = [module, request_fd, reply_fd, device, name]
        code = 1
        try:
            code = host.main(sys.argv[1:])
        except SystemExit as end:
            code = end.code or 0
        finally:
            os._exit(code)

    return subprocess.Popen(args, env=env, preexec_fn=instead_of_exec, pass_fds=pass_fds, **how)


class ForkedProcess(ForeignProcess):
    _popen = staticmethod(forked)


def _close_all_but(*kept: int) -> None:
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    check_file.ForeignProcess = ForkedProcess
    begin.confine.launch = partial(confine.launch, popen=forked)
    sys.exit(worker.main(sys.argv[1:]))
