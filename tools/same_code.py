"""Keep recorded trials valid when the text of templates changes, but not the machine code that nvcc makes of it.

    python tools/same_code.py COMMIT [sessions/recorded-....zip ...] [--renamed NEW=OLD ...] [--write] [--jobs 2]

COMMIT: a commit with the templates that were recorded, or a folder with these templates. A trial counts if its id is that of
these templates and today's templates give it another one. nvcc compiles both sources for the trial's GPU. The kernels (as
nvdisasm prints them) and the host code with its constants (as objdump prints them) are compared; a function of the host may
have its instructions in another order, with the same jumps. --write: trials whose code is the same get the id of today's
source. The session notes which ones, and what was compared. The other trials have to be recorded again. --renamed: a name
that today's templates give to a type or function; symbols contain it, so today's source is compiled with the old name. Exits
1 if a trial has to be recorded again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.env import find_toolchain, nvcc_problem, shipped  # noqa: E402
from workbench.core.template import Rendered, render  # noqa: E402
from workbench.core.toolchain import Toolchain  # noqa: E402
from workbench.core.trial import Trial  # noqa: E402
from workbench.drive.sessions.recorded import candidate_of  # noqa: E402
from workbench.drive.sessions.session import Session, now  # noqa: E402
from workbench.measure.build.resources import NVCC_FLAGS, TORCH_NVCC_FLAGS  # noqa: E402

_AT = (1980, 1, 1, 0, 0, 0)   # of the files in a zip, so that equal sessions are equal files


@dataclass(frozen=True)
class Changed:
    """A trial whose source is another text now."""

    trial: Trial
    old: Rendered
    new: Rendered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", metavar="COMMIT", help="a commit, or a folder, with the templates that were recorded")
    parser.add_argument("sessions", nargs="*", type=Path, help="packed sessions (default: all shipped ones)")
    parser.add_argument("--renamed", action="append", default=[], metavar="NEW=OLD", help="a name, today and as recorded")
    parser.add_argument("--write", action="store_true", help="give trials with the same code the id of today's source")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time (default 2)")
    args = parser.parse_args()
    tools, lost = find_toolchain(), 0
    if problem := nvcc_problem(tools, None) or ("" if tools.nvdisasm else "No nvdisasm was found."):
        print(problem, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as place, ThreadPoolExecutor(args.jobs) as pool:
        recorded = templates_of(args.commit, Path(place))
        for path in args.sessions or sorted(shipped("sessions").glob("recorded-*.zip")):
            changed = changed_trials(path, recorded)
            alike = list(pool.map(partial(same_code, tools, [one.split("=") for one in args.renamed]), changed))
            same = [one for one, yes in zip(changed, alike, strict=True) if yes]
            others = [one for one, yes in zip(changed, alike, strict=True) if not yes]
            print(f"{path.stem}: {len(changed)} sources changed, {len(same)} of them give the same code.")
            for one in others:
                print(f"  record again: {one.trial.trial_id} {one.trial.name} {one.trial.direction} "
                      f"{one.trial.workload.preset} {one.trial.config}")
            if args.write and same:
                names = "".join(f", {one}" for one in args.renamed)
                rewrite(path, same, f"nvcc {tools.nvcc_version}, templates of {args.commit}{names}")
            lost += len(others)
    return int(lost > 0)


def templates_of(commit: str, folder: Path) -> Path:
    """The templates of a commit, in this folder, or of a folder."""
    if Path(commit).is_dir():
        return Path(commit)
    archive = subprocess.run(["git", "archive", commit, "kernel_templates"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "kernel_templates"


def changed_trials(session: Path, recorded: Path) -> list[Changed]:
    found = []
    for trial in Session.open(session).trials():
        if trial.candidate_id and not trial.forked_from:
            new = render(candidate_of(trial))
            if new.candidate_id != trial.candidate_id:
                old = render(candidate_of(trial, templates=recorded))
                if old.candidate_id == trial.candidate_id:
                    found.append(Changed(trial, old, new))
    return found


def same_code(tools: Toolchain, renamed: Sequence[Sequence[str]], changed: Changed) -> bool:
    """Whether both sources give the same code. `renamed`: pairs of a name today and as it was recorded."""
    arch, today = changed.old.candidate.variant.arch or changed.trial.device.arch, changed.new.source
    for new_name, old_name in renamed:
        today = re.sub(rf"\b{new_name}\b", old_name, today)
    old, new = (code_of(tools, source, arch, one.candidate.compile_flags)
                for one, source in ((changed.old, changed.old.source), (changed.new, today)))
    return old == new and (bool(old) or not changed.trial.ok)


def code_of(tools: Toolchain, source: str, arch: str, flags: Sequence[str]) -> tuple[str, ...]:
    """Kernels and host code of a source, as text; nothing if nvcc refuses it. Raises `subprocess.CalledProcessError`."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as place:
        (Path(place) / "source.cu").write_text(source, encoding="utf-8")

        def out_of(*command: object) -> str:
            return subprocess.run([str(word) for word in command], cwd=place, capture_output=True, text=True, check=True).stdout

        try:
            out_of(tools.nvcc, "-c", f"-arch={arch}", "-keep", *TORCH_NVCC_FLAGS, *NVCC_FLAGS, *flags, "-Xcompiler=-fPIC",
                   *(("-ccbin", tools.cxx) if tools.cxx else ()), "source.cu", "-o", "source.o")
        except subprocess.CalledProcessError:
            return ()      # as when the trial was recorded, if both sources give nothing
        kernels = out_of(tools.nvdisasm, "-c", "-hex", next(Path(place).glob("*.cubin")).name)
        constants = out_of("objdump", "-s", "source.o").split("Contents of section ")
        host = out_of("objdump", "-d", "-r", "--no-show-raw-insn", "source.o")
        return kernels, unordered(host), *(one for one in constants if one.startswith(".rodata"))


