"""Measure the layers of a suite in three directions, and print or write the table.

    python -m workbench bench --suite kernelbench --session h200 --time-limit 540      repeat until it is complete
    python -m workbench bench --suite models --dtype bfloat16 --session h200-bf16 --without naive_gather
    python -m workbench bench --layers kb74,kb81 --directions forward --configs sweep 16
    python -m workbench bench --device cpu --size small --layers kb81                  emulated: correctness only
    python -m workbench bench --suite models --modules --session h200-modules          whole modules, not single kernels
    python -m workbench bench --baselines default --session h200-defaults              measure PyTorch's default precision
    python -m workbench bench --table h200 --readme README.md --docs docs/benchmark.md --check
    python -m workbench bench --write-best workbench/core/best_known.json h200

In an existing session only the missing candidates are run. --table, --write-best, --ship and --note run nothing. They use the
named sessions, or all recorded-... sessions that hold a bench.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...core.errors import BadRequest
from ...core.layer import BACKWARD, DIRECTIONS, MEMORY_FORMATS
from ...core.precision import CLASSES, CLASSES_OF
from ...core.presets import SIZES, SUITES, preset
from ...drive.bench import markdown
from ...drive.bench.best import write_best
from ...drive.bench.cells import NOTE, cells_of, holds_bench, wanted_of
from ...drive.bench.defaults import default_configs, default_configs_table, defaults_of, defaults_table
from ...drive.bench.execute import Bench
from ...drive.bench.modules import modules_of
from ...drive.bench.modules import table as modules_table
from ...drive.bench.package_session import ship
from ...drive.bench.plan import CONFIGS, BenchPlan, dtype_of, suite_layers
from ...drive.bench.text import table
from ...drive.machine.doctor import resolve_device
from ...drive.running.request import DEFAULTS, EFFORTS, STRENGTHS
from ...drive.running.runner import Runner
from ...drive.sessions.session import Session, list_sessions, sessions_root
from .. import exit_codes
from ..arguments import check_folder, say_broken, session_from


def add(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what runs")
    what.add_argument("--suite", choices=list(SUITES), default="kernelbench", help="default: kernelbench")
    what.add_argument("--layers", metavar="NAME[,NAME]", help="kb74,models/sam-1 (default: all layers of the suite; in "
                      "channels_last those in 2-D and 3-D)")
    what.add_argument("--directions", metavar="NAME[,NAME]", default=",".join(DIRECTIONS),
                      help=f"default: all three; {BACKWARD} computes both gradients in one launch")
    what.add_argument("--dtype", choices=list(CLASSES_OF), help="default: float32")
    what.add_argument("--memory-format", choices=MEMORY_FORMATS, default=MEMORY_FORMATS[0],
                      help="of the activations (default: contiguous)")
    what.add_argument("--precision", choices=list(CLASSES),
                      help="class of kernels. tf32 (default): compared with every PyTorch mode; ieee: kernels in ieee or "
                           "tf32x3, compared with PyTorch with TF32 off; fp16 and bf16: for these dtypes")
    what.add_argument("--size", choices=SIZES, default="full", help="of the layers (default: full)")
    what.add_argument("--configs", nargs="+", metavar="WHAT", default=[],
                      help="default: the default config of each variant; known: the default and the best known configs; "
                           "best: the best known config of each variant, or its default; 'sweep N': those of best, and N "
                           "sampled configs; 'top N': the N fastest known candidates of each cell. Without --configs: "
                           "default for KernelBench's layers, known for other layers")
    what.add_argument("--known", type=Path, metavar="FILE",
                      help="file of best known configs (default: the shipped one)")
    what.add_argument("--modules", action="store_true",
                      help="judge only whole modules: the best known kernels of each layer as one ModelNew, against "
                           "nn.ConvTranspose (module_ms)")
    what.add_argument("--seed", type=int, default=0, help="seed of the sampled configs (default 0)")
    what.add_argument("--variant", action="append", default=[], metavar="NAME", help="may be given several times")
    what.add_argument("--without", action="append", default=[], metavar="NAME", help="leave this variant out")
    what.add_argument("--templates", type=Path, metavar="DIR", help="use the templates of this folder, not the shipped ones")
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", help="auto, cpu (the emulator) or cuda:N")
    how.add_argument("--effort", choices=EFFORTS, default="normal", help="how long to measure times (default: normal)")
    how.add_argument("--baselines", choices=STRENGTHS, default=BenchPlan.strength,
                     help="PyTorch modes to measure. strong (the default): all modes, channels_last and other formulations of "
                          "the layer; quick: the usual modes; default: only PyTorch with its default settings, each layer in "
                          "its own process, without candidates")
    how.add_argument("--max-autotune", action="store_true", help="measure strong baselines also by torch.compile with "
                                                                 "max-autotune (a minute or more for each direction)")
    how.add_argument("--session", metavar="NAME", help="add to this session (default: a new one)")
    how.add_argument("--time-limit", type=float, metavar="S", help="stop after S seconds; finished trials are kept")
    shown = parser.add_argument_group("reading sessions")
    shown.add_argument("sessions", nargs="*", help="names or folders (default: recorded sessions with a bench)")
    shown.add_argument("--table", action="store_true", help="print the table, or write it with --readme and --docs")
    shown.add_argument("--readme", type=Path, metavar="FILE", help=f"write the short table after {markdown.BEGIN}")
    shown.add_argument("--docs", type=Path, metavar="FILE", help="write the long tables in the same way")
    shown.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    shown.add_argument("--default-configs", action="store_true",
                       help="print the cells in which the fastest variant has a better config than its default")
    shown.add_argument("--write-best", type=Path, metavar="FILE", help="write the best known configs, from measured times")
    shown.add_argument("--ship", metavar="NAME", help="copy one session to recorded-NAME as one small zip")
    shown.add_argument("--note", nargs=2, metavar=("CELL", "TEXT"),
                       help="say why a cell misses its target: --note kb61/forward TEXT")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 if it is done or stopped at the limit and everything is right; 1 if something is not right, or if --check
    found a difference."""
    if args.table or args.readme or args.docs or args.check:
        return _table(args)
    if args.default_configs:
        print(default_configs_table(default_configs(_sessions(args))))
        return 0
    if args.write_best:
        check_folder(args.write_best)
        found = write_best(_sessions(args), args.write_best)
        derived = sum(e.derived for e in found)
        print(f"{args.write_best}: {len(found) - derived} measured entries, {derived} derived for other GPUs")
        return 0
    if args.ship:
        packed, size = ship(_only(args, "--ship"), args.ship, sessions_root())
        print(f"{packed}: {size} bytes")
        return 0
    if args.note:
        return _note(args)
    if args.sessions:
        raise BadRequest(f"{args.sessions[0]!r} needs --table, --default-configs, --write-best, --ship or --note; to run in "
                         f"that session, give --session.")
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    if args.time_limit is not None and not args.time_limit > 0:
        raise BadRequest(f"--time-limit is {args.time_limit:g}; give seconds above 0.", field="time_limit")
    layers = _words(args.layers) if args.layers is not None else suite_layers(args.suite, args.memory_format)
    plan = BenchPlan(layers=layers, directions=_words(args.directions), precision=_precision(args),
                     memory_format=args.memory_format, size=args.size,
                     **_configs(args.configs), known=args.known, seed=args.seed, variants=tuple(args.variant),
                     without=tuple(args.without), effort=args.effort, strength=args.baselines,
                     max_autotune=args.max_autotune, templates=args.templates, modules=args.modules)
    say_broken(args.templates)
    device = resolve_device(args.device)
    if device == "cpu" and args.size != "small":
        raise BadRequest(f"The emulator would need days for the {args.size} size; give --size small.", field="size")
    session = Session.create(name=args.session)
    with Runner() as runner:
        bench = Bench(plan, session, runner, device=device,
                      on_line=lambda line: print(line, file=sys.stderr, flush=True))
        try:
            result = bench.run(time_limit_s=args.time_limit)
        except KeyboardInterrupt:
            print(f"Stopped. Session {session.name} keeps the finished trials. To continue, run the same command with "
                  f"--session {session.name}.", file=sys.stderr)
            return exit_codes.INTERRUPTED
    print(result.sentence, file=sys.stderr)
    cells = [c for c in cells_of([session]) if (c.name.precision, c.name.memory_format, c.name.size) == (
        plan.precision, plan.memory_format, plan.size)]
    defaults = defaults_of([session])
    modules = modules_of([session], cells_of(_recorded())) if plan.modules else []
    print(modules_table(modules) if plan.modules else defaults_table(defaults) if plan.strength == DEFAULTS else table(cells))
    print(f"Session {session.path}")
    if result.state == "failed":
        return exit_codes.NOTHING_RAN
    if plan.strength == DEFAULTS:
        return exit_codes.of([t.status for t in defaults])
    statuses = [m.ours.status for m in modules] if plan.modules else [t.status for c in cells for t in c.candidates]
    if result.state == "stopped" and not statuses:  # the time limit was reached before the first candidate
        return exit_codes.RIGHT
    return exit_codes.of(statuses)


