"""What a script sees: one exit code for each way in which a command can end, whoever reads the output. A run that is stopped,
by whatever signal, says how far it came and how to go on, and leaves nothing behind."""

from __future__ import annotations

import json
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

from workbench.core.trial import Status
from workbench.core.variants import TEMPLATES
from workbench.drive.sessions.session import Session

from ..check.broken_files import with_small_headers
from ..drive.conftest import until
from .test_cli import ROOT, SMALL, cli

ONE = [*SMALL, "--direction", "forward", "--variant", "naive_gather", "--no-baselines"]


def killing(folder: Path) -> str:
    """A g++ that is killed whenever it compiles."""
    wrapper = folder / "g++"
    wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) kill -KILL $$;; esac\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def test_a_killed_compiler_is_exit_3_and_resumed(tmp_path: Path) -> None:
    place = {"sessions": tmp_path / "sessions"}
    nothing_built = {"KERNEL_WORKBENCH_CXX": killing(tmp_path), "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache")}
    done = cli("run", *ONE, "--session", "one", **nothing_built, **place)
    assert done.returncode == 3 and "MACHINE_FAILED" in done.stdout, done.stdout + done.stderr
    assert "g++ was killed (signal 9): out of memory?" in done.stdout
    again = cli("run", *ONE, "--session", "one", "--resume", **place)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 of 1 candidates is right" in again.stdout and "out of memory" not in again.stdout, again.stdout
    shown = [json.loads(line)["status"] for line in cli("show", "one", "--json", **place).stdout.splitlines()]
    assert shown == ["MACHINE_FAILED", "OK"]
    tested = cli("test", *ONE[:-1], **nothing_built)
    assert tested.returncode == 3 and "0 of 1 cases are right" in tested.stdout, tested.stdout + tested.stderr


