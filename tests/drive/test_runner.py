"""Whole runs with real workers: every fault becomes a trial with its status, and the next trial works."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate
from workbench.core.env import find_toolchain
from workbench.core.errors import BadRequest
from workbench.core.fork import fork
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.template import render
from workbench.core.trial import Status, advice_for
from workbench.core.typed import read
from workbench.core.variants import find
from workbench.core.wrong_values import WrongValues, sentence
from workbench.drive.machine.device_lock import DeviceLock
from workbench.drive.reporting.tables import text_table
from workbench.drive.running.outcome import failure
from workbench.drive.running.request import Run, RunRequest
from workbench.drive.running.resume import missing
from workbench.drive.running.runner import Runner
from workbench.drive.running.worker_process import WorkerDied
from workbench.drive.sessions.session import Session

from ..shared import require
from .conftest import WORKLOAD, bad, good, until

Judge = Callable[..., tuple[Run, Session]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "status", "words"), [
    ("undefined_tunable", Status.RENDER_FAILED, "which is not defined"),
    ("undefined_identifier", Status.BUILD_FAILED, "undefined_identifier.cu, line"),
    ("too_many_threads", Status.LAUNCH_FAILED, ""),
    ("writes_to_null", Status.WORKER_DIED, "signal 11 (SIGSEGV)"),
    ("huge_workspace", Status.OUT_OF_MEMORY, ""),
    ("skips_last_row", Status.UNWRITTEN, ""),
    ("no_tail_test", Status.OUT_OF_BOUNDS, ""),
    ("makes_nan", Status.NON_FINITE, ""),
    ("no_divisibility_test", Status.MISMATCH, ""),
    ("changes_input", Status.INPUT_MODIFIED, ""),
    ("low_bits_drift", Status.NONDETERMINISTIC, ""),
])
def test_a_fault_is_a_trial_and_the_next_trial_works(name: str, status: Status, words: str, judge: Judge,
                                                     broken: Path) -> None:
    run, session = judge(bad(broken, name), good())
    first, second = session.trials()
    by_name = {t.name: t for t in (first, second)}
    assert by_name[name].status is status, by_name[name].headline
    assert words in by_name[name].headline
    assert by_name[name].kernel_ms is None and by_name[name].advice
    assert by_name["naive_gather"].ok and by_name["naive_gather"].kernel_ms
    assert run.state == "done" and all(row.phase == "done" for row in run.rows)


def test_a_wrong_result_is_kept_with_where_it_is_wrong(judge: Judge, broken: Path) -> None:
    _, session = judge(bad(broken, "no_divisibility_test"), time=False)
    trial, = session.trials()
    found = read(WrongValues, json.loads(session.blob(trial.blobs["wrong"])))
    assert trial.advice == found.looks_like.advice and "divisib" not in advice_for(Status.MISMATCH, (1, 1))
    assert found.tensor == "output" and found.wrong > 0 and found.smallest is not None
    assert trial.detail.shown["where"] == sentence(found) and "Looks like: no divisibility test" in sentence(found)
    assert f"  {sentence(found)}" in text_table([trial]).splitlines()


@pytest.mark.parametrize(("on_small", "batch"), [
    ("return cudaErrorInvalidValue", 2), ("*(volatile int*)8 = 1", 2), ("for (volatile int i = 0;;) i = 1", None)])
def test_what_happens_on_a_smaller_size_does_not_cost_the_map(on_small: str, batch: int | None, judge: Judge) -> None:
    parent = good(CO_PER_THREAD=2)
    start = parent.variant.text.index("{", parent.variant.text.index("cudaError_t forward(")) + 1
    text = parent.variant.text[:start] + f" if (sizes.batch < 2) {on_small};" + parent.variant.text[start:]
    wrong = fork(text.replace("Sum sum[CO] = {};", "Sum sum[CO] = {Sum(1)};"), parent, render(parent).candidate_id)
    _, session = judge(wrong, good(BLOCK=32), time=False, run_timeout_s=6.0)
    first, second = session.trials()
    assert first.status is Status.MISMATCH and second.ok
    found = read(WrongValues, json.loads(session.blob(first.blobs["wrong"])))
    assert 2 * found.wrong == found.count and (found.smallest and found.smallest.batch) == batch
    assert found.along["channel mod 2 (CO_PER_THREAD)"] == (1000, 0), "by the config's own tile"


def test_a_kernel_that_never_ends_is_stopped_and_the_next_run_works(judge: Judge, broken: Path) -> None:
    _, session = judge(bad(broken, "never_ends"), run_timeout_s=4.0)
    trial = session.trials()[0]
    assert trial.status is Status.RUN_TIMEOUT and "Still running after 4 s" in trial.headline, trial.headline
    assert trial.advice and trial.kernel_ms is None
    _, session = judge(good(), name="next")
    assert session.trials()[0].ok and session.trials()[0].kernel_ms


def test_a_compiler_that_does_not_end_is_stopped_and_the_next_build_works(judge: Judge, broken: Path) -> None:
    _, session = judge(bad(broken, "builds_for_minutes"), build_timeout_s=3.0)
    trial = session.trials()[0]
    assert trial.status is Status.BUILD_TIMEOUT and trial.headline == "The compiler was stopped after 3 s.", trial.headline
    assert trial.advice and trial.kernel_ms is None
    _, session = judge(good(BLOCK=32), name="next", time=False)
    assert session.trials()[0].ok


def test_tensors_that_no_machine_holds_are_out_of_memory_for_pytorch_too(judge: Judge) -> None:
    """PyTorch's allocator for the host raises a bare RuntimeError: the run must go on to its end all the same."""
    layer = ConvTranspose(1, 64, 64, 1)
    huge = Workload(layer, 64, 2**31 - 1)
    candidate = Candidate(find("naive_gather", "forward"), layer, "float32", {})
    run, session = judge(candidate, workload=huge, baselines=True)
    found = {t.kind: t for t in session.trials()}
    assert run.state == "done" and set(found) == {"candidate", "baseline"}
    for trial in found.values():
        assert trial.status is Status.OUT_OF_MEMORY and trial.headline and trial.kernel_ms is None


