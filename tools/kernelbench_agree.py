"""Does the judge agree with KernelBench, without a GPU?   python tools/kernelbench_agree.py FOLDER [--only problems|verdicts]
                                                        [--level 1 2 3]

FOLDER is a checkout of KernelBench (it holds src/kernelbench and KernelBench/level1). Two questions are asked on the CPU:

problems   Each problem of level 1 (or of the levels of --level) is checked against itself as ModelNew. A right file must
           not be called wrong. Problems that the judge refuses, or that run in no small size, are named. Sizes are
           cut: each whole number (and each tuple or list of them) that the problem assigns at its top or that stands in
           get_inputs, and that is above a limit, becomes that limit. The limit is the largest of 64, 48, ... 6 for which
           the inputs have at most 40 000 values and the model runs; else it is 2. A model of more than 12 million
           parameters is too large.
verdicts   40 files, right and wrong, made of such problems by small changes, go through KernelBench's own
           `eval_kernel_against_ref` and `validate_kernel_static`, and through `check`, whose report has KernelBench's
           verdict. torch.cuda's functions that only wait, choose a device or name it are replaced by ones that do
           nothing.

Exit codes: 0 all agree and none is called wrong, 1 otherwise, 2 a bad request.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from kernelbench_eval import stand_in  # noqa: E402

from workbench.core.errors import BadRequest  # noqa: E402
from workbench.drive.checking.check import CheckRequest, check, judge_process  # noqa: E402

LIMITS = (64, 48, 32, 24, 16, 12, 8, 6, 2)
MOST_VALUES, MOST_PARAMETERS = 40_000, 12_000_000
# What ModelNew returns, y being what Model returns; for two problems each.
CHANGES = {
    "the same": ("y", 1, 63), "a copy": ("y.clone()", 13, 40), "in float64 and back": ("y.double().to(y.dtype)", 23, 97),
    "other strides": ("y.transpose(0, -1).contiguous().transpose(0, -1)", 42, 89), "5e-5 added": ("y + 5e-5", 26, 57),
    "a factor of 1.00005": ("y * 1.00005", 33, 93), "a factor of 1.0003": ("y * 1.0003", 19, 100),
    "1e-3 added": ("y + 1e-3", 36, 5), "zeros": ("torch.zeros_like(y)", 88, 64),
    "through float16": ("y.half().float()", 22, 2), "as float16": ("y.half()", 25, 87),
    "through bfloat16": ("y.bfloat16().float()", 30, 47), "a dimension more": ("y[None]", 14, 44),
    "a tuple": ("(y,)", 21, 49), "nothing": ("None", 27, 12), "infinite": ("y / 0", 28, 67),
    "wrong from the third call": ("y if self.calls < 3 else y + 1", 32, 16), "raises": ("y + x.nothing", 20, 3),
    "its inputs changed": ("(xs[0].add_(1), y)[1]", 34, 18), "whole numbers as floats": ("y.to(torch.float32)", 51, 95)}
WORDS = ("", 'KERNEL = "__global__ load_inline"\n', 'KERNEL = "__global__ load_inline"  # pass\n',
         'import threading\nKERNEL = "__global__ cpp_extension"\n', 'KERNEL = "__global__"  # load_inline\n')
FILE = """
class ModelNew(Original):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls = 0

    def forward(self, *xs):
        self.calls += 1
        y = super().forward(*xs)
        return RESULT
