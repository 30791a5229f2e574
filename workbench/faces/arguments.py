"""Arguments that several verbs share, and the objects (workload, session, trial, candidates) that they describe."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryFile

from ..core.candidate import Candidate
from ..core.command import PROGRAM, parse_layer
from ..core.errors import BadRequest, or_nearest
from ..core.fork import fork, named_in
from ..core.layer import BACKWARD, DTYPES, FORWARD, GRAD_INPUT, LAUNCHES, MEMORY_FORMATS, ConvTranspose, Workload
from ..core.presets import default_size, parse_preset
from ..core.template import render
from ..core.trial import Trial
from ..core.variants import broken
from ..drive.running.candidate_selection import Options, candidates
from ..drive.sessions.files import is_session, name_of
from ..drive.sessions.recorded import Side, candidate_of, fork_of_trial
from ..drive.sessions.session import Session, list_sessions, sessions_root


def add_workload(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--preset", metavar="NAME[/SIZE]", help="a named layer: kb74, models/sam-1/small (see 'presets')")
    which.add_argument("--layer", metavar="TEXT", help="as in PyTorch: 'ConvTranspose2d(32, 64, 3, stride=2)'")
    parser.add_argument("--batch", type=int, help="batch size of --layer (default 1)")
    parser.add_argument("--input-size", metavar="N[,N,N]", help="spatial input size of --layer")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES), help="of all tensors (default float32)")
    parser.add_argument("--memory-format", default="contiguous", choices=MEMORY_FORMATS,
                        help="of the activations (default contiguous)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")


def workload_from(args: argparse.Namespace, device: str = "") -> Workload:
    """The workload that --preset or --layer describe. On the cpu a preset without a size means the small size; stderr says so.
    Raises `BadRequest`."""
    if args.preset is not None:
        for name in ("batch", "input_size"):
            if getattr(args, name) is not None:
                raise BadRequest(f"--{name.replace('_', '-')} needs --layer; a preset sets its own sizes.", field=name)
        chosen, size = parse_preset(args.preset, default_size=default_size(device))
        if not args.preset.strip().lower().endswith(f"/{size}") and size != "full":
            print(f"On the {device} {args.preset} means {chosen.name}/{size}. Give {chosen.name}/full for the full size.",
                  file=sys.stderr)
        base = chosen.workload(size, args.dtype)
        return Workload(base.layer, base.batch, base.input_size, args.dtype, args.memory_format, args.seed, base.preset)
    layer = parse_layer(args.layer)
    if not args.input_size:
        raise BadRequest("--layer needs --input-size, the spatial size of the input: --input-size 64 or 32,48.",
                         field="input_size")
    spatial = numbers(args.input_size, "--input-size")
    spatial = spatial * layer.dims if len(spatial) == 1 else spatial
    return Workload(layer, 1 if args.batch is None else args.batch, spatial, args.dtype, args.memory_format, args.seed)


def add_candidates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--direction", action="append", choices=LAUNCHES,
                        help=f"may be given several times (default: all); {BACKWARD} computes both gradients in one launch")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME",
                        help="may be given several times (default: all)")
    parser.add_argument("--templates", type=Path, metavar="DIR", help="use the templates of this folder, not the shipped ones")


def directions_from(args: argparse.Namespace) -> tuple[str, ...]:
    """The chosen directions, each once; all by default."""
    return tuple(dict.fromkeys(args.direction or LAUNCHES))


def say_broken(templates: Path | None) -> bool:
    """Prints one line on stderr for each template that is left out because it is invalid. Returns whether there is one."""
    for error in broken(templates).values():
        print(f"{error} This template was skipped.", file=sys.stderr)
    return bool(broken(templates))


def numbers(text: str, name: str) -> tuple[int, ...]:
    """"32, 48" -> (32, 48). Raises `BadRequest`."""
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise BadRequest(f"{name} {text!r} cannot be read; give whole numbers with commas: 32,48.") from error


def check_folder(file: Path | None) -> None:
    """Check before the work begins that `file` can be written. Its contents are not changed. Raises `BadRequest`."""
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise BadRequest(f"{file} cannot be written: there is no folder {file.absolute().parent}.")
    if file.is_dir():
        raise BadRequest(f"{file} cannot be written: it is a folder; name a file.")
    try:
        with file.open("ab") if file.exists() else TemporaryFile(dir=file.absolute().parent):
            pass
    except OSError as error:
        raise BadRequest(f"{file} cannot be written: {error.strerror}. Name a file elsewhere.") from error


def write_whole(file: Path, text: str) -> None:
    """Write the complete file or nothing: if the disk is full, the old file stays. Raises `BadRequest`."""
    target = file.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part") if target.is_file() or not target.exists() else target
    try:
        part.write_text(text, encoding="utf-8")
        if part != target:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except OSError as error:
        if part != target:
            part.unlink(missing_ok=True)
        raise BadRequest(f"{file} cannot be written: {error.strerror or error}.") from error


def session_from(text: str | Path) -> Session:
    """A session by name (below the sessions folder) or by path. Raises `BadRequest`, which lists the existing sessions."""
    there = {name_of(path): path for path in list_sessions()}
    place = there.get(str(text), Path(text))
    if not is_session(place):
        names = ", ".join(sorted(there)) or f"none; '{PROGRAM} run' makes one"
        hint = or_nearest(str(text), there, f"the sessions below {sessions_root()} are: {names}.")
        raise BadRequest(f"{str(text)!r} is not a session; {hint}", field="session")
    return Session.open(place)


def trial_from(text: str) -> tuple[Trial, Session]:
    """The trial that "SESSION:ID" names, by the beginning of its id or of its candidate's id. Raises `BadRequest`."""
    name, sign, begin = text.rpartition(":")
    if not sign or not begin:
        raise BadRequest(f"{text!r} is not a trial; write SESSION:TRIAL, where TRIAL is the beginning of its id.",
                         field="trial")
    session = session_from(name)
    found = [t for t in session.trials() if t.trial_id.startswith(begin) or t.candidate_id.startswith(begin)]
    if len({t.candidate_id or t.trial_id for t in found}) != 1:
        raise no_one(found, session, begin)
    return found[-1], session


