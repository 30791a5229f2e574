"""Ask nvcc how every variant compiles at its default config, for each GPU generation: without spills, or with how many bytes.

    python tools/compile_table.py [--arch sm_86 ...] [--suite models] [--layer kb74 ...] [--variant split_mma ...]
                                  [--precision bf16 ...] [--best] [--known] [--mend] [--jobs 2]

Candidates: each variant, layer of the suites and precision, at the config that a derived entry would take: the default, or
what stands in for it. What cannot run on a GPU is not compiled; the table counts it by its reason. --best compiles the best
known config of each cell instead. Answers are kept in the cache of the workbench, a second run asks only for new ones; --known
asks nothing and shows what is there. --mend compiles the neighbours of each default that spills, and prints those without
spills: what workbench/core/start_config.py is made from. Exits 1 if something spills, is serialised or does not compile.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.candidate import Candidate  # noqa: E402
from workbench.core.derived_best import best_or_derived  # noqa: E402
from workbench.core.env import cache_dir, find_toolchain, nvcc_problem  # noqa: E402
from workbench.core.gpu import sm_of  # noqa: E402
from workbench.core.layer import DIRECTIONS  # noqa: E402
from workbench.core.precision import CLASSES, PRECISIONS_OF  # noqa: E402
from workbench.core.presets import PRESETS, SUITES, preset  # noqa: E402
from workbench.core.space import SearchSpace  # noqa: E402
from workbench.core.start_config import start  # noqa: E402
from workbench.core.template import render, render_batch  # noqa: E402
from workbench.core.toolchain import Toolchain  # noqa: E402
from workbench.core.variants import PRECISIONS, Variant, discover  # noqa: E402
from workbench.measure.build.resources import NVCC_FLAGS, TORCH_NVCC_FLAGS, parse_ptxas  # noqa: E402

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_DTYPE = {precision: dtype for dtype, several in PRECISIONS_OF.items() for precision in several}
_TOGETHER = 8           # candidates of one variant that nvcc compiles at a time: they share the headers
_OF_CANDIDATE = re.compile(r"c_([0-9a-f]{16})")  # its namespace in a batch
_SERIALISED = re.compile(r"\(C751[0-7]\)")
_NEIGHBOURS = 2         # values of a tunable that --mend tries
FAILED, SERIALISED = -1, -2  # in place of bytes


@dataclass
class Answers:
    """candidate id + target + nvcc -> bytes that a thread stores beside its registers, in a file of the cache."""

    tools: Toolchain
    file: Path = field(default_factory=lambda: cache_dir() / "spills.jsonl")
    known: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.file.is_file():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                self.known.update(json.loads(line))

    def key(self, candidate_id: str, target: str) -> str:
        return f"{candidate_id} {target} {self.tools.nvcc_label}"

    def of(self, one: Asked) -> int | None:
        return self.known.get(self.key(one.candidate_id, one.target))

    def add(self, found: dict[str, int], target: str) -> None:
        keyed = {self.key(one, target): value for one, value in found.items()}
        with self.lock:
            self.known.update(keyed)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(keyed) + "\n")


@dataclass(frozen=True)
class Asked:
    """One candidate of the table, on one GPU."""

    name: str
    candidate: Candidate
    arch: str
    candidate_id: str

    @property
    def target(self) -> str:
        return self.candidate.variant.arch or self.arch


_WORDS = {FAILED: "does not compile", SERIALISED: "ptxas warns that it serialises wgmma (C7510 to C7517)"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", choices=ARCHS, default=ARCHS, metavar="sm_86", help="default: all six")
    parser.add_argument("--suite", choices=tuple(SUITES), help="default: both")
    parser.add_argument("--layer", nargs="+", metavar="PRESET", help="default: all of the suite")
    parser.add_argument("--variant", nargs="+", metavar="NAME", default=(), help="name or direction/name; default: all")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, metavar="tf32", help="default: all")
    parser.add_argument("--best", action="store_true", help="the best known config of each cell instead of the defaults")
    parser.add_argument("--mend", action="store_true", help="find a config without spills near each default that spills")
    parser.add_argument("--known", action="store_true", help="compile nothing; show what the cache knows")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time (default 2)")
    args = parser.parse_args()
    tools = find_toolchain()
    if problem := nvcc_problem(tools, None):
        print(problem, file=sys.stderr)
        return 3
    layers = [preset(name).name for name in args.layer] if args.layer else list(SUITES[args.suite] if args.suite else PRESETS)
    variants = [v for v in discover() if not args.variant or {v.name, v.key} & set(args.variant)]
    refused: Counter[tuple[str, str, str]] = Counter()
    asked = (list(of_best(layers, args.precision, args.arch)) if args.best else
             list(of_defaults(variants, layers, args.precision, args.arch, refused)))
    answers = Answers(tools)
    if not args.known:
        compile_all(asked, answers, args.jobs)
    if args.mend:
        for line in mended([one for one in asked if answers.of(one)], answers, args.jobs):
            print(json.dumps(line))
        return 0
    print(table(asked, refused, answers))
    return int(any(answers.of(one) for one in asked))


def of_defaults(variants: Sequence[Variant], layers: Sequence[str], precisions: Sequence[str], archs: Sequence[str],
                refused: Counter[tuple[str, str, str]]) -> Iterator[Asked]:
    """What can run. `refused` counts what cannot, by (arch, variant, reason)."""
    for variant in variants:
        for precision in (p for p in variant.precision if p in precisions):
            for name in layers:
                for arch in archs:
                    space = SearchSpace(variant, PRESETS[name].layer, _DTYPE[precision], sm_of(arch), precision,
                                        variant.forms[0])
                    found = start(space, arch)
                    if found is None:
                        refused[arch, variant.key, kind_of(space.why_not(variant.default_config) or "")] += 1
                    else:
                        one = space.candidate(found.config)
                        yield Asked(name, one, arch, render(one).candidate_id)


def of_best(layers: Sequence[str], precisions: Sequence[str], archs: Sequence[str]) -> Iterator[Asked]:
    """The best known config of each cell."""
    for name in layers:
        for arch in archs:
            for precision in (p for p in precisions if p in CLASSES):
                work = PRESETS[name].workload(dtype=_DTYPE[precision])
                for direction in DIRECTIONS:
                    if found := best_or_derived(direction, work, precision, arch):
                        one = found.candidate(work)
                        yield Asked(name, one, arch, render(one).candidate_id)


def mended(spilled: Sequence[Asked], answers: Answers, jobs: int) -> Iterator[dict[str, object]]:
    """Of the configs that differ in one tunable those that do not spill, the nearest values of the last tunables first."""
    tries: dict[int, list[Asked]] = {}
    for at, one in enumerate(spilled):
        space = SearchSpace(one.candidate.variant, one.candidate.layer, one.candidate.dtype, sm_of(one.arch),
                            one.candidate.precision, one.candidate.form)
        for tunable in reversed(space.variant.tune):
            place = tunable.values.index(one.candidate.config[tunable.name])
            for value in sorted(tunable.values, key=lambda v: abs(tunable.values.index(v) - place))[1:1 + _NEIGHBOURS]:
                config = {**one.candidate.config, tunable.name: value}
                if space.why_not(config) is None:
                    near = space.candidate(config)
                    tries.setdefault(at, []).append(Asked(one.name, near, one.arch, render(near).candidate_id))
    compile_all([near for several in tries.values() for near in several], answers, jobs)
    for at, one in enumerate(spilled):
        default = one.candidate.variant.default_config
        clean = [_differing(near.candidate.config, default) for near in tries.get(at, []) if answers.of(near) == 0]
        yield {"target": one.target, "variant": one.candidate.variant.key, "precision": one.candidate.precision,
               "layer": str(one.candidate.layer), "spills": _differing(one.candidate.config, default), "bytes": answers.of(one),
               "instead": clean}


def kind_of(reason: str) -> str:
    """shared memory, instructions, or layer."""
    return ("shared memory" if "bytes of shared memory" in reason else "instructions" if "this GPU is sm_" in reason
            else "layer")


def compile_all(asked: Sequence[Asked], answers: Answers, jobs: int) -> None:
    """Compile what is not known yet, in batches of one variant and target."""
    batches = list(_batches(asked, answers))
    total, done = sum(len(batch) for batch in batches), 0
    with ThreadPoolExecutor(jobs) as pool:
        for count in pool.map(lambda batch: _compile(batch, answers), batches):
            done += count
            print(f"\r{done} of {total} compiled", end="", file=sys.stderr, flush=True)
    if total:
        print(file=sys.stderr)


def spills_of(log: str, target: str, ids: Sequence[str]) -> dict[str, int]:
    """From the log of a batch, each candidate's bytes; SERIALISED where ptxas has put waits between its `wgmma`."""
    found: dict[str, int] = {}
    for kernel, numbers in parse_ptxas(log).get(target, {}).items():
        for one in set(_OF_CANDIDATE.findall(kernel)) & set(ids):
            found[one] = max(found.get(one, 0), numbers["spill_store_bytes"])
    if missing := set(ids) - set(found):
        raise SystemExit(f"The log of nvcc names no kernel of {', '.join(sorted(missing))}.")
    serialised = {one for line in log.splitlines() if _SERIALISED.search(line) for one in _OF_CANDIDATE.findall(line)}
    return {one: SERIALISED if one in serialised else spilled for one, spilled in found.items()}


