"""Finds the `Preset` of a name. The two suites are in `suites`."""

from __future__ import annotations

import difflib
import re

from .errors import BadRequest
from .layer import Workload
from .preset import SIZES as SIZES
from .preset import Preset as Preset
from .preset import trial_bytes as trial_bytes
from .suites import KERNELBENCH as KERNELBENCH
from .suites import MODELS as MODELS

SUITES: dict[str, dict[str, Preset]] = {"kernelbench": KERNELBENCH, "models": MODELS}
PRESETS: dict[str, Preset] = {**KERNELBENCH, **MODELS}


def preset(name: str) -> Preset:
    """The preset of that name: "kb74", "74" or "#74"; "models/sam-1" or "sam-1"; or as it is shown, "KernelBench #74".
    Raises `BadRequest` naming the nearest ones."""
    text = name.strip().lower()
    for known in (text, f"models/{text}"):
        if known in PRESETS:
            return PRESETS[known]
    found = re.fullmatch(r"(?:kb|#|kernelbench[ /]#?(?:kb)?)?0*(\d+)", text)
    if found and f"kb{found[1]}" in PRESETS:
        return PRESETS[f"kb{found[1]}"]
    raise BadRequest(f"There is no preset {name!r}; {_nearest(text, found[1] if found else None)}.", field="preset")


def parse_preset(text: str, *, default_size: str = "full") -> tuple[Preset, str]:
    """From "kb74/small" or "models/sam-1/small" preset and size. Raises `BadRequest` for an unknown name or size."""
    words = [word.strip().lower() for word in text.split("/")]
    named = 2 if words[0] in SUITES and len(words) > 1 else 1
    chosen = preset("/".join(words[:named]))
    size = "/".join(words[named:]) or default_size
    if size not in SIZES:
        raise BadRequest(f"{chosen.name} has no size {size!r}; choose {chosen.name}/full, {chosen.name}/medium or "
                         f"{chosen.name}/small.", field="size")
    return chosen, size


def problem_of(workload: Workload) -> Preset | None:
    """The KernelBench problem for which this is the workload of `Model`, or None."""
    chosen = parse_preset(workload.preset)[0] if workload.preset else None
    return chosen if chosen and chosen.constructor else None


def called(workload: Workload) -> str:
    """The name of a workload in texts: `KernelBench #74 (small)`, or the constructor call of the layer."""
    if not workload.preset:
        return str(workload.layer)
    chosen, size = parse_preset(workload.preset)
    return f"{chosen.label} ({size})"


def default_size(device: str) -> str:
    """The size if a request names only the preset: full on a GPU, small on the emulator, where full would take hours."""
    return "small" if device == "cpu" else "full"


def _nearest(name: str, number: str | None) -> str:
    if number:
        near = sorted(KERNELBENCH.values(), key=lambda p: abs(p.number - int(number)))[:3]
        names = [p.name for p in sorted(near, key=lambda p: p.number)]
    else:
        short = {known.removeprefix("models/"): known for known in PRESETS}
        close = difflib.get_close_matches(name.removeprefix("models/"), short, n=3, cutoff=0.3)
        names = [short[known] for known in close] or list(PRESETS)
    return f"the nearest are {', '.join(names)}" if len(names) < len(PRESETS) else f"there are {', '.join(names)}"