"""


def main() -> int:
    args = _arguments()
    if not (args.folder / "src/kernelbench/eval.py").is_file():
        print(f"{args.folder} is no checkout of KernelBench: there is no src/kernelbench/eval.py in it.", file=sys.stderr)
        return 2
    if args.child:
        args.child.write_text(json.dumps([theirs(*pair) for pair in json.loads(args.child.read_text())]))
        return 0
    good = True
    for level in args.level if args.only != "verdicts" else ():
        good &= check_problems(level, problems(args.folder, level), args.jobs)
    if args.only != "problems":
        good &= compare_verdicts({number: text for number, text in problems(args.folder, 1).items() if text}, args)
    return 0 if good else 1


@functools.cache
def problems(folder: Path, level: int) -> dict[int, str]:
    """Number -> the problem in a small size; "" if there is none in which it runs."""
    found = {int(path.name.partition("_")[0]): path for path in (folder / f"KernelBench/level{level}").glob("[0-9]*_*.py")}
    return {number: cut(path.read_text()) for number, path in sorted(found.items())}


def check_problems(level: int, there: dict[int, str], jobs: int) -> bool:
    """Each against itself. Prints what is said of each as soon as it is known. One that draws random numbers is refused if a
    seed does not make it repeatable; that is no wrong verdict."""
    bad, refused = 0, 0
    large = [number for number, text in there.items() if not text]
    pairs = [(text, original(text) + "\nModelNew = Original\n") for text in there.values() if text]
    numbers = [number for number in there if number not in large]

    def tell(place: int, found: dict[str, Any]) -> None:
        said = [found["why"]] if found["refused"] else found["failed"]
        print(f"level {level}, problem {numbers[place]}: {'; '.join(said) or 'right'}", flush=True)
    for found in ours(pairs, jobs, tell):
        refused += found["refused"]
        bad += bool(found["failed"])
    print(f"{bad} of {len(pairs)} problems of level {level} are called wrong, {refused} are refused."
          + (f" In no small size run: {', '.join(map(str, large))}." if large else ""), flush=True)
    return not bad


def compare_verdicts(problems: dict[int, str], args: argparse.Namespace) -> bool:
    """KernelBench's verdicts beside ours of the same rules. Prints those that differ."""
    names = [(f"problem {number}, {name}", number, result) for name, (result, *two) in CHANGES.items() for number in two]
    pairs = [(problems[number], original(problems[number]) + FILE.replace("RESULT", result) + WORDS[place % len(WORDS)])
             for place, (_, number, result) in enumerate(names)]
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder) / "pairs.json"
        exchange.write_text(json.dumps(pairs))
        subprocess.run([sys.executable, __file__, str(args.folder), "--child", str(exchange)], check=True, cwd=ROOT)
        kernelbench = json.loads(exchange.read_text())
    agree = correct = 0
    for (name, _, _), they, found in zip(names, kernelbench, ours(pairs, args.jobs), strict=True):
        same = (they["correct"], they["valid"]) == (found["correct"], found["valid"])
        agree, correct = agree + same, correct + they["correct"]
        if args.verbose or not same:
            print(f"{'AGREES ' if same else 'DIFFERS'} {name}: KernelBench {they}, here {found}", flush=True)
    print(f"{agree} of {len(names)} verdicts agree with KernelBench's code, which calls {correct} of the files correct.")
    return agree == len(names)


