"""Makes a copy of a bench session that is small enough to ship. It has all trials and samples. Of the best trials it has the
logs, and as many sources as fit. A missing source can be rendered again from the trial's command."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import BadRequest
from ...core.numbers import bytes_decimal
from ..sessions.files import EVENTS, TRIALS, lines
from ..sessions.files import blob as session_blob
from ..sessions.profiles import EVENT as PROFILED
from ..sessions.session import MORE, RECORDED, Session
from .cells import Cell, cells_of

MOST_BYTES = 5_000_000
_MOST_BLOB_BYTES = 4_000_000         # limit for the blobs; the rest is for the lines of the trials
_PASSING = ("heartbeat", "phase", "tune_kept")   # useful only during the run, or only on the machine that stored a winner


def ship(session: Session, name: str, root: Path) -> tuple[Path, int]:
    """Pack the session into `root/name.zip`, without blobs and events that are not needed. Returns the zip and its size in
    bytes.

    Raises `BadRequest` if the name does not begin with `recorded-` or is used already, if the session has no GPU times, or if
    the zip would be larger than 5 MB.
    """
    if not name.startswith(RECORDED):
        raise BadRequest(f"The name {name!r} does not begin with {RECORDED}; give --ship {RECORDED}{name}.")
    target = root / f"{name}.zip"
    if target.exists() or (root / name).exists():
        raise BadRequest(f"{root / name} exists already; choose another name or remove it.")
    if not any(t.device.kind == "cuda" and t.ok for t in session.trials()):
        raise BadRequest(f"Session {session.name} has no GPU times; choose a session that has them.")
    with tempfile.TemporaryDirectory() as folder:
        copy = Session.create(Path(folder), name)
        for file, dropped in ((TRIALS, ()), (EVENTS, _PASSING)):
            kept_lines = [line for _, line in lines(session.path, file) if not any(f'"event": "{w}"' in line for w in dropped)]
            (copy.path / file).write_text("".join(kept_lines), encoding="utf-8")
        kept, sources = _kept(session, cells_of([session]))
        size = 0
        for blob in (*sorted(kept), *sources):
            data = found if (found := session_blob(session.path, blob)) is not None else b""
            if data and (blob in kept or size + len(zlib.compress(data)) <= _MOST_BLOB_BYTES):
                copy.put_blob(data)
                size += len(zlib.compress(data))
        packed = copy.pack(Path(folder) / f"{name}.zip")
        size = packed.stat().st_size
        if size > MOST_BYTES:
            raise BadRequest(f"{name} would take {bytes_decimal(size)}; the limit is {bytes_decimal(MOST_BYTES)}. Split the "
                             "bench with --layers, or sample fewer configs.")
        shutil.copyfile(packed, target)
    return target, size


def _kept(session: Session, cells: Sequence[Cell]) -> tuple[set[str], list[str]]:
    """The blobs that are always kept, and the sources of the best trials in the order of the cells."""
    best = {c.best.trial_id for c in cells if c.best}
    kept, sources = {str(e["blob"]) for e in session.events() if e.get("event") == PROFILED and "blob" in e}, []
    for trial in session.trials():
        if trial.trial_id in best or trial.forked_from or (not trial.ok and trial.kind == "candidate"):
            kept |= {blob for name, blob in trial.blobs.items() if name != "source"}
            sources += [blob for name, blob in trial.blobs.items() if name == "source"]
        else:
            kept |= {blob for name, blob in trial.blobs.items() if name in ("samples", MORE)}
    return kept, sources
