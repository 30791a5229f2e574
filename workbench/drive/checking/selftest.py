"""Runs the attacks on the judge, and reports for each whether it was caught on this machine. Cheating and broken kernels use
the same runner and workers as any candidate. Modules that attack the Python process around them are judged by `check`. So are
right files; a right file that fails is a false alarm."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...core.answers import Answer
from ...core.candidate import Candidate
from ...core.env import cache_dir
from ...core.errors import BadRequest
from ...core.layer import ConvTranspose, Workload
from ...core.trial import Status
from ...core.variants import TEMPLATES, find
from ...core.verdict import FASTER
from ..machine.daemon_threads import DaemonThreads
from ..machine.device_lock import held
from ..machine.doctor import resolve_device
from ..running.request import Run, RunRequest
from ..running.runner import Runner
from ..running.worker_process import WorkerProcess
from ..sessions.files import TRIALS
from ..sessions.session import Session
from .attacks import Attack, attacks, device_kind, kernels, modules, reference, right_files, total
from .check import CheckRequest, check, judge_process, workload_reference

# A stride that leaves outputs without a tap, padding that crops, groups, and a last block that is only partly used.
_USUAL = Workload(ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(0, 1), groups=2), 2, (5, 7))
# With kernel 1 and padding 1 the border of the input contributes to no output. With stride 3 some outputs are zero.
_CROPPED = Workload(ConvTranspose(1, 2, 3, (1,), stride=(3,), padding=(1,), bias=False), 2, (8,))
_MANY = Workload(ConvTranspose(1, 1, 3, (1,), bias=False), 1, (700_032,))  # 65 628 blocks of 32
_WIDE = Workload(ConvTranspose(1, 260, 3, (2,)), 9, (7,))  # a batch and channels for which few bits or one chunk do not suffice
_FAR = Workload(ConvTranspose(2, 2, 3, (2, 5), padding=(0, 61), dilation=(17, 33)), 2, (3, 9))
_MODULE = Workload(ConvTranspose(2, 4, 6, (3,), stride=(2,), padding=(1,)), 1, (8, 9))
Judge = Callable[[], AbstractContextManager[WorkerProcess]]
# How many checks without timing run at the same time; on a GPU each has two processes with a context.
_AT_ONCE = {"cpu": 2, "cuda": 4}


@dataclass(frozen=True)
class Result:
    """The outcome of one attack or right file. `caught`: the status is exactly the expected one, and only a trial with the
    status OK has a time. For a right file: nothing failed. `warned`: the question with this status only warns."""

    name: str
    kind: str
    idea: str
    expected: str
    status: str
    happened: str
    caught: bool
    confined: str = ""           # the sandbox of a module
    source: str = ""
    warned: bool = False


@dataclass(frozen=True)
class _Group:
    workload: Workload = _USUAL
    run_timeout_s: float = 60.0
    config: tuple[tuple[str, int], ...] = ()


_GROUPS = {"usual": _Group(), "cropped": _Group(_CROPPED), "many": _Group(_MANY, config=(("BLOCK", 32),)),
           "wide": _Group(_WIDE), "far": _Group(_FAR), "half": _Group(replace(_USUAL, dtype="float16")),
           "hangs": _Group(run_timeout_s=8.0), "alone": _Group(),
           "timed": _Group()}


class SelfTest:
    """A self-test in a thread, running or done. `text`: the current step. `results`: the results so far, of `total` attacks."""

    def __init__(self, device: str, runner: Runner) -> None:
        self.device, self.text, self.problem = device, "starting", ""
        self.results: list[Result] = []
        self.total = total(device)
        self.started_at = time.time()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._guarded, args=(runner,), daemon=True, name="selftest")
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def fought(self) -> int:
        """The results of the attacks that have run, without the control."""
        return sum(r.kind != "control" for r in self.results)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return self.done

    def stop(self) -> None:
        """End its compilers, kernels and modules now. Its results are not kept."""
        self._stopped.set()

    def _guarded(self, runner: Runner) -> None:
        try:
            selftest(self.device, runner=runner, on_result=self.results.append, on_text=self._said, stopped=self._stopped)
        except (BadRequest, OSError, RuntimeError) as error:  # WorkerDied and similar errors are RuntimeErrors, too
            self.problem = "Stopped by you." if self._stopped.is_set() else str(error)

    def _said(self, text: str) -> None:
        self.text = text


def selftest(device: str = "auto", *, on_result: Callable[[Result], None] = lambda result: None,
             runner: Runner | None = None, wanted: Sequence[Attack] | None = None,
             on_text: Callable[[str], None] = lambda text: None, stopped: threading.Event | None = None,
             judge: Judge | None = None) -> list[Result]:
    """Run all attacks for this device, or those in `wanted`. Only a complete self-test is kept for the page. `on_text` gets the
    current step. `judge` starts a judge process for modules. Raises `BadRequest` for a device that does not exist, and
    `RuntimeError` if `stopped` is set before the end."""
    device = resolve_device(device)
    kind = device_kind(device)
    stopped = stopped or threading.Event()
    judge = judge or partial(judge_process, device)
    whole, wanted = wanted is None, [a for a in (attacks() if wanted is None else wanted) if kind in a.expected]
    results: list[Result] = []

    def report(result: Result) -> None:
        results.append(result)
        on_result(result)

    with _session() as session, _runner(runner) as runner:
        root = kernels(session.path.parent.parent)
        for name, group in _GROUPS.items():  # attacks that hang run last, because each takes its whole time limit
            here = [a for a in wanted if a.kind in ("kernel", "control") and a.group == name]
            found = _run_kernels(runner, session, device, here, group, root, partial(_watch, on_text, stopped))
            if stopped.is_set():
                raise RuntimeError("The self-test was stopped.")
            for result in found:
                report(result)
        with held(device, on_text, stopped), _judges(judge, _AT_ONCE[kind]) as judges:
            files = [a for a in wanted if a.kind in ("module", "honest")]
            timed = [a for a in files if _attacks_the_clock(a, kind)]
            one = partial(_run_module, device=device, session=session, judges=judges, on_text=on_text, stopped=stopped,
                          fresh=judge)
            with DaemonThreads(_AT_ONCE[kind]) as pool:
                for result in pool.map(one, [a for a in files if a not in timed]):
                    report(result)
            for attack in timed:  # nothing else runs beside it
                report(one(attack))
    if whole:
        keep(results, device)
    return results


def keep(results: Sequence[Result], device: str) -> None:
    """Remember the last self-test of a device, for the page."""
    path = _kept_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"at": time.time(), "results": [asdict(r) for r in results]}), encoding="utf-8")


def kept(device: str) -> tuple[float, list[Result]] | None:
    """(when, results) of the last self-test of that device on this machine; None without one that can be read."""
    try:
        data = json.loads(_kept_path(device).read_text(encoding="utf-8"))
        return float(data["at"]), [Result(**r) for r in data["results"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def summary(results: Sequence[Result]) -> str:
    """"44 of 44 attacks caught; 0 of 12 right files called wrong", and the names of those with another result."""
    fought, right = ([r for r in results if (r.kind == "honest") == honest and r.kind != "control"] for honest in (False, True))
    warned = sum(r.caught and r.warned for r in fought)
    parts = [f"{sum(r.caught for r in fought)} of {len(fought)} attacks caught" +
             (f", {warned} of them by a warning" if warned else "")] if fought or not right else []
    if right:
        parts.append(f"{sum(not r.caught for r in right)} of {len(right)} right files called wrong")
    missed = [r.name for r in results if not r.caught]
    return "; ".join([*parts, *([f"not as expected: {', '.join(missed)}"] if missed else [])])


def matrix(results: Sequence[Result]) -> str:
    """A table in Markdown: for each source how many attacks got which status, how many failed, only got a warning, or were
    missed, and the recall: the share that was caught. Below it is the number of false alarms. "" if no attack has run."""
    fought = [r for r in results if r.kind in ("kernel", "module")]
    if not fought:
        return ""
    right = [r for r in results if r.kind == "honest"]
    statuses = [s for s, _ in Counter(r.status for r in fought).most_common()]
    sources = [s for s, _ in Counter(r.source for r in fought).most_common()]
    lines = [f"| source | attacks | {' | '.join(statuses)} | failed | warned | missed | recall |",
             f"|---|{'---|' * (len(statuses) + 5)}"]
    for source in [*sources, ""]:
        here = [r for r in fought if source in ("", r.source)]
        counts = Counter(r.status for r in here)
        caught = [r for r in here if r.caught]
        warned = sum(r.warned for r in caught)
        failed = sum(r.status != Status.OK for r in caught) - warned
        ends = " | ".join(str(n or "") for n in (*(counts[s] for s in statuses), failed, warned, len(here) - len(caught)))
        lines.append(f"| {source or 'all'} | {len(here)} | {ends} | {100 * len(caught) / len(here):.0f} % |")
    lines += ["", f"Right files called wrong: {sum(not r.caught for r in right)} of {len(right)}."] if right else []
    return "\n".join(lines)


def publish(path: Path, results: Sequence[Result], kind: str) -> None:
    """Put the matrix into a document, between its two lines for that kind of device. Raises `BadRequest` without them."""
    text, begin, end = path.read_text(encoding="utf-8"), f"<!-- matrix of {kind} -->", "<!-- end -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise BadRequest(f"{path} has no line {begin} with {end} behind it; add both.", field="write")
    path.write_text(f"{before}{begin}\n{matrix(results)}\n{end}{after}", encoding="utf-8")


def confinement(results: Sequence[Result]) -> str:
    """The sandboxes of the attacking modules: one sentence for each kind that occurred."""
    return "\n".join(dict.fromkeys(r.confined for r in results if r.confined))


def _run_kernels(runner: Runner, session: Session, device: str, wanted: Sequence[Attack], group: _Group, root: Path,
                 on_change: Callable[[Run], None]) -> list[Result]:
    candidates = {a.name: _candidate(a, group, root) for a in wanted}
    if not candidates:
        return []
    request = RunRequest(group.workload, tuple(candidates.values()), device=device, baselines=False, effort="quick",
                         run_timeout_s=group.run_timeout_s)

    run = runner.run(request, session, on_change=on_change)
    results = []
    trials = {t.trial_id: t for t in run.trials}
    for attack, row in zip(wanted, run.rows, strict=True):
        trial = trials.get(row.trial_id)
        expected = attack.expected[device_kind(device)]
        status = str(trial.status) if trial else "no trial"
        timed = bool(trial and trial.kernel_ms)
        caught = status in expected.split(" or ") and timed == (expected == Status.OK)
        results.append(Result(attack.name, attack.kind, attack.idea or row.candidate.variant.idea, expected, status,
                              trial.headline if trial else run.message, caught, source=attack.source))
    return results


def _watch(on_text: Callable[[str], None], stopped: threading.Event, run: Run) -> None:
    on_text(f"{run.done_rows} of {len(run.rows)} kernels of this group are judged: "
            f"{run.message.replace('candidates', 'kernels')}")
    if stopped.is_set():
        run.stop()


def _run_module(attack: Attack, device: str, session: Session, judges: SimpleQueue[WorkerProcess],
                on_text: Callable[[str], None], stopped: threading.Event, fresh: Judge) -> Result:
    """Judge a module with `check`. It is caught if the expected status is among the failures, or among the warnings if the
    attack expects a warning, and no trial of the session has changed. If OK is expected, nothing may fail and no verdict may be
    FASTER."""
    if stopped.is_set():
        raise RuntimeError("The self-test was stopped.")
    on_text(f"checking {attack.name}")
    before = _trials(session)
    if attack.kind == "honest":
        against, text = (right_files()[attack.name][0], "its reference"), right_files()[attack.name][1]
    else:
        against = (reference(attack.reference), attack.reference) if attack.reference else workload_reference(_MODULE)
        text = modules()[attack.name]
    kind = device_kind(device)
    expected = attack.expected[kind]
    request = CheckRequest(text, against[0], device, name=attack.name, reference_name=against[1], effort="quick", nvcc=False,
                           call_s=_GROUPS[attack.group].run_timeout_s, time=_attacks_the_clock(attack, kind))
    if request.time:  # in its own judge, because GPU memory that the judge shares is freed only when the judge ends
        with fresh() as judge:
            report = check(request, device_held=True, judge=judge, stopped=stopped)
    else:
        judge = judges.get()
        try:
            report = check(request, device_held=True, judge=judge, stopped=stopped)
        except BadRequest as error:  # the reference did not run
            return Result(attack.name, attack.kind, attack.idea, expected, "REFUSED", str(error), False)
        finally:
            judges.put(judge)
    failed = [q for q in report.questions if q.answer is Answer.FAILED
              or q.answer is Answer.WARNED and q.status == expected]
    first = next((q for q in failed if q.status == expected and attack.question in ("", q.key)), None)
    # Another question than the expected one failed with this status.
    missed = first is None and any(q.status == expected for q in failed)
    first = first or (failed[0] if failed else None)
    victory = [d for d, t in report.times.items() if t.verdict == FASTER]
    status = first.status if first else f"OK, {FASTER}" if victory else str(Status.OK) if report.ran else str(Status.SKIPPED)
    happened = first.seen if first else report.headline if attack.kind == "honest" else next(
        (q.seen for q in report.questions if q.key == "times"), "Nothing failed.")
    if _trials(session) != before:
        status, happened = "session changed", "The module changed the trials of a session."
    warned = bool(first and first.answer is Answer.WARNED)
    if warned and attack.answer != "warned":
        happened = f"Only a warning: {happened}"
    caught = status == expected and not missed and warned == (attack.answer == "warned")
    return Result(attack.name, attack.kind, attack.idea, expected, status, happened, caught, report.confined.sentence,
                  attack.source, warned)


def _trials(session: Session) -> bytes:
    """The file of trials; empty if no kernel has run."""
    path = session.path / TRIALS
    return path.read_bytes() if path.is_file() else b""


def _attacks_the_clock(attack: Attack, kind: str) -> bool:
    """Whether the attack must be timed. An attack with right results can cheat only about its time. One of the group "timed" is
    wrong only while it is timed."""
    return attack.kind != "honest" and (attack.expected[kind] == Status.OK or attack.group == "timed")


def _candidate(attack: Attack, group: _Group, root: Path) -> Candidate:
    name = "naive_gather" if attack.kind == "control" else attack.name
    variant = find(name, attack.direction, root=TEMPLATES if attack.kind == "control" else root)
    config = {} if attack.kind == "control" else dict(group.config)
    return Candidate(variant, group.workload.layer, group.workload.dtype, config, form="runtime")


@contextmanager
def _session() -> Iterator[Session]:
    """A temporary session, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-selftest-") as folder:
        yield Session.create(Path(folder) / "sessions", "selftest")


@contextmanager
def _judges(judge: Judge, count: int) -> Iterator[SimpleQueue[WorkerProcess]]:
    """A queue of the idle judges."""
    free: SimpleQueue[WorkerProcess] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            free.put(stack.enter_context(judge()))
        yield free


@contextmanager
def _runner(given: Runner | None) -> Iterator[Runner]:
    if given:
        yield given
        return
    with Runner() as made:
        yield made


def _kept_path(device: str) -> Path:
    return cache_dir() / "selftest" / f"{device.replace(':', '')}.json"


def to_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [asdict(r) for r in results]
