"""The best known variant and config for a workload, as a `BestKnown`, which says where it was measured.

The data file beside this module is written by `python -m workbench bench --write-best` from recorded sessions, one
entry a line. For sm_80, which was not measured, it is the best measured entry that can run there, and its note says so.
`derived_best` gives an entry for every GPU.

The file also holds *slower* ones: the best config of a variant in a cell whose best known variants are much faster. Nothing is
exported from them. A tune begins with them on similar layers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import inf, log2, prod
from pathlib import Path
from typing import Any

from .candidate import Candidate, why_not
from .command import parse_layer
from .diagnostics import LOG
from .env import gpus
from .errors import BadRequest
from .gpu import sm_of
from .layer import CONTIGUOUS, Workload
from .precision import CLASSES
from .typed import misfit
from .variants import find

SCHEMA = "kernel-workbench/best-known/1"
FILE = Path(__file__).with_name("best_known.json")
DERIVED = "derived: the fastest config measured on a newer GPU that runs here without spills; not measured here"


@dataclass(frozen=True)
class BestKnown:
    """One variant with the best config known for it, in one cell. Times are `kernel_ms` medians, cold L2."""

    arch: str                       # sm_90
    layer: str                      # the constructor call of PyTorch
    direction: str
    dtype: str
    precision_class: str            # one of CLASSES
    variant: str
    config: dict[str, int]
    precision: str                  # the precision in which the kernel computes
    form: str
    ms: float | None                # on `gpu`, batch and input_size as below; None: not measured
    batch: int
    input_size: tuple[int, ...]
    gpu: str                        # where it was measured; "": nowhere
    session: str
    rel_l2: float | None = None
    baseline: str = ""              # the fastest PyTorch that qualifies, in the same session
    baseline_ms: float | None = None
    pytorch_precision: str = ""     # the precision of PyTorch with its default settings; "": not measured
    compile_flags: tuple[str, ...] = ()
    note: str = ""                  # how the entry was derived for `arch`; "" if it was measured
    memory_format: str = CONTIGUOUS
    # This and the next two fields are set if a tune of this machine found the entry; `at` is ISO 8601.
    candidate_id: str = ""
    driver: str = ""
    at: str = ""

    @property
    def tuned(self) -> bool:
        """Found by a tune of this machine."""
        return bool(self.at)

    @property
    def derived(self) -> bool:
        return bool(self.note)

    @property
    def proven(self) -> int:
        """The GPU generation (90 for sm_90) on which it was measured to be faster than PyTorch; 0 if on none."""
        faster = not self.derived and self.ms and self.baseline_ms and self.ms < self.baseline_ms
        return sm_of(self.arch) if faster else 0

    @property
    def source(self) -> str:
        """measured or derived."""
        return "derived" if self.derived else "measured"

    @property
    def reason(self) -> str:
        """Why this one, as the end of a sentence."""
        return self.note or f"{'tuned here' if self.tuned else 'measured'} on {self.gpu}, session {self.session}"

    @property
    def key(self) -> tuple[str, str, str, str, str, str, int, tuple[int, ...]]:
        """The cell: arch, layer, direction, dtype, precision class, memory format, and the tensors it was measured with."""
        return (self.arch, self.layer, self.direction, self.dtype, self.precision_class, self.memory_format, self.batch,
                self.input_size)

    def candidate(self, workload: Workload, *, root: Path | None = None) -> Candidate:
        """The candidate for that workload's layer. Raises `BadRequest` if the present template does not offer the config."""
        return Candidate(find(self.variant, self.direction, root=root), workload.layer, workload.dtype,
                         dict(self.config), self.precision, self.form, self.compile_flags)

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ("", None, (), CONTIGUOUS)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BestKnown:
        lists = {k: tuple(data.get(k, ())) for k in ("input_size", "compile_flags")}
        return cls(**{**data, **lists})


# more than seven: each names one thing that an entry has to match
def best_config(direction: str, workload: Workload, precision: str, arch: str, *, variant: str = "",
                exact: bool = False, root: Path | None = None, file: Path | None = None) -> BestKnown | None:
    """The first entry of `ranked`, or None. The parameters are those of `ranked`."""
    return next(ranked(direction, workload, precision, arch, variant=variant, exact=exact, root=root, file=file), None)


# more than seven: each names one thing that an entry has to match
def ranked(direction: str, workload: Workload, precision: str, arch: str, *, variant: str = "", exact: bool = False,
           root: Path | None = None, file: Path | None = None) -> Iterator[BestKnown]:
    """The known entries of a cell that can still run on that architecture.

    `precision` names the class; with `exact` only entries that compute in this precision count. With `variant` only the entries
    of that variant count. An entry of a layer without bias also counts for the layer with bias. The order: entries for `arch`
    before those of older GPUs; entries with the workload's bias setting before others; entries with its memory format before
    contiguous ones; the nearest number of positions; the least time.
    """
    sm = sm_of(arch)
    for entry in entries_of(direction, workload, class_of(precision), sm, file=file):
        if (variant and entry.variant != variant) or (exact and entry.precision != precision):
            continue
        try:
            candidate = entry.candidate(workload, root=root)
        except BadRequest:
            continue  # the template has changed since: take the next best
        if why_not(candidate, sm=sm) is None:
            yield entry


