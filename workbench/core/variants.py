"""`Variant`: a `.cu` file for one direction, with its text and the TOML header in its first comment (tunables, limits). This
module checks the header.

A file that computes forward and grad_input gives two variants. The header's tables `[forward]` and `[grad_input]` replace what
stands above them. In the code, lines between `#ifdef KW_FORWARD` (or `#ifndef`), `#else` and `#endif` belong to one direction;
those of the other become empty lines, so that line numbers stay.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .env import shipped
from .errors import BadRequest, RenderError, or_nearest
from .layer import BACKWARD, CHANNELS_LAST, DIRECTIONS, DTYPES, FORWARD, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES
from .precision import PRECISIONS, PRECISIONS_OF

FORMS = ("constant", "runtime")
# A tunable of this name: with 1 the launcher takes channels_last activations, with 0 contiguous ones.
TAKES_CHANNELS_LAST = "CHANNELS_LAST"
TEMPLATES = shipped("kernel_templates")
FOLDER = "forward_and_grad_input"        # of the files that compute both
DIRECTIONS_OF_FOLDER = (FORWARD, GRAD_INPUT)
FOLDERS = {**{launch: (launch,) for launch in LAUNCHES}, FOLDER: DIRECTIONS_OF_FOLDER}  # folder -> directions of its files
_OPENS = re.compile(r"\s*#\s*if")
_ASKS = re.compile(r"\s*#\s*if(?P<n>n?)def\s+KW_FORWARD\b")
_ELSE = re.compile(r"\s*#\s*else\b")
_CLOSES = re.compile(r"\s*#\s*endif\b")
_HEADER = re.compile(r"\A\s*/\*\s*variant\s*\n(?P<toml>.*?)\*/", re.S)
_KEYS = {"name", "computes", "after", "idea", "precision", "layer", "needs", "min_sm", "arch", "kernel", "tune",
         "derived", "plan"}


@dataclass(frozen=True)
class Tunable:
    """One tunable of a variant: its possible values, and which of them is the default."""

    name: str
    values: tuple[int, ...]
    default: int
    help: str = ""

    def default_for(self, memory_format: str) -> int:
        """The default for activations in that memory format. A kernel that can read and write channels_last does so for
        channels_last activations."""
        return 1 if self.name == TAKES_CHANNELS_LAST and memory_format == CHANNELS_LAST else self.default


@dataclass(frozen=True)
class Variant:
    """A kernel template. `direction`: the launcher that it exports. `computes`: the directions whose results it writes. `text`:
    that of the file, without the lines for another direction."""

    name: str
    direction: str
    computes: tuple[str, ...]
    after: str
    idea: str
    precision: tuple[str, ...]
    forms: tuple[str, ...]
    needs: tuple[str, ...]
    min_sm: int
    tune: tuple[Tunable, ...]
    derived: tuple[tuple[str, str], ...]
    plan: tuple[tuple[str, str], ...]  # the constants in the code that must equal the values of `derived`; a test compares them
    path: Path
    text: str
    arch: str = ""  # the target it must be compiled for, such as sm_90a; empty: the GPU's own
    kernel: str = ""  # the name of its main kernel, if it differs from the variant's name
    forked_from: str = ""  # for a fork: the id of the candidate whose text was edited

    @property
    def key(self) -> str:
        """`forward/naive_gather`: unique. It is the path of the file without its ending, unless the file computes two
        directions."""
        return f"{self.direction}/{self.name}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that it computes in one of its precisions."""
        return tuple(d for d in DTYPES if set(PRECISIONS_OF[d]) & set(self.precision))

    @property
    def default_config(self) -> dict[str, int]:
        return {t.name: t.default for t in self.tune}

    @property
    def only_channels_last(self) -> bool:
        """Whether its activations must be channels_last."""
        return any(t.name == TAKES_CHANNELS_LAST and t.values == (1,) for t in self.tune)

    def default_for(self, memory_format: str) -> dict[str, int]:
        """The default config where activations have that memory format."""
        return {t.name: t.default_for(memory_format) for t in self.tune}

    def config(self, chosen: dict[str, int] | None = None) -> dict[str, int]:
        """The default config, with the values of `chosen`. Raises `BadRequest` for an unknown tunable or value."""
        known = {t.name: t for t in self.tune}
        for name, value in (chosen or {}).items():
            if name not in known:
                raise BadRequest(f"{self.name} has no tunable {name}; it has {', '.join(known) or 'none'}.",
                                 field=name)
            if value not in known[name].values:
                raise BadRequest(f"{name}={value} is not offered by {self.name}; choose "
                                 f"{', '.join(map(str, known[name].values))}.", field=name)
        return {**self.default_config, **(chosen or {})}


