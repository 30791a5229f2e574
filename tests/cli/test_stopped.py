"""A run that is stopped, by whatever signal: it says how far it came and how to go on, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from workbench.drive.sessions.session import Session

from ..drive.conftest import until
from .test_cli import SMALL, cli

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["run", *SMALL, "--direction", "forward", "--variant", "naive_gather", "--set", "naive_gather.BLOCK=64,128,256",
         "--no-baselines", "--no-time"]


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Where the run works: its g++ hangs."""
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) sleep 600;; esac\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    return {"KERNEL_WORKBENCH_CXX": str(compiler), "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache"),
            "KERNEL_WORKBENCH_SESSIONS": str(tmp_path / "sessions"), "TMPDIR": str(tmp_path / "tmp")}


def able(place: dict[str, str]) -> dict[str, str]:
    """The same with a compiler that does not hang, and the cache of all tests: what another one has built is there."""
    return {**place, "KERNEL_WORKBENCH_CXX": "", "KERNEL_WORKBENCH_CACHE": ""}


def started(place: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """The run, as soon as its compilers are at work."""
    process = subprocess.Popen([sys.executable, "-m", "workbench", *WORDS, *more], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, **place})
    until(lambda: any(Path(place["KERNEL_WORKBENCH_CACHE"]).glob("building/*/work/main.cpp")))
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_names_the_session_and_the_command_that_goes_on(number: int, place: dict[str, str]) -> None:
    process = started(place)
    try:
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    session = Session.open(next(Path(place["KERNEL_WORKBENCH_SESSIONS"]).iterdir()))
    last = said.splitlines()[-1]
    assert process.returncode == 130, said
    kept = f"Stopped after 0 of 3 candidates. Session {session.name} keeps the finished trials. To continue, run: "
    assert last.startswith(kept), said
    assert [e["event"] for e in session.events()][-1] == "run_stopped"
    assert not list(Path(place["TMPDIR"]).glob("kernel-workbench-scratch.*"))
    words = shlex.split(last.partition("To continue, run: ")[2])
    assert words[:3] == ["python", "-m", "workbench"]
    if number != signal.SIGINT:  # all say the same
        return
    resumed = cli(*words[3:], **able(place))
    assert resumed.returncode == 0, resumed.stderr
    assert len(session.trials()) == 3


def test_a_run_that_was_killed_does_not_look_complete_and_its_scratch_is_swept(place: dict[str, str]) -> None:
    sessions = Path(place["KERNEL_WORKBENCH_SESSIONS"])
    assert cli(*WORDS[:-4], "--set", "naive_gather.BLOCK=512", "--session", "one", *WORDS[-2:], "--json",
               **able(place)).returncode == 0
    process = started(place, "--session", "one")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    temporary = Path(place["TMPDIR"])
    assert len(list(temporary.glob("kernel-workbench-scratch.*"))) == 1, "what the killed process left"
    shown = cli("show", "one", **place).stdout
    assert ", 3 not run\n" in shown, shown
    assert cli(*WORDS, "--session", "one", "--resume", **able(place)).returncode == 0
    assert not list(temporary.glob("kernel-workbench-scratch.*"))
    assert "not run" not in cli("show", "one", **place).stdout and (sessions / "one").is_dir()


def test_the_scratch_of_a_living_process_is_not_swept(place: dict[str, str]) -> None:
    process = started(place)
    try:
        before = set(Path(place["TMPDIR"]).glob("kernel-workbench-scratch.*"))
        done = cli("test", *SMALL, "--direction", "forward", "--variant", "naive_gather",
                   **able(place))
        assert done.returncode == 0, done.stderr
        assert len(before) == 1 and before == set(Path(place["TMPDIR"]).glob("kernel-workbench-scratch.*"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def test_build_workers_that_are_killed_leave_nothing_that_is_not_run_again(place: dict[str, str]) -> None:
    """As the system does it where memory runs out."""
    process = started(place, "--session", "one")
    try:
        while process.poll() is None:
            for pid in build_workers(process.pid):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 3 and said.count("MACHINE_FAILED") >= 3, said
    assert "The build process was ended by signal 9 (SIGKILL): out of memory?" in said
    assert cli(*WORDS, "--session", "one", "--resume", **able(place)).returncode == 0


def build_workers(front: int) -> list[int]:
    """Forks of the fork server, which is a child of the front end."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = parent_of(file)
            if parent and parent_of(Path(f"/proc/{parent}/stat")) == front and "(worker build)" in file.read_text():
                found.append(int(file.parent.name))
    return found


def parent_of(stat: Path) -> int:
    return int(stat.read_text().rpartition(")")[2].split()[1])


def test_before_the_verb_has_begun(tmp_path: Path) -> None:
    """An interrupt while Python imports is no traceback. The file that sends it stands before the package's modules."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run([sys.executable, "-m", "workbench", "run", "--preset", "kb74/small"], cwd=tmp_path, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
                                                    "TMPDIR": tempfile.gettempdir()}, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("words", [
    ["test", "--effort", "quick", "--device", "cpu"], ["run", "--preset", "kb74/small", "--device", "cpu"],
    ["export", "--layer", "ConvTranspose1d(2, 3, 3)", "--input-size", "9", "--forward", "naive_gather", "--verify",
     "--device", "cpu"]], ids=lambda words: words[0])
def test_no_verb_waits_for_the_compiler(words: list[str], tmp_path: Path) -> None:
    compiler, begun = tmp_path / "g++", tmp_path / "begun"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*|*" -shared "*) echo $$ >> {begun}; sleep 600;; esac\n'
                        f'exec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-m", "workbench", *words], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, "KERNEL_WORKBENCH_CXX": str(compiler),
                                                            "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache"),
                                                            "PYTHONPATH": str(ROOT)})
    try:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130 and "Stopped" in said.splitlines()[-1], said
    until(lambda: not any(runs(pid) for pid in begun.read_text().split()))


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
