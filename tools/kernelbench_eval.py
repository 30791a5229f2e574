"""Do the exported files agree with KernelBench's own evaluation?   python tools/kernelbench_eval.py FOLDER [--out FILE.json]

FOLDER is a checkout of KernelBench (it holds src/kernelbench and KernelBench/level1). Every file is exported as a user does
it, by `python -m workbench export --best --preset kbNN`, and handed to KernelBench's `eval_kernel_against_ref`: 5 trials, its
tolerance for float32, PyTorch's flags as they are; and to its static check. Each problem has a process of its own, because
cuDNN keeps what it chose earlier in one.

KernelBench's modules `eval`, `timing`, `dataset` and `kernel_static_checker` run as they are. Its `utils` asks for clients of
language models; of it the evaluation needs only the maker of the GPU, so a module that answers that stands in its place.
Where `requests` or `pydantic` are not installed, an empty module and a plain class stand in; the output says so.

Exit codes: 0 all agree, 1 one does not, 2 a bad request, 3 nothing could run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.presets import KERNELBENCH  # noqa: E402

TRIALS = 5
LIMIT_S = 300


def main() -> int:
    args = _arguments()
    names = [name.strip() for name in args.only.split(",")] if args.only else list(KERNELBENCH)
    if unknown := [name for name in names if name not in KERNELBENCH]:
        return _say(f"There is no preset {unknown[0]!r}; choose from {', '.join(KERNELBENCH)}.", 2)
    try:
        problems = {name: problem_file(args.folder, name) for name in names}
    except FileNotFoundError as error:
        return _say(str(error), 2)
    if args.list:
        print("\n".join(f"{name}  {path.name}" for name, path in problems.items()))
        return 0
    if args.child:
        args.child.write_text(json.dumps(evaluate(names[0], problems[names[0]], args)))
        return 0
    if not args.static and not _gpu():
        return _say("There is no CUDA GPU; --static makes the files and asks the static check alone.", 3)
    if stand_ins := [name for name in ("requests", "pydantic") if importlib.util.find_spec(name) is None]:
        print(f"Not installed, a stand-in is used: {', '.join(stand_ins)}.")
    with ThreadPoolExecutor(args.jobs) as pool:
        results = []
        for result in pool.map(lambda name: in_a_process(name, args), names):
            results.append(result)
            print(line(result, static=args.static), flush=True)
    good = [r for r in results if agrees(r, static=args.static)]
    print(f"{len(good)} of {len(results)} agree with KernelBench's {'static check' if args.static else 'evaluation'}"
          + (f", tolerance 1e-4, {TRIALS} trials each." if not args.static else "."))
    if args.out:
        args.out.write_text(json.dumps({"trials": TRIALS, "static_only": args.static, "results": results}, indent=1) + "\n")
    return 0 if len(good) == len(results) else 1


def problem_file(folder: Path, name: str) -> Path:
    """The problem's own file of the checkout."""
    if not (folder / "src/kernelbench/eval.py").is_file():
        raise FileNotFoundError(f"{folder} is no checkout of KernelBench: there is no src/kernelbench/eval.py in it.")
    number = KERNELBENCH[name].number
    found = sorted((folder / "KernelBench/level1").glob(f"{number}_*.py"))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder}/KernelBench/level1 has {len(found)} files for problem {number}; one is needed.")
    return found[0]


