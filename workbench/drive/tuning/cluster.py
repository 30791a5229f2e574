"""A tune over a cluster of dask.distributed.

A slot is one GPU of a worker that has the resource "GPU". Slots get the same orders as the measuring processes of this machine.
Each slot has its own process for kernels, so a kernel that hangs or crashes ends that process, not the worker. Workers without
a GPU build. Only this process writes the session, so no trial is lost with a worker or the scheduler.

The first half of this file runs in this process, the second half in the cluster's workers.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ... import __version__
from ...core.env import cache_dir, environment, gpus
from ...core.errors import BadRequest
from ...core.orders import BaselineOrder, BuildOrder, DeviceOrder, InterleaveOrder, JudgeOrder, Order, ResourcesOrder
from ...core.replies import Built, Event
from ...core.trial import Status
from ...core.trial_parts import Environment
from ..machine.daemon_threads import DaemonThreads
from ..machine.device_lock import held
from ..machine.doctor import resolve_device
from ..running.builds import BuildPool
from ..running.worker_process import GONE, WorkerCancelled, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout
from ..running.workers import Workers, device_of
from ..sessions.session import Session
from .feed import EVENT

R = TypeVar("R")
Slot = tuple[str, int]     # address of a worker, number of its GPU
_CONNECT_S = 20.0
_LOOK_S = 0.5              # interval between two looks at the list of workers
_MOST_BUILDERS = 64
_KEPT = 256                # the most libraries from other machines that are kept here; the builder keeps them in its cache


class Gone(RuntimeError):
    """The worker or the scheduler has left the cluster."""


class Cluster:
    """A connection to a scheduler, which is made again if it was lost. Use `joined` to get one."""

    def __init__(self, address: str, *, emulate: bool = False) -> None:
        self.address, self.emulate = address, emulate
        self.wanted = ""                     # the kind of GPU that is used
        self._client = self._connected(_CONNECT_S)
        self._there: dict[str, tuple[int, int]] = {}
        self._looked = 0.0
        self._looking = threading.Lock()
        self.binding = threading.Lock()
        self.bound: dict[Slot, object] = {}
        self.building: dict[str, int] = {}   # address -> number of running builds
        self.unfit: set[str] = set()         # builders without a compiler
        self._own: set[str] = set()          # tokens of the orders that were sent
        self.refused: dict[Slot, str] = {}   # why a slot is not used

    def close(self) -> None:
        with suppress(Exception):            # a lost worker need not be told
            self._client.run(end, frozenset(self._own), workers=list({address for address, _ in self.bound}), on_error="ignore")
        with suppress(Exception):
            self._client.close(timeout=2)

    def workers(self) -> dict[str, tuple[int, int]]:
        """Address -> (number of GPUs, number of threads). Empty while the scheduler does not answer."""
        with self._looking:
            if time.monotonic() - self._looked < _LOOK_S:
                return self._there
            self._there = {}
            with suppress(OSError, ValueError, TypeError):
                if self._client.status == "closed":
                    self._client = self._connected(2.0)
                if self._client.status == "running":
                    # Not Client.scheduler_info: its periodic callback asks for no worker, and may answer in between.
                    found = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
                    self._there = {address: (int(one["resources"].get("GPU", 0)), int(one["nthreads"]))
                                   for address, one in sorted(found.items())}
            for slot in [slot for slot in self.refused if slot[0] not in self._there]:
                del self.refused[slot]
            self._looked = time.monotonic()
            return self._there

    def slots(self) -> list[Slot]:
        return [(address, number) for address, (count, _) in self.workers().items() for number in range(count)]

    def builders(self) -> list[str]:
        """The addresses of workers without a GPU; each address occurs once for each of its threads."""
        return [address for address, (count, threads) in self.workers().items() if not count and address not in self.unfit
                for _ in range(threads)]

    def ask(self, address: str, call: Callable[..., R], *given: object, gpu: bool = False, stop: threading.Event | None = None
            ) -> R:
        """Have a worker call a function of the second half of this file. Raises `Gone`, and `WorkerCancelled` if `stop` is set
        first."""
        client, token = self._client, secrets.token_hex(8)
        self._own.add(token)
        try:
            future = client.submit(call, *given, token, workers=[address], pure=False, retries=0,
                                   key=f"workbench-{token}", resources={"GPU": 1} if gpu else None)
        except Exception as error:           # errors of the client and of its event loop
            raise Gone(f"{type(error).__name__}: {error}") from error
        try:
            while True:
                with suppress(TimeoutError):
                    return future.result(timeout=_LOOK_S)    # type: ignore[no-any-return]  # distributed has no types
                if stop is not None and stop.is_set():
                    client.run(stop_it, token, workers=[address], wait=False)
                    raise WorkerCancelled("The worker was stopped.")
                if client is not self._client or address not in self.workers():
                    raise Gone(f"{address} has left the cluster")
        except (Gone, WorkerCancelled):
            with suppress(Exception):
                future.cancel()
            raise
        except (Exception, CancelledError) as error:
            raise Gone(f"{type(error).__name__}: {error}") from error

    def _connected(self, limit_s: float) -> Any:
        try:
            from distributed import Client
        except ImportError as error:
            raise BadRequest("A cluster needs dask.distributed; install it with: pip install distributed",
                             field="cluster") from error
        for name in ("distributed.client", "distributed.comm", "distributed.core"):
            logging.getLogger(name).setLevel(logging.CRITICAL)     # the workbench's own message says that the scheduler is lost
        try:
            if Path(self.address).is_file():
                return Client(scheduler_file=self.address, timeout=limit_s, set_as_default=False)  # type: ignore[no-untyped-call]
            return Client(self.address, timeout=limit_s, set_as_default=False)  # type: ignore[no-untyped-call]  # as above
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise BadRequest(f"No scheduler of dask answers at {self.address!r}; start one with: dask scheduler",
                             field="cluster") from error


class SlotProcess(WorkerProcess):
    """The measuring process of a slot, with the interface of a local one. If its worker is lost, a free slot of the same kind
    replaces it."""

    def __init__(self, cluster: Cluster, number: int, at: Slot, told: Told) -> None:
        super().__init__("measure", log_path=Path(f"slot-{number}"))
        self.number, self._cluster = number, cluster
        self._at: Slot | None = at
        self._told = told
        cluster.bound[at] = self

    @property
    def environment(self) -> Environment:
        """The environment of the machine of the slot."""
        return {**self._told.environment, "slot": self.number}

    def call(self, order: Order[R], *, limit_s: float, on_event: Callable[[Event], float | None] = lambda event: None,
             stop: threading.Event | None = None) -> R:
        at = self._here(stop)
        try:
            answer = self._cluster.ask(at[0], carry_out, _Job(order, limit_s, self._told.device, _libraries(order)), gpu=True,
                                       stop=stop)
        except Gone:
            with self._cluster.binding:
                self._cluster.bound.pop(at, None)
                self._at = None
            raise WorkerDied(GONE, "") from None
        reply: R = answer.reply()
        return reply

    def _here(self, stop: threading.Event | None) -> Slot:
        """Its slot, or another one if that was lost."""
        cluster = self._cluster
        while self._at is None:
            with cluster.binding:
                at = next((slot for slot in cluster.slots() if slot not in cluster.bound and slot not in cluster.refused), None)
                if at is None:
                    raise WorkerDied(GONE, "")
                cluster.bound[at] = self
            told = asked_of(cluster, at, stop)
            if told is not None and told.key == cluster.wanted:
                self._at, self._told = at, told
            else:
                cluster.refused.setdefault(at, "a worker with another kind of GPU")
                cluster.bound.pop(at, None)
        return self._at


class Builder(WorkerProcess):
    """Builds on the worker with the fewest builds per thread. If there is no such worker, it builds on this machine."""

    def __init__(self, cluster: Cluster, folder: Path, number: int, kept: deque[Path]) -> None:
        super().__init__("build", log_path=folder / f"build-worker-{number}.log")
        self._cluster, self._folder, self._kept = cluster, folder, kept

    def call(self, order: Order[R], *, limit_s: float, on_event: Callable[[Event], float | None] = lambda event: None,
             stop: threading.Event | None = None) -> R:
        cluster, there = self._cluster, self._cluster.builders()
        if not there:
            return super().call(order, limit_s=limit_s, on_event=on_event, stop=stop)
        with cluster.binding:
            address = min(there, key=lambda one: cluster.building.get(one, 0) / there.count(one))
            cluster.building[address] = cluster.building.get(address, 0) + 1
        try:
            answer = cluster.ask(address, carry_out, _Job(order, limit_s, "", {}), stop=stop)
        except Gone:
            return super().call(order, limit_s=limit_s, on_event=on_event, stop=stop)
        finally:
            cluster.building[address] -= 1
        if getattr(answer.found, "status", None) == Status.NO_COMPILER:
            cluster.unfit.add(address)
            return super().call(order, limit_s=limit_s, on_event=on_event, stop=stop)
        if isinstance(order, BuildOrder) and order.log and answer.log:
            with order.log.open("a", encoding="utf-8") as log:
                log.write(answer.log)
        reply: Any = answer.reply()
        return self._local(reply, answer.files) if isinstance(reply, Built) else reply  # type: ignore[return-value]  # a Built is R

    def ask_ahead(self, order: Order[Any]) -> None:
        """Does nothing: the processes of the cluster have imported torch already."""

    def _local(self, built: Built, files: dict[str, bytes]) -> Built:
        """The same build, with its libraries on this machine."""
        library = built.library
        if library in files:
            path = self._folder / f"built-{secrets.token_hex(8)}.so"
            path.write_bytes(files[library])
            path.chmod(0o755)
            library = str(path)
            self._kept.append(path)
            while len(self._kept) > _KEPT:
                self._kept.popleft().unlink(missing_ok=True)
        members = {symbol: self._local(member, files) for symbol, member in built.members.items()}
        return replace(built, library=library, members=members)


@dataclass(frozen=True)
class Joined:
    """`places`: the places for a run. `notes`: sentences for the report about slots that are not used."""

    places: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def device(self) -> str:
        """The device of the first slot, "cpu" or "cuda:0"; "" without a cluster."""
        return device_of(self.places[0]) if self.places else ""


@contextmanager
def joined(workers: Workers, address: str, *, prefer: str = "", emulate: bool = False) -> Iterator[Joined]:
    """Adds the slots of a cluster to these workers as places, and replaces their pool by the cluster's builders. Only slots
    with one kind of GPU are used: that of the first slot, or the one with the key `prefer`, which an earlier run of the tune
    used. `emulate`: use the CPUs of these machines, not the GPUs. Raises `BadRequest` if there is no slot."""
    with ExitStack() as stack:
        cluster = Cluster(address, emulate=emulate)
        stack.callback(cluster.close)
        slots = cluster.slots()
        with DaemonThreads(max(1, len(slots))) as threads:
            asked = {slot: threads.submit(asked_of, cluster, slot) for slot in slots}
            told = {slot: one for slot, future in asked.items() if (one := future.result())}
        if not told:
            why = "; ".join(dict.fromkeys(cluster.refused.values()))
            raise BadRequest(f"The cluster at {address} has no worker with a GPU that can be used{': ' + why if why else ''}. "
                             "Start one with: dask worker ADDRESS --nthreads 1 --resources GPU=1", field="cluster")
        first = next((one for one in told.values() if one.key == prefer), next(iter(told.values())))
        cluster.wanted = first.key
        places: list[str] = []
        for slot, one in told.items():
            if one.key == first.key:
                number = len(places) + 1
                place = f"{device_word(one)}@{number}"
                workers.put(place, SlotProcess(cluster, number, slot, one))
                stack.callback(workers.drop, place)
                places.append(place)
        if size := min(_MOST_BUILDERS, len(cluster.builders())):
            kept: deque[Path] = deque()
            pool = BuildPool(workers.scratch, workers=[Builder(cluster, workers.scratch, n, kept) for n in range(size)])
            stack.callback(setattr, workers, "pool", workers.pool)
            stack.callback(pool.close)
            workers.pool = pool
        yield Joined(tuple(places), tuple(_notes(cluster, told.values(), first)))


def places_of(address: str, workers: Workers, session: Session | None = None, device: str = "auto"
              ) -> AbstractContextManager[Joined]:
    """The slots of a cluster for a tune; none without an address. `session`: that of a tune to continue. Raises `BadRequest`,
    for example if the tune ran on a cluster with another kind of GPU than this machine's and no address is given."""
    asked = [event for event in session.events() if event.get("event") == EVENT] if session else []
    kind = str(asked[-1].get("cluster") or "") if asked else ""
    device = str(asked[-1].get("request", {}).get("device")) if asked else device
    if session and kind and not address and workers.device(resolve_device(device)).key != kind:
        raise BadRequest(f"The tune of session {session.name} ran on a cluster of another kind of GPU; give its address: "
                         "--cluster ADDRESS.", field="cluster")
    if address and device not in ("auto", "cpu"):
        raise BadRequest("With a cluster its own GPUs are used: leave out the device, or give cpu to emulate.", field="cluster")
    return joined(workers, address, prefer=kind, emulate=device == "cpu") if address else nullcontext(Joined((), ()))


