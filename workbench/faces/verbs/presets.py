"""List the named layers of both suites with source, work, bytes and output size."""

from __future__ import annotations

import argparse
import json

from ...core.facts import bytes_moved, flops
from ...core.layer import FORWARD
from ...core.numbers import bytes_decimal, shape, work
from ...core.presets import SIZES, SUITES


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=list(SUITES), action="append", help="list only this suite (default: both)")
    parser.add_argument("--size", choices=SIZES, default="full", help="of the layers (default full)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    rows = []
    for preset in (p for suite in args.suite or SUITES for p in SUITES[suite].values()):
        chosen = preset.workload(args.size)
        traffic = bytes_moved(chosen, FORWARD)
        rows.append({"name": preset.name, "suite": preset.suite, "source": preset.source, "layer": str(chosen.layer),
                     "input": list(chosen.input_shape), "output": list(chosen.output_shape), "flops": flops(chosen, FORWARD),
                     "read_bytes": traffic.read_bytes, "written_bytes": traffic.written_bytes,
                     "attribute": preset.attribute, "constructor": list(preset.constructor)})
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(f"{row['name']}  {row['layer']}\n      from {row['source']}\n"
              f"      input {shape(row['input'])}, output {shape(row['output'])}, "
              f"{work(row['flops'])}, {bytes_decimal(row['read_bytes'] + row['written_bytes'])} forward")
    print(f"These are the {args.size} sizes. Each layer has the sizes {', '.join(SIZES)}: give for example "
          f"{rows[0]['name']}/small, or list them with --size.")
    return 0
