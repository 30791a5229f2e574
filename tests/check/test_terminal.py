"""`check` as a person meets it on the command line: what it prints of foreign text, of a build's log, and while it works."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.presets import preset
from workbench.drive.checking.check import workload_reference
from workbench.drive.running.worker_process import WorkerProcess
from workbench.faces import cli

from ..drive.conftest import until
from . import models

ROOT = Path(__file__).resolve().parents[2]
_FAKE = "\\x1b[2J17 OF 17 PASSED\\r\\u202e"
_RAISES = f'raise ValueError("{_FAKE}")'
# torch's own headers take g++ half a minute, and say nothing of what is tested here.
_EMPTY_HEADER = "import os, pathlib; os.mkdir('torch'); pathlib.Path('torch/extension.h').touch()\n"
# Where a file can put words of its own into a report.
_PLACES = {
    "an exception while it is imported": f"{_RAISES}\n{models.RIGHT}",
    "an exception of its forward": models._in_forward(_RAISES),
    "the class of an exception": models._in_forward(f'raise type("{_FAKE}", (Exception,), {{}})("m")'),
    "a parameter's name": models.RIGHT.replace(
        "self.scale = scale", f'self.scale = scale\n        self.register_buffer("{_FAKE}", torch.ones(1))'),
    "a compiler's message": f"{_EMPTY_HEADER}from torch.utils.cpp_extension import load_inline\n"
                            f'load_inline("x", cpp_sources="#error {_FAKE}", functions=[], extra_include_paths=[os.getcwd()])'
                            f'\n{models.RIGHT}',
    "half a character": models._in_forward('raise ValueError("\\ud800")'),
}


def check(tmp_path: Path, text: str, *more: str, path: str | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache"), **({"PATH": path} if path is not None else {})}
    return subprocess.run([sys.executable, "-m", "workbench", *words(tmp_path, text, *more)], cwd=ROOT, env=env,
                          capture_output=True, check=False)


def words(folder: Path, text: str, *more: str) -> list[str]:
    file, reference = folder / "model_new.py", folder / "problem.py"
    file.write_text(text)
    reference.write_text(models.REFERENCE)
    return ["check", str(file), "--reference", str(reference), "--device", "cpu", "--no-time", "--no-nvcc", *more]


@pytest.fixture
def check_here(tmp_path: Path, forking_judge: WorkerProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
               ) -> Callable[..., tuple[int, str, str]]:
    """The same without new interpreters: exit code, stdout and stderr of the command line in this process."""
    monkeypatch.setattr("workbench.drive.checking.check.judge_process", lambda device: nullcontext(forking_judge))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    return lambda text, *more: (cli.main(words(tmp_path, text, *more)), *capfd.readouterr())


@pytest.mark.parametrize("place", _PLACES)
def test_no_control_character_of_a_file_reaches_the_terminal(check_here, place: str) -> None:
    if place == "a compiler's message":
        require(shutil.which("g++") and shutil.which("ninja"), "g++ and ninja build what load_inline is given")
    code, out, err = check_here(_PLACES[place], "--log")
    printed = out + err
    assert code == 1, printed
    assert all(c.isprintable() or c in "\n\t" for c in printed), repr(printed)
    words = {"half a character": "\\ud800", "a compiler's message": "17 OF 17 PASSED"}  # g++ drops the escape by itself
    assert words.get(place, "\\x1b[2J17 OF 17 PASSED") in printed
    assert "\n17 OF 17 PASSED" not in printed


def test_a_reference_that_raises_is_a_sentence_without_them_too(tmp_path: Path) -> None:
    file, reference = tmp_path / "model_new.py", tmp_path / "problem.py"
    file.write_text(models.RIGHT)
    reference.write_text(f"{_RAISES}\n")
    done = subprocess.run([sys.executable, "-m", "workbench", "check", str(file), "--reference", str(reference), "--device",
                           "cpu"], cwd=ROOT, capture_output=True, check=False)
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 2 and "\\x1b[2J" in last and last.isprintable(), done.stderr


def test_a_line_a_phase_where_nobody_looks_and_json_lines_beside(check_here) -> None:
    code, out, err = check_here(models.RIGHT, "--json")
    *answers, report = map(json.loads, out.splitlines())
    assert code == 0 and report["kind"] == "report" and report["badge"].endswith("PASSED") and not report["stopped"]
    assert {a.pop("kind") for a in answers} == {"answer"}
    assert sorted(q["key"] for q in report["questions"]) == sorted(a["key"] for a in answers)
    assert all(a in report["questions"] for a in answers)
    assert [a["seconds"] for a in answers] == sorted(a["seconds"] for a in answers)
    assert sum(p["seconds"] for p in report["phases"]) == pytest.approx(report["seconds"], abs=0.5)
    lines = err.splitlines()
    assert all(re.fullmatch(r" *\d+\.\d s  [^\r]+", line) for line in lines), lines
    phases = [line.partition(" s  ")[2] for line in lines]
    assert {"importing both files", "the given size"} <= set(phases)
    assert [p for p in phases if p.startswith("+ PASSED")] == [f"+ PASSED  {a['question']}" for a in answers
                                                               if a["answer"] == "PASSED"]
    assert len(phases) == len({*zip(phases, phases[1:] + [""], strict=True)}), "a phase is told twice"
    seconds = [float(line.partition(" s ")[0]) for line in lines]
    assert seconds == sorted(seconds)


def test_a_wrong_layer_is_explained_at_once_and_each_failure_is_told_once(check_here, tmp_path: Path) -> None:
    (tmp_path / "layer.py").write_text(workload_reference(preset("kb81").workload("small"))[0])
    code, out, err = check_here(models.ONLY_STRIDE_1, "--reference", str(tmp_path / "layer.py"))
    told = [line.partition(" s  ")[2] for line in err.splitlines()]
    failures = [line.partition("?")[0] for line in told if line.startswith("x FAILED")]
    assert code == 1 and len(failures) == len({*failures}) and failures[0] == "x FAILED  Right values at the given size", told
    place = next(n for n, line in enumerate(told) if line.startswith("The smallest case that still fails"))
    assert "-> Same output as “no divisibility test”." in " ".join(told[:place]), told
    assert place < next(n for n, line in enumerate(told) if line.startswith("other sizes: ")), told
    assert told[place:][:4] == [f"{line}" for line in out[out.index("The smallest case"):].splitlines()[:4]]


def test_answers_come_before_the_end_and_an_interrupt_leaves_them(tmp_path: Path) -> None:
    """The file never comes back after .eval(): all that was asked before is told while it hangs."""
    hangs = models._in_forward("import time\n        time.sleep(0 if self.training else 600)")
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *words(tmp_path, hangs, "--json", "--time-limit", "600")], cwd=ROOT, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        answers = []
        while not any(a["key"] == "parameters" for a in answers):  # asked before .eval()
            answers.append(json.loads(process.stdout.readline()))
        assert process.poll() is None and {a["answer"] for a in answers} == {"PASSED"}
        assert list((tmp_path / "tmp").glob("kernel-workbench-check.*"))
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()  # `communicate` loses what `readline` has read ahead
        process.wait()
    finally:
        process.kill()
    *more, report = map(json.loads, out.splitlines())
    assert process.returncode == 130 and "Stopped" in err.splitlines()[-1] and "Traceback" not in err, err
    known = dict.fromkeys(a["key"] for a in (*answers, *more))  # a later answer to a question replaces an earlier one
    assert sorted(q["key"] for q in report["questions"]) == sorted(known) and "eval_mode" not in known
    assert report["badge"] == "STOPPED" and report["headline"].startswith("The check of model_new.py was stopped after ")
    assert report["headline"].endswith(" questions answered, nothing wrong so far") and report["confined"]
    assert not list((tmp_path / "tmp").iterdir()), "files are left"
    until(lambda: not _running(str(tmp_path)))


def _running(folder: str) -> list[str]:
    """Processes that know of this folder: it is in the name of their scratch folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if folder.encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