def _notes(cluster: Cluster, told: Iterator[Told] | Any, first: Told) -> list[str]:
    others: dict[str, int] = {}
    for one in told:
        if one.key != first.key:
            others[one.name] = others.get(one.name, 0) + 1
    found = [f"Not used: {count} of the cluster's GPUs, {name}. Their times cannot be compared with those of {first.name}."
             for name, count in others.items()]
    return [*found, *(f"Not used: {why}." for why in dict.fromkeys(cluster.refused.values()))]


def asked_of(cluster: Cluster, slot: Slot, stop: threading.Event | None = None) -> Told | None:
    """The description of a slot. None if it cannot be used; `cluster.refused` then says why."""
    try:
        told = cluster.ask(slot[0], describe, slot[1], cluster.emulate, gpu=True, stop=stop)
    except Gone as error:
        cluster.refused[slot] = f"a worker that does not answer ({error})"
        return None
    if told.version != __version__ or told.wrong:
        cluster.refused[slot] = told.wrong or f"a worker with kernel-workbench {told.version}; here it is {__version__}"
        return None
    return told


def device_word(told: Told) -> str:
    return told.device.partition("#")[0]


def _libraries(order: object) -> dict[str, bytes]:
    """The files that an order names."""
    if isinstance(order, JudgeOrder):
        return {str(order.library): order.library.read_bytes()}
    if isinstance(order, InterleaveOrder):
        return {**_libraries(order.ours), **_libraries(order.theirs)}
    return {}