def entries_of(direction: str, workload: Workload, precision_class: str, sm: int, *, file: Path | None = None
               ) -> list[BestKnown]:
    """The entries of a cell for that GPU and older ones, in the order of `ranked`, also those that cannot run there. An entry
    that a tune of this machine found for exactly this workload comes first."""
    layer = without_bias(str(workload.layer))
    known = load(file) if file else [*tuned(), *load()]
    there = [e for e in known if e.direction == direction and e.dtype == workload.dtype
             and e.precision_class == precision_class and without_bias(e.layer) == layer and sm_of(e.arch) <= sm
             and e.memory_format in (CONTIGUOUS, workload.memory_format)]
    own = (workload.batch, tuple(workload.input_size), workload.memory_format)
    return sorted(there, key=lambda e: (
        not (e.tuned and sm_of(e.arch) == sm and (e.batch, e.input_size, e.memory_format) == own),
        sm_of(e.arch) != sm, e.layer != str(workload.layer), e.memory_format != workload.memory_format,
        abs(log2(_positions(e) / _positions(workload))), e.ms or inf, -sm_of(e.arch)))


def tuned_file() -> Path:
    """Where tunes of this machine keep what they found: $KERNEL_WORKBENCH_STORE, else a file of the user's data folder."""
    if named := os.environ.get("KERNEL_WORKBENCH_STORE"):
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kernel-workbench" / "tuned.json"


def tuned() -> list[BestKnown]:
    """What tunes found on the GPUs that this machine has now."""
    there = stored()
    names = _gpu_names(os.environ.get("PATH", ""), os.environ.get("CUDA_VISIBLE_DEVICES")) if there else frozenset()
    return [entry for entry in there if entry.gpu in names]


def stored() -> list[BestKnown]:
    """All entries that tunes of this machine have kept. A file that cannot be read is named once in a warning and counts as
    empty."""
    file = tuned_file()
    try:
        return load(file)
    except (BadRequest, OSError) as error:
        _warn_once(f"{file} is not used: {error} Move it away, or tune again with $KERNEL_WORKBENCH_STORE naming another file.")
        return []


def load(file: Path | None = None) -> list[BestKnown]:
    """All entries of the data file (default: the shipped one); none where there is no file."""
    path = file or FILE
    return list(_load(path, path.stat().st_mtime_ns)) if path.is_file() else []


def slower(file: Path | None = None) -> list[BestKnown]:
    """The best configs of variants that are much slower than the best variant of their cell (default: the shipped ones)."""
    path = file or FILE
    return list(_slower(path, path.stat().st_mtime_ns)) if path.is_file() else []


def save(entries: Iterable[BestKnown], file: Path, slower: Iterable[BestKnown] = ()) -> None:
    """Write the data file, one entry a line, in a fixed order."""
    beside = f', "slower": [\n{text}\n]' if (text := _lines(slower)) else ""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_text(f'{{"schema": "{SCHEMA}", "entries": [\n{_lines(entries)}\n]{beside}}}\n', encoding="utf-8")
    part.replace(file)


def class_of(precision: str) -> str:
    """The class in which a precision competes; tf32x3 is in the class ieee. Raises `BadRequest` for a precision without a
    class."""
    found = "ieee" if precision == "tf32x3" else precision
    if found not in CLASSES:
        raise BadRequest(f"There are best known configs for the precision classes {', '.join(CLASSES)}, "
                         f"not for {precision}.", field="precision")
    return found


@lru_cache(maxsize=4096)
def without_bias(layer: str) -> str:
    """The text of the layer without bias. Entries are compared by it, because an entry also counts for the layer with bias."""
    return str(replace(parse_layer(layer), bias=False))


@lru_cache(maxsize=8)
def _warn_once(sentence: str) -> None:
    LOG.warning(sentence)


@lru_cache(maxsize=8)
def _gpu_names(_path: str, _visible: str | None) -> frozenset[str]:
    return frozenset(gpu.name for gpu in gpus())


def _lines(entries: Iterable[BestKnown]) -> str:
    ordered = sorted(entries, key=lambda e: (e.key[0], _number_first(e.layer), *e.key[2:], e.ms or inf))
    return ",\n".join(json.dumps(e.to_json(), sort_keys=True) for e in ordered)


@lru_cache(maxsize=8)
def _load(path: Path, _stamp: int) -> tuple[BestKnown, ...]:
    return _part(path, "entries")


@lru_cache(maxsize=8)
def _slower(path: Path, _stamp: int) -> tuple[BestKnown, ...]:
    return _part(path, "slower")


def _part(path: Path, name: str) -> tuple[BestKnown, ...]:
    """The entries under one key of the file. Every file has `entries`; one without slower ones has no other key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} holds no best known configs: {error}. Name a file that 'python -m workbench bench "
                         f"--write-best' has written.") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        data = data if isinstance(data, dict) else {}
        raise BadRequest(f"{path.name} has the schema {data.get('schema')!r}, this version reads {SCHEMA}; write it "
                         f"again with 'python -m workbench bench --write-best {path.name}'.")
    listed: Any = data.get(name, None if name == "entries" else [])
    if why := misfit(tuple[BestKnown, ...])(listed, name):
        raise BadRequest(f"{path} cannot be read: {why}.")
    return tuple(BestKnown.from_json(e) for e in listed)


def _positions(measured: BestKnown | Workload) -> int:
    return measured.batch * prod(measured.input_size)


def _number_first(layer: str) -> tuple[int, str]:
    return int(layer[len("ConvTranspose")]), layer
