"""Tunes in this process, on the emulator: what is searched, what fails, who wins, what is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from workbench.core import best_known
from workbench.core.best_known import best_config
from workbench.core.env import shipped
from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.replies import Device
from workbench.core.trial import Status, Trial
from workbench.core.variants import TEMPLATES, find
from workbench.drive.exporting.best_recipe import best_recipe, origin
from workbench.drive.running.execution import Execution
from workbench.drive.running.request import Listed, Row, Run, RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.searching.points import Seen
from workbench.drive.sessions.session import Session
from workbench.drive.tuning import store, text
from workbench.drive.tuning.batch import BatchRequest, Job, batch, next_job
from workbench.drive.tuning.feed import TuneFeed, TuneRequest, spaces
from workbench.drive.tuning.finals import AgainstDefault, Final, finals, odd_workloads
from workbench.drive.tuning.seen import Claims
from workbench.drive.tuning.space import TuneSpace, class_for, key_of_trial
from workbench.drive.tuning.tune import KEPT, WON, TuneResult, Winner, _known_final, explain, tune
from workbench.faces import exit_codes
from workbench.faces.notebook import Tuned
from workbench.faces.verbs.tune import exit_code

from ..drive.conftest import bad, until

WORK = Workload(ConvTranspose(1, 3, 5, (3,), stride=(2,)), 2, (17,))
REQUEST = TuneRequest(preset("kb74").workload("small", "float32"), ("forward",), device="cpu", variants=("naive_gather",),
                      baselines=False)
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 90, "nvidia_h200", 1 << 37, 1 << 37, "", "", 0, "580", 50 << 20)
CPU = Device("cpu", 0, "a CPU", "x86_64", 90, "cpu-x86_64", 1 << 34, 1 << 34, "", "", 0, "", 0)


@pytest.fixture(autouse=True)
def own_sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))


def tuned(runner: Runner, folder: Path, places: tuple[str, ...] = (), **asked: object) -> tuple[TuneResult, Session]:
    session = Session.create(folder, "s")
    request = TuneRequest(**{"workload": WORK, "directions": ("forward",), "device": "cpu", "baselines": False} | asked)
    return tune(request, session, runner, places=places), session


def parts(space: TuneSpace, place: int) -> dict[str, object]:
    candidate = space.candidate(place)
    return {"name": candidate.variant.name, "config": candidate.config, "precision": candidate.precision,
            "form": candidate.form}


def searched(session: Session, result: TuneResult) -> list[Trial]:
    """Without the trials of the finals."""
    finals = {w.trial.trial_id for w in result.winners.values()}
    return [t for t in session.trials() if t.kind == "candidate" and t.workload == WORK and t.trial_id not in finals]


def test_all_directions_share_a_tune_and_each_has_a_winner(runner: Runner, tmp_path: Path) -> None:
    result, session = tuned(runner, tmp_path, directions=("forward", "grad_input", "grad_weight"), trials=9, baselines=True,
                            variants=("naive_gather", "naive_scatter", "naive_reduce", "warp_per_output"))
    assert result.state == "done" and len(searched(session, result)) == 9 == result.trials
    per_direction = Counter(t.direction for t in searched(session, result))
    assert set(per_direction.values()) == {3} and len(per_direction) == len(result.winners) == 3, per_direction
    for direction, winner in result.winners.items():
        right = [t.kernel_median_ms for t in searched(session, result) if t.ok and t.direction == direction]
        first = next(t for t in session.trials() if t.trial_id == winner.final.searched)
        assert first.kernel_median_ms <= 1.5 * min(right), "in the finals an emulated time is noisy"
        assert key_of_trial(first) == key_of_trial(winner.trial)
        assert winner.trial.ok and winner.stored is None, "nothing is kept of the emulator"
        against = text.against_default(winner.trial, winner.final.default)
        assert "default config of" in against and "not timed" not in against and against in text.result(result)
    assert text.EMULATED in text.result(result)
    assert any(t.kind == "baseline" for t in session.trials())


def test_failing_candidates_are_one_trial_each_and_the_right_one_wins(runner: Runner, tmp_path: Path, broken: Path) -> None:
    folder = tmp_path / "templates"
    shutil.copytree(broken, folder)
    shutil.copy(TEMPLATES / "forward" / "naive_gather.cu", folder / "forward")
    names = ("writes_to_null", "makes_nan", "never_ends", "undefined_identifier", "huge_workspace")
    result, session = tuned(runner, tmp_path, variants=(*names, "naive_gather"), templates=folder, trials=6, run_timeout_s=8.0)
    trials = searched(session, result)
    assert len(trials) == 6, "a few of each variant come first"
    status = {t.name: t.status for t in trials}
    assert status == {"writes_to_null": Status.WORKER_DIED, "makes_nan": Status.NON_FINITE, "never_ends": Status.RUN_TIMEOUT,
                      "undefined_identifier": Status.BUILD_FAILED, "huge_workspace": Status.OUT_OF_MEMORY,
                      "naive_gather": Status.OK}
    assert result.winners["forward"].trial.name == "naive_gather"
    assert "RUN_TIMEOUT" in text.result(result)


def test_a_tune_that_finds_nothing_right_says_so_with_the_reasons_counted(runner: Runner, tmp_path: Path, broken: Path) -> None:
    result, session = tuned(runner, tmp_path, variants=("no_divisibility_test", "makes_nan"), templates=broken)
    assert result.state == "done" and not result.winners
    said = text.result(result)
    assert said.startswith("forward: no candidate is right; ") and "MISMATCH" in said and "NON_FINITE" in said
    assert sum(result.failures["forward"].values()) == len(session.trials()) == result.trials


def test_a_workload_that_nothing_serves_is_a_bad_request(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No variant can be tried on ConvTranspose1d.* depthwise_rows needs layer"):
        tuned(runner, tmp_path, variants=("depthwise_rows",))


def test_two_measuring_processes_judge_a_list_and_one_that_dies_is_left_out(runner: Runner, tmp_path: Path) -> None:
    """The second process is killed while it judges, and what stands in for it cannot start."""
    variant = find("naive_gather", "forward")
    rows = [Row(TuneSpace(WORK, "forward", "tf32", CPU, variants=["naive_gather"]).candidate(i)) for i in range(5)]
    session = Session.create(tmp_path, "s")
    second = runner.workers.measure("cpu#1")
    runner.workers.device("cpu#1")   # it has started: otherwise the first process may judge all five before it has
    request = RunRequest(WORK, tuple(row.candidate for row in rows), device="cpu", baselines=False, effort="full")
    run = runner.start(request, session, feed=Listed(rows), places=("cpu", "cpu#1"))
    until(lambda: sum(row.phase in ("checking", "timing") for row in rows) == 2)
    second._environment["PYTHONHOME"] = str(tmp_path)
    os.kill(second._process.pid, signal.SIGKILL)
    try:
        assert run.wait(300) and run.state == "done", run.message
    finally:
        runner.workers._measure.pop("cpu#1").close()
        runner.workers._described.pop("cpu#1", None)
    trials = session.trials()
    assert len(trials) == 5 and all(t.ok and t.name == variant.name for t in trials), [t.headline for t in trials]
    assert len({t.candidate_id for t in trials}) == 5
    assert [e["device"] for e in session.events() if e["event"] == "device_lost"] == ["cpu#1"]


def test_a_clearly_slower_candidate_is_timed_only_for_a_moment(runner: Runner, tmp_path: Path) -> None:
    class Hard(Listed):
        def to_beat(self, row: Row) -> float:
            return 1e-6

    candidate = bad(TEMPLATES, "naive_gather").variant
    rows = [Row(replace(bad(TEMPLATES, "naive_gather"), layer=WORK.layer, config=candidate.default_config))]
    session = Session.create(tmp_path, "s")
    request = RunRequest(WORK, (), device="cpu", baselines=False, effort="full")
    assert runner.start(request, session, feed=Hard(rows)).wait(300)
    trial = session.trials()[0]
    assert trial.ok and (trial.kernel_ms.stop, trial.kernel_ms.samples) == ("slower", 5)
    again = runner.run(replace(request, candidates=(rows[0].candidate,)), session, resume=True)
    assert [t.kernel_ms.stop != "slower" for t in again.trials] == [True], "a run times it in full"


def test_what_was_timed_for_a_moment_may_win_when_the_faster_ones_fall(runner: Runner, tmp_path: Path) -> None:
    """Its template is gone, or it was wrong on an odd size: what was stopped early as slower is the best that is left."""
    _, session = tuned(runner, tmp_path, variants=("naive_gather",), trials=2)
    first, second = sorted((t for t in session.trials() if t.workload == WORK and t.ok), key=lambda t: t.kernel_median_ms)[:2]
    gone = replace(first, name="gone")
    short = replace(second, kernel_ms=replace(second.kernel_ms, stop="slower", median_ms=2 * first.kernel_median_ms))
    found = []
    request = RunRequest(WORK, (), device="cpu", baselines=False, effort="quick")
    run = runner.start(request, Session.create(tmp_path, "f"), feed=Listed([]),
                       then=lambda execution: found.append(finals(execution, [gone, short], [], effort="quick")))
    assert run.wait(300) and run.state == "done", run.message
    assert found[0][0].searched == short.trial_id and not found[0][1]


def test_the_space_says_its_size_what_was_removed_and_what_is_covered(runner: Runner) -> None:
    work = preset("kb74").workload("small", "float32")
    told = explain(TuneRequest(work, ("forward",), device="cpu", effort="quick"), runner)["forward"]
    assert told.points == sum(f.points for f in told.families) and told.size == sum(f.size for f in told.families)
    small = next(f for f in told.families if f.name == "warp_per_output")
    assert small.whole and small.size - sum(r.configs for r in small.removed) == small.legal == small.points
    large = next(f for f in told.families if f.name == "implicit_gemm_mma")
    assert not large.whole and large.points < large.legal < large.size and large.removed and large.coverage
    assert told.left_out["depthwise_rows ieee"].startswith("depthwise_rows needs layer.in_channels == layer.groups; here ")
    said = text.explained({"forward": told})
    assert "a sample of" in said and "removed by: " in said and "all values are tried of" in said
    one = replace(told, families=(small,), points=small.points)
    assert "candidates of 1 family, class" in text.explained({"forward": one}, short=True)


def test_the_winner_of_a_gpu_is_kept_and_taken(tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded trial that is not the best known one of its cell, as if a tune had found it."""
    monkeypatch.setenv("KERNEL_WORKBENCH_STORE", str(tmp_path / "kept" / "tuned.json"))
    recorded = Session.open(shipped("sessions") / "recorded-h200-kernelbench.zip")
    work = preset("kb74").workload("full", "float32")
    right = sorted((t for t in recorded.trials() if t.workload == work and t.direction == "forward" and t.ok
                    and t.kind == "candidate" and t.precision == "tf32"), key=lambda t: t.kernel_median_ms)
    first = best_config("forward", work, "tf32", "sm_90")
    other = next(t for t in right if t.name != first.variant)
    assert best_known.tuned() == []
    kept = store.keep(other, recorded, recorded.trials(), driver="580", precision_class="tf32")
    assert kept == (tmp_path / "kept" / "tuned.json", "")
    slower = replace(other, kernel_ms=replace(other.kernel_ms, median_ms=2 * other.kernel_median_ms))
    none, why = store.keep(slower, recorded, [], precision_class="tf32")
    assert none is None and "has a faster one" in why and best_known.tuned()[0].ms == round(other.kernel_median_ms, 6)
    best_known.save([replace(best_known.tuned()[0], candidate_id="0" * 12)], kept[0])
    assert store.keep(slower, recorded, [], precision_class="tf32")[0], "today's template makes another kernel"
    store.keep(other, recorded, [], precision_class="tf32")
    assert len(best_known.tuned()) == 1, "a faster winner stands in the place of the earlier one"
    found = best_config("forward", work, "tf32", "sm_90")
    assert (found.variant, found.config, found.candidate_id) == (other.name, other.tunables, other.candidate_id)
    assert "tuned here on NVIDIA H200" in origin(found) and found.reason.startswith("tuned here on")
    recipe, _ = best_recipe(work, "sm_90")
    assert recipe.forward.variant.name == other.name
    elsewhere = best_config("forward", replace(work, batch=1), "tf32", "sm_90")
    assert elsewhere.variant != other.name or elsewhere.config != other.tunables, "it was tuned for other sizes"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert best_config("forward", work, "tf32", "sm_90") == first, "there is no such GPU now"