# -- in a worker of the cluster --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The description that a slot sends. `wrong`: why it cannot be used."""

    device: str
    version: str
    key: str = ""
    name: str = ""
    environment: Environment | Any = None
    wrong: str = ""


@dataclass(frozen=True)
class _Job:
    """An order, its limit, its device ("" for a build), and the libraries that it names."""

    order: Order[Any]
    limit_s: float
    device: str
    libraries: dict[str, bytes]


@dataclass(frozen=True)
class _Answer:
    """A reply, or the error of the process: its type and its arguments."""

    found: Any = None
    error: type[Exception] | None = None
    parts: tuple[Any, ...] = ()
    named: dict[str, bool] | Any = None
    files: dict[str, bytes] | Any = None     # path -> bytes of libraries
    log: str = ""

    def reply(self) -> Any:
        if self.error is not None:
            raise self.error(*self.parts, **(self.named or {}))
        return self.found


_beginning = threading.Lock()
_own: list[Workers] = []
_stops: dict[str, threading.Event] = {}


def describe(number: int, emulate: bool, token: str) -> Told:
    """Describe the GPU of this number on this machine. With `emulate`, or without a GPU, it describes the CPU."""
    try:
        device = resolve_device(f"cuda:{number}") if gpus() and not emulate else f"cpu#{number}" if number else "cpu"
        found = _workers().measure(device).call(DeviceOrder(device.partition("#")[0]), limit_s=120)
    except (BadRequest, WorkerDied, WorkerFailed, WorkerTimeout) as error:
        return Told("", __version__, wrong=f"a worker whose GPU does not work: {error}")
    return Told(device, __version__, found.key, found.name, environment())


