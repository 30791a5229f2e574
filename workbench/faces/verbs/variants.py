"""List the kernel templates with direction, idea and tunables."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ...core.variants import discover
from ..arguments import say_broken


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--templates", type=Path, metavar="DIR", help="folder of templates to use instead")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0 all can be read; 1 one is broken: the others are listed all the same."""
    there = discover(args.templates)
    if args.json:
        print(json.dumps([{"name": v.name, "direction": v.direction, "computes": v.computes, "after": v.after,
                           "idea": v.idea, "precision": v.precision, "layer": v.forms, "needs": v.needs,
                           "tune": {t.name: {"values": t.values, "default": t.default, "help": t.help} for t in v.tune}}
                          for v in there], indent=2))
        return int(say_broken(args.templates))
    direction = ""
    for variant in there:
        if variant.direction != direction:
            direction = variant.direction
            print(f"{direction}")
        print(f"  {variant.name} ({', '.join(variant.precision)})\n      {variant.idea}")
        for t in variant.tune:
            values = " ".join(f"[{v}]" if v == t.default else str(v) for v in t.values)
            print(f"      {t.name} = {values}{'   ' + t.help if t.help else ''}")
    return int(say_broken(args.templates))