# -- no compile: trials of a recorded session stand for what would be judged ----------------------------------------------

RECORDED = Session.open(shipped("sessions") / "recorded-h200-kernelbench.zip")
KB74 = preset("kb74").workload("full", "float32")
ON_GPU = TuneRequest(KB74, ("forward",), precision="tf32", device="cuda:0", effort="quick", variants=("gathered_mma",))


@pytest.fixture
def right() -> list[Trial]:
    """Right trials of kb74, the fastest first."""
    return sorted((t for t in RECORDED.trials() if (t.workload, t.kind, t.direction) == (KB74, "candidate", "forward")
                   and t.ok and t.kernel_ms and t.precision == "tf32"), key=lambda t: t.kernel_median_ms)


def gpu_of(trial: Trial) -> Device:
    return replace(H200, key=trial.device.key)


def fed(session: Session, request: TuneRequest, device: Device, **more: object) -> TuneFeed:
    with Claims(session) as claims:
        return TuneFeed(request, session, spaces(request, device), device, claims, **more)


def test_a_winner_of_another_layer_class_or_gpu_is_not_taken(tmp_path: Path, right: list[Trial]) -> None:
    session, one, device = Session.create(tmp_path, "s"), right[0], gpu_of(right[0])
    session.append(one)
    session.event(WON, direction="forward", precision_class="tf32", trial_id=one.trial_id, searched=one.trial_id, ties=[],
                  again=[], judged=1, untold=["1" * 12], default={"ratio": 1.2, "verdict": "FASTER"})
    known = _known_final(session, fed(session, ON_GPU, device).searches["forward"], device)
    assert known and known.trial.trial_id == one.trial_id
    assert known.untold == ("1" * 12,) and known.default == AgainstDefault(1.2, "FASTER")
    for request, there in ((replace(ON_GPU, workload=replace(KB74, batch=1)), device),
                           (replace(ON_GPU, precision="ieee"), device), (ON_GPU, replace(device, key="another"))):
        search = fed(session, request, there).searches["forward"]
        assert not search.trials, "it is no trial of this tune"
        search.trials["one"] = one
        assert _known_final(session, search, there) is None