def ours(pairs: list[tuple[str, str]], jobs: int, tell: Callable[[int, dict[str, Any]], None] | None = None
         ) -> list[dict[str, Any]]:
    """What `check` says of each (reference, file): what failed, and KernelBench's verdict by our rules. `tell` gets the place
    of each pair and its answer."""
    def run(start: int) -> list[dict[str, Any]]:
        found = []
        with judge_process() as judge:
            for place in range(start, len(pairs), jobs):
                found.append(one(judge, *pairs[place]))
                if tell:
                    tell(place, found[-1])
        return found

    def one(judge: Any, reference: str, text: str) -> dict[str, Any]:
        try:
            report = check(CheckRequest(text, reference, "cpu", time=False, nvcc=False), judge=judge, device_held=True)
        except BadRequest as error:
            return {"failed": [], "correct": False, "valid": None, "refused": True, "why": str(error)}
        values = report.kernelbench.values if report.kernelbench else None
        return {"failed": [f"{q.question} {q.seen}" for q in report.failed], "correct": bool(values and values.strict),
                "valid": bool(report.kernelbench and not report.kernelbench.text), "refused": False, "why": ""}

    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(run, range(jobs)))
    return [parts[place % jobs][place // jobs] for place in range(len(pairs))]


def theirs(reference: str, text: str) -> dict[str, Any]:
    """In the child: what KernelBench's own code says."""
    from kernelbench.eval import eval_kernel_against_ref
    from kernelbench.kernel_static_checker import validate_kernel_static
    nothing = {name: mock.DEFAULT for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats")}
    with (mock.patch.multiple(torch.cuda, **nothing, is_available=lambda: True, get_device_name=lambda device=None: "CPU",
                              device=lambda device: contextlib.nullcontext()),
          contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())):
        try:
            result = eval_kernel_against_ref(reference, text, num_correct_trials=5, device=torch.device("cpu"))
            correct = bool(result is not None and result.correctness)
        except Exception:  # of foreign code: KernelBench's caller counts it as not correct
            correct = False
    return {"correct": correct, "valid": validate_kernel_static(text, backend="cuda", precision="fp32")[0]}


def original(text: str) -> str:
    """The problem's text with another name for its class: KernelBench runs both files in one namespace."""
    return text.replace("class Model(", "class Original(").replace("super(Model,", "super(Original,")


def cut(text: str) -> str:
    """The problem at the largest of a few sizes that is small; "" if it runs in none."""
    for limit in LIMITS:
        smaller = _with_limit(text, limit)
        if _runs(smaller, limit):
            return smaller
    return ""


def _with_limit(text: str, limit: int) -> str:
    """Sizes that the text assigns, and whole numbers in `get_inputs`."""
    lines = text.splitlines()
    values: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            with contextlib.suppress(Exception):
                target = ast.unparse(node.targets[0])
                value = eval(compile(ast.Expression(node.value), "<size>", "eval"), {}, values)
                many = isinstance(value, (tuple, list))
                small = type(value)(_at_most(v, limit) for v in value) if many else _at_most(value, limit)
                exec(f"{target} = {small!r}", values)
                if small != value:
                    lines[node.lineno - 1:node.end_lineno] = [f"{target} = {small!r}",
                                                              *[""] * ((node.end_lineno or node.lineno) - node.lineno)]
        elif isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
            for at in range(node.lineno, node.end_lineno or node.lineno):
                lines[at] = re.sub(r"(?<![\w.])\d+(?![\w.])", lambda found: str(_at_most(int(found[0]), limit)), lines[at])
    return "\n".join(lines) + "\n"


def _at_most(value: Any, limit: int) -> Any:
    """An odd number stays odd."""
    return value if type(value) is not int or value <= limit else limit - value % 2


def _runs(text: str, limit: int) -> bool:
    """The problem is trusted: it is KernelBench's."""
    namespace: dict[str, Any] = {}
    try:
        exec(text, namespace)
        with torch.device("meta"):
            inputs = namespace["get_inputs"]()
        if limit > LIMITS[-1] and sum(x.numel() for x in inputs if isinstance(x, torch.Tensor)) > MOST_VALUES:
            return False
        with torch.no_grad():
            model = namespace["Model"](*namespace["get_init_inputs"]())
            if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
                return False
            model(*namespace["get_inputs"]())
    except Exception:  # a size too small for the model, or a package that is not here
        return False
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--level", type=int, nargs="+", choices=(1, 2, 3), default=[1], help="whose problems are checked")
    parser.add_argument("--only", choices=("problems", "verdicts"), help="ask only this")
    parser.add_argument("--jobs", type=int, default=2, choices=range(1, 9), help="so many checks at a time (default 2)")
    parser.add_argument("--verbose", action="store_true", help="also print the verdicts that agree")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    if args.child:
        stand_in(args.folder)
    return args


if __name__ == "__main__":
    sys.exit(main())
