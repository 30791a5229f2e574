"""Tunes as real processes: one is killed, two share a session, one is interrupted. Nothing is lost and nothing runs twice. What
several tunes of a session or of a suite share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random
from threading import Event, Thread, Timer

import pytest

from workbench.core.candidate import Candidate
from workbench.core.errors import BadRequest
from workbench.core.orders import JudgeOrder
from workbench.core.replies import Built, Device, Judged
from workbench.core.template import Rendered, render
from workbench.core.trial import Status, Trial
from workbench.core.trial_parts import Environment, KernelNumbers
from workbench.core.variants import find
from workbench.drive.machine.daemon_threads import Shared
from workbench.drive.machine.device_lock import DeviceLock
from workbench.drive.running.execution import Execution
from workbench.drive.running.request import Row, Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.running.worker_process import WorkerDied
from workbench.drive.sessions.session import Session
from workbench.drive.tuning.batch import BatchRequest, batch
from workbench.drive.tuning.feed import TuneFeed, TuneRequest, spaces
from workbench.drive.tuning.seen import BEGUN, Claims
from workbench.drive.tuning.space import TuneSpace, key_of_trial
from workbench.drive.tuning.tune import WON, TuneResult, Winner, asked, tune, used_s
from workbench.faces import exit_codes
from workbench.faces.verbs.tune import suite_code

from ..cli.test_cli import cli
from ..drive.conftest import until
from .test_tune import CPU, H200, KB74, ON_GPU, RECORDED, REQUEST, WORK, Canned, gpu_of, parts

ROOT = Path(__file__).resolve().parents[2]
LAYER = ["--layer", "ConvTranspose1d(3, 5, 3, stride=2)", "--input-size", "17", "--device", "cpu", "--direction", "forward"]
NAIVE = ["--variant", "naive_gather", "--no-baselines"]


@pytest.fixture(autouse=True)
def own_sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))


def started(place: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "workbench", "tune", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(place), **environment})


def of_the_search(session: Session) -> Counter[str]:
    """How often each candidate has a trial of the search. The finals judge the winner again: the trials that WON names."""
    again = {e["trial_id"] for e in session.events() if e["event"] == WON}
    own = asked(session).workload
    return Counter(key_of_trial(t) for t in session.trials()
                   if t.kind == "candidate" and t.workload == own and t.trial_id not in again)


def begun(session: Session) -> set[str]:
    return {key for e in session.events() if e["event"] == BEGUN for key in e["keys"]}


def test_a_killed_tune_goes_on_with_nothing_lost_and_nothing_twice(tmp_path: Path) -> None:
    process = started(tmp_path, *LAYER, *NAIVE, "--trials", "6", "--session", "one")
    session = Session(tmp_path / "one")
    until(lambda: (tmp_path / "one" / "trials.jsonl").is_file() and len(session.trials()) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before: list[Trial] = session.trials()
    done = cli("tune", "--resume", "one", sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = of_the_search(session)
    assert session.trials()[:len(before)] == before
    assert len(counts) == 6 and set(counts.values()) == {1}, counts
    assert begun(session) >= set(counts)
    first, second, *more = done.stderr.splitlines()
    assert first.startswith("The device is the CPU, which emulates the kernels. These times do not predict a GPU") \
        and first.endswith("The tune of forward judges 6 candidates; --minutes, --trials or --effort change that."), first
    assert second == "Session one" and "removed by" not in done.stderr, done.stderr
    assert more[1] == "--explain lists the variants, and what removes configs.", more
    assert "6 candidates were judged." in done.stdout and "do not predict a GPU" in done.stdout


@pytest.mark.long
def test_a_tune_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """At moments of all kinds: while it imports, builds, judges, writes, compares. At last it is let alone, and may go on."""
    words = [*LAYER, *NAIVE, "--trials", "14", "--session", "one"]
    session, random = Session(tmp_path / "one"), Random(1)
    for number in range(10):
        process = started(tmp_path, *(words if number == 0 else ["--resume", "one"]))
        if number == 0:
            until(lambda: (tmp_path / "one" / "events.jsonl").is_file())
        with suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(2, 9))
        process.kill()
        process.communicate()
    done = cli("tune", "--resume", "one", sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = of_the_search(session)
    assert len(counts) == 14 and set(counts.values()) == {1} and not session.unreadable, counts
    finals = len([e for e in session.events() if e["event"] == WON])
    assert cli("tune", "--resume", "one", sessions=tmp_path).stdout == done.stdout
    assert len([e for e in session.events() if e["event"] == WON]) == finals, "nothing was left to do"
    more = cli("tune", "--resume", "one", "--trials", "17", sessions=tmp_path)
    counts = of_the_search(session)
    assert len(counts) == 17 and set(counts.values()) == {1} and more.returncode == 0, more.stderr


def test_two_processes_tune_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin at the same time, because both have waited for their device, and each build takes a moment."""
    words, session, both = [*LAYER, *NAIVE, "--trials", "10", "--session", "one"], Session(tmp_path / "one"), []
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    with ExitStack() as held_back:
        for number in (1, 2):
            monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", str(tmp_path / f"locks{number}"))
            lock = DeviceLock("cpu")
            assert lock.acquire(cancelled=Event(), waiting=print)
            held_back.callback(lock.release)
            both.append(started(tmp_path, *words))
        until(lambda: sum(e["event"] == "waiting" for e in session.events()) == 2)
    for process in both:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    counts = of_the_search(session)
    assert len(counts) == 10 and set(counts.values()) == {1}, counts
    again = {e["trial_id"] for e in session.events() if e["event"] == WON}
    judged = Counter(t.run_id for t in session.trials() if t.trial_id not in again)
    assert len(judged) == 2 and min(judged.values()) >= 2, "both have judged some"
    assert not list((tmp_path / "one").glob(".tune-*")), "no claim is left"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_keeps_the_winner_and_sigterm_prints_the_best_so_far(number: int, tmp_path: Path) -> None:
    """After two trials. Both say how to go on."""
    process = started(tmp_path, *LAYER, "--variant", "shared_weight_tiling", *NAIVE, "--trials", "300", "--session", "one")
    session = Session(tmp_path / "one")
    until(lambda: (tmp_path / "one" / "trials.jsonl").is_file()
          and sum(t.ok for t in session.trials()) >= 2)
    process.send_signal(number)
    told, said = process.communicate(timeout=300)
    won = [e for e in session.events() if e["event"] == WON]
    if number == signal.SIGTERM:
        assert process.returncode == 130, said
        assert not won and "The tune stopped before the finals" in told and " ieee BLOCK=" in told
    else:
        assert process.returncode == 0 and len(won) == 1 and won[0]["judged"] < 300, said
        assert "  It was judged again and is right with " in told and "The search ends and the finals follow" in said
        assert next(t for t in session.trials() if t.trial_id == won[0]["trial_id"]).ok
    assert said.splitlines()[-1].endswith("python -m workbench tune --resume one"), said


