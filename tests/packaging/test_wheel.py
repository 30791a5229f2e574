"""The wheel works from any folder: built, installed into an empty environment, used by its console script."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("wheel")  # one environment serves all


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of an environment that holds the wheel; torch and the rest come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation",
                           "-w", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wheel, = folder.glob("kernel_workbench-*.whl")
    venv.create(folder / "env", with_pip=False)
    packages = folder / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([str(folder / "env/bin/python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)],
                   check=True)
    return folder / "env" / "bin"


def workbench(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KERNEL_WORKBENCH_SESSIONS"))}
    return subprocess.run([str(installed / "workbench"), *words], cwd=folder, capture_output=True, text=True, check=False,
                          env={**environment, "PATH": f"{installed}:{environment['PATH']}"})


def test_nothing_is_imported_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(installed / "python"), "-c", "import workbench; print(workbench.__file__)"], cwd=tmp_path,
                          capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(installed.parent)
    assert all((Path(done.stdout.strip()).parent / file).is_file() for file in ("py.typed", "faces/ui/editor.js"))


@pytest.mark.parametrize("words", [
    ("doctor",), ("variants",), ("selftest", "--only", "returns_zeros", "half", "knows_the_seeds", "--device", "cpu"),
    ("run", "--preset", "kb81", "--device", "cpu", "--direction", "forward", "--variant", "naive_gather"),
    ("export", "--preset", "kb74", "--forward", "naive_gather", "--verify", "--device", "cpu", "--out", "model_new.py")])
def test_verbs_work_in_another_folder(installed: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = workbench(installed, tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"run": {"sessions"}, "export": {"model_new.py"}}.get(words[0], set())


def test_recorded_sessions_are_there_in_any_folder(installed: Path, tmp_path: Path) -> None:
    done = workbench(installed, tmp_path, "show")
    there = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert there == {path.stem for path in (ROOT / "sessions").glob("recorded-*.zip")}, done.stdout + done.stderr
    done = workbench(installed, tmp_path, "show", "recorded-h200-kernelbench")
    assert done.returncode == 0 and "18.5× as fast as the best PyTorch" in done.stdout, done.stdout + done.stderr


def test_the_page_is_served(installed: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([str(installed / "workbench"), "app", "--port", str(port)], cwd=tmp_path,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as server:
        try:
            end = time.monotonic() + 200
            while time.monotonic() < end:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=20) as answer:
                        assert answer.read() == b"ok"
                        break
                except OSError:
                    assert server.poll() is None, server.stdout.read().decode()
                    time.sleep(0.2)
            else:
                pytest.fail("The page was not served within 200 s.")
        finally:
            os.killpg(server.pid, 15)


def test_the_two_lists_of_requirements_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert project["dependencies"] == [line for line in lines if not line.startswith("#")]


def test_what_the_code_imports_is_required() -> None:
    """The environment of the wheel borrows all packages of the tests, so an import that nothing requires would work there."""
    files = [path for path in (ROOT / "workbench").rglob("*.py") if "red_team" not in path.parts]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"workbench"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    named = {re.match(r"[\w-]+", requirement)[0] for requirement in required}
    optional = {"IPython", "pynvml"}  # a notebook has the first; without the second the clocks of a GPU are unknown
    assert roots - named == optional and named - roots <= {"ninja"}, (roots - named, named - roots)


def test_an_editable_install_uses_the_checkout(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    packages = tmp_path / "env/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation",
                           "-e", str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([str(tmp_path / "env/bin/workbench"), "presets"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0 and "kb74" in done.stdout, done.stdout + done.stderr
    where = subprocess.run([str(python), "-c", "import workbench; print(workbench.__file__)"], cwd=tmp_path,
                           capture_output=True, text=True, check=True).stdout
    assert Path(where.strip()).is_relative_to(ROOT)
