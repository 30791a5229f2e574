"""A tune over a real cluster of this machine: a scheduler, workers that stand for GPUs, one that builds. A worker is killed,
and the scheduler is started again. No trial is lost and none runs twice."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from workbench.core.orders import JudgeOrder
from workbench.core.replies import Judged
from workbench.core.template import render
from workbench.core.trial import Status
from workbench.drive.running.execution import DeviceLost, Execution
from workbench.drive.running.request import Row, Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.cluster import Cluster, _Job, _libraries, carry_out, end, joined
from workbench.drive.tuning.feed import EVENT, TuneRequest
from workbench.drive.tuning.space import TuneSpace
from workbench.drive.tuning.tune import tune
from workbench.faces import exit_codes

from ..cli.test_cli import cli
from ..drive.conftest import until
from ..shared import require
from .test_processes import LAYER, NAIVE, of_the_search, started
from .test_tune import CPU, RECORDED, WORK

ROOT = Path(__file__).resolve().parents[2]
REQUEST = TuneRequest(WORK, ("forward",), baselines=False, variants=("naive_gather",), trials=10)


class Machines:
    """The processes of a cluster, each as its command starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._all = folder, list[subprocess.Popen[bytes]]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self._port}"
        self.scheduler = self.schedule()

    def schedule(self) -> subprocess.Popen[bytes]:
        self.scheduler = self._started("scheduler", "--host", "127.0.0.1", "--port", str(self._port))
        return self.scheduler

    def gpu(self, *before: str) -> subprocess.Popen[bytes]:
        return self.worker("--nthreads", "1", "--resources", "GPU=1", before=before)

    def worker(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        return self._started("worker", self.address, "--no-nanny", "--local-directory", str(self.folder), *words, before=before)

    def there(self, count: int) -> None:
        """Wait until so many workers are."""
        cluster = Cluster(self.address)
        until(lambda: len(cluster.workers()) == count)
        cluster.close()

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()

    def _started(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            self._all.append(subprocess.Popen([*before, sys.executable, "-m", "dask", *words, "--no-dashboard"], cwd=ROOT,
                                              stdout=log, stderr=log))
        return self._all[-1]


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    require(importlib.util.find_spec("distributed"), "dask.distributed is not installed")
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path / "locks"))
    there = Machines(tmp_path)
    yield there
    there.end()


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    thread = Thread(target=act)
    thread.start()
    yield
    thread.join()


def slots(session: Session) -> set[object]:
    return {t.environment.get("slot") for t in session.trials()}


def test_no_trial_is_lost_and_none_runs_twice(machines: Machines, runner: Runner, tmp_path: Path) -> None:
    """The worker that is killed has judged something, and so has the other one. After the scheduler was started again, the tune
    goes on with a worker that has joined since."""
    mixed = shutil.which("setarch") is not None
    processes = [machines.gpu(), machines.gpu(), machines.worker("--nthreads", "2")]
    if mixed:
        processes.append(machines.gpu("setarch", "i686"))   # it says that it is another kind of machine
    session, pool, built_here = Session.create(tmp_path, "s"), runner.workers.pool, list[int]()

    def breaks() -> None:
        until(lambda: slots(session) == {1, 2})
        built_here.append(sum(worker.starts for worker in runner.workers.pool._workers))
        processes[0].send_signal(signal.SIGKILL)
        count = len(session.trials())
        until(lambda: len(session.trials()) > count)
        machines.scheduler.kill()
        machines.scheduler.wait()
        machines.schedule()
        machines.gpu()

    machines.there(len(processes))
    with joined(runner.workers, machines.address, prefer="cpu-x86_64") as there:
        assert there.places == ("cpu@1", "cpu@2") and runner.workers.pool.size == 2
        assert [note.startswith("Not used: 1 of the cluster's GPUs, ") for note in there.notes] == [True] * mixed
        with meanwhile(breaks):
            result = tune(replace(REQUEST, trials=14), session, runner, places=there.places)
    counts = of_the_search(session)
    assert result.state == "done" and len(counts) == 14 and set(counts.values()) == {1}, (result, counts)
    assert result.winners["forward"].final and all(t.ok for t in session.trials())
    lost = {e["device"] for e in session.events() if e["event"] == "device_lost"}
    assert lost == {"cpu@1", "cpu@2"} and slots(session) == {1, 2}, lost
    assert runner.workers.pool is pool and "cpu@1" not in runner.workers._measure, "as before"
    assert built_here == [0], "the third worker has built"