def test_the_second_interrupt_and_one_before_anything_is_right_stop_a_tune(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(Canned):
        """Its runs last until they are stopped."""

        def start(self, request: RunRequest, session: Session, **more: object) -> Run:
            run = Run("0" * 8, request, session.path, [], state="running", device=self.known)
            Timer(0.5, interrupts, [run]).start()
            return run

        def stop(self, run: Run) -> None:
            run.state = "stopped"
            run.finished.set()

    def interrupts(run: Run) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if session.trials():
            until(finish.is_set)
            went_on.append(run.active)
            os.kill(os.getpid(), signal.SIGINT)

    right = sorted((t for t in RECORDED.trials() if (t.workload, t.kind, t.direction) == (KB74, "candidate", "forward")
                    and t.ok and t.kernel_ms and t.precision == "tf32"), key=lambda t: t.kernel_median_ms)
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    went_on, told = list[bool](), list[str]()
    for name in ("empty", "two"):
        session, finish = Session.create(tmp_path, name), Event()
        for trial in right[:2] if name == "two" else ():
            session.append(trial)
        result = tune(ON_GPU, session, Held(gpu_of(right[0])), finish=finish, on_line=told.append)
        assert result.state == "stopped" and not result.early and finish.is_set() == (name == "two")
    assert went_on == [True] and any("Press Ctrl-C again to stop at once." in line for line in told)


def test_a_suite_leaves_out_what_adds_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer is served by nothing, one is used up after its first slice, one goes on."""
    calls: Counter[str] = Counter()

    def canned(asked: TuneRequest, session: Session, runner: object, **more: object) -> TuneResult:
        name = asked.workload.preset.split("/")[0]
        calls[name] += 1
        assert sum(calls.values()) < 50, "no end"
        if name == "kb64":
            raise BadRequest("nothing serves it")
        return TuneResult("done", "", {}, {"forward": {"MISMATCH": 1}}, trials=3 if name == "kb69" else asked.trials)

    monkeypatch.setattr("workbench.drive.tuning.batch.tune", canned)
    jobs = batch(BatchRequest("kernelbench", REQUEST, trials=40, size="small", layers=("kb74", "kb64", "kb69")), "night", None)
    assert (calls["kb64"], calls["kb69"]) == (1, 2) and sum(job.result.trials for job in jobs) == 40, calls
    assert suite_code([job.result for job in jobs]) == exit_codes.WRONG
    finals, finish = list[tuple[str, bool]](), Event()

    def ended(asked: TuneRequest, session: Session, runner: object, *, with_finals: bool = True, **more: object) -> TuneResult:
        finals.append((asked.workload.preset.split("/")[0], with_finals))
        if len(finals) == 2:
            finish.set()   # as the first Ctrl-C does
        return TuneResult("done", "", {"forward": Winner("forward", RECORDED.trials()[0], None)}, trials=4)

    monkeypatch.setattr("workbench.drive.tuning.batch.tune", ended)
    batch(BatchRequest("kernelbench", REQUEST, trials=40, size="small", layers=("kb74", "kb64", "kb69")), "night", None,
          finish=finish)
    (first, _), (second, _) = finals[:2]
    assert finals == [(first, False), (second, False), (first, True), (second, True)], "all searches end, the finals follow"
    calls.clear()
    monkeypatch.setattr("workbench.drive.tuning.batch.tune", lambda *given, **more: calls.update("x") or TuneResult(
        "failed", "No device.", {}))
    jobs = batch(BatchRequest("kernelbench", REQUEST, trials=40, size="small"), "night", None)
    assert calls["x"] == 1 and suite_code([job.result for job in jobs]) == exit_codes.NOTHING_RAN


def test_time_of_other_runs_of_the_session_does_not_count(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    for run_id, work, more in (("a", WORK, {"tune": "tf32"}), ("b", KB74, {"tune": "tf32"}), ("c", WORK, {"tune": "ieee"}),
                               ("d", WORK, {})):
        session.event("run_started", run_id=run_id, workload=work.to_json(), **more)
        time.sleep(0.01)
        session.event("heartbeat", run_id=run_id)
    lines = (session.path / "events.jsonl").read_text().splitlines()
    first, last = (datetime.fromisoformat(json.loads(line)["at"]) for line in lines[:2])
    assert used_s(session, WORK, "tf32") == (last - first).total_seconds()
    assert used_s(session, WORK, "fp16") == 0.0


def test_a_suite_needs_a_limit_and_known_classes() -> None:
    with pytest.raises(BadRequest, match="needs a limit"):
        BatchRequest("models", REQUEST)
    with pytest.raises(BadRequest, match="minutes is 0; give a number above 0"):
        BatchRequest("models", REQUEST, minutes=0)
    with pytest.raises(BadRequest, match="'fp8' is not a class; choose tf32, ieee, fp16, bf16"):
        BatchRequest("models", REQUEST, ("fp8",), minutes=1.0)


def test_a_claim_is_of_its_workload_and_device(tmp_path: Path) -> None:
    """The key of a candidate says nothing of the layer."""
    session = Session.create(tmp_path, "s")
    of = [{"workload": work.to_json(), "device": key} for work, key in ((WORK, "a"), (KB74, "a"), (WORK, "b"), (WORK, "a"))]
    with ExitStack() as stack:
        first, *others = [stack.enter_context(Claims(session, one)) for one in of]
        first.claim(["x"])
        assert [one.of_others() for one in others] == [set(), set(), {"x"}]


def test_nothing_is_built_while_another_process_of_the_session_is_in_its_finals(runner: Runner, tmp_path: Path) -> None:
    session, results, seen = Session.create(tmp_path, "s"), list[TuneResult](), list[bool]()
    request = TuneRequest(WORK, ("forward",), device="cpu", baselines=False, variants=("naive_gather",), trials=1)

    def on_line(line: str) -> None:
        if line.endswith("the best are timed again, alternately"):
            pause = Thread(target=lambda: builds(other))
            pause.start()
            pause.join(0.3)
            seen.append(pause.is_alive())

    def builds(claims: Claims) -> None:
        with claims.building():
            pass

    with Claims(session) as other:
        with other.finals():
            tuning = Thread(target=lambda: results.append(tune(request, session, runner, on_line=on_line)))
            tuning.start()
            until(lambda: begun(session))
            time.sleep(0.7)
            assert not any(e["event"] == "phase" for e in session.events()), "the builders wait"
        tuning.join()
        assert results[0].state == "done" and results[0].trials == 1 and seen == [True], "its own finals are seen by others"
        with Claims(session) as third, ExitStack() as build:
            build.enter_context(third.building())
            ended = Event()
            build.callback(ended.set)      # called before the lock is released
            Timer(0.4, build.close).start()
            with other.finals():
                assert ended.is_set(), "a build that had begun came to its end first"


def test_after_the_first_gpu_is_lost_the_last_step_is_on_another(tmp_path: Path) -> None:
    class Dead:
        def judge_order(self, place: str, *more: object) -> JudgeOrder:
            return JudgeOrder(Path(), "f", "forward", WORK, place, "ieee", "")

        def judge(self, order: JudgeOrder, **more: object) -> Judged:
            return Judged(status=Status.WORKER_DIED, headline="died")

        def answers(self, place: str, **more: object) -> bool:
            return False

    row = Row(TuneSpace(WORK, "forward", "tf32", CPU, variants=["naive_gather"]).candidate(0))
    run = Run("0" * 8, RunRequest(WORK, ()), tmp_path, [row])
    execution = Execution(run, Session.create(tmp_path, "s"), Dead(), ("cuda:0", "cuda:1"), resume=False)
    assert not execution._judge("cuda:0", row, None, None) and execution.places == [execution.name] == ["cuda:1"]


def test_a_gpu_that_is_dead_from_the_start_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(Canned):
        def device(self, place: str) -> Device:
            if place in dead:
                raise WorkerDied("signal 6 (SIGABRT)", "")
            return super().device(place)

    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.every_gpu", lambda first: (first, "cuda:1", "cuda:2"))
    canned, dead = Dead(gpu_of(RECORDED.trials()[0])), ["cuda:0"]
    tune(replace(ON_GPU, device="auto"), Session.create(tmp_path, "s"), canned, with_finals=False)
    assert canned.places == [("cuda:1", "cuda:2")] and canned.requests[0].device == "cuda:1"
    with pytest.raises(BadRequest, match="^cuda:0 cannot be used: The process ended by signal 6"):
        tune(replace(ON_GPU, device="cuda:0"), Session.create(tmp_path, "s"), canned, with_finals=False)


def test_a_kernel_that_needs_too_many_registers_is_not_sent_to_the_gpu(tmp_path: Path) -> None:
    """512 threads of 255 registers are twice what a multiprocessor has; with 128 threads it may run. Helpers do not count."""
    class Built512:
        scratch, pool, registers = tmp_path, None, 0

        def environment(self, place: str) -> Environment:
            return Environment()

        def build_unit(self, unit: list[Rendered], *more: object) -> dict[str, Built]:
            numbers = KernelNumbers(255, 0, 0, 0, 0, 0, 0)
            return {item.candidate_id: Built(status=Status.OK, headline="", resources={"sm_80": {"naive_gather<A>": numbers},
                    "sm_90": {"naive_gather<A>": replace(numbers, registers=self.registers), "helper": numbers}})
                    for item in unit}

    workers = Built512()
    workers.pool = workers
    session = Session.create(tmp_path, "s")
    for block, registers, kept in ((512, 255, False), (128, 255, True), (512, 64, True)):
        workers.registers = registers
        candidate = Candidate(find("naive_gather", "forward"), WORK.layer, WORK.dtype, {"BLOCK": block})
        run = Run("0" * 8, RunRequest(WORK, ()), tmp_path, [row := Row(candidate)], device=H200)
        execution = Execution(run, session, workers, ("cuda:0",), resume=False)
        assert bool(list(execution._built_unit([(row, render(candidate))], Event()))) == kept
        assert [t.status for t in run.trials] == ([] if kept else [Status.SKIPPED])
    assert session.trials()[0].headline == ("Not run: a block of 512 threads with 255 registers each needs more than the 65536 "
                                            "registers of sm_90; choose fewer threads.")


class Gpus:
    """What the measuring processes would say of three GPUs; the third one is of another kind."""

    def device(self, place: str, **more: object) -> Device:
        number = int(place[-1])
        return replace(H200, index=number, key="another" if number == 2 else H200.key)


def test_a_busy_gpu_and_one_of_another_kind_are_left_out(tmp_path: Path) -> None:
    places = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    run = Run("0" * 8, RunRequest(WORK, ()), tmp_path, [], device=H200)
    execution = Execution(run, Session.create(tmp_path, "s"), Gpus(), places, resume=False)
    busy = DeviceLock("cuda:0")
    assert busy.acquire(cancelled=Event(), waiting=print)
    with ExitStack() as locks:
        assert execution._held(locks) and execution.places == ["cuda:1", "cuda:2", "cuda:3"]
        for place in tuple(execution.places):
            execution._judge_on(place, Shared(iter(())))
        assert execution.places == ["cuda:1", "cuda:3"]
        left, at_once = DeviceLock("cuda:2"), Event()
        at_once.set()
        assert left.acquire(cancelled=at_once, waiting=print), "others may use it"
        left.release()
        assert execution.name == "cuda:1" and run.device.index == 1
        other = Execution(run, execution.session, Gpus(), places, resume=False)
        Timer(0.3, busy.release).start()
        assert other._held(locks) and other.places == ["cuda:0"], "no other one was free: it has waited"


def test_only_auto_takes_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0" if name == "auto" else name)
    monkeypatch.setattr("workbench.drive.tuning.tune.every_gpu", lambda first: (first, "cuda:7"))
    canned = Canned(gpu_of(RECORDED.trials()[0]))
    for name in ("cuda:1", "auto"):
        tune(replace(ON_GPU, device=name), Session.create(tmp_path, name[:4]), canned, with_finals=False)
    assert canned.places == [("cuda:1",), ("cuda:0", "cuda:7")]
    assert canned.requests[0].tune == "tf32"


def test_only_a_file_of_claims_can_be_one_that_claims(tmp_path: Path) -> None:
    """A session may come from anywhere: a name in it is no path to open or to remove."""
    session, victim = Session.create(tmp_path, "s"), tmp_path / "victim"
    victim.write_text("mine")
    with Claims(session) as claims:
        session.event(BEGUN, by="../victim", keys=["x"])
        assert claims.of_others() == set() and victim.read_text() == "mine"


def test_what_another_process_could_not_judge_is_not_waited_for(tmp_path: Path) -> None:
    """Else two processes wait for each other: each holds a claim, and the machine stood in the way of both."""
    session, device = Session.create(tmp_path, "s"), gpu_of(RECORDED.trials()[0])
    there = spaces(replace(ON_GPU, trials=1), device)
    one = next(t for t in RECORDED.trials() if t.workload == KB74 and t.direction == "forward" and t.kind == "candidate")
    one = replace(one, **parts(there["forward"], 0))
    with Claims(session) as other, Claims(session) as claims:
        other.claim([key_of_trial(one)])
        feed = TuneFeed(replace(ON_GPU, trials=1), session, there, gpu_of(one), claims)
        assert feed.more(1) == (), "the other one judges it"
        session.append(replace(one, status=Status.MACHINE_FAILED, kernel_ms=None))
        assert len(feed.more(1)) == 1


def test_waiting_for_the_device_is_no_tuning(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    session.event("run_started", run_id="a", workload=WORK.to_json(), tune="tf32")
    for what in ("waiting", "waiting", "heartbeat"):
        time.sleep(0.1)
        session.event(what, run_id="a")
    time.sleep(0.02)
    session.event("run_stopped", run_id="a")
    assert 0.015 <= used_s(session, WORK, "tf32") < 0.09


@pytest.mark.parametrize("kills, status", [(1, Status.OK), (2, Status.WORKER_DIED)])
def test_a_candidate_whose_process_was_killed_from_outside_is_judged_once_more(
        kills: int, status: Status, runner: Runner, tmp_path: Path) -> None:
    session = Session.create(tmp_path, "s")
    request = TuneRequest(WORK, ("forward",), device="cpu", baselines=False, variants=("naive_gather",), trials=1)
    runner.device("cpu")
    worker, ended = runner.workers.measure("cpu"), Event()

    def kill() -> None:
        done = 0
        while done < kills and not ended.is_set():
            if any(e["event"] == "phase" and e["phase"] == "checking" for e in session.events()) and worker.alive:
                pid = worker._process.pid
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    done += 1
                    until(lambda gone=pid: ended.is_set() or not worker.alive or worker._process.pid != gone)
            time.sleep(0.01)

    thread = Thread(target=kill)
    thread.start()
    try:
        result = tune(request, session, runner, with_finals=False)
    finally:
        ended.set()
        thread.join()
    trial, = session.trials()
    assert trial.status == status and result.trials == 1, trial.headline


def test_without_a_device_that_answers_the_tune_ends(runner: Runner, tmp_path: Path) -> None:
    """Nothing is recorded of the candidate that was being judged, and nothing more is tried."""
    session = Session.create(tmp_path, "s")
    request = TuneRequest(WORK, ("forward",), device="cpu", baselines=False, variants=("naive_gather",), trials=5)
    with Runner() as own:
        own.device("cpu")
        worker = own.workers.measure("cpu")

        def die() -> None:
            until(lambda: any(e["event"] == "phase" and e["phase"] == "checking" for e in session.events()))
            worker._environment["PYTHONHOME"] = str(tmp_path)   # no new one can start
            os.kill(worker._process.pid, signal.SIGKILL)

        thread = Thread(target=die)
        thread.start()
        result = tune(request, session, own)
        thread.join()
    assert result.state == "failed" and "cpu does not answer any more. Its last message: " in result.message
    assert not [t for t in session.trials() if not t.ok]
    again = tune(request, session, runner, with_finals=False)
    assert again.state == "done" and of_the_search(session).most_common(1)[0][1] == 1 and again.trials == 5