def parse(text: str, path: Path, direction: str = "") -> Variant:
    """Read a template. `direction` chooses one of two directions that it computes. If the header breaks the contract, it raises
    `RenderError`, which names file and key."""
    head = _head(text, path)
    if _shared(head.get("computes")):
        if direction not in DIRECTIONS_OF_FOLDER:
            raise RenderError(f"{path.name} computes {' and '.join(DIRECTIONS_OF_FOLDER)}; name one of them.")
        head = {**header_of(head, direction, path.name), "computes": [direction]}
    return _checked(head, text, path)


def header_name(text: str) -> tuple[str, list[str]]:
    """The keys `name` and `computes` of a template's header. Raises `RenderError`."""
    head = _head(text, Path("The text"))
    computes = head.get("computes")
    return str(head.get("name", "")), [str(d) for d in computes] if isinstance(computes, list) else []


def discover(root: Path | None = None) -> list[Variant]:
    """All variants below `root` (default: the shipped templates), in reading order: each one after the variant that its header
    names in `after`. Invalid templates are left out; `broken` says why. Raises `BadRequest` for a folder that does not
    exist.
    """
    return list(_discover(_root(root), _stamp(_root(root)))[0])


def broken(root: Path | None = None) -> dict[str, RenderError]:
    """Folder and name (forward/mine) -> the error of that template: in its header, or because it is in the wrong folder."""
    return dict(_discover(_root(root), _stamp(_root(root)))[1])


def refuse_broken(names: Iterable[str], directions: Iterable[str], root: Path | None = None) -> None:
    """Raises the `RenderError` of an invalid template, if it is requested by name or key in one of the directions."""
    names, directions = set(names), set(directions)
    for place, error in broken(root).items():
        folder, _, name = place.partition("/")
        keys = {f"{direction}/{name}" for direction in FOLDERS[folder] if direction in directions}
        if keys and names & {name, place, *keys}:
            raise error


def find(name: str, direction: str, *, root: Path | None = None) -> Variant:
    """The variant of that name and direction. Raises `BadRequest`, which says why the template is invalid, or which variants
    exist."""
    there = [v for v in discover(root) if v.direction == direction]
    for variant in there:
        if variant.name == name:
            return variant
    refuse_broken([name], [direction], root)
    raise BadRequest(f"There is no variant {name!r} for {direction}; {or_nearest(name, (v.name for v in there))}",
                     field="variant")


def texts_stamp(root: Path | None = None) -> tuple[tuple[str, int, int], ...]:
    """A value that changes when a template or a header changes."""
    return tuple(sorted((path, s.st_mtime_ns, s.st_size) for folder, _, names in os.walk(_root(root)) for name in names
                        if name.endswith((".cu", ".cuh")) and (s := os.stat(path := os.path.join(folder, name)))))


def _root(root: Path | None) -> Path:
    root = root or Path(os.environ.get("KERNEL_WORKBENCH_TEMPLATES") or TEMPLATES)
    if not root.is_dir():
        raise BadRequest(f"The folder of templates {root} does not exist; name a folder with {', '.join(DIRECTIONS)} in "
                         f"it.", field="templates")
    return root


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).glob("*.cu") if path.is_file())


def _stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    """A value that changes when a template changes. It is needed for every trial of a session, so it is computed without
    `Path`, which is slow."""
    found = []
    for folder in FOLDERS:
        if os.path.isdir(where := f"{root}/{folder}"):
            with os.scandir(where) as entries:
                found += [(e.path, s.st_mtime_ns, s.st_size) for e in entries
                          if e.name.endswith(".cu") and e.is_file() and (s := e.stat())]
    return tuple(sorted(found))


@lru_cache(maxsize=8)
def _discover(root: Path, _stamp: object) -> tuple[tuple[Variant, ...], tuple[tuple[str, RenderError], ...]]:
    found: list[Variant] = []
    wrong: list[tuple[str, RenderError]] = []
    for path in _files(root):
        try:
            found += _read(path, {v.key for v in found})
        except RenderError as error:  # only this template is left out
            wrong.append((f"{path.parent.name}/{path.stem}", error))
    return tuple(_in_reading_order(sorted(found, key=lambda v: v.name))), tuple(wrong)


