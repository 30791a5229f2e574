"""A session outlives torn lines, strangers' schemas, two writers, a full disk, and a trip through a zip. A source that did not
ship is made again where it would be the very same.
A recorded line with one value replaced: it is a trial that everything can show, or a sentence says why it is none."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import pytest

from workbench.core.errors import BadRequest
from workbench.core.replies import Device
from workbench.core.template import render
from workbench.core.toolchain import find_toolchain
from workbench.core.trial import Errors, Status, Timing, Trial
from workbench.core.trial_parts import Detail, KernelNumbers, TrialDevice
from workbench.core.variants import TEMPLATES
from workbench.drive.reporting import tables
from workbench.drive.running.request import RunRequest
from workbench.drive.running.resume import SLOWER, missing
from workbench.drive.sessions import files
from workbench.drive.sessions.files import blob
from workbench.drive.sessions.recorded import candidate_of, occupancy_of, source_of
from workbench.drive.sessions.session import Session, SessionFull, list_sessions, unpack
from workbench.faces.cli import main

from ..shared import require
from .conftest import WORKLOAD

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "sessions"
RECORDED = Session(SHIPPED / "recorded-h200-kernelbench.zip")


def a_trial(number: int = 0, **more) -> Trial:
    return Trial(trial_id=f"t{number:05d}", run_id="r", at="2026-01-01T00:00:00+00:00", kind="candidate", name="naive_gather",
                 direction="forward", precision="ieee", workload=WORKLOAD,
                 device=TrialDevice("cpu", 0, "a CPU", "x86_64", 90, "cpu"), status=Status.OK,
                 headline="Right in all checks.", advice="", **more)


def test_a_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    timing = Timing(1.0, 0.9, 1.1, 0.8, 12, "noise", True, "ab" * 32)
    errors = Errors(1e-6, 1e-5, 2e-7, 1e-6, (0, 1, 2), 0.5, 0.5, 0, 100, True)
    trial = a_trial(1, kernel_ms=timing, errors={"output": errors}, config={"BLOCK": 128}, flags=("emulated",),
                    compile_flags=("-O2",), module_ms={"forward": timing})
    session = Session.create(tmp_path, "one")
    session.append(trial)
    assert Session.open(tmp_path / "one").trials() == [trial]


def test_a_torn_last_line_costs_itself_only(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "torn")
    session.append(a_trial(1))
    with (session.path / "trials.jsonl").open("a") as file:
        file.write('{"schema": "kernel-workbench/trial/1", "trial_id": "half')
    session.append(a_trial(2))
    assert [t.trial_id for t in session.trials()] == ["t00001", "t00002"]
    assert session.unreadable == [f"{session.path}/trials.jsonl, line 2 was left out: it is incomplete or not a trial."]


def test_an_unknown_schema_is_left_out_and_said(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "future")
    session.append(a_trial(1))
    for schema in ("kernel-workbench/trial/99", "somebody/else"):
        with (session.path / "trials.jsonl").open("a") as file:
            file.write(json.dumps({**a_trial(2).to_json(), "schema": schema}) + "\n")
    assert [t.trial_id for t in session.trials()] == ["t00001"]
    assert "another version" in session.unreadable[0] and "unknown" in session.unreadable[1]


def _write_many(path: str, first: int) -> None:
    session = Session.open(Path(path))
    for number in range(first, first + 200):
        session.append(a_trial(number, detail=Detail(shown={"text": "x" * 500})))


def test_two_processes_write_one_session(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "shared")
    script = ("import sys; from pathlib import Path; from tests.drive.test_session import _write_many; "
              "_write_many(sys.argv[1], int(sys.argv[2]))")
    writers = [subprocess.Popen([sys.executable, "-c", script, str(session.path), first],
                                env={**os.environ, "PYTHONPATH": os.getcwd()}) for first in ("0", "1000")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    ids = {t.trial_id for t in session.trials()}
    assert len(ids) == 400 and session.unreadable == []


def test_a_line_stays_under_4_kb_and_nothing_of_the_trial_is_lost(tmp_path: Path) -> None:
    session = Session.create(tmp_path, "long")
    names = {f"fused_mma<float, {n}>": KernelNumbers(153, 0, 0, 0, n, 1, 0) for n in range(99)}
    long = a_trial(1, detail=Detail(log_tail="y" * 6000), resources={"sm_90": names}, memory={"peak_bytes": 1})
    session.append(long)
    assert all(len(line) < 4096 for line in (session.path / "trials.jsonl").read_bytes().splitlines())
    there, = session.trials()
    assert (there.resources, there.detail, there.memory) == (long.resources, long.detail, long.memory)
    packed = session.pack(tmp_path / "long.zip")
    elsewhere = unpack(packed, tmp_path / "there")
    assert elsewhere.trials() == [there]
    (elsewhere.path / "blobs" / there.blobs["more"]).unlink()
    with zipfile.ZipFile(packed) as archive:
        entry = archive.getinfo(f"{session.name}/blobs/{there.blobs['more']}")
    begin, data = entry.header_offset + 30 + len(entry.filename), packed.read_bytes()
    packed.write_bytes(data[:begin + 9] + bytes(9) + data[begin + 18:])
    for left in (elsewhere, Session.open(packed)):
        assert [t.trial_id for t in left.trials()] == ["t00001"], "what is left is shown all the same"


def test_a_full_disk_loses_nothing_recorded(tmp_path: Path) -> None:
    """A file system of 1 MB, really full: a private mount namespace, or RLIMIT_FSIZE where that is not allowed."""
    script = """
