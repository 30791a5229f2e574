"""The log of the workers: each order, how it ended, and how long it took. It is off unless KW_LOG names a level
(`KW_LOG=debug`) or the verb has -v. It goes to stderr, never to stdout."""

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
