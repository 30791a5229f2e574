"""Show how large the cache of built libraries is and where it is, or empty it."""

from __future__ import annotations

import argparse
import json

from ...core.cache import Cache
from ...core.env import cache_dir
from ...core.numbers import bytes_decimal


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove every built library")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    cache = Cache(cache_dir())
    if args.clear:
        cache.clear()
    use = cache.usage()
    if args.json:
        print(json.dumps({"path": str(cache_dir()), "entries": use.entries, "bytes": use.bytes,
                          "limit_bytes": use.limit_bytes}))
    else:
        print(f"{cache_dir()}: {use.entries} libraries, {bytes_decimal(use.bytes)} of {bytes_decimal(use.limit_bytes)}")
    return 0