def test_what_nobody_foresaw_in_a_worker_costs_one_trial_not_the_run(judge: Judge, runner: Runner) -> None:
    """The kept truth of one direction is cut short behind the worker's back, as by a full disk: reading it raises there."""
    other = Workload(WORKLOAD.layer, 1, (4, 6))
    before = set(runner.work_dir.glob("truth-*"))
    judge(good(BLOCK=128), workload=other, time=False)
    kept = set(runner.work_dir.glob("truth-*")) - before
    assert kept
    for path in kept:
        if path.suffix == ".f64":
            path.write_bytes(path.read_bytes()[:16])
    gradient = Candidate(find("naive_gather", "grad_input"), WORKLOAD.layer, "float32", {})
    run, session = judge(good(BLOCK=128), gradient, workload=other, time=False, name="cut")
    trials = {t.direction: t for t in session.trials()}
    assert trials["forward"].status is Status.WORKER_DIED and "ValueError" in trials["forward"].headline, trials["forward"]
    assert trials["forward"].detail.log_tail and trials["forward"].advice
    assert trials["grad_input"].ok and run.state == "done"
    for path in kept:
        path.unlink()
    _, session = judge(good(BLOCK=128), workload=other, time=False, name="mended")
    assert session.trials()[0].ok


def test_a_trial_records_what_it_needs(judge: Judge) -> None:
    run, session = judge(good(BLOCK=64))
    trial = session.trials()[0]
    assert "naive_gather" in session.blob(trial.blobs["source"]).decode()
    assert "g++" in session.blob(trial.blobs["log"]).decode()
    assert len(json.loads(session.blob(trial.blobs["samples"]))) == trial.kernel_ms.samples
    assert "emulated" in trial.flags and trial.errors["output"].wrong == 0
    assert trial.command.startswith("python -m workbench run ") and "naive_gather.BLOCK=64" in trial.command
    assert {e["event"] for e in session.events()} >= {"run_started", "phase", "run_finished"}
    assert trial.device.kind == "cpu" and trial.environment