def carry_out(job: _Job, token: str) -> _Answer:
    """Have an order carried out in a disposable process of this machine."""
    workers, stop = _workers(), _stops.setdefault(token, threading.Event())
    order, log = job.order, workers.scratch / f"{token}.log"
    # in a folder only for this job, because another slot may have loaded the same library
    libraries = {path: workers.scratch / f"{token}-{number}.so" for number, path in enumerate(job.libraries)}
    try:
        for path, data in job.libraries.items():
            libraries[path].write_bytes(data)
        device = job.device.partition("#")[0]
        order = _of_here(order, device, workers.scratch, libraries, log)
        with ExitStack() as stack:
            if job.device:
                stack.enter_context(held(device))
                call = workers.measure(job.device).call
            else:
                call = workers.pool.call
            reply = call(order, limit_s=job.limit_s, on_event=lambda event: job.limit_s, stop=stop)
        files = {path: Path(path).read_bytes() for path in _built(reply)} if isinstance(reply, Built) else {}
        return _Answer(reply, files=files, log=log.read_text(errors="replace") if log.is_file() else "")
    except WorkerDied as error:
        return _Answer(error=WorkerDied, parts=(error.how, error.log))
    except WorkerTimeout as error:
        return _Answer(error=WorkerTimeout, parts=(error.limit_s, error.log))
    except WorkerCancelled as error:
        return _Answer(error=WorkerCancelled, parts=(str(error),))
    except WorkerFailed as error:
        return _Answer(error=WorkerFailed, parts=(str(error), error.trace),
                       named={"bad_request": error.bad_request, "machine": error.machine})
    except OSError as error:
        return _Answer(error=WorkerFailed, parts=(f"OSError: {error}", ""), named={"machine": True})
    finally:
        _stops.pop(token, None)
        for file in (log, *libraries.values()):
            file.unlink(missing_ok=True)


