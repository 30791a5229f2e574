"""List the kernel templates with direction, idea and tunables. With a layer: list which of them can run it on a GPU, and the
best known one.

    python -m workbench variants --preset models/pose --arch sm_86
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ...core.errors import BadRequest
from ...core.gpu import named_arch, sm_of
from ...core.layer import LAUNCHES, Workload
from ...core.precision import PRECISIONS, PRECISIONS_OF
from ...core.space import SearchSpace
from ...core.start_config import start
from ...core.variants import Variant, discover
from ...drive.exporting.best_recipe import arch_of, best_known, origin
from ..arguments import add_workload, say_broken, workload_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--templates", type=Path, metavar="DIR", help="use the templates of this folder, not the shipped ones")
    parser.add_argument("--json", action="store_true", help="print JSON; only without a layer")
    add_workload(parser, required=False)
    parser.add_argument("--arch", metavar="sm_90", help="with a layer: the GPU (default: that of this machine)")
    parser.add_argument("--precision", choices=PRECISIONS, default="", metavar="tf32",
                        help="with a layer: the precision (default: the first of each variant)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 all templates are valid; 1 one is invalid (the others are still listed)."""
    there = discover(args.templates)
    if args.preset or args.layer:
        if args.json:
            raise BadRequest("--json lists the variants without a layer; leave out --json, or --preset and --layer.")
        return _for_layer(there, workload_from(args), named_arch(args.arch) if args.arch else arch_of(), args)
    if args.arch or args.precision:
        raise BadRequest("--arch and --precision need --preset or --layer.", field="layer")
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


def _for_layer(there: list[Variant], workload: Workload, arch: str, args: argparse.Namespace) -> int:
    """For each direction, the best known config with its reason, and for each variant whether it can run there."""
    sm = sm_of(arch)
    try:
        best = best_known(workload, arch, precision=args.precision)
    except BadRequest as error:
        print(error)
        best = {}
    for direction in LAUNCHES:
        print(f"{direction} of {workload.layer} on {arch}")
        if direction in best:
            print(f"  best known, {best[direction].source}: {origin(best[direction]).removeprefix(f'{direction}: ')}")
        for variant in (v for v in there if v.direction == direction):
            for precision in (p for p in PRECISIONS_OF[workload.dtype] if p in variant.precision and args.precision in ("", p)):
                space = SearchSpace(variant, workload.layer, workload.dtype, sm, precision, variant.forms[0],
                                    workload.memory_format)
                print(f"  {variant.name} in {precision}: {_state(space, arch)}")
    return int(say_broken(args.templates))


def _state(space: SearchSpace, arch: str) -> str:
    default = space.default
    found = start(space, arch)
    if found is None:
        return (space.why_not(default) or "").replace("Not run: ", "does not run: ", 1)
    changes = " ".join(f"{k}={v}" for k, v in found.config.items() if v != default[k])
    return f"runs, with {changes} because {found.why}" if changes else "runs"
