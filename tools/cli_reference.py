"""Write docs/cli.md, the command line's --help as one page: python tools/cli_reference.py [--check]

--check writes nothing and exits 1 where the page says something else.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.faces.cli import VERBS, parser  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
_BEGIN = """# Command line

`workbench VERB` and `python -m workbench VERB` are the same. This page is what `--help` prints; `python tools/cli_reference.py`
writes it.
"""


def page() -> str:
    """The whole page, for a terminal of 100 columns."""
    os.environ["COLUMNS"] = "100"
    parts = [_BEGIN, "| verb | does |", "|---|---|", *(f"| [{name}](#{name}) | {summary} |" for name, summary in VERBS.items())]
    for name in VERBS:
        verbs = next(a for a in parser(name)._actions if isinstance(a, argparse._SubParsersAction))
        parts += ["", f"## {name}", "", "```", verbs.choices[name].format_help().strip(), "```"]
    return "\n".join(parts) + "\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE.relative_to(ROOT)} is not what --help prints; run python tools/cli_reference.py.", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
