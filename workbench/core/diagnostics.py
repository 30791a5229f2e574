"""The `workbench` log: what a worker process was asked, what came of it, and how long it took. Off unless KW_LOG names a level
(`KW_LOG=debug`) or a verb is given -v; it goes to stderr, never to stdout."""

from __future__ import annotations

import logging
import os

LOG = logging.getLogger("workbench")


def switch_on(level: str = "DEBUG") -> None:
    """Write the log to stderr from that level on. A level that logging does not know counts as DEBUG."""
    if not LOG.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        LOG.addHandler(handler)
        LOG.propagate = False
    known = logging.getLevelName(level.upper())
    LOG.setLevel(known if isinstance(known, int) else logging.DEBUG)


if os.environ.get("KW_LOG"):
    switch_on(os.environ["KW_LOG"])