def _read(path: Path, taken: set[str]) -> list[Variant]:
    """The variants of a file: one for each direction of its folder. `taken` are the keys of others."""
    folder = path.parent.name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RenderError(f"{path.name} cannot be read as UTF-8 text.", advice="Save it as UTF-8.") from error
    computes = _head(text, path).get("computes", [])
    misplaced = _shared(computes) and folder != FOLDER
    variants = [] if misplaced else [parse(text, path, direction) for direction in FOLDERS[folder]]
    if {v.direction for v in variants} != set(FOLDERS[folder]):
        raise RenderError(f"{path.name} lies in {folder}/ but computes {', '.join(computes)}.",
                          advice=f"Move it to {FOLDER if misplaced else variants[0].direction}/.")
    if both := sorted(taken & {v.key for v in variants}):
        raise RenderError(f"{folder}/{path.name} and another file are both {both[0]}.", advice="Give one of them another name.")
    return variants


def _head(text: str, path: Path) -> dict[str, Any]:
    found = _HEADER.match(text)
    if not found:
        raise RenderError(f"{path.name} does not begin with a comment '/* variant ... */'.",
                          advice="Copy the header of naive_gather.cu and change it.")
    try:
        return tomllib.loads(found["toml"])
    except tomllib.TOMLDecodeError as error:
        above = text.count("\n", 0, found.start("toml"))  # lines are counted from the start of the TOML text, not of the file
        said = re.sub(r"(?<=line )\d+", lambda line: str(int(line[0]) + above), str(error))
        raise RenderError(f"The header of {path.name} is not TOML: {said}.",
                          advice="Correct the line of the header named above.") from error


def _shared(computes: object) -> bool:
    return isinstance(computes, list) and len(computes) == 2 and all(d in computes for d in DIRECTIONS_OF_FOLDER)


def _in_reading_order(variants: list[Variant]) -> list[Variant]:
    """Each variant after the one that it names. Within this order, variants with a run-time form come first: they serve every
    layer."""
    placed: list[Variant] = []
    waiting = list(variants)
    while waiting:
        keys = {v.key for v in waiting}
        ready = [v for v in waiting if f"{v.direction}/{v.after}" not in keys or v.after == v.name] or waiting[:1]
        placed.append(min(ready, key=lambda v: "runtime" not in v.forms))
        waiting.remove(placed[-1])
    return sorted(placed, key=lambda v: LAUNCHES.index(v.direction))


