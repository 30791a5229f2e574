"""docs/cli.md says what --help prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.version_info[:2] > (3, 12), reason="argparse of Python 3.13 writes --help otherwise")
def test_the_page_of_the_command_line_is_what_help_prints() -> None:
    done = subprocess.run([sys.executable, "tools/cli_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