@pytest.mark.parametrize(("flags", "status", "words"), [
    (("--use_fast_math", "-maxrregcount=64"), "OK", ""), (("-DKW_ONE=1",), "OK", ""),
    (("-march=native",), "BUILD_FAILED", "Unknown option '-march=native'")], ids=["nvcc's alone", "of both", "g++'s alone"])
def test_compile_flags_are_nvccs_on_the_emulator_too(judge: Judge, flags: tuple[str, ...], status: str, words: str) -> None:
    """What g++ alone takes would be exported, and no GPU could build it."""
    require(find_toolchain().nvcc, "no nvcc")
    _, session = judge(replace(good(BLOCK=64), compile_flags=flags), time=False)
    trial = session.trials()[0]
    assert (trial.status, trial.compile_flags) == (status, flags) and words in trial.headline, trial.headline
    assert ("nvcc_flags" in trial.flags) == (flags[0] != "-DKW_ONE=1")


def test_resources_without_a_gpu(judge: Judge, runner: Runner) -> None:
    require(find_toolchain().nvcc, "no nvcc: registers and shared memory cannot be known")
    _, session = judge(good(BLOCK=32))
    resources = session.trials()[0].resources
    assert {"sm_80", "sm_90"} <= set(resources)
    kernel = next(iter(resources["sm_80"].values()))
    assert kernel.registers > 0 and kernel.spill_store_bytes == 0


def test_a_killed_measure_worker_costs_one_trial(runner: Runner, tmp_path: Path, broken: Path) -> None:
    """SIGKILL from outside while a kernel runs: that trial says so, the others are judged."""
    session = Session.create(tmp_path, "killed")
    run = runner.start(RunRequest(WORKLOAD, (bad(broken, "never_ends"), good()), device="cpu", baselines=False,
                                  effort="quick", run_timeout_s=600), session)
    until(lambda: run.rows[0].phase == "checking")
    time.sleep(1.0)
    worker = runner.workers.measure("cpu")
    os.kill(worker._process.pid, signal.SIGKILL)
    assert run.wait(300)
    by_name = {t.name: t for t in session.trials()}
    assert by_name["never_ends"].status is Status.WORKER_DIED and "signal 9" in by_name["never_ends"].headline
    assert by_name["naive_gather"].ok


def test_stop_stops_and_resume_runs_only_the_rest(runner: Runner, tmp_path: Path, broken: Path) -> None:
    session = Session.create(tmp_path, "stopped")
    chosen = (good(BLOCK=128), bad(broken, "never_ends"), good(BLOCK=256))
    request = RunRequest(WORKLOAD, chosen, device="cpu", baselines=False, effort="quick", run_timeout_s=600)
    run = runner.start(request, session)
    until(lambda: run.rows[1].phase in ("checking", "timing"))
    runner.stop(run)
    assert run.state == "stopped"
    assert run.rows[1].status is Status.CANCELLED and run.rows[2].status is Status.CANCELLED
    assert [t.config["BLOCK"] for t in session.trials()] == [128]
    left = missing(request.candidates, session.trials(), request, runner.device("cpu"))
    assert [c.variant.name for c in left] == ["never_ends", "naive_gather"] and left[1].config["BLOCK"] == 256
    again = runner.run(RunRequest(WORKLOAD, (chosen[0], chosen[2]), device="cpu", baselines=False, effort="quick"), session,
                       resume=True)
    assert [t.config["BLOCK"] for t in again.trials] == [256]