import sys
from pathlib import Path
from tests.drive.test_session import Detail, a_trial
from workbench.drive.sessions.session import Session, SessionFull
root = Path(sys.argv[1])
session = Session.create(root, "full")
written = 0
try:
    for number in range(100000):
        session.append(a_trial(number, detail=Detail(shown={"text": "z" * 2000})))
        written += 1
except SessionFull as error:
    print("FULL", written, str(error))
    print("READ", len(session.trials()), len(session.unreadable))
"""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path} && {sys.executable} -c '{script}' {tmp_path}"
    done = subprocess.run(["unshare", "--mount", "--map-root-user", "--user", "sh", "-c", mount], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False)
    if done.returncode and "FULL" not in done.stdout:
        done = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False)
    require("FULL" in done.stdout or "unshare" not in done.stderr, f"a private mount is not allowed here: {done.stderr[-200:]}")
    full, read = (line.split() for line in done.stdout.splitlines()[:2])
    assert int(full[1]) > 100 and "free some space" in done.stdout
    assert read == ["READ", full[1], "0"]


def test_threads_put_the_same_bytes_at_once(tmp_path: Path) -> None:
    """The measuring threads of several GPUs record the source of one variant."""
    session, data = Session.create(tmp_path, "s"), [bytes([i]) * 200_000 for i in range(40)]
    with ThreadPoolExecutor(8) as threads:
        for one in data:
            assert len({name for name in threads.map(session.put_blob, [one] * 8)}) == 1


def test_pack_opens_elsewhere(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "here", "trip")
    blob = session.put_blob(b"source text")
    session.append(a_trial(1, blobs={"source": blob}))
    archive = session.pack(tmp_path / "trip.zip")
    first = unpack(archive, tmp_path / "there")
    second = unpack(archive, tmp_path / "there")
    assert first.trials() == session.trials() and first.blob(blob) == b"source text"
    assert second.path.name == "trip-2"
    assert {p.name for p in list_sessions(tmp_path / "there")} == {"trip", "trip-2"}
    (session.path / "note.txt").write_text("of the user's own")  # no part of a session
    assert unpack(session.pack(tmp_path / "trip.zip"), tmp_path / "third").trials() == session.trials()
    session.path.rename(session.path.with_name("recorded-trip"))
    shipped = Session.open(session.path.with_name("recorded-trip")).pack(tmp_path / "recorded-trip.zip")
    assert unpack(shipped, tmp_path / "third").name == "trip-2", "it is not one that ships with the project"


def test_bytes_that_are_not_those_of_their_name_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session from somebody else: a blob with other bytes, a blob that is another file of this machine, a zip of zeros."""
    session = Session.create(tmp_path, "s")
    name = session.put_blob(b"source")
    session.append(a_trial(1, blobs={"source": name}))
    session.event("run_started", text="x" * 100)
    place = session.path / "blobs" / name
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
        archive.writestr("s/trials.jsonl", "")
        archive.writestr(f"s/blobs/{name}", b"other")
    with pytest.raises(BadRequest, match=f"changed.zip cannot be unpacked: its blob {name[:12]} was changed."):
        unpack(tmp_path / "changed.zip", tmp_path / "there")
    assert blob(tmp_path / "changed.zip", name) is None and not list((tmp_path / "there").iterdir())
    (tmp_path / "changed.zip").write_bytes((tmp_path / "changed.zip").read_bytes().replace(b"other", b"OTHER"))
    with pytest.raises(BadRequest, match=f"The blob '{name[:12]}' of session changed cannot be read: changed.zip is damaged."):
        Session.open(tmp_path / "changed.zip").blob(name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"source")
    for damage, packing in ((lambda: place.write_bytes(b"other"), f"has no blob '{name[:12]}'"),
                            (lambda: (place.unlink(), place.symlink_to(elsewhere)), f"{place} is a link")):
        damage()
        with pytest.raises(BadRequest, match="it was packed without it, is a link, or was changed since"):
            session.blob(name)
        with pytest.raises(BadRequest, match=packing):
            session.pack(tmp_path / "s.zip")
    place.unlink()
    linked = Session.create(tmp_path, "linked")
    (linked.path / "trials.jsonl").symlink_to(session.path / "trials.jsonl")
    with pytest.raises(BadRequest, match="linked/trials.jsonl is a link"):
        linked.pack(tmp_path / "linked.zip")
    packed = Session.open(session.pack(tmp_path / "s.zip"))
    assert len(packed.trials()) == len(packed.events()) == 1
    monkeypatch.setattr(files, "MOST_LINES_BYTES", 100)
    assert packed.trials() == [] and "larger than any session's" in packed.unreadable[0]
    assert packed.events() == []


