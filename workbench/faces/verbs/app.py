"""Serve the page on http://127.0.0.1:8501 until Ctrl-C. In a checkout `streamlit run app.py` does the same."""

from __future__ import annotations

import argparse
import subprocess
import sys

from ...core.env import shipped


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="port (default 8501)")


def run(args: argparse.Namespace) -> int:
    """Returns Streamlit's exit code."""
    command = [sys.executable, "-m", "streamlit", "run", str(shipped("app.py")), "--server.port", str(args.port)]
    return subprocess.run(command, check=False).returncode
