"""A worker process: it reads orders and sends replies, as JSON lines on private descriptors. Everything that may crash, hang
or break a CUDA context runs here.

    python -m workbench.measure.worker KIND REQUEST_FD REPLY_FD      KIND: build | measure
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..core.orders import ORDERS, Order, PingOrder, WarmOrder
from ..core.replies import Alive, Event, Failure
from ..core.typed import Misfit, read, to_json

# The operation of an order -> module and function. Imported at first use, so that a build worker never loads the judge.
OPS = {
    "build": "build.build:build",
    "resources": "build.resources:resources_op",
    "machine_code": "build.machine_code:machine_code_op",
    "device": "device:describe",
    "judge": "kernel.judge:judge",
    "explain": "kernel.explain:explain",
    "profile": "clock.profile:profile",
    "baseline": "pytorch.baselines:measure",
    "compile": "pytorch.baselines:fill_compile_cache",
    "interleave": "kernel.interleave:interleave",
    "ceilings": "clock.ceilings:measure",
    "module": "module.judge_module:judge_module",
    "check": "check.begin:check",
    "inspect": "patching.find:inspect",
    "patch": "patching.compare:patch",
}
# The errors of an operation when the disk is full or gone, or memory is short.
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EFBIG)
RESTART_EXIT_CODE = 75  # a sticky CUDA error: the parent starts a fresh process


def main(argv: list[str]) -> int:
    kind, request_fd, reply_fd = argv[0], int(argv[1]), int(argv[2])
    threading.Thread(target=_die_with_parent, args=(request_fd,), daemon=True).start()
    if "ASAN_OPTIONS" not in os.environ:   # it would take the signal before AddressSanitizer, which names the line
        faulthandler.enable()
    if kind == "build":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # The descriptors of the protocol are private, so that output of a compiler, of a kernel's printf or of a child cannot reach
    # it.
    os.set_inheritable(request_fd, False)
    os.set_inheritable(reply_fd, False)
    return _serve(request_fd, reply_fd)


def _serve(request_fd: int, reply_fd: int) -> int:
    reply_stream = os.fdopen(reply_fd, "w", buffering=1, encoding="utf-8")

    def send(number: int, kind: str, what: object) -> None:
        reply_stream.write(to_json({"id": number, kind: what}) + "\n")
        reply_stream.flush()

    with os.fdopen(request_fd, encoding="utf-8") as requests:
        for line in requests:
            message = json.loads(line)
            number, name = message["id"], message["operation"]
            try:
                if name not in ORDERS:
                    raise ValueError(f"The operation {name!r} is not known.")
                try:
                    order = read(ORDERS[name], message["order"])
                except Misfit as error:
                    raise ValueError(f"The order {name!r} cannot be read: {error}.") from error
                reply = _carry_out(order, lambda event, n=number: send(n, "event", event))
            except Exception as error:  # the boundary of the process: the parent gets it as data
                send(number, "failure", Failure(type(error).__name__, str(error), traceback.format_exc(),
                                                getattr(error, "errno", None) in _REFUSALS))
                continue
            send(number, "reply", reply)
            if getattr(reply, "restart", False):
                return RESTART_EXIT_CODE
    return 0


def _carry_out(order: Order[Any], emit: Callable[[Event], None]) -> object:
    if isinstance(order, WarmOrder):
        for module in order.modules:
            _imported(module)
    if isinstance(order, (PingOrder, WarmOrder)):
        return Alive(os.getpid())
    module, function = OPS[order.operation].split(":")
    return getattr(_imported(module), function)(order, emit)


def _imported(module: str) -> ModuleType:
    """No garbage collection while torch is imported: it would free nothing and take a sixth of the time."""
    gc.disable()
    try:
        return importlib.import_module(f"{__package__}.{module}")
    finally:
        gc.enable()


def _die_with_parent(request_fd: int) -> None:
    """When the parent has died, its end of the pipe is closed: end the whole process group, compilers included.

    PR_SET_PDEATHSIG would not do: it fires when the parent's *thread* ends, and it spares grandchildren.
    """
    hang_up = select.poll()
    hang_up.register(request_fd, 0)
    hang_up.poll()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