def _table(args: argparse.Namespace) -> int:
    if args.check and not (args.readme or args.docs):
        raise BadRequest("--check needs the file to compare: --readme README.md, --docs docs/benchmark.md, or both.")
    sessions = _sessions(args)
    cells = cells_of(sessions)
    modules = modules_of(sessions, cells)
    files = [(f, make) for f, make in ((args.readme, markdown.short), (args.docs, markdown.long)) if f]
    for file, _ in files:
        if not file.is_file():
            raise BadRequest(f"{file} does not exist; the table goes between its lines {markdown.BEGIN} and "
                             f"{markdown.END}.")
    if args.sessions and not (cells or modules):
        raise BadRequest(f"{', '.join(args.sessions)} holds no bench; 'python -m workbench bench' makes one.")
    if not cells and (files or not modules):
        stale = [file for file, _ in files if markdown.has_marks(file.read_text(encoding="utf-8"))]
        for file in stale:
            print(f"{file} has a table, but no recorded session in {sessions_root()} holds a bench.", file=sys.stderr)
        if not stale:
            print(f"No recorded session in {sessions_root()} holds a bench, so there is no table to write.")
        return 1 if stale else 0
    if not files:
        print("\n\n".join([*([table(cells)] if cells else []), *([modules_table(modules)] if modules else [])]))
    different = False
    for file, make in files:
        text = file.read_text(encoding="utf-8")
        new = markdown.placed(text, make(cells, modules), file=file)
        different |= _write(file, text, new, check=args.check)
    return 1 if different and args.check else 0