@pytest.mark.parametrize("entry", ["../evil/trials.jsonl", "trip/../../evil", "trip/run.sh", "/etc/trials.jsonl"])
def test_a_zip_with_anything_else_is_refused(tmp_path: Path, entry: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("trip/trials.jsonl", "")
        archive.writestr(entry, "x")
    with pytest.raises(BadRequest, match="other than one session"):
        unpack(tmp_path / "bad.zip", tmp_path / "there")


def test_a_place_that_cannot_be_written_is_one_sentence_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="^/proc/nope/one cannot be written: No such file or directory. Set KERNEL_WORKBENCH"):
        Session.create(Path("/proc/nope"), "one")
    session = Session.create(tmp_path, "one")
    (session.path / "trials.jsonl").mkdir()
    with pytest.raises(BadRequest, match=f"^{session.path} cannot be written: Is a directory."):
        session.append(a_trial())
    other = Session.create(tmp_path, "two")
    other.append(a_trial())
    archive = other.pack(tmp_path / "two.zip")
    for write in (lambda: session.pack(Path("/proc/nope.zip")), lambda: unpack(archive, Path("/proc/nope"))):
        with pytest.raises(BadRequest, match="^/proc.* cannot be written: "):
            write()


def test_a_full_disk_is_a_sentence_without_its_number() -> None:
    assert str(SessionFull(28, "The disk is full")) == "The disk is full."


def test_bad_names_and_places_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not a plain file name"):
        Session.create(tmp_path, "../up")
    with pytest.raises(BadRequest, match="is not a session"):
        Session.open(tmp_path / "nothing")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(BadRequest, match="is not a zip"):
        unpack(tmp_path / "text.zip", tmp_path)
    assert issubclass(SessionFull, OSError)


