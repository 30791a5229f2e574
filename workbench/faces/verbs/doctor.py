"""List what this machine has, what works, and the command that installs what is missing."""

from __future__ import annotations

import argparse
import json

from ...drive.machine.doctor import devices, examine, summary


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 if kernels can be judged on some device, else 3."""
    findings = examine()
    usable = devices(findings)
    if args.json:
        print(json.dumps({"findings": [f.to_json() for f in findings], "devices": usable,
                          "summary": summary(findings)}, indent=2))
    else:
        print(summary(findings))
        for f in findings:
            print(f"  {'+' if f.ok else '-'} {f.name}, {f.found or 'not found'}: {f.works}")
            if f.command and f.command != f.works:
                print(f"      {f.command}")
    return 0 if usable else 3
