"""The child side of isolation: JSON lines in, JSON lines out, on private descriptors. Everything that may crash,
hang or poison a CUDA context happens here.

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

# op -> where it lives. Imported at first use, so that a build worker never loads the judge.
OPS = {
    "build": "build.build:build",
    "resources": "build.resources:resources_op",
    "device": "device:describe",
    "judge": "kernel.judge:judge",
    "baseline": "pytorch.baselines:measure",
    "compare": "kernel.interleave:compare",
    "ceilings": "clock.ceilings:measure",
    "module": "module.judge:judge_module",
    "verify_export": "module.judge:verify_export",
    "check": "check.judge:check",
}
# What a full or vanished disk, or too little memory, makes of an operation.
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EFBIG)
RESTART_EXIT_CODE = 75  # a sticky CUDA error: the parent starts a fresh process


def main(argv: list[str]) -> int:
    kind, request_fd, reply_fd = argv[0], int(argv[1]), int(argv[2])
    threading.Thread(target=_die_with_parent, args=(request_fd,), daemon=True).start()
    faulthandler.enable()
    if kind == "build":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Nothing a compiler, a kernel's printf or a child prints can reach the protocol: the descriptors are private.
    os.set_inheritable(request_fd, False)
    os.set_inheritable(reply_fd, False)
    return _serve(request_fd, reply_fd)


def _serve(request_fd: int, reply_fd: int) -> int:
    reply_stream = os.fdopen(reply_fd, "w", buffering=1, encoding="utf-8")

    def send(message: dict[str, Any]) -> None:
        reply_stream.write(json.dumps(message) + "\n")
        reply_stream.flush()

    with os.fdopen(request_fd, encoding="utf-8") as requests:
        for line in requests:
            request = json.loads(line)
            number = request["id"]
            try:
                result = _operation(request["op"])(request, lambda event, n=number: send({"id": n, "event": event}))
            except Exception as error:  # the boundary of the process: the parent gets it as data
                send({"id": number, "error": {"type": type(error).__name__, "message": str(error),
                                              "trace": traceback.format_exc(),
                                              "machine": getattr(error, "errno", None) in _REFUSALS}})
                continue
            send({"id": number, "result": result})
            if result.get("restart"):
                return RESTART_EXIT_CODE
    return 0


def _operation(name: str) -> Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], dict[str, Any]]:
    if name == "ping":
        return lambda request, emit: {"pid": os.getpid()}
    if name == "warm":
        return _warm
    module, function = OPS[name].split(":")
    return getattr(_imported(module), function)


def _warm(request: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Pay the import of torch before the first trial does."""
    for module in request["modules"]:
        _imported(module)
    return {"pid": os.getpid()}


def _imported(module: str) -> ModuleType:
    """Nothing that an import of torch makes is garbage; to look for some takes a sixth of its time."""
    gc.disable()
    try:
        return importlib.import_module(f"{__package__}.{module}")
    finally:
        gc.enable()


def _die_with_parent(request_fd: int) -> None:
    """When the parent is gone its end of the pipe hangs up: end the whole group, compilers included.

    PR_SET_PDEATHSIG would not do: it fires when the parent's *thread* ends, and it spares grandchildren.
    """
    hang_up = select.poll()
    hang_up.register(request_fd, 0)
    hang_up.poll()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
