"""Candidate -> CUDA source. The template's own text is not changed. Headers are put before it; two small structs and one
export line are put after it. `#line` directives make compiler messages point at the real files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from .candidate import Candidate, layer_fields
from .cuda_pieces import Constant, function_macros, with_literals, without_literals, words
from .errors import RenderError
from .identity import candidate_id
from .layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT
from .reduced_text import (
    keeps,
    reduced,
    settled,
    without_branches,
    without_shapes,
    without_statements,
)
from .template_instances import Constants
from .variants import TEMPLATES, Variant, lines_of

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.M)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.M)
_TUNABLE = re.compile(r"static constexpr int (\w+) = (-?\d+);")
# Only useful in the folder of the templates: the include guard, the reference to a family's README, and the blanks that align
# the line ends of a macro.
_ONLY_HERE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n\n?|^// \S+/README\.md has a picture and the words\.\n\n?"
                        r"| README\.md has the words\.$|(?<=\S)[ \t]+(?= \\\n)", re.M)
_TUNE_USE = re.compile(r"\bTune::([A-Za-z_]\w*)")
_LAYER_USE = re.compile(r"\b(?:Layer::|layer\.)([a-z]\w*)")
_ONE_ARCH = 90       # kernels of this generation are compiled only for sm_90a
_MACRO = {FORWARD: "KW_EXPORT_FORWARD", GRAD_INPUT: "KW_EXPORT_GRAD_INPUT", GRAD_WEIGHT: "KW_EXPORT_GRAD_WEIGHT",
          BACKWARD: "KW_EXPORT_BACKWARD"}
_SCALAR = {"float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16"}
_SCALAR_HEADER = {"float16": "contract/scalar_half.cuh", "bfloat16": "contract/scalar_bfloat16.cuh"}
_LAYER_MEMBERS = {"scalar", "accumulator", "is_constant"}
_PART = re.compile(r'^#line 1 "([^"]+)"\n', re.M)
_EXPORTS = re.compile(r"^KW_EXPORT_([A-Z_]+)\(", re.M)
_K = TypeVar("_K")
_V = TypeVar("_V")
_Found = tuple[dict[_K, _V], Callable[[_K], bool]]   # what is known of a text for one kernel, and which places it has
ENTRY = "kw_"  # a single rendering exports the symbols kw_forward and kw_forward_workspace


@dataclass(frozen=True)
class Rendered:
    """`source` is the whole translation unit of one candidate. `render_batch` uses the other parts, so that equal texts stand
    in a batch once."""

    candidate: Candidate
    candidate_id: str
    source: str
    headers: tuple[tuple[str, str], ...]  # (name, text), in inclusion order
    body: str                             # template text, includes blanked
    instance: str                         # the two structs

    @property
    def tail(self) -> str:
        """The last part of the source: the two structs and the export line."""
        direction = self.candidate.direction
        return f"{self.instance}\n{_MACRO[direction]}({ENTRY}{direction}, Layer, Tune)"


def render(candidate: Candidate) -> Rendered:
    """The source of one candidate. Raises `RenderError` for an include that does not exist and for an undefined member of Tune
    or Layer."""
    variant = candidate.variant
    root = variant.path.parent.parent
    _check_names(candidate)
    headers = candidate.headers or _headers(["contract/export.cuh", *_scalar_header(candidate), *INCLUDE.findall(variant.text)],
                       root, variant.path.name)
    body = INCLUDE.sub("", variant.text)
    instance = _instance(candidate)
    name = place(variant)
    export = f"{_MACRO[variant.direction]}({ENTRY}{variant.direction}, Layer, Tune)"
    source = "\n".join([*(_placed(n, t) for n, t in headers), _placed(name, body),
                        f'#line 1 "instance of {variant.key}"', instance, export, ""])
    identity = candidate_id(*(text for _, text in headers), body, instance, export, compile_flags=candidate.compile_flags)
    return Rendered(candidate, identity, source, headers, body, instance)


def render_batch(rendered: Sequence[Rendered]) -> str:
    """One translation unit for many candidates: every header and every template body stands in it once.

    Symbols carry the candidate's id: kw_forward_<id>, kw_forward_<id>_workspace.
    """
    headers: dict[str, str] = {}
    bodies: dict[str, str] = {}
    parts: list[str] = []
    for item in rendered:
        for name, text in item.headers:
            if headers.setdefault(name, text) != text:
                raise RenderError(f"Two different files are both included as {name}; build them in separate batches.")
    parts += [_placed(n, t) for n, t in headers.items()]
    seen: set[str] = set()
    for item in rendered:
        if item.candidate_id in seen:
            continue
        seen.add(item.candidate_id)
        variant = item.candidate.variant
        space = bodies.get(item.body)
        if space is None:
            digest = hashlib.sha256(item.body.encode()).hexdigest()[:8]
            space = bodies[item.body] = f"{variant.direction}_{variant.name.replace('-', '_')}_{digest}"
            parts.append(f"namespace {space} {{\n{_placed(place(variant), item.body)}\n"
                         f"}}  // namespace {space}")
        parts.append(f'#line 1 "instance of {variant.key}"\nnamespace c_{item.candidate_id} {{\nusing namespace {space};\n'
                     f"{item.instance}\n{_MACRO[variant.direction]}({symbol(item)}, Layer, Tune)\n"
                     f"}}  // namespace c_{item.candidate_id}")
    return "\n".join(parts) + "\n"


def files_of(candidate: Candidate, rendered: Rendered) -> tuple[tuple[str, str], ...]:
    """(name, text) of the files of a rendering, in its order. Include lines and `#ifdef KW_FORWARD` are kept, so that `render`
    makes the same program from them. The template's header (its first comment) is left out."""
    variant = candidate.variant
    root = variant.path.parent.parent
    if candidate.headers:
        raise RenderError(f"{variant.name} has a header that was edited in a rendering. A file holds the headers of the "
                          "templates; make the change in the template to export it.")
    own = variant.text if variant.forked_from else variant.path.read_text(encoding="utf-8")
    names = [name for name, _ in rendered.headers]
    return (*((name, _file(name, root).read_text(encoding="utf-8")) for name in names),
            (place(variant), own[own.index("*/") + 2:].lstrip("\n")))