@pytest.mark.parametrize("verb", ["run", "test"])
def test_a_cache_that_cannot_be_written_is_exit_3(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ONE if verb == "run" else ONE[:-1]
    done = cli(verb, *words, sessions=tmp_path, KERNEL_WORKBENCH_CACHE=str(tmp_path / "file" / "c"))
    assert done.returncode == 3 and "MACHINE_FAILED" in done.stdout, done.stdout + done.stderr


def test_everything_skipped_is_exit_3(tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--direction", "forward", "--variant", "depthwise_rows", "--no-baselines", sessions=tmp_path)
    assert done.returncode == 3 and "SKIPPED" in done.stdout


@pytest.mark.parametrize("verb", ["run", "test"])
def test_what_does_not_fit_into_memory_is_said_before_anything_is_built(verb: str, tmp_path: Path) -> None:
    large = ["--layer", "ConvTranspose2d(64, 64, 3)", "--batch", "4096", "--input-size", "4096", "--device", "cpu"]
    done = cli(verb, *large, "--direction", "forward", "--variant", "naive_gather", sessions=tmp_path,
               KERNEL_WORKBENCH_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "OUT_OF_MEMORY" in done.stdout and "its tensors need 32.0 TiB" in done.stdout
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("words", [
    ["export", *SMALL, "--forward", "naive_gather", "--verify", "--out", "/dev/null"],
    ["check", "FILE", "--preset", "kb74", "--device", "cpu"]], ids=["export", "check"])
def test_without_a_compiler_nothing_was_judged(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(with_small_headers((ROOT / "tests/bad_models/does_not_compile.py").read_text()))
    words = [str(tmp_path / "file.py") if word == "FILE" else word for word in words]
    done = cli(*words, KERNEL_WORKBENCH_CXX=str(tmp_path / "none"), KERNEL_WORKBENCH_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 3 and "is not a program here" in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_defect_of_the_workbench_is_exit_70(tmp_path: Path) -> None:
    """The package as a copy of it that is broken: a table of presets that has lost its name."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "workbench", copy / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
    verb = copy / "workbench/faces/verbs/presets.py"
    verb.write_text(verb.read_text().replace("SUITES[suite].values()", "SUITS[suite].values()"))
    done = subprocess.run([sys.executable, "-m", "workbench", "presets"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "NameError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("The workbench itself has failed"), done.stderr


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a run whose one candidate does not build."""
    root = tmp_path_factory.mktemp("wrong") / "templates"
    (root / "forward").mkdir(parents=True)
    shutil.copytree(ROOT / "kernel_templates" / "contract", root / "contract")
    text = (ROOT / "kernel_templates" / "forward" / "naive_gather.cu").read_text()
    (root / "forward" / "naive_gather.cu").write_text(text + "\nthis is no C++\n")
    return ["run", *ONE, "--templates", str(root)]


@pytest.mark.parametrize("pipe", ["| true", "2>&1 | head -1", *(
    pytest.param(pipe, marks=pytest.mark.long) for pipe in ("2>&1 | true", "| head -c 1"))])
def test_a_reader_that_goes_away_does_not_change_the_verdict(pipe: str, wrong: list[str], tmp_path: Path) -> None:
    line = f"{shlex.join([sys.executable, '-m', 'workbench', *wrong])} --session one {pipe}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr
    assert [t.status for t in Session.open(tmp_path / "one").trials()] == [Status.BUILD_FAILED]


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    for redirected in ("> /dev/full", "| cat > /dev/null"):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m workbench presets {redirected}; exit ${{PIPESTATUS[0]}}"],
                              cwd=ROOT, capture_output=True, text=True, check=False)
        full = redirected.endswith("full")
        assert done.returncode == (2 if full else 0)
        assert done.stderr == ("stdout cannot be written: No space left on device. Not all was printed.\n" if full else "")


def test_a_terminal_without_the_letters_gets_them_escaped() -> None:
    done = cli("show", "recorded-h200-kernelbench", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and r"\xd7 as fast" in done.stdout and "Traceback" not in done.stderr, done.stderr


def test_a_comparison_with_what_a_machine_could_not_judge_is_exit_3(tmp_path: Path) -> None:
    assert cli("run", *ONE, "--session", "before", sessions=tmp_path).returncode == 0
    assert cli("run", *ONE, "--session", "after", KERNEL_WORKBENCH_CXX=killing(tmp_path), sessions=tmp_path,
               KERNEL_WORKBENCH_CACHE=str(tmp_path / "cache")).returncode == 3
    done = cli("compare", "before", "after", sessions=tmp_path)
    assert done.returncode == 3 and "could not be judged in B (MACHINE_FAILED)" in done.stderr, done.stdout
    assert "REGRESSION" not in done.stdout


def test_a_python_without_packages_names_what_to_install(tmp_path: Path) -> None:
    """A virtual environment as `python -m venv` leaves it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare/bin/python")
    for verb in ("show", "presets", "doctor"):
        done = subprocess.run([python, "-m", "workbench", verb], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode:
            assert done.returncode == 3
        if verb == "doctor":
            assert all(f"- {name}, not found" in done.stdout for name in ("torch", "numpy", "pandas", "plotly", "streamlit"))
    done = subprocess.run([python, "-m", "workbench", "run", *ONE], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "pip install" in done.stderr, done.stderr


def test_resuming_what_failed_to_build_is_not_right(tmp_path: Path) -> None:
    """The exit code of a resumed run speaks of the whole request, not only of what was run anew."""
    root = tmp_path / "templates"
    (root / "forward").mkdir(parents=True)
    text = (TEMPLATES / "forward" / "naive_gather.cu").read_text()
    (root / "forward" / "naive_gather.cu").write_text(text + "\nthis is no C++\n")
    words = ["run", *SMALL, "--templates", str(root), "--session", "one", "--no-baselines", "--direction", "forward"]
    assert cli(*words, sessions=tmp_path).returncode == 1
    again = cli(*words, "--resume", sessions=tmp_path)
    assert again.returncode == 1 and "BUILD_FAILED" in again.stdout, again.stdout + again.stderr
    assert (tmp_path / "one" / "trials.jsonl").read_text().count("\n") == 1  # it was not built again


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