def stop_it(token: str) -> None:
    """Kill the process that carries out this order."""
    if stop := _stops.get(token):
        stop.set()


def end(own: frozenset[str] = frozenset()) -> None:
    """End this worker's processes after a tune. `own`: the tokens of its orders. The processes stay if another tune still uses
    them."""
    with _beginning:
        while _own and not set(_stops) - own:
            _own.pop().close()


def _workers() -> Workers:
    """The processes of this worker of the cluster."""
    with _beginning:
        if not _own:
            _own.append(Workers())
            atexit.register(end)
        return _own[0]


def _of_here(order: Any, device: str, scratch: Path, libraries: dict[str, Path], log: Path) -> Any:
    """The order with this machine's paths and device."""
    if isinstance(order, JudgeOrder):
        return replace(order, library=libraries[str(order.library)], scratch=scratch, device=device)
    if isinstance(order, InterleaveOrder):
        return replace(order, ours=_of_here(order.ours, device, scratch, libraries, log),
                       theirs=_of_here(order.theirs, device, scratch, libraries, log))
    if isinstance(order, BuildOrder):
        return replace(order, cache=cache_dir(), log=log)
    if isinstance(order, ResourcesOrder):
        return replace(order, cache=cache_dir())
    if isinstance(order, BaselineOrder):
        return replace(order, scratch=scratch, device=device)
    return replace(order, device=device) if hasattr(order, "device") else order


def _built(built: Built) -> Sequence[str]:
    """The paths of the libraries of a build."""
    return [path for one in (built, *built.members.values()) if (path := one.library)]
