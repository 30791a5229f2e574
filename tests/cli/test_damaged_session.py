"""A session with lines or files that cannot be read, and a template with a wrong header, on the command line: each costs
itself, and stderr says which."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from workbench.core.variants import TEMPLATES
from workbench.drive.sessions.session import Session

from .test_cli import ROOT, SMALL, cli

pytestmark = pytest.mark.xdist_group("damaged_session")  # one worker makes the session, once

RUN = ["run", *SMALL, "--direction", "forward", "--variant", "naive_gather", "--effort", "quick"]
DAMAGE = (
    ("status", "SPLENDID", "status is 'SPLENDID', which is not known."),
    ("kernel_ms", {"median_ms": "fast"}, "kernel_ms.cold_l2 is missing."),
    ("workload", {"batch": 1}, "workload.input_size is missing."),
    ("device", {"kind": "cpu"}, "device.arch is missing."),
    ("config", [128], "config is [128], not an object."),
    ("colour", "red", "colour is not known."),
    ("resources", {"sm_90": {"k": {"registers": 8}}}, "resources.sm_90.k.barriers is missing."))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sessions")
    assert cli(*RUN, "--session", "good", sessions=root).returncode == 0
    return root / "good" / "trials.jsonl"


@pytest.mark.parametrize("words", [
    ["show", "damaged"], ["show", "damaged", "--json"], ["compare", "damaged", "damaged", "--json"],
    ["export", "--session", "damaged", "--out", "model_new.py"], [*RUN, "--session", "damaged", "--resume"]],
    ids=lambda words: "-".join(w for w in words if w in ("show", "compare", "export", "run", "--json")))
def test_every_verb_leaves_out_lines_of_wrong_types(here, words: list[str], good: Path, tmp_path: Path) -> None:
    file = Session.create(tmp_path, "damaged").path / "trials.jsonl"
    lines = good.read_text().splitlines()
    bad = [json.dumps({**json.loads(lines[0]), key: value}) for key, value, _ in DAMAGE]
    file.write_text("\n".join([*lines, "", *bad, ""]))
    words = [str(tmp_path / w) if w == "model_new.py" else w for w in words]
    done = here(*words, sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "left out" in line]
    assert said == [f"{file}, line {len(lines) + 2 + i} was left out: {why}" for i, (_, _, why) in enumerate(DAMAGE)]
    assert "left out" not in done.stdout and "Traceback" not in done.stderr
    if "--json" in words:
        for line in [done.stdout] if words[0] == "compare" else done.stdout.splitlines():
            json.loads(line)


def test_recorded_text_does_nothing_to_a_terminal(here, good: Path, tmp_path: Path) -> None:
    session = Session.create(tmp_path, "acts")
    log = session.put_blob(b"error: \x1b[2J17 OF 17 PASSED")
    line = json.loads(good.read_text().splitlines()[0])
    line |= {"name": "a\x1b[2J", "form": "b\x07", "headline": "c\x9b2J", "blobs": {**line.get("blobs", {}), "log": log}}
    (session.path / "trials.jsonl").write_text(json.dumps(line) + "\n")
    for words in (["show", "acts"], ["compare", "acts", "acts"], ["show", "acts", "--trial", line["trial_id"]],
                  ["show", "acts", "--trial", line["trial_id"], "--log"]):
        done = here(*words, sessions=tmp_path)
        assert done.returncode in (0, 1) and not {"\x1b", "\x07", "\x9b"} & {*done.stdout, *done.stderr}, done
    assert "error: \\x1b[2J17 OF 17 PASSED" in done.stdout


def test_one_file_that_cannot_be_read_does_not_hide_the_other_sessions(here, good: Path, tmp_path: Path) -> None:
    unreadable = Session.create(tmp_path, "unreadable")
    (unreadable.path / "trials.jsonl").symlink_to("/proc/self/mem")  # there, and a read of it is an I/O error
    Session.create(tmp_path, "other")
    done = here("show", sessions=tmp_path)
    assert done.returncode == 0 and re.search(r"^other +– +– +– +0 +0$", done.stdout, re.M), done.stderr
    assert done.stderr == f"{unreadable.path}/trials.jsonl cannot be read: Input/output error.\n"


@pytest.mark.parametrize("damage", ["torn", "password"])
def test_a_corrupt_zip_is_one_sentence(here, damage: str, good: Path, tmp_path: Path) -> None:
    archive = Session.open(good.parent).pack(tmp_path / "good.zip")
    data = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as whole:
        entry = whole.getinfo("good/trials.jsonl")
    if damage == "torn":
        begin = entry.header_offset + 30 + len(entry.filename)
        data[begin + 20:begin + 60] = bytes(40)
    else:  # the flag that says that it is encrypted, in both headers of every entry
        for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            at = data.find(mark)
            while at >= 0:
                data[at + place] |= 1
                at = data.find(mark, at + 1)
    archive.write_bytes(data)
    done = here("pack", "--open", str(archive), sessions=tmp_path / "there")
    assert done.returncode == 2 and done.stderr.startswith("good.zip cannot be unpacked: "), done.stderr
    assert len(done.stderr.splitlines()) == 1 and not list((tmp_path / "there").iterdir())


def test_two_runs_of_one_second_have_two_sessions(tmp_path: Path) -> None:
    program = ("import sys, time; from pathlib import Path; from workbench.drive.sessions.session import Session; "
               "print('ready', flush=True); time.sleep(max(0.0, float(input()) - time.time())); "
               "print(Session.create(Path(sys.argv[1])).name)")
    pipe = subprocess.PIPE
    makers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
              for _ in range(6)]
    assert [maker.stdout.readline() for maker in makers] == ["ready\n"] * 6
    at = int(time.time()) + 1.2                                       # all are told before the first has to begin
    for maker in makers:
        maker.stdin.write(f"{at}\n")
        maker.stdin.flush()
    names = {maker.communicate()[0].strip() for maker in makers}
    assert len(names) == 6 and {p.name for p in tmp_path.iterdir()} == names


SENTENCE = "The header of broken.cu is not TOML: Invalid value (at line 2, column 8)."


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one_is_broken") / "templates"
    (root / "forward").mkdir(parents=True)
    shutil.copy(TEMPLATES / "forward" / "naive_gather.cu", root / "forward")
    (root / "forward" / "broken.cu").write_text('/* variant\nname = broken"\n*/\n')
    return root


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_variants_lists_the_others_and_says_which_is_broken(here, templates: Path, more: list[str]) -> None:
    done = here("variants", "--templates", str(templates), *more)
    assert done.returncode == 1 and "naive_gather" in done.stdout
    assert done.stderr == f"{SENTENCE} This template was skipped.\n"


def test_run_goes_on_without_it(here, templates: Path, tmp_path: Path) -> None:
    words = ["run", *SMALL, "--templates", str(templates), "--effort", "quick", "--no-baselines"]
    done = here(*words, sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{SENTENCE} This template was skipped.\n" in done.stderr and "naive_gather" in done.stdout


@pytest.mark.parametrize("verb", ["run", "test", "bench"])
def test_naming_it_is_refused_with_its_sentence(here, verb: str, templates: Path, tmp_path: Path) -> None:
    small = [] if verb == "bench" else SMALL
    done = here(verb, *small, "--templates", str(templates), "--variant", "broken", sessions=tmp_path)
    assert done.returncode == 2 and done.stderr == SENTENCE + "\n"


def test_a_validation_of_everything_does_not_pass_without_it(here, templates: Path) -> None:
    words = ["test", *SMALL, "--templates", str(templates), "--effort", "quick"]
    done = here(*words)
    assert done.returncode == 1 and SENTENCE in done.stderr and "1 of 1 cases are right" in done.stdout, done.stderr
    assert here(*words, "--variant", "naive_gather").returncode == 0


def test_export_takes_a_variant_from_the_folder(here, templates: Path, tmp_path: Path) -> None:
    own = tmp_path / "templates" / "forward" / "own.cu"
    own.parent.mkdir(parents=True)
    own.write_text((templates / "forward" / "naive_gather.cu").read_text().replace('"naive_gather"', '"own"'))
    done = here("export", *SMALL, "--templates", str(own.parent.parent), "--forward", "own", "--out", str(tmp_path / "own.py"))
    assert done.returncode == 0, done.stderr
    assert "forward/own" in (tmp_path / "own.py").read_text()
    refused = here("export", *SMALL, "--templates", str(own.parent.parent), "--best")
    assert refused.returncode == 2 and "leave out --session, --set, --templates" in refused.stderr


@pytest.mark.parametrize("verb", ["run", "variants", "test", "bench"])
def test_a_folder_that_is_not_there_is_said(here, verb: str, tmp_path: Path) -> None:
    small = SMALL if verb in ("run", "test") else []
    done = here(verb, *small, "--templates", "/nonexist", sessions=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("The folder of templates /nonexist does not exist;") and done.stderr.count("\n") == 1
