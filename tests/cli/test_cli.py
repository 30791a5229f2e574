"""The command line as a person types it: real processes, documented exit codes, one sentence for a bad request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.env import torch_info
from workbench.drive.bench.defaults import default_configs
from workbench.drive.sessions.session import Session

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--layer", "ConvTranspose1d(3, 5, 3, stride=2)", "--input-size", "17", "--device", "cpu"]
VERBS = ("doctor", "variants", "presets", "run", "show", "compare", "check", "bench", "selftest", "export", "test", "pack",
         "cache", "tune", "diff")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


def cli(*words: str, sessions: Path | None = None, program: tuple[str, ...] = ("-m", "workbench"),
        **environment: str) -> subprocess.CompletedProcess[str]:
    extra = {"KERNEL_WORKBENCH_SESSIONS": str(sessions)} if sessions else {}
    return subprocess.run([sys.executable, *program, *words], cwd=ROOT, capture_output=True, text=True, timeout=500,
                          check=False, env={**os.environ, **extra, **environment})


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_exit_codes(here, verb: str) -> None:
    done = here(verb, "--help")
    assert done.returncode == 0 and "exit codes: 0 right, 1 a result is wrong" in done.stdout


def test_the_list_of_verbs_is_whole() -> None:
    text = cli("--help").stdout
    assert all(f"\n    {verb} " in text for verb in VERBS)


def test_doctor_says_what_works() -> None:
    done = cli("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and "cpu" in report["devices"]
    assert {"torch", "C++ compiler", "ninja", "GPU", "nvcc"} <= {f["name"] for f in report["findings"]}


def test_presets_and_variants_as_json(here) -> None:
    presets = {p["name"]: p for p in json.loads(here("presets", "--json").stdout)}
    assert len(presets) == 39 and presets["kb74"]["output"] == [32, 64, 131084]
    assert presets["models/sam-1"]["source"].startswith("facebookresearch/segment-anything ")
    models = json.loads(here("presets", "--json", "--suite", "models").stdout)
    assert [p["suite"] for p in models] == ["models"] * 22
    variants = json.loads(here("variants", "--json").stdout)
    assert {(v["name"], v["direction"]) for v in variants} >= {
        (n, d) for n in ("naive_gather", "shared_weight_tiling", "warp_per_output")
        for d in ("forward", "grad_input", "grad_weight")}


@pytest.mark.parametrize(("typed", "name"), [("kb74", "kb74"), ("sam-1", "models/sam-1")])
def test_a_preset_without_a_size_is_small_where_it_is_emulated(here, sessions: Path, typed: str, name: str) -> None:
    done = here("run", "--preset", typed, "--direction", "forward", "--variant", "naive_gather", "--no-baselines", "--no-time",
               "--device", "cpu", "--session", f"sized-{typed}", sessions=sessions)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"On the cpu {typed} means {name}/small. Give {name}/full for the full size.\n")
    trial = json.loads(here("show", f"sized-{typed}", "--json", sessions=sessions).stdout)
    assert trial["workload"]["preset"] == f"{name}/small" and f"--preset {name}/small " in trial["command"]


def test_run_show_resume_pack_compare(here, sessions: Path, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--variant", "naive_gather", "--set", "naive_gather.BLOCK=64,128", "--direction",
               "forward", "--session", "one", "--effort", "quick", sessions=sessions)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("EMULATED") >= 2 and "does not predict a GPU" in done.stdout
    done_lines = [line for line in done.stderr.splitlines() if ": OK  " in line]
    assert [line[:6] for line in done_lines] == ["[1/2] ", "[2/2] "] and done.stderr.count("\n") < 6, done.stderr
    trials = [json.loads(line) for line in here("show", "one", "--json", sessions=sessions).stdout.splitlines()]
    assert sorted(t["config"]["BLOCK"] for t in trials if t["kind"] == "candidate") == [64, 128]
    again = here("run", *SMALL, "--variant", "naive_gather", "--set", "naive_gather.BLOCK=64,128,256", "--direction",
                "forward", "--session", "one", "--resume", "--json", "--effort", "quick", sessions=sessions)
    assert [json.loads(line)["config"]["BLOCK"] for line in again.stdout.splitlines()] == [256]
    repeat = trials[0 if trials[0]["kind"] == "candidate" else 1]["command"].split(" ", 3)
    assert repeat[:3] == ["python", "-m", "workbench"]
    import shlex
    words = shlex.split(repeat[3])
    repeated = here(*words, "--json", "--no-baselines", "--effort", "quick", sessions=sessions)
    ids = {json.loads(line)["candidate_id"] for line in repeated.stdout.splitlines()}
    assert len(ids) == 1 and ids <= {t.get("candidate_id") for t in trials}
    archive = tmp_path / "one.zip"
    assert here("pack", "one", "--out", str(archive), sessions=sessions).returncode == 0
    opened = here("pack", "--open", str(archive), sessions=tmp_path / "elsewhere")
    assert opened.returncode == 0 and (Path(ROOT / opened.stdout.strip()) / "trials.jsonl").is_file()
    compared = here("compare", "one", "one", sessions=sessions)
    assert compared.returncode == 0 and "1.000×" in compared.stdout
    assert compared.stderr == "A and B are the same session, one: its times are compared with themselves. Give two sessions.\n"
    source = here("show", "one", "--trial", next(t for t in trials if t["kind"] == "candidate")["trial_id"], "--source",
                 sessions=sessions)
    assert "__global__" in source.stdout
    text = here("show", "one", "--trial", trials[-1]["trial_id"], sessions=sessions).stdout
    assert text.startswith(f"{trials[-1]['status']}  {trials[-1]['name']}: ") and trials[-1]["command"] in text
    told = json.loads(here("show", "one", "--trial", next(t for t in trials if t["kind"] == "candidate")["trial_id"],
                          "--json", sessions=sessions).stdout)
    assert set(told["occupancy"]) == set(told["resources"])  # both are empty without nvcc
    assert all(k["limiter"] and 0 < k["warps_per_sm"] <= k["max_warps"] for a in told["occupancy"].values() for k in a.values())


def test_an_edited_kernel_is_a_fork_that_is_judged_kept_and_exported(here, sessions: Path, tmp_path: Path) -> None:
    """A wrong edit, then a right one: by what it was forked from, resumed, exported, and again from a packed session."""
    def run(*words: str, sessions: Path = sessions) -> list[dict]:
        done = here("run", *words, "--device", "cpu", "--effort", "quick", "--no-baselines", "--json", sessions=sessions)
        return [json.loads(line) for line in done.stdout.splitlines()]

    parent, = run(*SMALL, "--variant", "naive_gather", "--direction", "forward", "--session", "edit")
    source = here("show", "edit", "--trial", parent["trial_id"], "--source", sessions=sessions).stdout
    edited = tmp_path / "edited.cu"
    edited.write_text(source.replace("Sum sum[CO] = {};", "Sum sum[CO] = {Sum(1)};"))
    wrong, = run("--source", str(edited), "--fork-of", f"edit:{parent['trial_id']}", "--session", "edit")
    assert wrong["status"] == "MISMATCH" and wrong["forked_from"] == parent["candidate_id"] != wrong["candidate_id"]
    assert wrong["name"].startswith("naive_gather-") and "kept_in" not in wrong
    edited.write_text(source.replace("Sum sum[CO] = {};", "Sum sum[CO] = {Sum(0)};"))
    of_wrong = ("--source", str(edited), "--fork-of", f"edit:{wrong['candidate_id'][:8]}", "--session", "edit")
    right, = run(*of_wrong)
    assert right["status"] == "OK" and right["forked_from"] == wrong["candidate_id"], "a fork of a fork"
    assert run(*of_wrong, "--resume") == [], "it is there"
    told = json.loads(here("show", "edit", "--trial", right["trial_id"], "--json", sessions=sessions).stdout)
    assert set(told["occupancy"]) == set(told["resources"]), "its block size is known as its variant's"
    both = [f"edit:{t['trial_id']}" for t in (wrong, right)]
    found = here("diff", *both, sessions=sessions).stdout
    assert "\n-  Sum sum[CO] = {Sum(1)};\n+  Sum sum[CO] = {Sum(0)};\n" in found and found.startswith(f"--- {both[0]} naive_")
    found = here("diff", both[0], "forward/naive_gather", "--what", "config", sessions=sessions).stdout
    assert f"-variant = {wrong['name']}\n+variant = naive_gather\n" in found
    exported = here("export", "--session", "edit", "--trial", right["trial_id"], sessions=sessions)
    assert "Sum(0)" in exported.stdout and right["candidate_id"] in exported.stdout, exported.stderr
    assert exported.stderr.splitlines()[-2:] == [
        f"forward: {right['name']} is taken because you named it. It has no GPU time.",
        "Left to PyTorch: grad_input, grad_weight; no named trial computes them."], exported.stderr
    archive, elsewhere = tmp_path / "edit.zip", tmp_path / "elsewhere"
    here("pack", "edit", "--out", str(archive), sessions=sessions)
    here("pack", "--open", str(archive), sessions=elsewhere)
    edited.unlink()
    words = right["command"].split(" ")[4:-4]
    again, = run(*words, sessions=elsewhere)
    assert (again["candidate_id"], again["name"], again["status"]) == (right["candidate_id"], right["name"], "OK")
    gpu = Session.create(tmp_path, "gpu")
    for trial in Session.open(elsewhere / "edit").trials():
        gpu.append(replace(trial, device=replace(trial.device, kind="cuda")))
    assert [cell.best.name for cell in default_configs([gpu])] == ["naive_gather"], "a fork is no variant"


def test_both_gradients_from_one_launch(here, sessions: Path, tmp_path: Path) -> None:
    layer = ("--layer", "ConvTranspose1d(9, 10, 3, stride=2)", "--input-size", "20")
    done = here("run", *layer, "--direction", "backward", "--session", "both", "--json", "--effort", "quick",
               sessions=sessions)
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert sorted((t["kind"], t["name"], t["direction"]) for t in trials) == [
        ("baseline", "eager", "backward"), ("candidate", "fused_mma", "backward")]
    assert all(set(t["errors"]) == {"grad_input", "grad_weight", "grad_bias"} for t in trials)
    out = tmp_path / "both.py"
    made = here("export", "--session", "both", "--out", str(out), sessions=sessions)
    assert made.returncode == 0 and '_Kernel("backward"' in out.read_text(), made.stderr
    made = here("export", *layer, "--backward", "fused_mma", "--grad-input", "naive_gather", "--out", str(out),
               sessions=sessions)
    assert made.returncode == 0 and "both gradients from one launch" in out.read_text(), made.stderr
    assert here("export", *layer, "--backward", "naive_gather", sessions=sessions).returncode == 2


def test_a_wrong_kernel_is_exit_1_with_its_status(here, sessions: Path, tmp_path: Path) -> None:
    import shutil
    shutil.copytree(ROOT / "kernel_templates", tmp_path / "templates")
    path = tmp_path / "templates" / "forward" / "naive_gather.cu"
    text = path.read_text()
    broken = text.replace("% layer.stride_w != 0", "% 1 != 0")
    assert broken != text
    path.write_text(broken)
    done = here("run", *SMALL, "--variant", "naive_gather", "--direction", "forward", "--templates",
               str(tmp_path / "templates"), "--no-baselines", sessions=sessions)
    assert done.returncode == 1 and "MISMATCH" in done.stdout and "python -m workbench run" in done.stdout


@pytest.mark.parametrize(("words", "sentence"), [
    (["run", "--layer", "ConvTranspose1d(3, 5, 3, stride=2", "--input-size", "8"], "a bracket is not closed"),
    (["run", "--layer", "Conv2d(3, 5, 3)", "--input-size", "8"], "is not served; choose ConvTranspose1d"),
    (["run", "--layer", "ConvTranspose1d(3, 5, 3)"], "needs --input-size"),
    (["run", "--layer", "ConvTranspose1d(3, 5, 3, padding=-1)", "--input-size", "8"], "padding is -1"),
    (["run", "--layer", "ConvTranspose1d(3, 5, 3, groups=2)", "--input-size", "8"], "not divisible by groups 2"),
    (["run", "--layer", "ConvTranspose1d(3, 5, 3, output_padding=2)", "--input-size", "8"], "output_padding 2"),
    (["run", "--layer", "ConvTranspose1d(3, 5, 3, padding=9)", "--input-size", "8"], "leaves an output of"),
    (["run", "--preset", "kb75/tiny"], "tiny"),
    (["run", "--preset", ""], "There is no preset ''"),
    (["test", "--preset", ""], "There is no preset ''"),
    (["run", "--preset", "kb99"], "kb99"),
    (["run", "--preset", "kb74/small", "--variant", "naive"], "There is no variant 'naive'"),
    (["run", "--preset", "kb74/small", "--set", "naive_gather.BLOCK=77"], "BLOCK=77 is not offered"),
    (["run", "--preset", "kb74/small", "--set", "BLOCK"], "cannot be read"),
    (["run", "--preset", "kb74/small", "--precision", "fp16"], "float32 does not have the precision 'fp16'"),
    (["run", "--preset", "kb74/small", "--device", "cuda:9"], "not on this machine"),
    (["run"], "Give --preset or --layer: the layer to run on."),
    (["shw"], "There is no verb 'shw'; did you mean show?"),
    (["run", "--precison", "tf32"], "run takes no --precison tf32; see 'python -m workbench run --help'."),
    (["bench", "--suite", "nope"], "python -m workbench bench: --suite: invalid choice: 'nope'"),
    (["run", "--preset", "kb74/small", "--variant", "naive_gater"], "no variant 'naive_gater'; did you mean naive_gather?"),
    (["run", "--preset", "kb74/small", "--fork-of", "naive_gather"], "--fork-of needs --source"),
    (["run", "--preset", "kb74/small", "--source", "nowhere.cu"], "nowhere.cu cannot be read: No such file"),
    (["run", "--source", "kernel_templates/forward/naive_gather.cu"], "Give --preset or --layer, the layer to run on, or"),
    (["run", "--preset", "kb74/small", "--source", "kernel_templates/forward/naive_gather.cu"], "makes the same program"),
    (["run", "--preset", "kb74/small", "--resume"], "--resume needs --session"),
    (["run", "--preset", "kb74/small", "--variant", "naive_gather", "--set", "STAGE_KB=8"], "no chosen variant takes it"),
    (["run", "--preset", "kb74/small", "--set", "forward/naive_gather.BLOCK=77"], "BLOCK=77 is not offered"),
    (["run", "--preset", "kb74/small", "--build-timeout", "0"], "--build-timeout is 0"),
    (["run", "--preset", "kb74/small", "--variant", "split_mma", "--direction", "forward"],
     "split_mma does not compute forward; choose grad_weight."),
    (["run", "--preset", "kb74/small", "--set", "naive_gather.BLOCK=64", "--set", "naive_gather.BLOCK=128"],
     "naive_gather.BLOCK is set twice; give its values together: naive_gather.BLOCK=64,128."),
    (["bench", "--known", "LICENSE", "--device", "cpu", "--size", "small"], "LICENSE holds no best known configs: "),
    (["show", "one", "--source"], "--source needs the trial: show one --trial ID --source."),
    (["test", "--junit", "/proc/j.xml"], "/proc/j.xml cannot be written: "),
    (["test", "--variant", "naive"], "There is no variant 'naive'"),
    (["test", "--junit", "nowhere/j.xml"], "there is no folder"),
    (["export", "--preset", "kb74", "--forward", "naive_gather", "--out", "nowhere/m.py"], "there is no folder"),
    (["export", "--preset", "kb74", "--forward", "naive_gather", "--set", "naive.BLOCK=64"], "There is no variant 'naive'"),
    (["show", "--trial", "ab12"], "--trial needs the name of its session"),
    (["show", "nowhere"], "'nowhere' is not a session; the sessions below"),
    (["run", "--preset", "kb74/small", "--set", "naive_gather.BLOCK=64,x"], "'x' is not a whole number; write TUNABLE="),
    (["run", "--preset", "kb74/small", "--no-baselines", "--baselines-only"], "measures nothing; give only one of them"),
    (["check", "/nonexist.py", "--preset", "kb74"], "/nonexist.py does not exist; name an existing file."),
    (["check", "/", "--preset", "kb74"], "/ is a folder; name a file."),
    (["check", "app.py", "--preset", "kb74", "--memory", "nan"], "--memory is nan; give a number above 0, at most 1048576."),
    (["check", "app.py", "--preset", "kb74", "--memory", "inf"], "--memory is inf; give a number above 0, at most 1048576."),
    (["check", "app.py", "--preset", "kb74", "--time-limit", "nan"], "--time-limit is nan; give a number above 0"),
    (["check", "app.py", "--preset", "kb74", "--time-limit=-1"], "--time-limit is -1; give a number above 0, at most 1000000."),
    (["check", "app.py", "--preset", "kb74", "--build-limit", "0"], "--build-limit is 0; give a number above 0"),
    (["check", "app.py", "--preset", "kb74/small", "--device", "cpu", "--memory", "0.01"],
     "could not start within its memory limit of 10.2 MiB: raise the limit (--memory, in GiB)."),
    (["pack", "--open", "nonexist.zip"], "nonexist.zip does not exist; name a zip"),
    (["compare", "nowhere", "nowhere"], "is not a session"),
    (["diff", "one:ab", "forward/naive_gather"], "'one' is not a session"),
    (["diff", "LICENSE", "forward/naive_gather", "--what", "ptx"], "LICENSE is a file; only its template or source"),
    (["pack"], "Give the session to pack"),
    (["app", "--port", "99999999"], "--port is 99999999; give a number from 1 to 65535."),
    (["export"], "Give --preset, --layer or --session"),
])
def test_a_bad_request_is_one_sentence(here, words: list[str], sentence: str, tmp_path: Path) -> None:
    done = here(*words, sessions=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    progress = re.compile(r"\s*\d+\.\d s  ")  # what `check` does, and since when
    said = [line for line in done.stderr.strip().splitlines() if not progress.match(line)]
    assert "Traceback" not in done.stderr and len(said) == 1


def test_without_a_verb_all_are_listed(here) -> None:
    done = here()
    assert done.returncode == 2 and all(re.search(rf"^    {verb} ", done.stdout, re.M) for verb in VERBS), done.stdout


def test_the_list_of_sessions_says_what_each_is_of(here) -> None:
    lines = here("show", sessions=ROOT / "sessions").stdout.splitlines()
    row = next(re.split(r"  +", line) for line in lines if line.startswith("recorded-h200-general "))
    assert row == ["recorded-h200-general", "2026-11-21 06:04", "NVIDIA H200", "KernelBench #74 (full) +2", "68", "66"]


def test_a_sessions_folder_that_cannot_be_made_is_one_sentence(here) -> None:
    done = here("run", *SMALL, "--variant", "naive_gather", "--session", "one", sessions=Path("/proc/nope"))
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("/proc/nope/one cannot be written: No such file or directory.")


@pytest.mark.parametrize("words", [
    ("run", "--preset", "kb74/small", "--device", "cuda:0"), ("test", "--variant", "naive_gather", "--device", "cuda"),
    ("export", "--preset", "kb74", "--forward", "naive_gather", "--verify", "--device", "cuda:0")])
def test_a_gpu_that_this_torch_cannot_use_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    if torch_info().cuda:
        pytest.skip(f"this PyTorch has CUDA {torch_info().cuda}")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-aaaa1111, 9.0, 143771, 580.159.03'\n")
    smi.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = cli(*words, sessions=tmp_path / "sessions", PATH=path, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 2 and "pip install --force-reinstall torch" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "sessions").exists()


def test_a_session_that_is_not_there_names_the_ones_there_are(here, tmp_path: Path) -> None:
    for name in ("two", "one"):
        (tmp_path / name / "blobs").mkdir(parents=True)
    for words in (["show", "nope"], ["pack", "nope"]):
        done = here(*words, sessions=tmp_path)
        assert done.returncode == 2
        assert done.stderr == f"'nope' is not a session; the sessions below {tmp_path} are: one, two.\n"
    assert here("show", "ones", sessions=tmp_path).stderr == "'ones' is not a session; did you mean one?\n"
    for words in (["show", "one", "--trial", "ab"], ["profile", "one:ab"], ["diff", "one:ab", "one:ab"]):
        done = here(*words, sessions=tmp_path)
        assert (done.returncode, done.stderr) == (2, "Session one has no trial 'ab'; 'show one' lists them.\n")


def test_headless_test_writes_junit_and_json(tmp_path: Path) -> None:
    done = cli("--headless-test", "--layer", "ConvTranspose2d(3, 4, 3, stride=2)", "--input-size", "6,7", "--variant",
               "naive_gather", "--device", "cpu", "--junit", str(tmp_path / "j.xml"), "--json", str(tmp_path / "c.json"),
               program=("app.py",))
    assert done.returncode == 0, done.stderr
    assert "3 of 3 cases are right." in done.stdout
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert suite.get("tests") == "3" and suite.get("failures") == "0"
    assert len(json.loads((tmp_path / "c.json").read_text())) == 3


def test_effort_full_takes_every_precision_of_a_variant(here, tmp_path: Path) -> None:
    words = ("test", "--layer", "ConvTranspose1d(16, 16, 3, bias=False)", "--input-size", "40", "--device", "cpu", "--variant",
             "grad_weight/split_mma", "--variant", "grad_weight/naive_gather")
    found = {}
    for effort in ("normal", "full"):
        done = here(*words, "--effort", effort, "--json", str(tmp_path / "c.json"))
        assert done.returncode == 0, done.stdout + done.stderr
        found[effort] = sorted((c["variant"].split("/")[1], c["form"], c["precision"])
                               for c in json.loads((tmp_path / "c.json").read_text()))
    assert found["normal"] == [("naive_gather", "runtime", "ieee"), ("split_mma", "constant", "tf32")]
    assert found["full"] == [("naive_gather", "constant", "ieee"), ("naive_gather", "runtime", "ieee"),
                             ("split_mma", "constant", "tf32"), ("split_mma", "constant", "tf32x3")]


def test_headless_test_fails_when_nothing_ran(here, tmp_path: Path) -> None:
    (tmp_path / "forward").mkdir()
    done = here("test", "--templates", str(tmp_path), "--device", "cpu")
    assert done.returncode == 3 and "Nothing ran" in done.stderr


NAIVE = ["run", *SMALL, "--direction", "forward", "--variant", "naive_gather", "--no-baselines", "--no-time", "--json"]


def test_the_log_of_the_workers_is_off_by_default_and_never_on_stdout(tmp_path: Path) -> None:
    quiet, told, asked = (cli(*NAIVE, *more, sessions=tmp_path, **env) for more, env in (
        ((), {}), (("-v",), {}), ((), {"KW_LOG": "debug"})))
    assert "worker" not in quiet.stderr
    for loud in (told, asked):
        assert "measure worker" in loud.stderr and ": judge OK after" in loud.stderr, loud.stderr
        assert "worker None" not in loud.stderr, "a process without a number yet"
        words = r": judge \S+ forward ConvTranspose1d\(3, 5, 3, stride=2\) cpu ieee normal asked, at most 60 s"
        assert re.search(words, loud.stderr) and ": check: exact integers" in loud.stderr, loud.stderr
        assert [json.loads(line)["status"] for line in loud.stdout.splitlines()] == ["OK"]


def test_another_level_of_the_log_says_less(tmp_path: Path) -> None:
    assert "worker" not in cli(*NAIVE, sessions=tmp_path, KW_LOG="warning").stderr
