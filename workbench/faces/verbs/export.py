"""Write the chosen kernels as one self-contained ModelNew file.

    python -m workbench export --preset kb74 --forward shared_weight_tiling --out model_new.py --verify
    python -m workbench export --session NAME --out model_new.py      the fastest right candidates of a session on a GPU
    python -m workbench export --preset kb74 --best --out model_new.py    the best known ones for this GPU
    python -m workbench export --suite models --out FOLDER      a file for every layer of a suite, and a table

PyTorch computes a direction for which no kernel is chosen; the file then says so.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

from ...core.candidate import Candidate, why_not
from ...core.command import PROGRAM, workload_arguments
from ...core.errors import BadRequest
from ...core.gpu import named_arch, sm_of
from ...core.layer import BACKWARD, DIRECTIONS, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, Workload
from ...core.presets import SUITES, problem_of
from ...core.variants import Variant, discover, find
from ...drive.exporting.best_recipe import (
    arch_of,
    best_recipe,
    cautions,
    header_notes,
    left_to_pytorch,
    origin,
    other_dtypes,
    shared,
)
from ...drive.exporting.export import export_text, module_order, proof_workload, suite_files, verify
from ...drive.exporting.recipe import Recipe
from ...drive.machine.doctor import resolve_device
from ...drive.running.candidate_selection import check_names, parse_settings, values_for
from ...drive.running.runner import Runner
from ...drive.sessions.recorded import (
    chosen_trials,
    fallen,
    found_wrong,
    kernel_of,
    measured_arch,
    recipe_of,
    trial_notes,
)
from .. import exit_codes
from ..arguments import add_workload, check_folder, session_from, trial_from, workload_from, write_whole


def add(parser: argparse.ArgumentParser) -> None:
    add_workload(parser, required=False)
    for direction in LAUNCHES:
        parser.add_argument(f"--{direction.replace('_', '-')}", dest=direction, metavar="VARIANT",
                            help="variant that computes both gradients in one launch" if direction == BACKWARD
                            else f"variant that computes {direction}")
    parser.add_argument("--set", action="append", default=[], metavar="[VARIANT.]TUNABLE=V",
                        help="value of a tunable of this variant, or of all that have it")
    parser.add_argument("--precision", default="",
                        help="precision of the kernels; with --best: the class tf32 or ieee (default: the "
                        "precision that PyTorch uses by default)")
    parser.add_argument("--best", action="store_true", help="use the best known variants and configs of this layer")
    parser.add_argument("--arch", metavar="sm_90", help="with --best: GPU to choose for (default: the GPU of this machine)")
    parser.add_argument("--suite", choices=tuple(SUITES), help="write a file with the best known kernels for every layer of a "
                                                               "suite into the folder --out, and a table, README.md")
    parser.add_argument("--all-dtypes", action="store_true",
                        help="with --best or --suite: also take the best known kernels of the layer in its other dtypes. A "
                             "file with KernelBench's constructor has them only with this option, because they make it longer")
    parser.add_argument("--one-layer", action="store_true",
                        help="write only the code of this layer: the file is 8 to 17 %% shorter, and PyTorch computes layers "
                             "with other arguments")
    parser.add_argument("--session", metavar="NAME",
                        help="take the fastest right candidates of this session, or the winners of its tune")
    parser.add_argument("--trial", action="append", default=[], metavar="ID",
                        help="with --session: take the candidate of this trial; may be given once for each direction")
    parser.add_argument("--templates", type=Path, metavar="DIR",
                        help="folder of templates (default: the shipped ones); with --session: the folder that it used")
    parser.add_argument("--class-name", default="ModelNew", help="class that the file defines (default ModelNew)")
    parser.add_argument("--constructor", choices=("auto", "module"), default="auto",
                        help="auto: arguments of KernelBench's Model for its layers, otherwise of nn.ConvTranspose; module: "
                             "always of nn.ConvTranspose")
    parser.add_argument("--debug-sync", action="store_true", help="synchronise after each kernel and name a kernel that fails")
    parser.add_argument("--verify", action="store_true",
                        help="run the exported file in a fresh process first; write it only if it is right")
    parser.add_argument("--device", default="auto", help="device for --verify: auto, cpu or cuda:N")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: print)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 the file is written (and verified, with --verify); 1 the verification failed and nothing is written."""
    if args.suite:
        return _suite(args)
    check_folder(args.out)
    recipe, notes, arch = _recipe(args)
    workload = recipe.workload
    preset = problem_of(workload) if args.constructor == "auto" else None
    others = other_dtypes(workload, arch) if args.all_dtypes or (args.best and preset is None) else []
    text = export_text([recipe, *others], constructor=preset, class_name=args.class_name, debug_sync=args.debug_sync,
                       notes=notes, arch=arch, other_layers=not args.one_layer)
    if args.verify:
        device = resolve_device(args.device)
        workload = proof_workload(workload, device)
        with Runner() as runner:
            prove = partial(runner.prove, on_text=lambda text: print(text, file=sys.stderr, flush=True))
            result = verify(prove, module_order(text, workload, device=device, scratch=runner.work_dir, preset=preset,
                                                class_name=args.class_name))
        print(f"{result.status}: {result.headline}", file=sys.stderr)
        if result.status != "OK":
            print(result.advice, file=sys.stderr)
            return exit_codes.of([result.status])
    if args.out:
        write_whole(args.out, text)
        print(args.out)
    else:
        print(text)
    return 0