def test_sessions_come_newest_first_and_recorded_ones_behind_them_by_their_trials(tmp_path: Path) -> None:
    for age, (name, at) in enumerate((("mine", "01"), ("older", "02"), ("recorded-before", "03"), ("recorded-after", "04"))):
        session = Session.create(tmp_path, name)
        (session.path / "trials.jsonl").write_text(f'{{"at":"2026-01-{at}T00:00:00.000+00:00"}}\n')
        os.utime(session.path, (1e9 - age, 1e9 - age))
    assert [p.name for p in list_sessions(tmp_path)] == ["mine", "older", "recorded-after", "recorded-before"]


def test_a_folder_without_trials_does_not_hide_the_zip_of_its_name(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "work", "recorded-mine")
    session.append(a_trial())
    there = tmp_path / "there"
    (there / "recorded-mine" / "blobs").mkdir(parents=True)
    packed = session.pack(there / "recorded-mine.zip")
    assert list_sessions(there) == [packed] and len(Session.open(packed).trials()) == 1
    shutil.copytree(session.path, there / "recorded-mine", dirs_exist_ok=True)
    assert list_sessions(there) == [there / "recorded-mine"]  # one that was gone on with wins


def test_going_on_with_a_packed_session_unpacks_it_first(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "work", "recorded-mine")
    session.append(a_trial(1))
    session.pack(tmp_path / "recorded-mine.zip")
    (tmp_path / "recorded-mine" / "blobs").mkdir(parents=True)
    gone_on = Session.create(tmp_path, "recorded-mine")
    gone_on.append(a_trial(2))
    assert gone_on.path == tmp_path / "recorded-mine" == list_sessions(tmp_path)[0]
    assert [t.trial_id for t in gone_on.trials()] == ["t00001", "t00002"]
    with pytest.raises(BadRequest, match="is packed: nothing can be added to it"):
        Session.open(tmp_path / "recorded-mine.zip").append(a_trial(3))


def test_a_source_that_did_not_ship_is_made_again_only_where_it_is_the_same() -> None:
    there = [t for t in RECORDED.trials() if t.kind == "candidate" and t.name == "register_blocked"]
    lost = next(t for t in there if blob(RECORDED.path, t.blobs["source"]) is None)
    rendered = render(candidate_of(lost))
    lost = replace(lost, candidate_id=rendered.candidate_id)  # templates change between recordings
    assert source_of(lost, RECORDED) == rendered.source
    with pytest.raises(BadRequest, match=f"has changed since trial {lost.trial_id} was judged; run it again"):
        source_of(replace(lost, candidate_id="0" * 16), RECORDED)


FOR_REPLAY = ("recorded-h200-spaces", "recorded-h200-tunes-1", "recorded-h200-tunes-2")


@pytest.mark.parametrize("packed", sorted(SHIPPED.glob("recorded-*.zip")), ids=lambda path: path.stem)
def test_every_recorded_candidate_has_the_id_of_todays_template(packed: Path) -> None:
    """A candidate whose id has changed can neither be exported nor resumed. The sessions for `replay` may hold some."""
    recorded = [t for t in Session.open(packed).trials() if t.candidate_id and not t.forked_from]
    changed = [t for t in recorded if render(candidate_of(t)).candidate_id != t.candidate_id]
    names = {f"{t.name} {t.direction}" for t in changed}
    assert names == ({"register_wgmma forward"} if packed.stem in FOR_REPLAY else set())
    timed = {(t.workload.preset, t.direction): t for t in recorded
             if t not in changed and t.ok and t.kernel_ms and t.kernel_ms.stop != SLOWER}
    for trial in timed.values():
        device = Device(*astuple(trial.device), 0, 0, "", "", 0, "", 0)
        assert missing([candidate_of(trial)], [trial], RunRequest(trial.workload, ()), device) == [], "resumed, it runs again"