def reduced_files(kernels: Sequence[tuple[Candidate, Rendered]],
                  configs: Mapping[Candidate, Sequence[Mapping[str, int]]] | None = None, *, other_layers: bool = True
                  ) -> dict[str, str]:
    """The files of these renderings, each once, without code that none of them runs: branches for the emulator or for another
    direction, and unused declarations. `configs`: the other configs in which a candidate's text is built, for other layers.
    Without `other_layers` the texts are built only for the candidates' own layers. A file that is not a shipped template stays
    whole. Raises `RenderError` if two files have the same name."""
    files: dict[str, str] = {}
    directions: dict[str, set[str]] = {}
    least_sm: dict[str, int] = {}       # of the kernels that a file is for
    own: set[str] = set()
    for candidate, rendered in kernels:
        root = candidate.variant.path.parent.parent
        directions.setdefault(place(candidate.variant), set()).add(candidate.direction)
        for name, text in files_of(candidate, rendered):
            least_sm[name] = min(least_sm.get(name, candidate.variant.min_sm), candidate.variant.min_sm)
            if files.setdefault(name, text) != text:
                raise RenderError(f"Two different files are both called {name}; export the candidates one by one.")
            if root != TEMPLATES and (root / name).is_file():
                own.add(name)
    texts = {name: text if name in own else without_branches(
        text, _known(directions.get(name, ())) | _known_of_gpu(least_sm[name])) for name, text in files.items()}
    answers: dict[str, list[_Found[int, bool]]] = {}
    shapes: dict[str, list[dict[str, set[int]]]] = {}
    literals: dict[str, list[_Found[Constant, str]]] = {}
    for candidate, rendered in kernels:
        used = {name: texts[name] for name, _ in files_of(candidate, rendered)}
        others = (configs or {}).get(candidate, ())
        tune = {n: v for n, v in candidate.config.items() if all(other.get(n) == v for other in others)}
        of_layer = None if other_layers else _of_layer(used, rendered.instance, candidate.direction)
        for name, found in settled(used, rendered.instance, tune).items():
            known = found | (of_layer.answers(name) if of_layer else {})
            answers.setdefault(name, []).append((known, partial(of_layer.runs, name) if of_layer else _always))
            shapes.setdefault(name, []).append(of_layer.shapes() if of_layer else {})
            literals.setdefault(name, []).append(
                (of_layer.literals(name) if of_layer else {}, _always))
    macros, before = function_macros(texts.values()), dict(texts)
    for name in texts.keys() - own:
        before[name] = without_statements(texts[name], _common(answers[name]))
        texts[name] = without_statements(*with_literals(
            texts[name], _common(literals[name]), macros, _common(answers[name])))
    texts = {name: text if name in own else without_shapes(text, [*texts.values()], _joint(shapes[name]))
             for name, text in texts.items()}
    texts = reduced(texts, words("\n".join(_tail(r) for _, r in kernels)), whole=own, before=None if other_layers else before)
    return {name: text if name in own else _ONLY_HERE.sub("", text) for name, text in texts.items()}


