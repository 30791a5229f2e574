"""The source of a recorded trial: from the session, or made again where it did not ship and would be the very same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.errors import BadRequest
from workbench.core.template import render
from workbench.drive.sessions.files import blob
from workbench.drive.sessions.recorded import candidate_of, source_of
from workbench.drive.sessions.session import Session

SESSION = Session(Path(__file__).resolve().parents[2] / "sessions" / "recorded-h200-kernelbench.zip")


def test_a_source_that_did_not_ship_is_made_again_only_where_it_is_the_same() -> None:
    there = [t for t in SESSION.trials() if t.kind == "candidate" and t.name == "register_blocked"]
    lost = next(t for t in there if blob(SESSION.path, t.blobs["source"]) is None)
    rendered = render(candidate_of(lost))
    lost = replace(lost, candidate_id=rendered.candidate_id)  # templates change between recordings
    assert source_of(lost, SESSION) == rendered.source
    with pytest.raises(BadRequest, match=f"has changed since trial {lost.trial_id} was judged; run it again"):
        source_of(replace(lost, candidate_id="0" * 16), SESSION)