def _checked(head: dict[str, Any], text: str, path: Path) -> Variant:
    def need(ok: bool, what: str) -> None:
        if not ok:
            raise RenderError(f"The header of {path.name}: {what}.")

    unknown = set(head) - _KEYS
    need(not unknown, f"key {', '.join(sorted(unknown))} is not known; known are {', '.join(sorted(_KEYS))}")
    for key, kind in (("name", str), ("computes", list), ("idea", str), ("precision", list)):
        need(isinstance(head.get(key), kind), f"key {key} is missing or not a {kind.__name__}")
    for key in ("computes", "precision", "layer", "needs"):
        value = head.get(key, [])
        need(isinstance(value, list) and all(isinstance(v, str) for v in value), f"{key} is {value!r}; give a list of words")
    for key in ("tune", "derived", "plan"):
        need(isinstance(head.get(key, {}), dict), f"{key} is {head.get(key)!r}; write it as a table [{key}]")
    need(isinstance(head.get("min_sm", 80), int), f"min_sm is {head.get('min_sm')!r}; give a whole number such as 80")
    need(head["name"] == path.stem, f"name is {head['name']!r} but the file is {path.name}; make them equal")
    need(bool(head["computes"]) and set(head["computes"]) <= set(DIRECTIONS),
         f"computes is {head['computes']}; choose from {', '.join(DIRECTIONS)}")
    need(set(head["precision"]) <= set(PRECISIONS),
         f"precision is {head['precision']}; choose from {', '.join(PRECISIONS)}")
    forms = head.get("layer", list(FORMS))
    need(bool(forms) and set(forms) <= set(FORMS), f"layer is {forms}; choose from {', '.join(FORMS)}")
    tune = []
    for name, spec in head.get("tune", {}).items():
        values = spec.get("values", []) if isinstance(spec, dict) else []
        need(isinstance(values, list) and bool(values) and all(isinstance(v, int) for v in values),
             f"tunable {name} needs values = [whole numbers]")
        need(spec.get("default") in values, f"tunable {name} has default {spec.get('default')!r}, "
             f"which is not among its values {values}")
        tune.append(Tunable(name, tuple(map(int, values)), int(spec["default"]), spec.get("help", "")))
    direction = _direction(head["computes"])
    need(all((t.values, t.default) in (((0, 1), 0), ((1,), 1)) for t in tune if t.name == TAKES_CHANNELS_LAST),
         f"the tunable {TAKES_CHANNELS_LAST} has neither the values 0 and 1 with default 0, nor the value 1 alone")
    derived = head.get("derived", {})
    plan = {name: text_of for names, text_of in head.get("plan", {}).items() for name in names.split()}
    for name, text_of in plan.items():
        need(isinstance(text_of, str), f"[plan] {name} is {text_of!r}; give a C++ expression in quotes")
        need(name in derived or name[:1].isupper(),
             f"[plan] {name} is no [derived] value; name one, or begin the name of a C++ type with a capital letter")
    return Variant(
        name=head["name"], direction=direction, computes=tuple(head["computes"]),
        after=head.get("after", ""), idea=head["idea"], precision=tuple(head["precision"]), forms=tuple(forms),
        needs=tuple(head.get("needs", [])), min_sm=int(head.get("min_sm", 80)), arch=str(head.get("arch", "")),
        kernel=str(head.get("kernel", "")),
        tune=tuple(tune),
        derived=tuple(derived.items()), plan=tuple(plan.items()), path=path,
        text=lines_of(text, direction, path.name))


def _direction(computes: list[str]) -> str:
    """The launcher: that of the one direction, or `backward` for both gradients from one launch."""
    if len(computes) == 1:
        return computes[0]
    if set(computes) == {GRAD_INPUT, GRAD_WEIGHT}:
        return BACKWARD
    raise RenderError(f"computes is {computes}; a file computes one direction, or {FORWARD} and {GRAD_INPUT}, or "
                      f"{GRAD_INPUT} and {GRAD_WEIGHT} together.")


def header_of(head: dict[str, Any], direction: str, file: str) -> dict[str, Any]:
    """The header for `direction`: its table (`[forward]` or `[grad_input]`) replaces keys of the common part."""
    for name in DIRECTIONS_OF_FOLDER:
        if not isinstance(head.get(name, {}), dict):
            raise RenderError(f"The header of {file}: {name} is {head[name]!r}; write it as a table [{name}].")
    merged = {key: value for key, value in head.items() if key not in DIRECTIONS_OF_FOLDER}
    for key, value in head.get(direction, {}).items():
        below = merged.get(key, {})
        merged[key] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


def lines_of(text: str, direction: str, file: str) -> str:
    """The template's text in that direction. Raises `RenderError` for a condition with KW_FORWARD in another form, or without
    `#endif`."""
    if "KW_FORWARD" not in text:
        return text
    lines = text.split("\n")
    open_lines: list[tuple[int, bool | None]] = []  # line, and whether what follows is kept; None: some other condition
    for number, line in enumerate(lines):
        asks, ours = _ASKS.match(line), False
        if asks:
            open_lines.append((number, (direction == FORWARD) != bool(asks["n"])))
            ours = True
        elif _OPENS.match(line):
            if "KW_FORWARD" in line:
                raise RenderError(f"Line {number + 1} of {file} is {line.strip()!r}; write #ifdef KW_FORWARD or "
                                  f"#ifndef KW_FORWARD.")
            open_lines.append((number, None))
        elif _ELSE.match(line) and open_lines and open_lines[-1][1] is not None:
            open_lines[-1] = (open_lines[-1][0], not open_lines[-1][1])
            ours = True
        elif _CLOSES.match(line) and open_lines:
            ours = open_lines.pop()[1] is not None
        if ours or any(kept is False for _, kept in open_lines):
            lines[number] = ""
    if open_lines:
        raise RenderError(f"The condition in line {open_lines[-1][0] + 1} of {file} has no #endif.")
    return "\n".join(lines)