def restored(source: str) -> str:
    """The source of a kernel of an exported file, with the full text of its templates, so that the emulator can build it. A
    part is replaced only if it contains all code of the shipped file that the kernel uses, and no other code. Any other part
    stays as it is."""
    found = sections(source)
    parts = dict(found)
    names, last = list(parts), found[-1][1] if found else ""
    exports = _EXPORTS.search(last)
    if exports is None or not names[-1].startswith("instance of ") or len(names) < 2:
        return source
    template, direction = names[-2], exports[1].lower()
    with suppress(RenderError):         # a part that was edited may be beyond it: the compiler will say so
        parts = {name: lines_of(text, direction, name) for name, text in found}
    full: dict[str, str] = {}

    def take(name: str) -> None:
        if name not in full:
            text = _shipped(name, direction) if name != template or (TEMPLATES / name).is_file() else None
            full[name] = ""
            for inner in INCLUDE.findall(text or ""):
                take(inner)
            del full[name]
            full[name] = parts.get(name, "") if text is None else text

    known = [name for name in names[:-1] if name in _SCALAR_HEADER.values()]
    for name in ["contract/export.cuh", *known, *([] if (TEMPLATES / template).is_file() else names[:-2]), template]:
        take(name)
    resolved = {name: without_branches(text, _known({direction})) for name, text in full.items()}
    tune = {name: int(value) for name, value in _TUNABLE.findall(last.partition("struct Tune {")[2])}
    on_newest = {name: without_branches(text, _known_of_gpu(_ONE_ARCH)) for name, text in resolved.items()}
    of_layer = _of_layer(on_newest, last[:exports.start()], direction)
    answers = {name: found | of_layer.answers(name) for name, found in settled(on_newest, last, tune).items()}
    macros = function_macros(full.values())
    literals = {name: of_layer.literals(name) for name in full}
    least = {name: without_statements(*with_literals(text, literals[name], macros, answers[name]))
             for name, text in on_newest.items()}
    least = {name: without_shapes(text, [*least.values()], of_layer.shapes()) for name, text in least.items()}
    own = {name: _joined(text) for name, text in reduced(least, words(last)).items()}
    whole = {name: _joined(text) for name, text in resolved.items()}
    some, least = ({name: without_literals(found.get(name, ""), literals[name], macros, text) for name, text in whole.items()}
                   for found in (parts, own))
    same = {name: keeps(some[name], least[name], text) for name, text in whole.items()}
    return "\n".join([*(_placed(name, _joined(text) if same[name] else parts.get(name, "")) for name, text in full.items()),
                      f'#line 1 "{names[-1]}"', last])


def sections(source: str) -> list[tuple[str, str]]:
    """(name, text) of the parts of a rendering, in their order: headers, the template, the instance."""
    _, *split = _PART.split(source)
    return list(zip(split[::2], split[1::2], strict=True))


def place(variant: Variant) -> str:
    """The template's name among the files of a rendering."""
    return f"{variant.path.parent.name}/{variant.path.name}"


def symbol(rendered: Rendered) -> str:
    """The launcher's symbol in a batch. With `_workspace` appended it is the symbol of the workspace query."""
    return f"{ENTRY}{rendered.candidate.direction}_{rendered.candidate_id}"


def _folders(root: Path) -> str:
    return "the shipped templates" if root == TEMPLATES else f"{root.name}/ or of the shipped templates"


def _headers(names: Sequence[str], root: Path, asked_by: str) -> tuple[tuple[str, str], ...]:
    done: dict[str, str] = {}

    def take(name: str, by: str) -> None:
        if name in done:
            return
        path = _file(name, root)
        if not path.is_file():
            raise RenderError(f'{by} includes "{name}", which does not exist.',
                              advice=f"Name a header of {_folders(root)}, such as contract/problem.cuh.")
        text = path.read_text(encoding="utf-8")
        done[name] = ""  # before its own includes, because headers may include each other
        for inner in INCLUDE.findall(text):
            take(inner, name)
        del done[name]
        done[name] = _joined(text)

    for name in names:
        take(name, asked_by)
    return tuple(done.items())


def _joined(text: str) -> str:
    """The text as it stands in a translation unit, where its includes come before it."""
    return _PRAGMA_ONCE.sub("", INCLUDE.sub("", text))


