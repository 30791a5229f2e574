"""Foreign files that reach for what is not theirs, by real processes, held in each way that this machine has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core import landlock, seccomp
from workbench.core.answers import Answer
from workbench.core.confinement import VARIABLE, Confinement, bwrap_problem
from workbench.core.errors import BadRequest
from workbench.drive.checking import attacks, selftest
from workbench.drive.checking.check_text import report_text
from workbench.drive.machine import doctor
from workbench.drive.running.runner import Runner
from workbench.measure.check.foreign import confine, privileges, requests
from workbench.measure.check.foreign.process import Ended, ForeignProcess, Limits

from ..drive.conftest import until
from . import models
from .conftest import failed
from .forked import ForkedProcess

pytestmark = pytest.mark.xdist_group("confined")  # one worker starts a judge for each way, once

ROOT = Path(__file__).resolve().parents[2]
HELD = ("bwrap", "landlock", "user", "landlock user", "bwrap landlock")


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Leave a check only these ways, or skip where they are not there."""
    def leave(ways: str) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        if "bwrap" in ways:
            require(not bwrap_problem(), bwrap_problem())
        if "landlock" in ways:
            require(not landlock.problem(), landlock.problem())
        if "user" in ways:
            require(os.geteuid() == 0, "only root can become another user")
        monkeypatch.setenv(VARIABLE, ways)
        confine.confinement.cache_clear()
    yield leave
    confine.confinement.cache_clear()


