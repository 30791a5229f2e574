"""A bench session in, a copy small enough to ship out: all trials and samples, logs of the best only, and of those as
many sources as fit. A source that stayed behind is rendered again from the trial's command."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import BadRequest
from ...core.numbers import bytes_decimal
from ..session import BLOBS, EVENTS, MORE, TRIALS, Session
from .cells import Cell, cells_of

PREFIX = "recorded-"
MOST_BYTES = 5_000_000
_PASSING = ("heartbeat", "phase")   # events that say nothing once the run is over


def ship(session: Session, name: str, root: Path) -> tuple[Session, int]:
    """Copy the session to `root/name` without what nobody reads again; returns it and its size in bytes.

    Raises `BadRequest` when the name is not `recorded-...` or taken, when the session holds no GPU times, or when the
    copy is still above 5 MB (then it is left there to look at).
    """
    if not name.startswith(PREFIX):
        raise BadRequest(f"A session that ships is called {PREFIX}…, not {name!r}; give --ship {PREFIX}{name}.")
    if (root / name).exists():
        raise BadRequest(f"{root / name} is there already; choose another name or remove it.")
    if not any(t.device.get("kind") == "cuda" and t.ok for t in session.trials()):
        raise BadRequest(f"Session {session.name} has no GPU times; only those are worth shipping.")
    copy = Session.create(root, name)
    shutil.copyfile(session.path / TRIALS, copy.path / TRIALS)
    lines = (session.path / EVENTS).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"event": "{word}"' in line for word in _PASSING)]
    (copy.path / EVENTS).write_text("".join(kept), encoding="utf-8")
    kept, sources = _kept(session, cells_of([session]))
    size = sum((copy.path / name).stat().st_size for name in (TRIALS, EVENTS))
    for blob in (*sorted(kept), *sources):
        source = session.path / BLOBS / blob
        more = source.stat().st_size if source.is_file() else 0
        if source.is_file() and (blob in kept or size + more <= MOST_BYTES):
            shutil.copyfile(source, copy.path / BLOBS / blob)
            size += more
    if size > MOST_BYTES:
        raise BadRequest(f"{copy.path} takes {bytes_decimal(size)}; at most {bytes_decimal(MOST_BYTES)} ship. Split "
                         f"the bench with --layers, or sweep less.")
    return copy, size


def _kept(session: Session, cells: Sequence[Cell]) -> tuple[set[str], list[str]]:
    """What is kept in any case, and the sources of the best in the order of the cells."""
    best = {c.best.trial_id for c in cells if c.best}
    kept, sources = set(), []
    for trial in session.trials():
        if trial.trial_id in best or (not trial.ok and trial.kind == "candidate"):
            kept |= {blob for name, blob in trial.blobs.items() if name != "source"}
            sources += [blob for name, blob in trial.blobs.items() if name == "source"]
        else:
            kept |= {blob for name, blob in trial.blobs.items() if name in ("samples", MORE)}
    return kept, sources