@pytest.mark.long
@pytest.mark.parametrize("packed", sorted(SHIPPED.glob("recorded-*.zip")), ids=lambda path: path.stem)
def test_a_layer_of_every_recorded_session_can_be_exported(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("KERNEL_WORKBENCH_SESSIONS", raising=False)
    monkeypatch.chdir(tmp_path)
    timed = [t for t in Session.open(packed).trials() if t.kind == "candidate" and t.ok and t.kernel_ms]
    if not timed:
        assert packed.stem == "recorded-h200-modules", "it holds PyTorch's default settings and whole modules, and no candidate"
        return
    work, file = timed[-1].workload, tmp_path / "model_new.py"
    code = main(["export", "--session", packed.stem, "--preset", work.preset, "--dtype", work.dtype, "--memory-format",
                 work.memory_format, "--out", str(file)])
    if packed.stem in FOR_REPLAY:
        assert code and "has changed since trial" in capsys.readouterr().err
        return
    assert code == 0
    compile(file.read_text(), file.name, "exec")


KERNEL = asdict(KernelNumbers(8, 0, 0, 0, 0, 1, 512))
BAD = (None, "x", -1, 0, 1.5, [], {}, True, float("nan"), 1e999, 10**400, "\ud800", [["x"]], {"a": {"b": 1}})


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in files.lines(SHIPPED / f"{name}.zip", files.TRIALS)]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value[:1])):
            yield from places(value[key], (*place, key))