@pytest.fixture
def victims(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in the place that is asked for, else in /tmp, that only its owner may write, but everybody enter."""
    where = getattr(request, "param", Path("/tmp"))
    folder = Path(tempfile.mkdtemp(prefix=".kernel-workbench-victims-", dir=where))
    folder.chmod(0o755)
    (folder / "kept").write_text("as it was")
    (folder / "empty").mkdir()
    yield folder
    shutil.rmtree(folder)


def content(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() if p.is_file() else "" for p in folder.iterdir()}


@pytest.mark.parametrize(("ways", "victims"), [
    *((ways, Path("/tmp")) for ways in ("landlock", "user", "bwrap landlock")),
    *(pytest.param(ways, where, marks=pytest.mark.long) for ways, where in (
        ("bwrap", Path("/tmp")), ("landlock", Path.home()), ("user", Path.home())))], indirect=["victims"])
def test_only_its_own_folder_can_be_written(hold, checked_anew, checked_held, victims: Path, ways: str) -> None:
    hold(ways)
    report = (checked_held if ways in ("landlock", "user") else checked_anew)(models.writes_elsewhere(victims))
    assert content(victims) == {"kept": "as it was", "empty": ""}
    assert failed(report) == {}, [q for q in report.questions if q.answer is Answer.FAILED]
    held = report.confined
    assert (held.bwrap, bool(held.landlock), bool(held.user)) == tuple(word in ways for word in ("bwrap", "landlock", "user"))


def test_where_nothing_holds_it_gets_through_and_the_report_says_so(hold, checked_held, victims: Path) -> None:
    """Otherwise the attempts above would prove nothing."""
    hold("none")
    report = checked_held(models.writes_elsewhere(victims))
    assert {"new", "folder", "link", "pipe", "by_sh", "by_child", "by_fork"} <= set(content(victims))
    assert {"kept", "empty"} & set(content(victims)) == set()
    assert f"the file was not confined: {VARIABLE} is 'none'; it ran with your rights" in report_text(report)


@pytest.mark.parametrize("ways", ["landlock", "user"])
def test_the_judge_and_the_reference_are_out_of_reach(hold, checked_anew, ways: str) -> None:
    hold(ways)
    if ways == "landlock":
        require(landlock.version() >= 6, f"Landlock {landlock.version()} does not hold signals back")
    report = checked_anew(models.TOUCHES_OTHERS)
    assert failed(report) == {}, report.question("builds")


def test_load_inline_builds_and_the_calls_are_timed(hold, checked_anew) -> None:
    """Held in both ways at once: what is possible then is possible in each."""
    hold("landlock user")
    report = checked_anew(models.BUILDS, time=True, effort="quick", call_s=200.0)
    assert failed(report) == {}, [q for q in report.questions if q.answer is Answer.FAILED]
    assert {"forward", "backward"} <= set(report.times), report.question("times")


_A_JUDGE = '''
import sys, time
from pathlib import Path
from workbench.measure.check.foreign.process import ForeignProcess, Limits

process = ForeignProcess("candidate", device="cpu", limits=Limits(4 << 30), scratch=Path(sys.argv[1]))
process.begin()
process._wait_ready()
print(process._process.pid, flush=True)
time.sleep(600)
'''


def test_a_process_that_cannot_start_says_what_stood_in_the_way(hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold("none")
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho No space for \x1bthis. >&2\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    process = ForeignProcess("reference", device="cpu", limits=Limits(4 << 30), scratch=tmp_path)
    with pytest.raises(Ended, match=r"^The reference's process ended itself with exit code 1 while it started: No space for "
                                    r"\\x1bthis\.$"):
        process.ask("load")


@pytest.mark.parametrize("ways", ["landlock", "user", *(
    pytest.param(ways, marks=pytest.mark.long) for ways in ("bwrap", "landlock user", "bwrap landlock"))])
def test_it_has_no_rights_left_but_to_read_and_dies_with_its_judge(hold, ways: str) -> None:
    """A change of user takes back the order to die with the parent: it has to be given afterwards."""
    hold(ways)
    folder = tempfile.mkdtemp()
    judge = subprocess.Popen([sys.executable, "-c", _A_JUDGE, folder], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid = int(judge.stdout.readline())
    held = [pid, *confine.descendants(pid)]  # bwrap is its own process, and stands before the file's
    try:
        own = Path(f"/proc/{held[-1]}/status")
        status = {k: v.split() for k, v in (line.split(":", 1) for line in own.read_text().splitlines())}
        os.kill(held[-1], signal.SIGSTOP)  # or it would end by itself when its pipe closes
        judge.kill()
        judge.wait()
        until(lambda: not any(map(alive, held)))
    finally:
        judge.kill()
        judge.wait()
        judge.stdout.close()
        for one in filter(alive, held):
            os.kill(one, signal.SIGKILL)
        shutil.rmtree(folder)
    assert status["NoNewPrivs"] == ["1"]
    if "user" in ways:
        user, = set(status["Uid"])
        assert int(user) > 1000 and status["Gid"] == [user] * 4 and status["Groups"] == []
    read_everything = 0 if "bwrap" in ways else 1 << 2  # in bwrap not even that: it opens files by number, past all mounts
    assert all(int(status[which][0], 16) & ~read_everything == 0 for which in ("CapEff", "CapPrm", "CapAmb")), status


_USERS = "from workbench.measure.check.foreign import privileges; print(privileges.first_user(4), flush=True); input()"


def test_two_judges_at_once_hold_their_files_as_different_users() -> None:
    """A user may signal and read all its processes. The users of a judge that has ended are free for the next one."""
    pipe = subprocess.PIPE
    judges = [subprocess.Popen([sys.executable, "-c", _USERS], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(3)]
    taken = []
    for judge in judges:
        first = int(judge.stdout.readline())
        taken += range(first, first + 4)
    for judge in judges:
        judge.communicate("\n")
    assert len(taken) == len(set(taken)) == 12 and 1000 < min(taken) and max(taken) < 1 << 16


def test_without_a_free_user_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = privileges._LAST_USER - 3, privileges._LAST_USER
    monkeypatch.setattr(privileges, "_FIRST_USER", first)  # what only the last of many judges at once would get
    assert privileges.first_user.__wrapped__(4) == first
    with privileges._held.pop(), pytest.raises(OSError, match=f"hold all users from {first} to {last}"):
        privileges.first_user.__wrapped__(4)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tcp_is_refused_by_landlock(hold, checked_held) -> None:
    hold("landlock")
    require(landlock.version() >= landlock.HOLDS_TCP, f"Landlock {landlock.version()} does not hold TCP back")
    report = checked_held(models.NETWORK)
    assert "PermissionError" in report.question("values").seen
    assert "TCP was blocked, other network was not" in report.confined.sentence


@pytest.mark.parametrize(("ways", "names"), [("landlock", ["edits_the_judge"]), *(
    pytest.param(ways, ["touches_sessions", "edits_the_judge"], marks=pytest.mark.long)
    for ways in ("landlock", "bwrap", "user", "landlock user", "bwrap landlock"))])
def test_the_attacks_on_the_disk_are_caught(hold, runner: Runner, ways: str, names: list[str]) -> None:
    """With all that is here test_selftest.py meets the other one in `make test`."""
    hold(ways)
    found = selftest.selftest("cpu", wanted=attacks.chosen(names), runner=runner)
    assert [r.status for r in found] == ["OK", *["MISMATCH"] * len(names)] and all(r.caught for r in found), found


@pytest.mark.long
def test_the_attack_on_the_judge_knows_what_it_could_do(hold, runner: Runner) -> None:
    """Where nothing holds it, it finds the judge's folder writable: it was not caught for want of trying."""
    hold("none")
    found = selftest.selftest("cpu", wanted=attacks.chosen(["edits_the_judge"]), runner=runner)
    assert [r.status for r in found] == ["OK", "OK"] and not found[1].caught


def test_bwrap_shows_no_service_and_no_disk(hold, tmp_path: Path) -> None:
    """Root needs no capability to write to a disk's device, and none to ask a service that listens in /run."""
    hold("bwrap")
    scratch = tmp_path / "candidate"
    scratch.mkdir()
    for device in ("cpu", "cuda:0"):
        words = ["sh", "-c", "ls /run; find /dev -type b; ls -d /dev/mem /dev/kvm"]
        with confine._held(Confinement(bwrap=True), words, scratch, device, 0) as how:
            seen = subprocess.run(**how, capture_output=True, text=True, check=False)
        assert seen.stdout == "" and "No such file" in seen.stderr, seen


@pytest.mark.parametrize("ways", ["landlock", *(pytest.param(ways, marks=pytest.mark.long) for ways in ("bwrap", "user"))])
def test_a_planted_link_leads_the_judge_nowhere(hold, checked_anew, checked_held, victims: Path, ways: str) -> None:
    """The judge makes the file that timing shares, and nothing confines the judge."""
    hold(ways)
    checked = checked_anew if ways == "bwrap" else checked_held
    report = checked(models.plants_links(victims / "kept"), time=True, effort="quick")
    assert content(victims) == {"kept": "as it was", "empty": ""}
    assert failed(report) == {} and "forward" in report.times


def test_a_word_that_names_no_way_is_a_bad_request(hold, checked_anew) -> None:
    hold("landlok")
    with pytest.raises(BadRequest, match="KERNEL_WORKBENCH_CONFINE has 'landlok'; it takes bwrap, landlock, user, seccomp, or "
                                         "none."):
        checked_anew(models.RIGHT)


@pytest.mark.parametrize(("held", "words"), [
    (Confinement(landlock=1, why="w"), "/dev/shm, but it could truncate your files; the network was not blocked (w)"),
    (Confinement(landlock=3, why="w"), "its own scratch folder and /dev/shm; the network was not blocked (w)"),
    (Confinement(landlock=4, own_shm=True, why="w"), "under Landlock: it could write only to its own scratch folder; TCP was "
                                                     "blocked, other network was not (w)"),
    (Confinement(landlock=4, own_shm=True, sockets="internet", why="w"), "own scratch folder; it had no network (w)"),
    (Confinement(user=1, sockets="all", why="w"), "not to your files; it had no network and no other sockets (w)"),
    (Confinement(sockets="all", why="w"), "limits of time and memory; it had no network and no other sockets"),
    (Confinement(user=65534, why="w"), "as user 65534: it could write only to its own scratch folder and to folders "
                                       "open to every user, not to your files; the network was not blocked (w)"),
    (Confinement(landlock=2, user=65534, own_shm=True, why="w"), "under Landlock as user 65534: it could write only to its own "
                                                                 "scratch folder; the network was not blocked (w)"),
    (Confinement(bwrap=True), "in bwrap: no network"),
])
def test_the_sentence_says_what_held(held: Confinement, words: str) -> None:
    assert words in held.sentence


def test_the_doctor_says_what_would_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    require(not landlock.problem(), landlock.problem())
    monkeypatch.setenv(VARIABLE, "landlock")
    found = next(f for f in doctor.examine() if f.name == "sandbox")
    assert found.found == f"Landlock {landlock.version()}" and "scratch folder" in found.works
    assert f"sockets are not refused: {VARIABLE} is 'landlock'; bwrap would prevent more" in found.works
    monkeypatch.setenv(VARIABLE, "none")
    found = next(f for f in doctor.examine() if f.name == "sandbox")
    assert found.found is None and "runs with your rights" in found.works


def test_under_landlock_a_process_may_name_its_own_threads_and_no_other_process(tmp_path: Path) -> None:
    """CUDA's driver names its threads by /proc, and does not start where it may not."""
    require(not landlock.problem(), landlock.problem())
    text = "import pathlib, sys; pathlib.Path(f'/proc/{sys.argv[1]}/comm').write_text('named')"
    allowed = {}
    for whose in ("self", "thread-self", str(os.getpid())):
        rules = landlock.ruleset([tmp_path], [])
        try:
            done = subprocess.run([sys.executable, "-c", text, whose], preexec_fn=partial(landlock.restrict, rules),
                                  capture_output=True, text=True, check=False)
        finally:
            os.close(rules)
        allowed[whose] = done.returncode == 0 or "PermissionError" not in done.stderr
    assert allowed == {"self": True, "thread-self": True, str(os.getpid()): False}


_REACHES_OUT = models.RIGHT + '''
import ctypes, os, socket, stat


def called(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


done = []
for name, attempt in {
        "a unix socket": lambda: socket.socket(socket.AF_UNIX).connect(@PATH@),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "a device": lambda: os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        "a mount": lambda: called("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "a trace": lambda: called("ptrace", 16, os.getppid(), None, None)}.items():
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
try:
    open("/dev/shm/kernel-workbench-stays", "w").write("x")
except OSError:
    pass
socket.socketpair()  # only within its own processes
if done:
    raise RuntimeError(f"could use {done}")
'''


@pytest.mark.parametrize("ways", ["bwrap seccomp", *(
    pytest.param(ways, marks=pytest.mark.long) for ways in ("user seccomp", "landlock seccomp", "landlock user seccomp"))])
def test_sockets_and_devices_are_refused_and_nothing_stays(hold, checked_anew, ways: str) -> None:
    hold(ways)
    require(not seccomp.problem(), seccomp.problem())
    path = tempfile.mkdtemp()
    try:
        Path(path).chmod(0o755)
        with socket.socket(socket.AF_UNIX) as service:
            service.bind(f"{path}/service")
            os.chmod(f"{path}/service", 0o777)
            service.listen()
            report = checked_anew(_REACHES_OUT.replace("@PATH@", repr(f"{path}/service")))
    finally:
        shutil.rmtree(path)
    assert failed(report) == {}, [q for q in report.questions if q.answer is Answer.FAILED]
    held, stays = report.confined, Path("/dev/shm/kernel-workbench-stays")
    left = stays.exists()
    stays.unlink(missing_ok=True)
    assert held.sockets == "all" and left is not (held.bwrap or held.own_shm or bool(held.user))


def test_shared_memory_counts(checked) -> None:
    report = checked(models.RIGHT + '''
import mmap, time

kept = mmap.mmap(-1, 1300 << 20)
for start in range(0, len(kept), 1 << 20):
    kept[start:start + (1 << 20)] = bytes(1 << 20)
time.sleep(20)
''', memory_gib=1.0)
    assert report.question("builds").status == "OUT_OF_MEMORY", report.question("builds")


def test_all_files_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "MOST_DISK_BYTES", 8 << 20)
    process = ForkedProcess("candidate", device="cpu", limits=Limits(4 << 30), scratch=tmp_path)
    text = models.RIGHT + '''
import time

for number in range(4):
    with open(f"file-{number}", "wb") as file:
        file.write(bytes(3 << 20))
time.sleep(20)
'''
    try:
        with pytest.raises(Ended, match="Its files take more than 8 MiB of the disk; it was stopped."):
            process.ask(requests.Load(text, "ModelNew", "cpu"))
    finally:
        process.close()