def no_one(found: Sequence[Trial], session: Session, begin: str) -> BadRequest:
    """Why the beginning of an id names no single trial of a session."""
    return BadRequest(f"{len(found)} trials of {session.name} begin with {begin!r}; give more characters of the id."
                      if found else f"Session {session.name} has no trial {begin!r}; 'show {session.name}' lists them.",
                      field="trial")


def source_from(text: str) -> str | Candidate:
    """The text of a file, or the candidate whose text a session keeps: "SESSION:TRIAL". Raises `BadRequest`."""
    file = Path(text)
    if not file.is_file() and ":" in text:
        return candidate_of(trial_from(text)[0])
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadRequest(f"{text} cannot be read: {why}. Name a template or a rendering, or SESSION:TRIAL.",
                         field="source") from error


def fork_candidates(text: str, fork_of: str, workload: Workload | None, chosen: Options
                    ) -> tuple[Workload, list[Candidate]]:
    """The candidates of an edited text. It was forked from a trial ("SESSION:TRIAL") or from a variant; without a name, from
    the variant that the text names. For a variant, `chosen` gives the configs, as for `candidates`. Raises `BadRequest`."""
    if ":" in fork_of:
        trial, session = trial_from(fork_of)
        if any(v for k, v in chosen.items() if k != "templates" and v != "constant") or workload not in (None, trial.workload):
            raise BadRequest("With a trial as --fork-of, layer, config and flags are those of the trial; leave them out.",
                             field="source")
        return trial.workload, [fork_of_trial(text, trial, session, templates=chosen.get("templates"))]
    if workload is None:
        raise BadRequest("Give --preset or --layer, the layer to run on, or --fork-of SESSION:TRIAL.", field="layer")
    name, direction = named_in(text)
    directions = chosen.get("directions") or ([direction] if direction else [FORWARD, GRAD_INPUT])
    of_parent: Options = {**chosen, "directions": directions}
    parents = candidates(workload, variants=[fork_of or name], **of_parent)
    return workload, [fork(text, parent, render(parent).candidate_id) for parent in parents]


def sides_from(a: str | Trial, b: str | Trial, workload: Workload | None = None) -> tuple[Side, Side]:
    """The two sides of a comparison. Each is a trial, SESSION:TRIAL, a variant or a file. A variant is rendered for `workload`,
    else for the layer of a trial on the other side, else for a small layer. Raises `BadRequest`."""
    a, b = (trial_from(s)[0] if isinstance(s, str) and ":" in s and not Path(s).is_file() else s for s in (a, b))
    trials = [side for side in (a, b) if isinstance(side, Trial)]
    if workload is None:
        workload = next((trial.workload for trial in trials), Workload(ConvTranspose(2, 16, 16, (3, 3), (2, 2)), 1, (16, 16)))
    directions = {trial.direction for trial in trials}

    def side(text: str | Trial) -> Side:
        if isinstance(text, Trial):
            return Side.of(text)
        if Path(text).is_file():
            return Side(text, text=str(source_from(text)))
        direction, _, name = text.rpartition("/")
        one = candidates(workload, directions=[direction] if direction else directions or LAUNCHES, variants=[name])[0]
        return Side(one.variant.key, candidate=one)

    return side(a), side(b)


def unified_text(name_a: str, name_b: str, a: str, b: str, context: int = 3) -> str:
    """The difference as `diff -u` prints it; empty if the two are equal."""
    return "\n".join(unified_diff(a.splitlines(), b.splitlines(), name_a, name_b, lineterm="", n=context))
