"""`profile`: what ncu prints is read in its units, kept with the trial and told in a sentence. A stand-in for ncu, which is a
program of somebody else's, counts, refuses, hangs and crashes; the candidate, its process and the session are real. The
resources that are shown are those of the variant's own kernel, not of one that packs, pads or sums for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from tests.page.test_belongs import said, tab
from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.env import counters_restricted, find_toolchain
from workbench.core.layer import ConvTranspose
from workbench.core.occupancy import threads_per_block
from workbench.core.profile import ASKED, METRICS, KernelCounters, Profile, read_csv, rows, sentence
from workbench.core.trial import Trial
from workbench.core.trial_parts import TrialDevice
from workbench.core.typed import to_json
from workbench.core.variants import discover, find
from workbench.drive.machine.doctor import examine
from workbench.drive.reporting import report
from workbench.drive.reporting.main_kernel import arch_of, main_kernel
from workbench.drive.running.runner import Runner
from workbench.drive.sessions import profiles
from workbench.drive.sessions.recorded import most_shared_bytes, occupancy_of
from workbench.drive.sessions.session import Session, unpack

from .conftest import good, until

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# As 2025.3 prints it: the names of its columns, the units below them, a launch in each line.
NAMED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
         "Device", "CC")
COUNTED = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
           "gpu__time_duration.sum", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
           "launch__registers_per_thread", "launch__shared_mem_per_block_dynamic", "launch__waves_per_multiprocessor",
           "lts__t_sector_hit_rate.pct", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed", STALL.format("short_scoreboard"),
           STALL.format("long_scoreboard"), STALL.format("selected"), STALL.format("short_scoreboard_not_issued"))
UNITS = ("Mbyte", "byte", "%", "us", "", "register/thread", "Kbyte/block", "", "%", "%", "%", "inst", "inst", "inst", "inst")
MAIN = ("536.87", "1,048,576", "81.25", "1,204.5", "0", "128", "49.15", "3.50", "n/a", "12.00", "38.10", "2.05", "1.95", "1.00",
        "2.00")
HELPER = ("2.10", "2,097,152", "20.00", "3.20", "12,345", "32", "0", "0.12", "50.00", "0", "5.00", "0.50", "4.50", "1.00",
          "0.40")


def printed(*launches: tuple[str, tuple[str, ...]]) -> str:
    def line(*cells: str) -> str:
        return ",".join(f'"{cell}"' for cell in cells)

    told = [line(str(n), "4711", "python3.12", "127.0.0.1", name, "1", "7", "(128, 1, 1)", "(4096, 1, 1)", "0", "9.0", *values)
            for n, (name, values) in enumerate(launches)]
    return "\n".join(["==PROF== Connected to process 4711 (/usr/bin/python3.12)",
                      '==PROF== Profiling "naive_gather" - 0: 0%....50%....100% - 9 passes',
                      "==WARNING== Metric lts__t_sector_hit_rate.pct is n/a on this launch",
                      "==PROF== Disconnected from process 4711", line(*NAMED, *COUNTED),
                      line(*("",) * len(NAMED), *UNITS), *told, ""])


PRINTED = printed(("void c_0123::pack<(int)4>(c_0123::Sizes)", HELPER),
                  ("void c_0123::naive_gather<c_0123::Layer, c_0123::Tune>(float const*, c_0123::Layer)", MAIN))
REFUSED = ("==PROF== Connected to process 4711 (/usr/bin/python3.12)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have "
           "permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions on enabling "
           "permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n==PROF== Disconnected\n")


def test_what_ncu_prints_is_read_in_its_units() -> None:
    helper, main = read_csv(PRINTED)
    assert main.values == {"dram_read": 536.87e6, "dram_written": 1048576, "dram": 81.25, "duration": 1204500, "conflicts": 0,
                           "registers": 128, "shared_dynamic": 49150, "waves": 3.5, "tensor": 12, "sm": 38.1}
    assert main.stalls == {"short_scoreboard": 0.5125, "long_scoreboard": 0.4875}, "a warp that issues does not wait"
    assert (helper.values["conflicts"], helper.values["l2_hits"]) == (12345, 50)
    assert (main.grid, main.block) == ("(4096, 1, 1)", "(128, 1, 1)")
    by_row = ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
              '"0","f(int)","gpu__time_duration.sum","ms","1.5"\n"0","f(int)","dram__bytes_read.sum","Gbyte","2"\n"0","f(int)","launch__registers_per_thread","","n/a"\n')
    assert read_csv(by_row) == [KernelCounters("f(int)", "", "", {"duration": 1.5e6, "dram_read": 2e9})]
    for text in ("", REFUSED, PRINTED.partition('"ID"')[0], '"ID","Kernel Name"\n', '"ID","Metric Name"\n"0"\n', PRINTED[:900]):
        assert not [k for k in read_csv(text) if k.values], "what was cut off"


@pytest.mark.parametrize(("values", "said"), [
    ({"dram": 81, "sm": 38}, "Memory-bound: DRAM reads and writes at 81 % of the peak"),
    ({"dram": 30, "sm": 75, "tensor": 72}, "Compute-bound: the tensor cores are busy in 72 % of the cycles"),
    ({"dram": 30, "sm": 75, "tensor": 10}, "Compute-bound: the multiprocessors are at 75 % of their peak, DRAM at 30 %"),
    ({"dram": 30, "sm": 40, "l1": 88, "l2": 20}, "Cache-bound: L1 and shared memory at 88 % of the peak, DRAM at 30 %"),
    ({"dram": 30, "sm": 59.9}, "Latency-bound: DRAM is at 30 % of its peak and the multiprocessors are at 60 %"),
    ({"duration": 1.0}, "ncu counted neither memory nor arithmetic")])
def test_the_sentence_names_what_limits_the_main_kernel(values: dict[str, float], said: str) -> None:
    assert sentence([KernelCounters("f", "", "", values)]) == f"{said}."
    stalled = KernelCounters("f", "", "", {**values, "duration": 90}, {"short_scoreboard": 0.41, "wait": 0.3})
    other = KernelCounters("g", "", "", {"duration": 10})
    assert sentence([stalled, other]) == (
        f"{said}; warps mostly wait for shared memory (41 % of stalls). f takes 90 % of the time of 2 kernels.")


def test_every_metric_is_asked_for_and_has_a_help() -> None:
    assert all(metric.ncu in ASKED.split(",") and metric.help for metric in METRICS.values()) and 12 <= len(METRICS) <= 20
    found = {label: values for label, _, values in rows([read_csv(PRINTED)[1], None])}
    assert found["DRAM read"] == ["537 MB", "–"] and found["duration"] == ["1.20 ms", "–"]
    assert found["registers"] == ["128 per thread", "–"] and found["waiting for shared memory"] == ["51 %", "–"]


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A program `ncu` that is found before any other; what it does is Python. `target`: what it was asked to watch."""
    place = tmp_path / "tools" / "ncu"

    def put(code: str) -> Path:
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"#!{sys.executable}\nimport os, subprocess, sys, time\nfrom pathlib import Path\n"
                         "if '--version' in sys.argv:\n    print('Version 2025.3.1.0 (build 1)'); sys.exit()\n"
                         "at = sys.argv.index(sys.executable)\noptions, target = sys.argv[1:at], sys.argv[at:]\n"
                         f"log = Path(options[options.index('--log-file') + 1])\nfolder = Path({str(tmp_path)!r})\n{code}\n")
        place.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")
        return place
    return put