def in_a_process(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What `evaluate` says of one problem, or how its process ended."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = [sys.executable, __file__, str(args.folder), "--only", name, "--child", str(answer)]
        words += ["--static"] if args.static else []
        words += ["--arch", args.arch] if args.arch else []
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"It did not end within {LIMIT_S} s."}
        if not answer.is_file():
            return {"name": name, "error": "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])}
        return {"name": name, **json.loads(answer.read_text())}


def evaluate(name: str, problem: Path, args: argparse.Namespace) -> dict[str, Any]:
    """In the child: export the file, ask KernelBench."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model_new.py"
        made = subprocess.run([sys.executable, "-m", "workbench", "export", "--best", "--preset", name, "--out", str(out),
                               *(["--arch", args.arch] if args.arch else [])], cwd=ROOT, capture_output=True, text=True)
        if made.returncode:
            return {"error": made.stderr.strip()}
        text, build = out.read_text(), Path(folder) / "build"
        stand_in(args.folder)
        from kernelbench.kernel_static_checker import validate_kernel_static
        valid, errors, doubts = validate_kernel_static(text, backend="cuda", precision="fp32")
        found = {"chosen": made.stderr.strip().splitlines(), "static": {"valid": valid, "errors": errors, "warnings": doubts}}
        if args.static:
            return found
        import torch
        from kernelbench.eval import eval_kernel_against_ref
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = eval_kernel_against_ref(problem.read_text(), text, num_correct_trials=TRIALS, build_dir=str(build),
                                             device=torch.device("cuda:0"), precision=torch.float32)
        if result is None:
            return {**found, "error": "KernelBench gave no result: a lock file stood in its way."}
        if refused := [str(w.message) for w in said if "PyTorch computes it instead" in str(w.message)]:
            return {**found, "error": refused[0]}  # PyTorch agrees with itself: that says nothing of the kernel
        return {**found, "compiled": bool(result.compiled), "correct": bool(result.correctness),
                "metadata": {key: str(value) for key, value in result.metadata.items()}, "torch": torch.__version__}


def stand_in(folder: Path) -> None:
    """Make KernelBench's evaluation importable without what it needs for other things."""
    sys.path.insert(0, str(folder / "src"))
    utils = ModuleType("kernelbench.utils")
    utils.get_gpu_vendor = lambda device=None: "nvidia"
    sys.modules["kernelbench.utils"] = utils
    if importlib.util.find_spec("requests") is None:
        sys.modules["requests"] = ModuleType("requests")
    if importlib.util.find_spec("pydantic") is None:
        sys.modules["pydantic"] = ModuleType("pydantic")
        sys.modules["pydantic"].BaseModel = Plain


class Plain:
    """Fields with their defaults, as KernelBench's results need them of pydantic."""

    def __init__(self, **given: Any) -> None:
        cls = type(self)
        for field in cls.__annotations__:
            default = getattr(cls, field, None)
            setattr(self, field, given.get(field, dict(default) if isinstance(default, dict) else default))


def agrees(result: dict[str, Any], *, static: bool) -> bool:
    return "error" not in result and result["static"]["valid"] and (static or result["correct"])


def line(result: dict[str, Any], *, static: bool) -> str:
    """`kb81  AGREES  correct (5 / 5), static check ok`."""
    word = "AGREES " if agrees(result, static=static) else "DIFFERS"
    if "error" in result:
        return f"{result['name']}  {word}  {result['error']}"
    parts = []
    if not static:
        said = result["metadata"]
        trials = said.get("correctness_trials", "")
        why = said.get("max_difference") or said.get("runtime_error") or said.get("compilation_error") or ""
        parts.append(f"correct {trials}" if result["correct"] else f"wrong {trials} {why}".strip())
    parts.append("static check ok" if result["static"]["valid"] else f"static check: {'; '.join(result['static']['errors'])}")
    return f"{result['name']}  {word}  {', '.join(parts)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--only", metavar="kb74,kb81", help="these problems (default: all 17)")
    parser.add_argument("--arch", metavar="sm_90", help="export for this GPU (default: the one that is here)")
    parser.add_argument("--static", action="store_true", help="the static check alone, which needs no GPU")
    parser.add_argument("--jobs", type=int, default=1, help="so many problems at a time (default 1)")
    parser.add_argument("--list", action="store_true", help="name the problems and their files, run nothing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write all that was said, as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    if args.jobs < 1:
        parser.error(f"--jobs is {args.jobs}; give 1 or more.")
    if args.out and not args.out.absolute().parent.is_dir():
        parser.error(f"{args.out} cannot be written: there is no folder {args.out.absolute().parent}.")
    return args


def _gpu() -> bool:
    import torch
    return torch.cuda.is_available()


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