def test_on_a_terminal_answers_stay_and_one_line_changes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "workbench", *words(tmp_path, models.RIGHT)], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 1 << 12):
            seen += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert b"PASSED" in process.communicate(timeout=300)[0] and process.returncode == 0
    assert seen.endswith(b"\r\x1b[K")
    lines = [line.rpartition("\x1b[K")[2] for line in seen.decode().split("\r\n")]
    assert all(re.fullmatch(r" *\d+\.\d s  [+\-!] [A-Z]+ +\S.*\?", line) for line in lines[:-1]), lines
    assert any("+ PASSED  Right values at the given size?" in line for line in lines)
    assert re.search(r"\r\x1b\[K *\d+\.\d s  \S[^\r\n]* \.\.\.", seen.decode()), "what is asked now is not shown"


def test_the_log_is_kept_and_printed_when_it_is_asked_for(check_here, tmp_path: Path) -> None:
    require(shutil.which("g++") and shutil.which("ninja"), "g++ and ninja build what load_inline is given")
    text = (f'{_EMPTY_HEADER}from torch.utils.cpp_extension import load_inline\nload_inline("x", cpp_sources="""\n'
            'int f() { return missing; }\n""", functions=["f"], extra_include_paths=[os.getcwd()], verbose=VERBOSE)\n'
            f'{models.RIGHT}')
    for verbose in ("False", "True"):  # True: the compiler's words are not in the exception
        code, printed, _ = check_here(text.replace("VERBOSE", verbose), "--log")
        assert code == 1 and "line 4: 'missing' was not declared" in printed, printed
        path = tmp_path / "cache/check/model_new.py.log"
        assert f"its log: {path}\n" in printed and "error: \u2018missing\u2019 was not declared" in path.read_text()
        assert "The log of: Imports and builds?\n  | " in printed and "return missing; }" in printed
    assert "The log of" not in check_here(text.replace("VERBOSE", "False"))[1]


def test_without_a_compiler_nothing_is_called_wrong(tmp_path: Path) -> None:
    """The exit code for what could not run here."""
    text = ('from torch.utils.cpp_extension import load_inline\nload_inline("x", cpp_sources="int f() { return 1; }", '
            f'functions=["f"])\n{models.RIGHT}')
    nothing = tmp_path / "bin"
    nothing.mkdir()
    (nothing / "ninja").symlink_to(shutil.which("ninja") or "/nowhere")
    done = check(tmp_path, text, path=str(nothing))
    assert done.returncode == 3 and "No C++ compiler was found" in done.stdout.decode(), done
    selftest = [sys.executable, "-m", "workbench", "selftest", "--device", "cpu", "--only", "returns_zeros"]
    env = {**os.environ, "PATH": str(nothing), "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(selftest, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "No C++ compiler was found" in done.stderr, done