@pytest.fixture(scope="module")
def there(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Session]:
    """A right trial of the emulator."""
    from workbench.drive.running.request import RunRequest

    from .conftest import WORKLOAD
    session = Session.create(tmp_path_factory.mktemp("profiled"), "one")
    runner.run(RunRequest(WORKLOAD, (good(),), baselines=False, effort="quick", device="cpu"), session)
    return session.trials()[0], session


COUNTS = ("done = subprocess.run(target, stdout=subprocess.PIPE, text=True)\n(folder / 'told').write_text(' '.join(options))\n"
          "(folder / 'target').write_text(f'{done.returncode} {done.stdout}')\nlog.write_text(" + repr(PRINTED) + ")\n"
          "sys.exit(done.returncode)")


def test_what_it_counts_is_kept_with_the_trial(there, runner, ncu, tmp_path) -> None:
    trial, session = there
    ncu(COUNTS)
    made = profiles.counted(trial, session, runner, "cpu")
    assert (tmp_path / "target").read_text() == "0 ", "the launch itself was right"
    assert "--clock-control none" in (tmp_path / "told").read_text()
    assert [k.name for k in made.kernels] == ["naive_gather", "pack<4>"], "the main kernel first"
    assert made.sentence == (
        "Memory-bound: DRAM reads and writes at 81 % of the peak; warps mostly wait for shared memory (51 % of stalls). "
        "naive_gather takes > 99 % of the time of 2 kernels.")
    assert made.profile.ncu == "2025.3.1.0" and not made.note
    assert profiles.kept(trial, session) == made.profile
    elsewhere = unpack(session.pack(tmp_path / "one.zip"), tmp_path / "elsewhere")
    assert profiles.reading(elsewhere.trials()[0], elsewhere, runner).sentence == made.sentence, "without a GPU and ncu"
    assert "not kept" in profiles.counted(trial, Session(tmp_path / "one.zip"), runner, "cpu").note
    assert profiles.kept(replace(trial, trial_id="0" * 12), session) is None


