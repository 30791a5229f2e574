"""Make one zip of a session, which opens on another machine, or open such a zip.

    python -m workbench pack NAME            -> NAME.zip
    python -m workbench pack --open FILE.zip -> a session below the sessions folder
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...core.errors import BadRequest
from ...drive.sessions.session import unpack
from ..arguments import check_folder, session_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="name or folder of the session")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write (default NAME.zip)")
    parser.add_argument("--open", type=Path, metavar="ZIP", help="unpack this zip instead of making one")


def run(args: argparse.Namespace) -> int:
    if bool(args.open) == bool(args.session):
        raise BadRequest("Give the session to pack, or --open with the zip to unpack.")
    if args.open:
        if not args.open.is_file():
            raise BadRequest(f"{args.open} does not exist; name a zip that 'python -m workbench pack' made.")
        print(unpack(args.open).path)
        return 0
    check_folder(args.out)
    session = session_from(args.session)
    print(session.pack(args.out or Path(f"{session.name}.zip")))
    return 0