def table(asked: Sequence[Asked], refused: Counter[tuple[str, str, str]], answers: Answers) -> str:
    """A line for each variant: for each GPU how many defaults are clean, spill, and are refused; then what spills."""
    archs = [arch for arch in ARCHS if any(one.arch == arch for one in asked) or any(key[0] == arch for key in refused)]
    keys = list(dict.fromkeys([*(one.candidate.variant.key for one in asked), *(key[1] for key in refused)]))
    lines = [f"| variant | {' | '.join(archs)} |", f"|---|{'---|' * len(archs)}"]
    spilled: list[str] = []
    for key in keys:
        cells = []
        for arch in archs:
            there = [one for one in asked if (one.candidate.variant.key, one.arch) == (key, arch)]
            said = [(one, answers.of(one)) for one in there]
            words = [f"{sum(value == 0 for _, value in said)} clean"]
            words += [f"**{n} spill**"] if (n := sum((value or 0) > 0 for _, value in said)) else []
            words += [f"**{n} serialised**"] if (n := sum(value == SERIALISED for _, value in said)) else []
            words += [f"**{n} failed**"] if (n := sum(value == FAILED for _, value in said)) else []
            words += [f"{n} not asked"] if (n := sum(value is None for _, value in said)) else []
            words += [f"{n} {why}" for (a, k, why), n in sorted(refused.items()) if (a, k) == (arch, key)]
            cells.append(", ".join(words if there else words[1:]))
            spilled += [f"{arch} {key} {one.name} {one.candidate.precision}: {_WORDS.get(value, f'{value} bytes')}"
                        for one, value in said if value]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{len(spilled)} spill, are serialised or do not compile", *spilled])


