"""Give the candidates of older sessions the ids of today: python tools/migrate_ids.py sessions/NAME [--templates DIR]

Up to version 0.1 an id was a hash of the source with its comments and file names. Each trial's source is taken from the
session, or rendered from the shipped templates or those of DIR (a checkout of the version that made the session), and
proves itself by the old id. Its new id replaces the old one in its line of trials.jsonl. A trial whose source is found
nowhere keeps its id, and is named; so is one whose source is no longer what today's templates make.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workbench.core.errors import BadRequest, RenderError  # noqa: E402
from workbench.core.identity import candidate_id, canonical  # noqa: E402
from workbench.core.template import render  # noqa: E402
from workbench.core.trial import Trial  # noqa: E402
from workbench.drive.sessions.recorded import candidate_of  # noqa: E402
from workbench.drive.sessions.session import TRIALS, Session  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", nargs="+", type=Path)
    parser.add_argument("--templates", action="append", default=[], type=Path, help="kernel_templates of another version")
    args = parser.parse_args()
    lost = sum(migrate(Session.open(path), args.templates) for path in args.sessions)
    return 1 if lost else 0


def migrate(session: Session, templates: Iterable[Path]) -> int:
    """Rewrite one session's trials.jsonl; returns how many trials keep an old id for want of their source."""
    new, today, lost = {}, 0, 0
    trials = [t for t in session.trials() if t.candidate_id and t.candidate_id != _id_of_today(t)]
    for trial in trials:
        source = next((s for s in _sources(session, trial, templates) if _old_id(s, trial) == trial.candidate_id), None)
        if source is None:
            print(f"{session.name}: the source of trial {trial.trial_id} ({trial.name}) was not found; its id stays.")
            lost += 1
            continue
        new[trial.trial_id] = (trial.candidate_id, candidate_id(source, compile_flags=trial.compile_flags))
        same = canonical(source) == canonical(_rendered(trial, None) or "")
        today += same
        if not same:
            print(f"{session.name}: the template of trial {trial.trial_id} ({trial.name}, {trial.direction}, "
                  f"{trial.workload.preset or 'no preset'}) has changed since.")
    lines = (session.path / TRIALS).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        for trial_id, (old, now) in new.items():
            if f'"trial_id":"{trial_id}"' in line:
                lines[number] = line.replace(old, now)
    temporary = session.path / f".{TRIALS}"
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(session.path / TRIALS)
    print(f"{session.name}: {len(new)} of {len(trials)} trials have a new id, {today} of them equal today's templates.")
    return lost


def _sources(session: Session, trial: Trial, templates: Iterable[Path]) -> Iterator[str]:
    try:
        yield session.blob(trial.blobs.get("source", "")).decode()
    except BadRequest:
        yield from (s for root in (None, *templates) if (s := _rendered(trial, root)))


def _rendered(trial: Trial, root: Path | None) -> str | None:
    try:
        return render(candidate_of(trial, templates=root)).source
    except (BadRequest, RenderError):
        return None


def _id_of_today(trial: Trial) -> str:
    source = _rendered(trial, None)
    return candidate_id(source, compile_flags=trial.compile_flags) if source else ""


def _old_id(source: str, trial: Trial) -> str:
    return hashlib.sha256(b"".join(p.encode() + b"\0" for p in (source, *trial.compile_flags))).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