def _suite(args: argparse.Namespace) -> int:
    """Write a file for each layer of the suite, and the table. The exit code is 0 also if a layer has no file; the table then
    says so."""
    if args.preset or args.layer or args.session or args.verify:
        raise BadRequest("--suite exports all layers of a suite; leave out --preset, --layer, --session and --verify.")
    if args.out is None:
        raise BadRequest("--suite needs --out: the folder to write to.", field="out")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"{args.out} cannot be written: {error.strerror}. Name another folder.", field="out") from error
    arch = named_arch(args.arch) if args.arch else arch_of(args.device)
    for name, text in suite_files(args.suite, arch, precision=args.precision, all_dtypes=args.all_dtypes,
                                  other_layers=not args.one_layer):
        write_whole(args.out / name, text)
        print(args.out / name)
    return 0


def _recipe(args: argparse.Namespace) -> tuple[Recipe, list[str], str]:
    """The recipe; sentences for the file's header; the GPU whose measurements of similar layers the file contains."""
    chosen = {d: getattr(args, d) for d in LAUNCHES if getattr(args, d)}
    if args.best:
        return _best(args, others=[*chosen, *args.set, *([args.session] if args.session else []),
                                   *([str(args.templates)] if args.templates else [])])
    if args.arch:
        raise BadRequest("--arch needs --best.", field="arch")
    if args.all_dtypes:
        raise BadRequest("--all-dtypes works only with --best or --suite; add one of them.", field="all_dtypes")
    if args.trial and not args.session:
        raise BadRequest("--trial needs --session: the session of the trial.", field="session")
    if args.session:
        if chosen:
            raise BadRequest("With --session, choose a trial with --trial ID, not a variant.")
        workload = workload_from(args) if args.preset or args.layer else None
        return _of_session(args, workload)
    if not (args.preset or args.layer):
        raise BadRequest("Give --preset, --layer or --session: the layer to export for.")
    workload: Workload = workload_from(args)
    if not chosen:
        raise BadRequest("Give at least one of --forward, --grad-input, --grad-weight, --backward, or --best, or --session.")
    settings = parse_settings(args.set)
    check_names(discover(args.templates), (), (), settings)
    arch = arch_of(args.device)
    variants = {d: find(name, d, root=args.templates) for d, name in chosen.items()}
    words = [*workload_arguments(workload), *(w for d, name in chosen.items() for w in (f"--{d.replace('_', '-')}", name)),
             *(w for one in args.set for w in ("--set", one)), *(["--precision", args.precision] if args.precision else []),
             *_options(args)]
    return Recipe.of(workload, {d: _candidate(variant, workload, settings, args.precision, sm_of(arch))
                                for d, variant in variants.items()}), [
        f"Written by: {PROGRAM} {shlex.join(['export', *words])}"], arch