_CHANGES = '''
import ctypes
from workbench.core import seccomp

libc, gib = ctypes.CDLL(None, use_errno=True), 1 << 30
libc.mmap.restype = ctypes.c_void_p
number = seccomp._CALLS["mprotect"][seccomp.platform.machine() != "x86_64"]

def pages(at, size, flags):
    return libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(size), 0, flags, -1, ctypes.c_long(0))

def opened(at, size=4096, key=(0, 0)):
    return libc.syscall(*map(ctypes.c_long, (number, at, size, 3, *key))) == 0

start = -(-pages(None, 20 * gib, 0x4022) // (4 * gib)) * 4 * gib + 4 * gib
seccomp.restrict(seccomp.program(seccomp.MAPS, closed=seccomp.Closed(start, start + 8 * gib, (11, 12))))
last = start + 8 * gib - 4096
print(opened(start - 4 * gib - 4096), opened(pages(None, 4096, 0x22)), opened(start, key=(11, 12)), opened(last, key=(11, 12)),
      opened(start), opened(last), opened(start, key=(11, 13)), opened(start, key=(10, 12)), opened(start - 4096, 8192),
      opened(start - 4 * gib - 4096, 4 * gib + 8192), pages(last, 4096, 0x32) == last,
      libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(4096)) == 0)
'''


def test_closed_memory_is_opened_only_with_the_key() -> None:
    """Other memory is changed as before. No call reaches the closed memory from below."""
    require(not seccomp.problem(), seccomp.problem())
    done = subprocess.run([sys.executable, "-S", "-c", _CHANGES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4 + ["False"] * 8