@contextmanager
def events_held(session: Session) -> Iterator[None]:
    """Somebody else holds the session's file of events: a run stands where it tells its next phase."""
    with (session.path / "events.jsonl").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stopped_at_once(run: Run) -> bool:
    """Long before what it judges would end."""
    return run.wait(100)


def test_a_stop_just_before_the_compiler_is_asked_is_a_stop(runner: Runner, tmp_path: Path, broken: Path) -> None:
    session, device = Session.create(tmp_path, "just"), DeviceLock("cpu")
    assert device.acquire(cancelled=threading.Event(), waiting=print)
    try:
        run = runner.start(RunRequest(WORKLOAD, (bad(broken, "builds_for_minutes"),), device="cpu", baselines=False), session)
        until(lambda: any(e["event"] == "waiting" for e in session.events()))  # written after the message is set
        with events_held(session):
            device.release()
            until(lambda: run.message.startswith("building"))
            time.sleep(0.3)
            assert run.rows[0].phase == "queued"
            run.stop()
        assert stopped_at_once(run) and (run.state, session.trials()) == ("stopped", [])
    finally:
        device.release()
        runner.stop(run)


def test_a_stop_just_before_the_judge_is_asked_is_a_stop(runner: Runner, tmp_path: Path, broken: Path) -> None:
    session = Session.create(tmp_path, "just")
    fresh = bad(broken, "never_ends", compile_flags=("-O1", f"-DKW_FRESH={time.time_ns()}"))
    run = runner.start(RunRequest(WORKLOAD, (fresh,), device="cpu", baselines=False, run_timeout_s=600), session)
    try:
        until(lambda: run.rows[0].phase == "building")
        with events_held(session):
            until(lambda: run.rows[0].text.startswith("built in"))
            time.sleep(0.3)
            assert run.rows[0].phase == "building"
            run.stop()
        assert stopped_at_once(run) and (run.state, session.trials()) == ("stopped", [])
    finally:
        runner.stop(run)


def test_a_stop_ends_the_judging_of_the_modules_too(runner: Runner, tmp_path: Path) -> None:
    """They are judged in a process of their own."""
    session = Session.create(tmp_path, "modules")
    run = runner.start(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False, effort="quick", modules=True), session)
    until(lambda: run.message.startswith("judging ModelNew"))
    run.stop()
    assert stopped_at_once(run) and run.state == "stopped"
    assert [t.kind for t in session.trials()] == ["candidate"] and session.trials()[0].ok


def test_a_stop_of_a_run_that_waits_leaves_the_one_before_it_alone(runner: Runner, tmp_path: Path, broken: Path) -> None:
    """And a run that is stopped as soon as it is asked for judges nothing, whatever would have been started for it."""
    def asked(name: str, *candidates: Candidate) -> Run:
        return runner.start(RunRequest(WORKLOAD, candidates, device="cpu", baselines=False, effort="quick", run_timeout_s=600),
                            Session.create(tmp_path, name))

    first = asked("first", bad(broken, "never_ends"))
    until(lambda: first.rows[0].phase == "checking")
    second = asked("second", good())
    second.stop()
    assert stopped_at_once(second) and (second.state, second.trials) == ("stopped", [])
    time.sleep(0.5)
    assert first.state == "running" and first.rows[0].phase == "checking"
    first.stop()
    assert stopped_at_once(first) and (first.state, first.rows[0].status) == ("stopped", Status.CANCELLED)
    third = asked("third", bad(broken, "never_ends"))
    third.stop()
    assert stopped_at_once(third) and (third.state, third.trials) == ("stopped", [])