def _write(file: Path, text: str, new: str, *, check: bool) -> bool:
    """Write the table into a file. Returns whether the file had other contents."""
    if new == text:
        print(f"{file} matches the sessions.")
    elif check:
        print(f"{file} differs from the sessions; write it again with 'python -m workbench bench --table' and the same "
              f"files, without --check.", file=sys.stderr)
    else:
        file.write_text(new, encoding="utf-8")
        print(f"{file} is written.")
    return new != text


def _note(args: argparse.Namespace) -> int:
    session = _only(args, "--note")
    name, _, direction = args.note[0].rpartition("/")
    name, precision = preset(name or direction).name, _precision(args)
    there = {(w.preset, w.direction, w.precision, w.memory_format) for w in wanted_of([session])}
    if (name, direction, precision, args.memory_format) not in there:
        raise BadRequest(f"Session {session.name} has no cell {args.note[0]!r} in the class {precision}, "
                         f"{args.memory_format}; name it like kb61/forward.", field="note")
    session.event(NOTE, preset=name, direction=direction, precision=precision, memory_format=args.memory_format,
                  text=args.note[1].rstrip("."))
    print(f"Noted for {name} {direction} in {session.name}.")
    return 0


def _sessions(args: argparse.Namespace) -> list[Session]:
    if args.sessions:
        return [session_from(name) for name in args.sessions]
    return _recorded()


def _recorded() -> list[Session]:
    there = sorted(p for p in list_sessions() if p.name.startswith("recorded-"))
    return [s for s in map(Session.open, there) if holds_bench(s)]


def _only(args: argparse.Namespace, option: str) -> Session:
    if len(args.sessions) != 1:
        raise BadRequest(f"{option} takes one session; got {len(args.sessions)}.", field="session")
    return session_from(args.sessions[0])


def _precision(args: argparse.Namespace) -> str:
    """The precision class for --dtype and --precision."""
    precision = args.precision or CLASSES_OF[args.dtype or "float32"][0]
    if args.dtype and dtype_of(precision) != args.dtype:
        raise BadRequest(f"The class {precision} is for {dtype_of(precision)}; for {args.dtype} choose "
                         f"{' or '.join(CLASSES_OF[args.dtype])}.", field="precision")
    return str(precision)


def _configs(words: list[str]) -> dict[str, str | int]:
    """The fields of `BenchPlan` for the words of --configs, such as ["sweep", "16"]; no fields for no words."""
    if not words:
        return {}
    if len(words) == 2 and words[0] in ("sweep", "top") and words[1].isdigit():
        return {"configs": words[0], words[0]: int(words[1])}
    if len(words) == 1 and words[0] in CONFIGS:
        return {"configs": words[0]}
    raise BadRequest(f"--configs {' '.join(words)} is not known; choose default, known, best, 'sweep N' or 'top "
                     f"N'.", field="configs")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