def replaced(line: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    line = copy.deepcopy(line)
    inner = line
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return line


@pytest.mark.parametrize(("session", "kind"), [
    ("recorded-h200-kernelbench", "candidate"), ("recorded-h200-kernelbench", "baseline"), ("recorded-h200-modules", "module")])
def test_no_value_in_any_place_is_more_than_a_line_left_out(session: str, kind: str) -> None:
    there = [line for line in lines(session) if line["kind"] == kind and line["status"] == "OK"]
    line = next((t for t in there if "against" in t.get("detail", {})), there[0])
    refused = shown = 0
    for place in places(line):
        for value in BAD:
            try:
                trial = Trial.from_json(replaced(line, place, value))
            except ValueError as error:
                assert str(error), (place, value)
                refused += 1
                continue
            shown += 1
            if shown % 4 == 0:  # every fourth of them
                assert tables.text_table([trial]) and json.dumps(trial.to_json()), (place, value)
                tables.compare_text(tables.compare_sessions([trial], [Trial.from_json(line)]))
                occupancy_of(trial)
    assert refused > 300 and shown > 100


def test_the_recorded_sessions_are_read_whole() -> None:
    for path in sorted(SHIPPED.glob("recorded-*.zip")):
        session = Session.open(path)
        assert len(session.trials()) == len(lines(path.stem)) > 0 and session.unreadable == []


def test_a_recorded_trial_is_written_as_it_was_read() -> None:
    for path in sorted(SHIPPED.glob("recorded-*.zip")):
        for line in lines(path.stem):
            written = json.loads(json.dumps(Trial.from_json(line).to_json()))
            for timing in filter(None, (line.get("kernel_ms"), *line.get("module_ms", {}).values())):
                timing.setdefault("dropped", 0)  # the oldest lines lack it
            assert written == line and list(written) == list(line), line["trial_id"]


@pytest.mark.parametrize(("place", "value", "sentence"), [
    (("workload", "colour"), "red", "workload.colour is not known"),
    (("device", "colour"), "red", "device.colour is not known"),
    (("build", "colour"), "red", "build.colour is not known"),
    (("build", "seconds"), "long", "build.seconds is 'long', not a number"),
    (("resources", "sm_90"), {"k": {"registers": 8}}, "resources.sm_90.k.barriers is missing"),
    (("resources", "sm_90"), {"k": {**KERNEL, "registers": "8"}}, "resources.sm_90.k.registers is '8', not a whole number"),
    (("resources", "sm_90"), {"k": {**KERNEL, "colour": 1}}, "resources.sm_90.k.colour is not known"),
    (("resources", "x86_64"), {"k": KERNEL}, "resources.'x86_64' is not an architecture"),
    (("device",), {"kind": "cpu"}, "device.arch is missing"),
    (("detail",), {"against": {"ratio": 2.0}}, "detail.against.baseline is missing"),
    (("detail", "against"), [1], "detail.against is [1], not an object"),
    (("detail", "kernels"), [7], "detail.kernels[0] is 7, not a text"),
    (("detail", "fresh_process"), "yes", "detail.fresh_process is 'yes', not true or false"),
    (("kernel_ms", "median_ms"), "fast", "kernel_ms.median_ms is 'fast', not a number"),
    (("kernel_ms", "median_ms"), -1.0, "kernel_ms.median_ms is -1.0, not a time"),
    (("workload", "layer", "stride"), "2", "workload.layer.stride is '2', not a list"),
    (("workload", "batch"), 0, "its workload is not valid: batch is 0; it must be 1 or more."),
    (("direction",), "sideways", "direction is 'sideways', which is not known"),
    (("blobs", "source"), "../../etc/passwd", "the blob '../../etc/passwd' is not a SHA-256"),
])
def test_the_sentence_names_the_place(place: tuple[str, ...], value: Any, sentence: str) -> None:
    line = next(t for t in lines("recorded-h200-kernelbench") if t["kind"] == "candidate" and "source" in t.get("blobs", {})
                and t["status"] == "OK")
    with pytest.raises(ValueError) as error:
        Trial.from_json(replaced(line, place, value))
    assert str(error.value) == sentence


def test_a_trial_whose_text_changed_but_not_its_code_gets_todays_id(tmp_path: Path) -> None:
    """tools/same_code.py. naive_gather had an unused function when it was recorded, and shared_weight_tiling subtracted."""
    require(find_toolchain().nvcc and find_toolchain().nvdisasm, "nvcc and nvdisasm compare the code")
    old = tmp_path / "templates"
    shutil.copytree(TEMPLATES, old)
    for name, was, then in (("naive_gather", "*/\n", "*/\n__device__ __forceinline__ int unused() { return 1; }\n"),
                            ("shared_weight_tiling", " += ", " -= ")):
        file = old / "forward" / f"{name}.cu"
        assert was in file.read_text()
        file.write_text(file.read_text().replace(was, then))
    session = Session.create(tmp_path / "work", "recorded-mine")
    for number, name in enumerate(("naive_gather", "shared_weight_tiling")):
        trial = replace(a_trial(number), name=name, device=TrialDevice("cuda", 0, "NVIDIA H200", "sm_90", 90, "nvidia_h200"))
        source = render(candidate_of(trial, templates=old))
        session.append(replace(trial, candidate_id=source.candidate_id,
                               blobs={"source": session.put_blob(source.source.encode())}))
    before, packed = session.trials(), session.pack(tmp_path / "recorded-mine.zip")
    done = subprocess.run([sys.executable, ROOT / "tools/same_code.py", old, packed, "--write"], capture_output=True, text=True,
                          check=False)
    assert not done.stderr and done.returncode == 1, done.stderr
    assert "2 sources changed, 1 of them give the same code." in done.stdout, done.stdout
    assert f"record again: {before[1].trial_id} shared_weight_tiling forward" in done.stdout
    gather, other = Session.open(packed).trials()
    today = render(candidate_of(gather))
    assert gather.candidate_id == today.candidate_id != before[0].candidate_id
    assert Session.open(packed).blob(gather.blobs["source"]).decode() == today.source
    assert replace(gather, candidate_id="", blobs={}, kept_in="") == replace(before[0], candidate_id="", blobs={}, kept_in="")
    assert other.candidate_id == before[1].candidate_id and other.blobs == before[1].blobs
    assert Session.open(packed).events()[-1]["trials"] == [gather.trial_id]
