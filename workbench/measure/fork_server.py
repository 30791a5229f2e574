"""Starts workers that use no GPU, as forks of one process that has imported torch: the import takes longer than most orders.

    python -u -m workbench.measure.fork_server SOCKET_FD

`drive.machine.forked` is the other side. This process has imported torch and nothing of the judge, so two workers share no
drawn seed. It runs no order and never uses a GPU. Each message is a `ForkOrder` of core/process_orders.py and brings
descriptors: requests, replies, the log, and a channel on which the worker says its number, and this process how it ended.
A worker stays a zombie until its channel is closed, so that no signal to it reaches another process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

_FDS = 4                      # what comes with each message: requests, replies, log, channel
_MOST_BYTES = 1 << 18         # of a message
_AHEAD = ("torch", "torch.utils.cpp_extension")


def main(argv: list[str]) -> NoReturn:
    """Fork a worker for each message, until the one who asks has gone."""
    gc.disable()
    for name in _AHEAD:
        with contextlib.suppress(Exception):  # the worker imports it again and reports the error
            importlib.import_module(name)
    gc.enable()
    gc.freeze()
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    asked = socket.socket(fileno=int(argv[0]))
    workers: dict[int, int] = {}  # channel -> process
    told: set[int] = set()        # channels of those that have ended
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(asked, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 1 << 12)
                _tell({channel: pid for channel, pid in workers.items() if channel not in told}, told)
            elif fd == asked.fileno():
                try:
                    data, fds, _, _ = socket.recv_fds(asked, _MOST_BYTES, _FDS)
                except ConnectionResetError:
                    data = b""
                if not data:
                    os._exit(0)  # what torch does at the end takes long
                channel = fds[-1]
                if not _hung_up(channel):
                    pid = os.fork()
                    if pid == 0:
                        _become(data, fds, [asked.detach(), woken, wakes, *workers])
                    workers[channel] = pid
                    poll.register(channel, 0)
                for other in fds[:-1] if channel in workers else fds:
                    os.close(other)
            else:  # nobody waits for that worker any more
                poll.unregister(fd)
                _end(workers.pop(fd))
                told.discard(fd)
                os.close(fd)


def _tell(workers: dict[int, int], told: set[int]) -> None:
    """Say of each worker that has ended how it did."""
    for channel, pid in workers.items():
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            told.add(channel)
            with contextlib.suppress(OSError):
                os.write(channel, b"ended %d\n" % code)


def _end(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _become(message: bytes, fds: list[int], others: list[int]) -> NoReturn:
    """Be `python -u -m MODULE KIND REQUEST_FD REPLY_FD`, in a session of its own, until the end of this process."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in others:
            os.close(fd)
        requests, replies, log, channel = fds
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(channel, b"began %d\n" % os.getpid())
        os.close(log)
        os.close(channel)
        # Imported only here, because the server itself must not import the workbench.
        from ..core.process_orders import ForkOrder
        from ..core.typed import read
        order = read(ForkOrder, json.loads(message))
        os.chdir(order.folder)
        if not sys.flags.safe_path:
            sys.path[0] = order.folder
        os.environ.clear()
        os.environ.update(order.environment)
        tempfile.tempdir = None  # it depends on an environment variable
        module, kind = order.words
        Path("/proc/self/comm").write_text(f"worker {kind}", encoding="utf-8")  # as `ps` and `top` show it
        sys.argv = [module, kind, str(requests), str(replies)]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _hung_up(channel: int) -> bool:
    poll = select.poll()
    poll.register(channel, 0)
    return bool(poll.poll(0))


if __name__ == "__main__":
    main(sys.argv[1:])