@pytest.mark.long
def test_when_the_cluster_is_gone_the_tune_ends_and_resume_goes_on(machines: Machines, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a worker for builds: they are done here."""
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    machines.gpu()
    machines.there(1)
    words = [*LAYER, *NAIVE, "--trials", "12", "--session", "one", "--cluster", machines.address]
    process, session = started(tmp_path, *words), Session(tmp_path / "one")
    until(lambda: (tmp_path / "one" / "trials.jsonl").is_file() and len(session.trials()) >= 2)
    machines.scheduler.kill()
    told, said = process.communicate(timeout=300)
    assert process.returncode == exit_codes.NOTHING_RAN, (told, said)
    assert re.search(r"No GPU of the cluster has answered for 12\d s. Finished trials are kept.", said), said
    assert said.rstrip().endswith(f"tune --resume one --cluster {machines.address}")
    machines.schedule()
    machines.gpu()
    machines.there(1)
    done = cli("tune", "--resume", "one", "--cluster", machines.address, sessions=tmp_path)
    counts = of_the_search(session)
    assert done.returncode == 0 and len(counts) == 12 and set(counts.values()) == {1}, (done.stderr, counts)


def test_two_slots_of_one_worker_judge_the_same_library(runner: Runner, tmp_path: Path) -> None:
    """Two candidates that were built together. Neither may take the file away from the other."""
    one = render(TuneSpace(WORK, "forward", "tf32", CPU, variants=["naive_gather"]).candidate(0))
    built = runner.build_all([one], "cpu")[one.candidate_id]
    order = runner.workers.judge_order("cpu", one, built, RunRequest(WORK, (), device="cpu", effort="quick"))
    try:
        with ThreadPoolExecutor(2) as threads:
            def judged(number: int) -> list[Status]:
                job = _Job(order, 60.0, ("cpu", "cpu#1")[number], _libraries(order))
                return [carry_out(job, f"{number}{turn}").reply().status for turn in range(12)]
            assert set(sum(threads.map(judged, range(2)), [])) == {Status.OK}
    finally:
        end()


class Away:
    """Workers of a cluster that do not answer."""

    def __init__(self, back_after: int) -> None:
        self.asked, self.back_after = 0, back_after

    def judge_order(self, place: str, *more: object) -> JudgeOrder:
        return JudgeOrder(Path(), "f", "forward", WORK, place, "ieee", "")

    def judge(self, order: JudgeOrder, **more: object) -> Judged:
        return Judged(status=Status.WORKER_DIED, headline="Its worker in the cluster was lost while the kernel ran.")

    def answers(self, place: str, **more: object) -> bool:
        self.asked += 1
        return self.asked > self.back_after


class Held:
    over = False


def test_a_lost_slot_comes_back_or_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.running.execution._BACK_S", 0.01)
    monkeypatch.setattr(Execution, "patience_s", 0.2)
    row = Row(TuneSpace(WORK, "forward", "tf32", CPU, variants=["naive_gather"]).candidate(0))
    for back_after in (3, 1000):
        run = Run("0" * 8, RunRequest(WORK, ()), tmp_path, [row])
        execution = Execution(run, Session.create(tmp_path, "s"), Away(back_after), ("cuda:0@1",), resume=False)
        assert not execution._judge("cuda:0@1", row, None, None) and not execution.places
        if back_after == 3:
            assert execution._back("cuda:0@1", Held()) and execution.places == ["cuda:0@1"]
        else:
            with pytest.raises(DeviceLost, match="No GPU of the cluster has answered for 0 s. Finished trials are kept."):
                execution._back("cuda:0@1", Held())
    assert not execution.session.trials()


@pytest.mark.parametrize("kind, there", [("nvidia_h200", 2), ("", 0)])
def test_a_tune_of_a_cluster_goes_on_here_if_this_machine_is_of_that_kind(
        kind: str, there: int, here: Callable[..., subprocess.CompletedProcess[str]], runner: Runner, tmp_path: Path) -> None:
    session = Session.create(tmp_path, "one")
    session.append(replace(next(t for t in RECORDED.trials() if t.ok), workload=WORK))
    session.event(EVENT, request=replace(REQUEST, device="cpu", trials=1).to_json(), cluster=kind or runner.device("cpu").key)
    done = here("tune", "--resume", "one", sessions=tmp_path)
    assert done.returncode == there, done.stderr
    assert ("give its address: --cluster ADDRESS" in done.stderr) == bool(kind)


def test_where_no_scheduler_answers_one_sentence_says_so(here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    require(importlib.util.find_spec("distributed"), "dask.distributed is not installed")
    monkeypatch.setattr("workbench.drive.tuning.cluster._CONNECT_S", 0.5)
    done = here("tune", "kb74", "--cluster", "tcp://127.0.0.1:9", sessions=tmp_path)
    assert done.returncode == exit_codes.BAD_REQUEST
    assert "No scheduler of dask answers at 'tcp://127.0.0.1:9'; start one with: dask scheduler" in done.stderr
    done = here("tune", "kb74", "--cluster", "tcp://127.0.0.1:9", "--device", "cuda:0", sessions=tmp_path)
    assert done.returncode == exit_codes.BAD_REQUEST and "leave out the device, or give cpu to emulate" in done.stderr