def test_a_failure_of_a_candidate_counts_more_than_an_earlier_time(tmp_path: Path, right: list[Trial]) -> None:
    feed = fed(Session.create(tmp_path, "s"), ON_GPU, gpu_of(right[0]))
    search, (one, other) = feed.searches["forward"], right[:2]
    for trial in (other, one, replace(one, trial_id="1" * 12, status=Status.MISMATCH)):
        search.take(trial, key_of_trial(trial))
    assert search.best is other and search.trials[key_of_trial(one)].status == Status.MISMATCH
    search.take(replace(one, trial_id="2" * 12), key_of_trial(one))
    assert search.best is other, "it was wrong once"
    search.take(replace(other, trial_id="3" * 12, status=Status.WORKER_DIED), key_of_trial(other))
    assert search.best is other, "a process that died says little"


def test_only_a_comparable_time_is_one_of_the_tune(tmp_path: Path, right: list[Trial]) -> None:
    """Trials that a run put into the same session."""
    session, one = Session.create(tmp_path, "s"), right[0]
    for number, other in enumerate((replace(one, kernel_ms=None), replace(one, kernel_ms=replace(one.kernel_ms, cold_l2=False)),
                                    replace(one, command=f"{one.command} --sanitize address"))):
        session.append(replace(other, trial_id=f"{number:012x}"))
    assert not fed(session, ON_GPU, gpu_of(one)).searches["forward"].trials
    session.append(one)
    assert fed(session, ON_GPU, gpu_of(one)).searches["forward"].best == one


