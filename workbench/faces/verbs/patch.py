"""Find the transposed convolutions of a model and replace those for which a kernel is right and faster.

    python -m workbench patch my_module:build_model --inputs my_module:inputs
    python -m workbench patch my_module:build_model --train --autocast bfloat16 --out kernels.py --figure model.html

build_model returns a torch.nn.Module. inputs returns a tensor, a tuple of arguments or a dict of named arguments. Python looks
for your module in this folder first. It runs in its own process, with your rights and without a sandbox, as a training script
does.

A layer is replaced only if its kernels are judged right and are FASTER than PyTorch in your model, on this GPU. If the whole
step gets slower, nothing is replaced. On the CPU the kernels are emulated and nothing is timed, so no layer is replaced unless
--keep right is given.

The file of --out has all kernels, patch(model) and unpatch(model). It needs torch, nvcc and ninja, but not the workbench.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core.errors import BadRequest
from ...core.patching import AUTOCAST_DTYPES, FASTER_ONLY, KEEP, MODEL_DTYPES, ModelSource
from ...drive.machine.doctor import resolve_device
from ...drive.patching.patch import Patch, PatchRequest
from ...drive.patching.text import report_text
from ...drive.running.request import EFFORTS
from ...drive.tuning.feed import EFFORTS as TUNE_EFFORTS
from .. import exit_codes
from ..arguments import check_folder, write_whole

FIGURES = (".html", ".json")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODULE:CALLABLE", help="function that returns the model; also FILE.py:CALLABLE")
    parser.add_argument("--inputs", default="", metavar="MODULE:CALLABLE",
                        help="function that returns the inputs (default: 'inputs' of the same module, or the model's example)")
    parser.add_argument("--train", action="store_true", help="also judge and time a training step (Adam)")
    parser.add_argument("--dtype", default="", choices=MODEL_DTYPES, help="convert model and inputs (default: as they are)")
    parser.add_argument("--autocast", default="", choices=AUTOCAST_DTYPES, help="run under torch.autocast with this dtype")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N; on cpu the kernels are emulated and never timed")
    parser.add_argument("--keep", default=FASTER_ONLY, choices=KEEP,
                        help="faster: replace only layers that are FASTER here (default); right: replace each layer whose "
                             "kernels are right, timed or not. On the CPU layers are replaced only with 'right'")
    parser.add_argument("--effort", choices=EFFORTS, default="normal", help="how long to measure times (default normal)")
    parser.add_argument("--tune", action="store_true", help="first tune each layer, with --device auto on every free GPU of "
                                                            "this kind; layers that were tuned before are not tuned again")
    parser.add_argument("--tune-effort", choices=tuple(TUNE_EFFORTS), default="quick",
                        help="with --tune, for each layer: quick: a minute (default); normal: ten minutes; full: all "
                             "candidates")
    parser.add_argument("--seed", type=int, default=0, help="seed of the model, the inputs and each step (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the kernels with patch(model) and unpatch(model)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="write the figure as .html or .json")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 nothing is wrong; 1 a kernel is not right, or the patched model gave other results; 3 no kernel could be
    judged on this machine."""
    if args.figure is not None and args.figure.suffix not in FIGURES:
        raise BadRequest(f"{args.figure} has no ending that can be written; end it with {' or '.join(FIGURES)}.")
    for file in (args.out, args.figure):
        check_folder(file)
    source = ModelSource(args.model, args.inputs, Path.cwd(), resolve_device(args.device), args.dtype, args.autocast,
                         args.train, args.seed)
    patch = Patch(PatchRequest(source, args.keep, args.effort, tune=args.tune, tune_effort=args.tune_effort,
                               every_gpu=args.device == "auto")).start()
    shown = 0
    try:
        while not patch.wait(0.2) or shown < len(patch.said):
            shown = _say(patch, shown)
    except KeyboardInterrupt:
        patch.stop()
        patch.wait(30)
        _say(patch, shown)   # the remaining messages
        raise
    if patch.defect:
        raise patch.defect
    if patch.result is None:
        raise BadRequest(patch.problem)
    report = patch.result.report
    print(json.dumps(report.to_json(), indent=1) if args.json else report_text(report))
    if args.out and patch.result.text:
        write_whole(args.out, patch.result.text)
        print(f"Wrote {args.out}.", file=sys.stderr)
    elif args.out:
        print(f"Nothing is patched, so {args.out} was not written.", file=sys.stderr)
    if args.figure:
        from ...drive.patching import plots
        figure = plots.figure(report)
        write_whole(args.figure, figure.to_html() if args.figure.suffix == ".html" else figure.to_json())
        print(f"Wrote {args.figure}.", file=sys.stderr)
    judged = [row.status for row in report.layers if row.status]
    if report.differs:
        return exit_codes.WRONG
    return exit_codes.of(judged) if judged else exit_codes.RIGHT


def _say(patch: Patch, shown: int) -> int:
    """Print the new messages. Returns how many messages there are."""
    said = patch.said[shown:]
    for _, text in said:
        print(text, file=sys.stderr, flush=True)
    return shown + len(said)