@pytest.mark.parametrize(("code", "said"), [
    (f"log.write_text({REFUSED!r}); sys.exit(1)", "The driver does not permit this user to read the GPU's counters "
     "(ERR_NVGPUCTRPERM)."),
    ("os.kill(os.getpid(), 11)", "ncu ended with signal 11 (SIGSEGV)."),
    ("log.write_text('==ERROR== Failed to prepare kernel for profiling\\n'); sys.exit(9)",
     "ncu ended with exit code 9: Failed to prepare kernel for profiling."),
    ("log.write_text('==WARNING== No kernels were profiled.\\n')", "ncu counted no kernel of the launch."),
    ("order = Path(target[3]); order.write_text(order.read_text().replace('\"symbol\": \"', '\"symbol\": \"gone_'))\n"
     "log.write_text(" + repr(PRINTED) + "); sys.exit(subprocess.run(target).returncode)",
     "The launch under ncu failed: The library exports no gone_")], ids=["refuses", "crashes", "fails", "sees none", "launch"])
def test_where_it_refuses_or_crashes_a_sentence_says_so(there, runner, ncu, code: str, said: str) -> None:
    trial, session = there
    ncu(code)
    made = profiles.counted(trial, session, runner, "cpu")
    assert made.profile is None and made.why_not.startswith(said)


def test_where_it_hangs_it_is_killed_with_what_it_started(there, runner, ncu, tmp_path) -> None:
    trial, session = there
    ncu("child = subprocess.Popen(['sleep', '600'], start_new_session=False)\n"
        "(folder / 'pids').write_text(f'{os.getpid()} {child.pid}')\ntime.sleep(600)")
    begun = time.monotonic()
    made = profiles.counted(trial, session, runner, "cpu", limit_s=4)
    assert made.why_not == "ncu gave no answer within 4 s and was stopped." and time.monotonic() - begun < 60
    for pid in (tmp_path / "pids").read_text().split():
        end = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            assert time.monotonic() < end, "it goes on"
            time.sleep(0.02)


def test_why_there_are_no_counters(there, monkeypatch, gpu) -> None:
    trial, _ = there
    assert profiles.place_of(trial) == ("", "The trial ran on the emulator, which has no counters.")
    on_gpu = replace(trial, device=TrialDevice("cuda", 0, "NVIDIA H200", "sm_90", 90, "nvidia_h200"))
    other = replace(on_gpu, device=replace(on_gpu.device, name="NVIDIA A100", key="nvidia_a100"))
    assert profiles.place_of(other)[1] == "The trial ran on NVIDIA A100, which this machine does not have."
    require(find_toolchain().ncu is None, "a machine without ncu")
    assert profiles.place_of(on_gpu) == ("", profiles.NO_NCU)