def _of_session(args: argparse.Namespace, workload: Workload | None) -> tuple[Recipe, list[str], str]:
    session = session_from(args.session)
    trials, events = session.trials(), session.events()
    everyone = trials
    if args.trial:
        fell = fallen(trials)
        trials, events = [trial_from(f"{args.session}:{begin}")[0] for begin in args.trial], []
        if wrong := next((fell[kernel_of(t)] for t in trials if kernel_of(t) in fell), None):
            raise BadRequest(f"{found_wrong(wrong)} Choose another trial.", field="trial")
    arch = arch_of(args.device)
    chosen, notes = chosen_trials(trials, workload, arch=arch, events=events, named=bool(args.trial))
    computed = (*chosen, *((GRAD_INPUT, GRAD_WEIGHT) if BACKWARD in chosen else ()))
    left = [d for d in DIRECTIONS if d not in computed and not any(note.startswith(f"{d}: left") for note in notes)]
    for note in notes:
        print(note, file=sys.stderr)
    if left:   # the file itself says that
        print(f"Left to PyTorch: {', '.join(left)}; no {'named trial' if args.trial else 'right candidate'} computes "
              f"{'them' if len(left) > 1 else 'it'}.", file=sys.stderr)
    recipe = recipe_of(chosen, everyone, workload=workload, templates=args.templates, arch=arch,
                       named=chosen if args.trial else ())
    words = [*(workload_arguments(workload) if workload else []), *(w for t in args.trial for w in ("--trial", t)),
             *_options(args)]
    return recipe, [*notes, *trial_notes(chosen, everyone, words)], measured_arch(chosen) or arch


def _options(args: argparse.Namespace) -> list[str]:
    """The other options that change the file, for the command in its header."""
    return [*(["--templates", str(args.templates)] if args.templates else []),
            *(["--class-name", args.class_name] if args.class_name != "ModelNew" else []),
            *(["--constructor", args.constructor] if args.constructor != "auto" else []),
            *(["--all-dtypes"] if args.all_dtypes else []), *(["--one-layer"] if args.one_layer else []),
            *(["--debug-sync"] if args.debug_sync else [])]


def _best(args: argparse.Namespace, *, others: list[str]) -> tuple[Recipe, list[str], str]:
    if others:
        raise BadRequest("--best chooses variants and configs itself; leave out --session, --set, --templates and the "
                         "variants.")
    if not (args.preset or args.layer):
        raise BadRequest("--best needs --preset or --layer: the layer to export for.")
    arch = named_arch(args.arch) if args.arch else arch_of(args.device)
    recipe, entries = best_recipe(workload_from(args), arch, precision=args.precision)
    for line in (*map(origin, entries), *shared(entries, recipe.workload, arch, args.precision), left_to_pytorch(recipe, arch),
                 *cautions(entries, arch, args.precision)):
        if line:
            print(line, file=sys.stderr)
    return recipe, header_notes(entries, recipe.workload, arch, args.precision, options=_options(args)), arch


def _candidate(variant: Variant, workload: Workload, settings: dict, precision: str, sm: int) -> Candidate:
    values = values_for(variant, settings, workload)
    for tunable, several in values.items():
        if len(several) != 1:
            raise BadRequest(f"An export takes one value for {tunable}; got {', '.join(map(str, several))}.", field="set")
    candidate = Candidate(variant, workload.layer, workload.dtype, {k: v[0] for k, v in values.items()}, precision)
    # A variant for a newer GPU may be exported for that GPU.
    if reason := why_not(candidate, sm=sm_of(variant.arch) if variant.arch else max(sm, variant.min_sm)):
        raise BadRequest(reason.replace("Not run:", "Not exported:", 1), field=variant.direction)
    return candidate