def test_what_was_wrong_on_an_odd_size_stays_wrong_after_a_restart(tmp_path: Path, right: list[Trial]) -> None:
    session, one = Session.create(tmp_path, "s"), right[0]
    odd = odd_workloads(KB74)[1]
    for trial in (one, replace(one, trial_id="1" * 12, workload=odd, status=Status.WORKER_DIED),
                  replace(one, trial_id="2" * 12, workload=replace(KB74, batch=2), status=Status.MISMATCH)):
        session.append(trial)
    assert fed(session, ON_GPU, gpu_of(one)).searches["forward"].best == one
    session.append(replace(one, trial_id="3" * 12, workload=odd, status=Status.MISMATCH))
    assert fed(session, ON_GPU, gpu_of(one)).searches["forward"].best is None


def test_what_the_machine_stood_in_the_way_of_teaches_nothing(tmp_path: Path, right: list[Trial],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.tuning.feed.propose", lambda points, seen, pending, count, *, seed: list(pending))
    search = fed(Session.create(tmp_path, "s"), ON_GPU, gpu_of(right[0])).searches["forward"]
    search.take(replace(right[0], status=Status.MACHINE_FAILED, kernel_ms=None), search.space.keys[3])
    assert not search.seen and search.propose(1, set(), 0) == [3], "it is not proposed again"


def test_eight_failures_of_the_machine_in_a_row_end_a_tune(tmp_path: Path, right: list[Trial]) -> None:
    session = Session.create(tmp_path, "s")
    feed = fed(session, ON_GPU, gpu_of(right[0]))
    row = Row(feed.searches["forward"].space.candidate(0))
    for number, status in enumerate([Status.OK, *[Status.MACHINE_FAILED] * 8]):
        assert not feed.over
        feed.told(row, replace(right[0], trial_id=f"{number:012x}", status=status))
    assert feed.over


def test_a_tune_that_judged_nothing_says_so() -> None:
    assert text.result(TuneResult("done", "", {}, {"forward": {}})).startswith("forward: the tune ended before a ")


class Canned:
    """A runner whose runs judge nothing: they carry out the last step at once."""

    def __init__(self, device: Device) -> None:
        self.known, self.requests, self.places = device, list[RunRequest](), list[tuple[str, ...]]()

    def device(self, name: str) -> Device:
        return self.known

    def start(self, request: RunRequest, session: Session, *, then: Callable[[Execution], None], places: tuple[str, ...] = (),
              **more: object) -> Run:
        self.requests.append(request)
        self.places.append(places)
        run = Run("0" * 8, request, session.path, [], state="done", message="0 candidates judged", device=self.known)
        then(Execution(run, session, None, ("cuda:0",), resume=True))
        run.finished.set()
        return run


def test_when_all_finalists_fall_there_is_no_winner(tmp_path: Path, right: list[Trial],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    session, one = Session.create(tmp_path, "s"), right[0]
    session.append(one)
    wrong = replace(one, trial_id="1" * 12, status=Status.MISMATCH, workload=replace(KB74, batch=1, input_size=(7,)))
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (None, [wrong]))
    result = tune(ON_GPU, session, Canned(gpu_of(one)))
    assert not result.winners and result.failures == {"forward": {"MISMATCH": 1}}
    assert text.result(result).startswith("forward: no candidate is right; 1 MISMATCH.\n  Candidates that were right in ")
    assert exit_code(result) == exit_codes.WRONG
    assert tune(ON_GPU, session, Canned(gpu_of(one)), with_finals=False).winners, "before the finals it is the best so far"


def test_a_finalist_is_not_wrong_because_the_machine_failed(tmp_path: Path, right: list[Trial],
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    session, one = Session.create(tmp_path, "s"), right[0]
    session.append(one)
    lost = replace(one, trial_id="1" * 12, status=Status.WORKER_DIED)
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (None, [lost]))
    result = tune(ON_GPU, session, Canned(gpu_of(one)))
    assert not result.winners and not result.fell and result.passed == {"forward": 1}
    assert text.result(result).startswith("forward: no winner.\n  Not judged again, because of the machine or a time limit: 1.")
    assert exit_code(result) == exit_codes.NOTHING_RAN


def test_claims_of_what_was_judged_meanwhile_count_once(tmp_path: Path, right: list[Trial],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.tuning.feed.propose", lambda points, seen, pending, count, *, seed: [0] * count)
    search = fed(Session.create(tmp_path, "s"), ON_GPU, gpu_of(right[0])).searches["forward"]
    places = range(len(search.points))
    half = set(places[:len(places) // 2 + 1])
    assert search.propose(4, half, 0) and not search.propose(4, set(places), 0)
    for place in half:
        search.take(replace(right[0], trial_id=f"{place:012x}"), search.space.keys[place])
    assert search.propose(4, half, 0), "the others are left"


def test_what_was_seen_stays_in_the_order_of_time(tmp_path: Path, right: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search fits its model to a prefix of what was seen, and keeps it while the prefix is the same."""
    search, asked = fed(Session.create(tmp_path, "s"), ON_GPU, gpu_of(right[0])).searches["forward"], list[list[Seen]]()
    monkeypatch.setattr("workbench.drive.tuning.feed.propose", lambda points, seen, *more, **named: asked.append(seen) or [])
    for number, place in enumerate((7, 3, 9, 1)):
        search.take(replace(right[0], trial_id=f"{number:012x}"), search.space.keys[place])
        search.propose(1, set(), 0)
    assert [one.point for one in asked[-1]] == [7, 3, 9, 1] and asked[-1][:2] == asked[1]


def test_a_damaged_store_and_one_that_cannot_be_written(
        tmp_path: Path, right: list[Trial], gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    file = tmp_path / "tuned.json"
    file.write_text("{")
    monkeypatch.setenv("KERNEL_WORKBENCH_STORE", str(file))
    for _ in range(2):
        assert best_config("forward", KB74, "tf32", "sm_90"), "the shipped ones are there"
    assert caplog.text.count("is not used") == 1
    for there in (file, file / "below" / "tuned.json"):   # a folder that is a file: not even root can write it
        monkeypatch.setenv("KERNEL_WORKBENCH_STORE", str(there))
        with pytest.raises(BadRequest, match="^Winners cannot be kept in .*name another file in"):
            tune(ON_GPU, Session.create(tmp_path, "s"), Canned(gpu_of(right[0])))
        none, why = store.keep(right[0], RECORDED, [], precision_class="tf32")
        assert none is None and "cannot be written" in why
    one = Winner("forward", right[0], Final(right[0], "", (), ()), None, why)
    assert f"It is not kept: {there}" in text.result(TuneResult("done", "", {"forward": one}, {"forward": {}}))


def test_nothing_is_kept_of_other_templates(tmp_path: Path, right: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (Final(right[0], "", (), ()), []))
    for templates, kept in ((TEMPLATES, False), (None, True)):
        request = replace(ON_GPU, templates=templates)
        winner = tune(request, Session.create(tmp_path, "s"), Canned(gpu_of(right[0]))).winners["forward"]
        assert bool(winner.stored) == kept == (not winner.not_kept)
        [told] = [e for e in Session(tmp_path / "s").events() if e["event"] == KEPT]
        assert (told["trial_id"], told["kept"], told["why"]) == (right[0].trial_id, kept, winner.not_kept)
        (tmp_path / "s" / "events.jsonl").unlink()


def test_a_direction_without_candidates_is_named_and_no_success(tmp_path: Path, right: list[Trial],
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (Final(right[0], "", (), ()), []))
    request, told = replace(ON_GPU, directions=("forward", "grad_weight")), list[str]()
    result = tune(request, Session.create(tmp_path, "s"), Canned(gpu_of(right[0])),
                  on_space=lambda spaces: told.append(text.explained(spaces, short=True)))
    assert "grad_weight: nothing can be tried. No variant has that name." in told[0].splitlines()
    assert "grad_weight: nothing can be tried. No variant has that name." in text.result(result).splitlines()
    assert "forward" in result.winners and exit_code(result) == exit_codes.WRONG


def test_what_the_run_is_doing_is_told_before_its_first_trial(tmp_path: Path, right: list[Trial],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Canned):
        def start(self, request: RunRequest, session: Session, **more: object) -> Run:
            run = Run("0" * 8, request, session.path, [], message="waits: cuda:0 is used by x", device=self.known)
            Timer(1.0, lambda: (setattr(run, "state", "failed"), setattr(run, "message", "gone"), run.finished.set())).start()
            return run

    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune._MOST_SILENT_S", 0.4)
    told, session = list[str](), Session.create(tmp_path, "s")
    result = tune(ON_GPU, session, Waits(gpu_of(right[0])), on_line=told.append)
    assert told[0] == "waits: cuda:0 is used by x" and told[1] == "[0, 0 s] waits: cuda:0 is used by x", "a line every 0.4 s"
    assert repr(Tuned(session, result)).startswith("The tune failed: gone\n")


def test_a_class_of_another_dtype_names_the_dtype() -> None:
    with pytest.raises(BadRequest, match="'bf16' is not a class of float32; choose tf32, ieee, or tune .* --dtype bfloat16."):
        class_for(WORK, "forward", "sm_90", "bf16")


def test_a_third_of_a_short_tune_is_for_its_finals() -> None:
    quick = replace(REQUEST, effort="quick")
    assert (quick.finals_s, quick.race_s) == (20.0, 8.0) and replace(REQUEST, effort="normal").finals_s == 60
    assert replace(quick, trials=5).race_s == 8, "it has no time limit, but its finals do"


def test_odd_sizes_are_of_the_same_layer_and_can_run() -> None:
    for work in (WORK, Workload(ConvTranspose(2, 4, 6, (3, 5), padding=(4, 2)), 1, (9, 9))):
        odd = odd_workloads(work)
        assert len(odd) == 3 and all(w.layer == work.layer and w != work for w in odd)
        assert [w.batch for w in odd[1:]] == [1, 3]


def test_the_next_slice_goes_where_most_is_to_gain(right: list[Trial]) -> None:
    winner = Winner("forward", right[0], None)

    def job(name: str, gain: float, slices: int = 2) -> Job:
        return Job(name, REQUEST, name, TuneResult("done", "", {"forward": winner}), slices, gain)

    assert next_job([job("had", 1.0), job("fresh", 0.0, 0)]).name == "fresh"
    assert next_job([job("stuck", 0.0), job("gains", 0.3)]).name == "gains"
    assert next_job([job("asked often", 0.0, 9), job("asked twice", 0.0)]).name == "asked twice"


def test_the_minutes_of_earlier_runs_count_towards_the_limit_of_a_suite(tmp_path: Path, right: list[Trial],
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    session, one, said = Session.create(name="night.kb74.tf32"), right[0], list[str]()
    session.append(one)
    with (session.path / "events.jsonl").open("a", encoding="utf-8") as file:
        for minute, event in ((10, {"event": "run_started", "workload": KB74.to_json(), "tune": "tf32"}), (19, {})):
            file.write(json.dumps({"at": f"2026-01-01T00:{minute}:00+00:00", "run_id": "0" * 8, **event}) + "\n")
    monkeypatch.setattr("workbench.drive.tuning.tune.resolve_device", lambda name: "cuda:0")
    monkeypatch.setattr("workbench.drive.tuning.tune.finals", lambda *given, **more: (Final(one, one.trial_id, (), ()), []))
    asked = BatchRequest("kernelbench", ON_GPU, ("tf32",), minutes=10, layers=("kb74",))
    [job] = batch(asked, "night", Canned(gpu_of(one)), on_line=said.append)
    assert said[0] == "Earlier runs of night took 9.0 of the 10 minutes." and not any("slice" in line for line in said)
    assert job.result.winners["forward"].final, "its finals follow"
    batch(replace(asked, minutes=12), "night", Canned(gpu_of(one)), on_line=said.append)
    assert "kb74 tf32: slice 1" in said


@pytest.mark.long
def test_the_layers_of_a_suite_share_the_trials(runner: Runner) -> None:
    asked = BatchRequest("kernelbench", REQUEST, ("tf32",), trials=10, size="small", layers=("kb74", "kb64"))
    jobs = batch(asked, "night", runner)
    assert {job.name for job in jobs} == {"kb74 tf32", "kb64 tf32"} and sum(job.result.trials for job in jobs) == 10
    assert all(job.result.winners["forward"].final for job in jobs), "the finals come at the end"
