"""Serve the page on http://127.0.0.1:8501 until Ctrl-C. In a checkout `streamlit run app.py` does the same."""

from __future__ import annotations

import argparse
import subprocess
import sys

from ...core.env import shipped
from ...core.errors import BadRequest


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="port (default 8501)")


def run(args: argparse.Namespace) -> int:
    """Returns Streamlit's exit code."""
    if not 0 < args.port < 1 << 16:
        raise BadRequest(f"--port is {args.port}; give a number from 1 to 65535.", field="port")
    command = [sys.executable, "-m", "streamlit", "run", str(shipped("app.py")), "--server.port", str(args.port)]
    return subprocess.run(command, check=False).returncode
