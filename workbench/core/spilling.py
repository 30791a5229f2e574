"""Where a run starts to search: the default config, or a given one, unless it cannot run there or spills registers.

`spilling.json` beside this module names the default configs that nvcc compiles with spills, and for each a near config that it
compiles without. `python tools/compile_table.py --write` makes it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from .space import SearchSpace

FILE = Path(__file__).with_name("spilling.json")
_Key = tuple[str, str, str, str]  # target, variant, precision, layer


def start(space: SearchSpace, arch: str, config: dict[str, int] | None = None) -> dict[str, int] | None:
    """The default (or `config`), or the nearest config that can run; for one that is known to spill, the one that does not."""
    found = space.nearest(space.variant.default_config if config is None else config)
    if found is None:
        return None
    for spilling, clean in _known().get((space.variant.arch or arch, space.variant.key, space.precision, str(space.layer)), ()):
        if {**space.variant.default_config, **dict(spilling)} == found:
            return {**space.variant.default_config, **dict(clean)} if clean is not None else None
    return found


@lru_cache(maxsize=1)
def _known() -> dict[_Key, list[tuple[dict[str, int], dict[str, int] | None]]]:
    """Both configs of each line say only what differs from the default."""
    found: dict[_Key, list[tuple[dict[str, int], dict[str, int] | None]]] = {}
    for line in json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else []:
        key = (line["target"], line["variant"], line["precision"], line["layer"])
        found.setdefault(key, []).append((line["spills"], line["instead"]))
    return found