def test_the_static_reading_stands_in_its_place_beside_a_profile_that_was_kept(there, here, monkeypatch, tmp_path) -> None:
    trial, session = there
    for name in ("none", "kept"):
        shutil.copytree(session.path, tmp_path / name, ignore=shutil.ignore_patterns("events.jsonl"))
    kept = Session(tmp_path / "kept")
    profile = Profile(tuple(reversed(read_csv(PRINTED))), "2026-01-01T00:00:00+00:00", "2025.3.1.0")
    kept.event(profiles.EVENT, trial=trial.trial_id, blob=kept.put_blob(to_json(profile).encode()))
    kept.event(profiles.EVENT, trial=trial.trial_id, blob=kept.put_blob(b"{}"))    # what cannot be read counts for nothing
    told = here("profile", f"kept:{trial.trial_id}", f"none:{trial.trial_id}", sessions=tmp_path)
    assert told.returncode == 0 and "Memory-bound: DRAM reads and writes at 81 % of the peak" in told.stdout
    assert "No counters: The trial ran on the emulator, which has no counters. " in told.stdout
    assert re.search(r"^DRAM read +537 MB +–$", told.stdout, re.M) and "Other kernels of kept:" in told.stdout
    lines = here("profile", f"none:{trial.trial_id}", f"kept:{trial.trial_id}", "--json", sessions=tmp_path).stdout.splitlines()
    none, counted = map(json.loads, lines)
    assert none["profile"] is None and none["trial"] == trial.trial_id and "static" not in counted
    assert counted["profile"]["kernels"][0]["values"]["dram"] == 81.25
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    shown = wb.profile(f"kept:{trial.trial_id}", kept.trials()[0])
    assert shown.sentence.startswith("Memory-bound") and [v["dram"] for v in shown.values] == [81.25, 81.25]
    assert "Other kernels of kept:" in shown._repr_html_() and "<pre>" not in shown._repr_html_()
    assert "DRAM, of peak</span></td><td style=text-align:left>81.2 %</td>" in shown._repr_html_()
    assert "no trial 'ffff'" in here("profile", "none:ffff", sessions=tmp_path).stderr
    if not (find_toolchain().nvcc and find_toolchain().nvdisasm):
        print("no nvcc or nvdisasm: only what the text says of it is tested")
        assert "No static analysis: No nv" in told.stdout
        return
    assert "A static analysis of the machine code is shown" in told.stdout and "of naive_gather" in none["static"]["sentence"]


def test_the_button_has_it_counted_and_shows_it_when_it_is_done(there, ncu, monkeypatch, tmp_path) -> None:
    trial, session = there
    shutil.copytree(session.path, tmp_path / "own", ignore=shutil.ignore_patterns("events.jsonl"))
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    monkeypatch.setattr(profiles, "place_of", lambda trial: ("cpu", ""))    # as where its GPU is here
    ncu(COUNTS)
    at = tab("inspect", inspect_session="own", trial=trial.trial_id, view="Profile")
    assert "has no profile yet. The button has ncu count on cpu." in said(at)
    at.button(key=f"profile {trial.trial_id}").click().run()
    assert "ncu is counting" in said(at) and not [b for b in at.button if b.key == f"profile {trial.trial_id}"]
    until(lambda: "Memory-bound" in said(at.run()), 60)
    assert at.button(key=f"profile {trial.trial_id}").label == "Profile again" and not at.exception
    ncu(f"log.write_text({REFUSED!r}); sys.exit(1)")
    at.button(key=f"profile {trial.trial_id}").click().run()
    until(lambda: "does not permit this user" in said(at.run()), 60)
    assert "Memory-bound" in said(at), "the profile that was kept stays"