def _known(directions: Iterable[str]) -> dict[str, bool]:
    """Macro -> whether it is defined. The code is for a GPU, so the emulator's macro is not defined. KW_FORWARD is known if a
    template for two directions is used in only one of them."""
    asked = {FORWARD, GRAD_INPUT} & set(directions)
    return {"__CUDACPU__": False, **({"KW_FORWARD": FORWARD in asked} if len(asked) == 1 else {})}


def _known_of_gpu(min_sm: int) -> dict[str, bool]:
    """What kernels from that generation on know of the architecture that they are compiled for. The compiler also reads the
    text for the host, where `__CUDA_ARCH__` is not defined, but it makes no code of device functions there."""
    known = {f"__CUDA_ARCH__ {sign} {10 * sm}": sign == ">=" for sm in range(80, min_sm + 1) for sign in (">=", "<")}
    return known | ({"__CUDA_ARCH_FEAT_SM90_ALL": True} if min_sm == _ONE_ARCH else {})


def _common(answers: Sequence[_Found[_K, _V]]) -> dict[_K, _V]:
    """The answers that are the same for all kernels made from a text that have the place."""
    every = {place: answer for found, _ in answers for place, answer in found.items()}
    return {place: answer for place, answer in every.items()
            if all(found[place] == answer if place in found else not has(place) for found, has in answers)}


def _always(_place: object) -> bool:
    return True


def _of_layer(texts: Mapping[str, str], instance: str, direction: str) -> Constants:
    """What is known of the texts of a kernel in that direction, with the layer's numbers."""
    in_direction = {name: _blanked(text, lines_of(text, direction, name)) for name, text in texts.items()}
    return Constants(in_direction, instance, (direction, f"{direction}_workspace"))


def _blanked(text: str, kept: str) -> str:
    """The text with blanks in the place of the lines that `kept` lacks, so that every place stays."""
    return "\n".join(line if line == one else " " * len(line) for line, one in zip(
        text.split("\n"), kept.split("\n"), strict=True))


def _joint(shapes: Sequence[dict[str, set[int]]]) -> dict[str, set[int]]:
    """The numbers with which any kernel uses a struct, if they are known for each kernel."""
    known = [name for name in shapes[0] if all(name in found for found in shapes)]
    return {name: set().union(*(found[name] for found in shapes)) for name in known}


def _tail(rendered: Rendered) -> str:
    return f"{rendered.instance}\n{_MACRO[rendered.candidate.direction]}({ENTRY}, Layer, Tune)"


def _shipped(name: str, direction: str) -> str | None:
    """The text of a shipped file, for a template in that direction. None if no such file is shipped."""
    path = TEMPLATES / name
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".cuh" else lines_of(text, direction, name)


def _file(name: str, root: Path) -> Path:
    return root / name if (root / name).is_file() else TEMPLATES / name


def _placed(name: str, text: str) -> str:
    return f'#line 1 "{name}"\n{text.rstrip()}'


def _scalar_header(candidate: Candidate) -> list[str]:
    return [_SCALAR_HEADER[candidate.dtype]] if candidate.dtype in _SCALAR_HEADER else []


def _instance(candidate: Candidate) -> str:
    scalar = _SCALAR[candidate.dtype]
    accumulator = "double" if candidate.dtype == "float64" else "float"
    fields = layer_fields(candidate.layer)
    if candidate.form == "constant":
        members = "".join(f"  static constexpr int {k} = {v};\n" for k, v in fields.items())
    else:
        members = "".join(f"  int {k};\n" for k in fields)
    tune = "".join(f"  static constexpr int {k} = {v};\n" for k, v in candidate.config.items())
    constant = "true" if candidate.form == "constant" else "false"
    return (f"struct Layer {{\n  using scalar = {scalar};\n  using accumulator = {accumulator};\n"
            f"  static constexpr bool is_constant = {constant};\n{members}}};\n"
            f"struct Tune {{\n  static constexpr Precision precision = Precision::{candidate.precision};\n{tune}}};")


def _check_names(candidate: Candidate) -> None:
    variant = candidate.variant
    tune = set(candidate.config) | {"precision"}
    members = set(layer_fields(candidate.layer)) | _LAYER_MEMBERS
    code = _blank_comments(variant.text)
    for pattern, known, where in ((_TUNE_USE, tune, "[tune]"), (_LAYER_USE, members, "the layer")):
        for use in pattern.finditer(code):
            if use[1] not in known:
                line = code.count("\n", 0, use.start()) + 1
                raise RenderError(f"{variant.path.name} uses {use[0]} in line {line}, which is not defined.",
                                  advice=f"Add {use[1]} to [tune], or correct the name in line {line}."
                                  if where == "[tune]" else f"The layer has {', '.join(sorted(members))}.")


def _blank_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