def _differing(config: dict[str, int], default: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in config.items() if value != default[name]}


def _batches(asked: Sequence[Asked], answers: Answers) -> Iterator[list[Asked]]:
    waiting: dict[tuple[str, str, str], dict[str, Asked]] = {}
    for one in asked:
        if answers.key(one.candidate_id, one.target) not in answers.known:
            waiting.setdefault((one.candidate.variant.key, one.candidate.dtype, one.target), {})[one.candidate_id] = one
    for found in waiting.values():
        there = list(found.values())
        yield from (there[i:i + _TOGETHER] for i in range(0, len(there), _TOGETHER))


def _compile(batch: Sequence[Asked], answers: Answers) -> int:
    """Where a batch does not compile, its members are compiled alone."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
        source = Path(folder) / "batch.cu"
        source.write_text(render_batch([render(one.candidate) for one in batch]), encoding="utf-8")
        host = ("-ccbin", str(answers.tools.cxx)) if answers.tools.cxx else ()
        made = subprocess.run([str(answers.tools.nvcc), "-cubin", f"-arch={batch[0].target}", *TORCH_NVCC_FLAGS, *NVCC_FLAGS,
                               *host, source.name, "-o", "batch.cubin"], cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if made.returncode and len(batch) > 1:
        return sum(_compile([one], answers) for one in batch)
    if made.returncode:
        found = {batch[0].candidate_id: FAILED}
    else:
        found = spills_of(made.stdout, batch[0].target, [one.candidate_id for one in batch])
    answers.add(found, batch[0].target)
    return len(batch)


if __name__ == "__main__":
    sys.exit(main())