def test_the_machine_says_whether_it_has_ncu_and_what_that_lacks(ncu, gpu, tmp_path) -> None:
    place = ncu("")
    found = next(f for f in examine() if f.name == "ncu")
    assert (found.found, found.ok) == (str(place), True) and found.works.startswith("counts what limits a kernel on a GPU")
    driver, own = tmp_path / "params", tmp_path / "status"
    for admins, held, restricted in ((1, "0000000000000000", True), (1, "000001ffffffffff", False), (0, "0" * 16, False)):
        driver.write_text(f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {admins}\n")
        own.write_text(f"Name:\tpython\nCapEff:\t{held}\n")
        assert counters_restricted(driver, own) == restricted
    assert not counters_restricted(tmp_path / "none", own)


SESSIONS, TEMPLATES = (Path(__file__).resolve().parents[2] / name for name in ("sessions", "kernel_templates"))
_HELPER = re.compile(r"pack_|pad_|add_|sum_|\w*reduce|\w*slots|convert")


@pytest.fixture(scope="module")
def recorded() -> list[Trial]:
    found = [t for path in sorted(SESSIONS.glob("recorded-*")) for t in Session(path).trials()
             if t.kind == "candidate" and t.resources]
    assert len(found) >= 270
    return found


def test_of_every_recorded_candidate_the_main_kernel_is_shown_and_no_helper(recorded: list[Trial]) -> None:
    with_helpers = 0
    table = report.frame(recorded).set_index("trial_id", verify_integrity=True)["registers"]
    for trial in recorded:
        for arch, kernels in trial.resources.items():
            name = main_kernel(trial, arch)
            own = find(trial.name, trial.direction).kernel or trial.name
            assert name.partition("<")[0] == own and not _HELPER.match(name), (trial.trial_id, arch, name)
            with_helpers += any(_HELPER.match(n) for n in kernels)
        shown = trial.resources[arch_of(trial)][main_kernel(trial, arch_of(trial))].registers
        assert table[trial.trial_id] == shown
    assert with_helpers > 150


def test_the_target_that_the_gpu_ran_is_shown(recorded: list[Trial]) -> None:
    assert {arch_of(t) for t in recorded if "sm_90a" in t.resources} == {"sm_90a"}
    both = next(t for t in recorded if {"sm_80", "sm_90"} <= set(t.resources))
    older, cpu = (replace(both, device=replace(both.device, arch=arch)) for arch in ("sm_80", "x86_64"))
    assert arch_of(both) == "sm_90" and arch_of(older) == "sm_80"
    assert arch_of(cpu) == "sm_90" and arch_of(replace(both, resources={})) == ""


def test_shared_memory_includes_the_dynamic_one_and_occupancy_counts_it(recorded: list[Trial]) -> None:
    split = next(t for t in recorded if t.name == "split_mma" and t.config["SHARED_KB"] == 110)
    assert most_shared_bytes(split, "sm_90") == 110 * 1024
    assert occupancy_of(split) == {}  # its code decides at launch how many of its warps a layer keeps busy
    packed = next(t for t in recorded if t.name == "wgmma_packed")  # its header gives no bound
    assert most_shared_bytes(packed, "sm_90a") is None
    naive = next(t for t in recorded if t.name == "naive_gather")
    assert most_shared_bytes(naive, "sm_90") == 0
    for trial in recorded:  # the strips say how many warps they have; disjoint_mma chooses where WARPS is 0
        if trial.name in ("implicit_gemm_mma", "disjoint_mma"):
            (name, found), = occupancy_of(trial)[arch_of(trial)].items()
            assert name == main_kernel(trial, arch_of(trial)) and 0 < found.warps_per_sm <= 64


def test_without_a_kernel_of_the_variants_name_the_largest_is_shown(recorded: list[Trial]) -> None:
    trial = replace(next(t for t in recorded if t.name == "implicit_gemm_mma"), name="my_own")
    assert main_kernel(trial, arch_of(trial)).startswith("implicit_gemm_mma")


def test_the_cu_of_every_shipped_variant_has_a_kernel_of_its_name() -> None:
    """Not a header: whoever opens the file finds the main loop there."""
    for variant in discover():
        assert re.search(rf"__global__[^;{{]*?\b{variant.kernel or variant.name}\(", variant.text), variant.key


def test_the_main_loop_of_every_shipped_variant_is_in_its_cu() -> None:
    """Warps that only stage may have their loop in a header. A loop that leaves one product in flight is the main loop."""
    assert not [p for p in (TEMPLATES / "families").rglob("*.cuh") if "wgmma_wait<1>" in p.read_text(encoding="utf-8")]
    for variant in discover():
        assert re.search(r"\b(for|while) \(|\bconst_loop<", variant.text), variant.key


def test_a_block_of_warps_that_the_header_chooses() -> None:
    layer = ConvTranspose(1, 32, 64, 5, dilation=3)
    assert threads_per_block(Candidate(find("disjoint_mma", "forward"), layer, "float32", {}), sm=90) in (32, 64, 128, 256)
    assert threads_per_block(Candidate(find("depthwise_rows", "forward"), layer, "float32", {"THREADS": 256}), sm=90) == 256
    assert threads_per_block(Candidate(find("split_mma", "grad_weight"), layer, "float32", {}), sm=90) is None