def unordered(host: str) -> str:
    """The instructions of each function, sorted. Addresses stay only where they are operands."""
    functions = re.split(r"^(?=[0-9a-f]+ <)", re.sub(r"^\s*[0-9a-f]+:\s*", "", host, flags=re.M), flags=re.M)
    return "\n\n".join("\n".join(sorted(one.splitlines())) for one in functions)


def rewrite(path: Path, same: Sequence[Changed], compared: str) -> None:
    """The packed session, with the ids and sources of today."""
    with zipfile.ZipFile(path) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    root = next(iter(files)).split("/")[0]
    lines = files[f"{root}/trials.jsonl"].decode().splitlines()
    today, replaced = {one.trial.trial_id: one.new for one in same}, set()
    for at, line in enumerate(lines):
        data = json.loads(line)
        if (new := today.get(data["trial_id"])) is None:
            continue
        data["candidate_id"] = new.candidate_id
        for kind, text in (("source", new.source), ("template", new.candidate.variant.text)):
            if (was := f"{root}/blobs/{data['blobs'].get(kind)}") in files:
                content = text.encode()
                data["blobs"][kind] = hashlib.sha256(content).hexdigest()
                files[f"{root}/blobs/{data['blobs'][kind]}"] = content
                replaced.add(was)
        lines[at] = json.dumps(data, ensure_ascii=False)
    for name in replaced:   # unless another trial has it
        if not any(name.rpartition("/")[2] in line for line in lines):
            del files[name]
    events, note = f"{root}/events.jsonl", {"at": now(), "event": "same_code", "compared": compared, "trials": sorted(today)}
    files[f"{root}/trials.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
    files[events] = files.get(events, b"") + f"{json.dumps(note)}\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name in sorted(files):
            packed.writestr(zipfile.ZipInfo(name, _AT), files[name], zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    sys.exit(main())