def test_a_killed_run_leaves_every_finished_trial(tmp_path: Path) -> None:
    """SIGKILL of the whole front end: finished trials are there, and --resume runs only what is missing."""
    names = ("naive_gather", "shared_weight_tiling", "warp_per_output")
    words = [sys.executable, "-m", "workbench", "run", "--layer", "ConvTranspose1d(3, 5, 3, stride=2)", "--input-size", "40",
             "--device", "cpu", "--session", "cut", "--no-baselines", "--effort", "quick", "--direction", "forward",
             *(word for name in names for word in ("--variant", name))]
    environment = {**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    trials = tmp_path / "cut" / "trials.jsonl"
    until(lambda: trials.is_file() and trials.stat().st_size > 0)
    process.kill()
    process.wait()
    kept = len(Session.open(tmp_path / "cut").trials())
    assert 1 <= kept < len(names)
    done = subprocess.run([*words, "--resume", "--json"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {t.name for t in Session.open(tmp_path / "cut").trials()} == set(names)
    assert len(done.stdout.splitlines()) == len(Session.open(tmp_path / "cut").trials()) - kept


def test_two_runs_on_one_device_the_second_says_for_whom_it_waits(tmp_path: Path, broken: Path) -> None:
    with Runner(build_workers=1) as first, Runner(build_workers=1) as second:
        one = first.start(RunRequest(WORKLOAD, (bad(broken, "never_ends"),), device="cpu", baselines=False,
                                     run_timeout_s=600), Session.create(tmp_path, "one"))
        until(lambda: one.rows[0].phase == "checking")
        session = Session.create(tmp_path, "two")
        two = second.start(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False, effort="quick"), session)
        until(lambda: two.message.startswith("waits"))
        assert two.state == "waiting" and f"process {os.getpid()}" in two.message
        first.stop(one)
        assert two.wait(300) and two.state == "done" and session.trials()[0].ok
        assert "waiting" in {e["event"] for e in session.events()}


def test_out_of_bounds_reads_are_named_by_address_sanitizer(judge: Judge, broken: Path) -> None:
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout.strip()
    require(Path(library).is_absolute(), "libasan is not installed")
    _, session = judge(bad(broken, "reads_past_input"), good(), sanitize="address", time=False)
    by_name = {t.name: t for t in session.trials()}
    caught = by_name["reads_past_input"]
    assert caught.status is Status.OUT_OF_BOUNDS and caught.headline.startswith(
        "The kernel reads 4 bytes outside a buffer at forward/reads_past_input.cu:"), caught.headline
    assert "before this load" in caught.advice and "ERROR: AddressSanitizer" in caught.detail.log_tail
    wrote = failure(WorkerDied("signal 6", "ERROR: AddressSanitizer: SEGV\nThe signal is caused by a WRITE memory access.\n"
                               "    #0 0x1 in naive_gather<L>(L) forward/naive_gather-13fd.cu:71\n"), building=False)
    assert wrote.headline == "The kernel writes outside a buffer at forward/naive_gather-13fd.cu:71 (AddressSanitizer: SEGV)."
    assert "before the store" in wrote.advice
    assert by_name["naive_gather"].ok, by_name["naive_gather"].headline


def test_a_skipped_candidate_says_why(judge: Judge, tmp_path: Path) -> None:

    from workbench.core.candidate import Candidate
    from workbench.core.variants import TEMPLATES, find
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    path = root / "forward" / "naive_gather.cu"
    path.write_text(path.read_text().replace('needs     = []', 'needs     = ["layer.groups == 1"]'))
    _, session = judge(Candidate(find("naive_gather", "forward", root=root), WORKLOAD.layer, "float32", {}))
    trial = session.trials()[0]
    assert trial.status is Status.SKIPPED
    assert trial.headline == "Not run: naive_gather needs layer.groups == 1; here layer.groups is 2."


def test_a_device_that_is_not_there_is_a_bad_request(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="'cuda:7' is not on this machine"):
        runner.start(RunRequest(WORKLOAD, (good(),), device="cuda:7"), Session.create(tmp_path, "none"))


def test_a_session_that_cannot_be_written_ends_the_run_with_its_sentence(runner: Runner, tmp_path: Path) -> None:
    """And what was not judged says why: nobody stopped it."""
    session = Session.create(tmp_path, "blocked")
    (session.path / "trials.jsonl").mkdir()
    run = runner.run(RunRequest(WORKLOAD, (good(), good(BLOCK=64)), device="cpu", baselines=False, effort="quick", time=False),
                     session)
    assert run.state == "failed" and run.message.startswith(f"{session.path} cannot be written: Is a directory.")
    assert {row.text for row in run.rows} == {f"Not judged: {run.message}"}
    assert all(row.status is Status.CANCELLED for row in run.rows)
    shutil.rmtree(session.path)
    (tmp_path / "blocked").write_text("not even its folder")
    run = runner.run(RunRequest(WORKLOAD, (good(),), device="cpu", baselines=False, effort="quick"), session)
    assert run.state == "failed" and run.message.startswith(f"{session.path} cannot be written: Not a directory.")


def test_any_other_unwritable_place_ends_the_run_with_a_sentence(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_LOCKS", "/proc/nope")
    run, _ = judge(good())
    assert (run.state, run.message) == ("failed", "/proc/nope cannot be used: No such file or directory.")
    assert run.rows[0].text == f"Not judged: {run.message}"


def test_a_known_device_is_told_while_another_one_is_asked(runner: Runner) -> None:
    """The judging of a tune asks it for each trial, while the process of another GPU starts."""
    known, stop = runner.device("cpu"), threading.Event()
    stop.set()
    with runner.workers._asking:
        assert runner.workers.device("cpu", stop=stop) is known


def test_a_device_that_torch_does_not_see_is_a_bad_request(runner: Runner) -> None:
    with pytest.raises(BadRequest, match="^cuda:9 does not exist: torch .* choose cpu"):
        runner.device("cuda:9")


@pytest.mark.parametrize(("hidden", "words"), [("CXX", "No C++ compiler"), ("PATH", "")])
def test_no_compiler_is_a_status_not_a_crash(hidden: str, words: str, tmp_path: Path) -> None:
    environment = {**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(tmp_path), "PYTHONPATH": str(ROOT),
                   "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache")}
    environment |= {"CXX": "/nowhere/g++", "KERNEL_WORKBENCH_CXX": "/nowhere/g++"} if hidden == "CXX" else {"PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-m", "workbench", "run", "--layer", "ConvTranspose1d(2, 2, 3)", "--input-size",
                           "9", "--device", "cpu", "--variant", "naive_gather", "--direction", "forward", "--no-baselines"],
                          env=environment, capture_output=True, text=True, check=False)
    assert "NO_COMPILER" in done.stdout and done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernels_printf_cannot_fake_a_verdict(judge: Judge, broken: Path, tmp_path: Path) -> None:
    """It prints what a worker would answer, many ids of it, and computes something else."""
    root = shutil.copytree(broken, tmp_path / "templates")
    path = root / "forward" / "prints_a_verdict.cu"
    text = path.read_text()
    lies = (text.replace("narrow<Scalar>(gather(", "narrow<Scalar>(1 + gather(")
            .replace("  printf(", "  for (int id = 0; id < 200; ++id) printf(")
            .replace('\\"id\\": 1,', '\\"id\\": %d,').replace('\\n");', '\\n", id);'))
    assert lies.count("1 + gather(") == 1 and "%d" in lies
    path.write_text(lies)
    _, session = judge(bad(root, "prints_a_verdict"))
    assert session.trials()[0].status is Status.MISMATCH


def test_threads_do_not_leak(runner: Runner) -> None:
    assert sum(t.name.startswith("run-") for t in threading.enumerate()) <= 1


def test_a_recorded_log_names_no_private_path(judge: Judge) -> None:
    from workbench.core.env import cache_dir
    _, session = judge(good(BLOCK=512))
    log = session.blob(session.trials()[0].blobs["log"]).decode()
    assert "$ g++" in log and str(cache_dir()) not in log and str(Path.home()) not in log and sys.prefix not in log
