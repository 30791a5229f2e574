"""Writes a recipe as one self-contained Python file: `ModelNew` with the CUDA text that was judged.

`model_new.py.txt` is the fixed part of that file. This module writes its docstring, the class and the CUDA sources. Lines
between `@IF word@` and `@END@` stand only in files whose kernels or CUDA texts have that word.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from ...core.best_known import BestKnown
from ...core.candidate import EMULATED_SM, Candidate, derived_values, layer_fields
from ...core.env import require_torch
from ...core.errors import BadRequest
from ...core.expressions import evaluate, folded, is_truth, names_in
from ...core.gpu import sm_of
from ...core.layer import BACKWARD, DTYPES, FORWARD, LAUNCHES, ConvTranspose, Workload
from ...core.orders import ModuleOrder
from ...core.plain_text import plain
from ...core.presets import SUITES, Preset, problem_of
from ...core.replies import ModuleJudged
from ...core.template import Rendered, place, reduced_files, render
from ...core.trial import Trial
from ..reporting.report import is_emulated
from ..running import outcome
from ..running.request import Row as RunRow
from ..running.request import Run
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ..sessions.session import Session
from .best_recipe import Row, best_recipe, command, evidence, header_notes, other_dtypes
from .recipe import Recipe, fastest, serves_any_layer

Kind = tuple[str, str, str]    # a template, a dtype, a precision
_FIXED = Path(__file__).with_name("model_new.py.txt")
_FREE = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "bias",
         "dilation")
_DEFAULTS = {"stride": "1", "padding": "0", "output_padding": "0", "groups": "1", "bias": "False", "dilation": "1"}
_PRECISION = {
    "ieee": "float32, every product and sum rounded as IEEE says",
    "tf32": "TF32: operands rounded to 10 bits of fraction, sums in float32",
    "tf32x3": "three TF32 products for each product, about as exact as float32",
    "fp16": "float16, sums in float32", "bf16": "bfloat16, sums in float32", "fp64": "float64",
}
_ABOUT_TF32 = (
    "PyTorch computes a float32 convolution in TF32 if torch.backends.cudnn.allow_tf32 is True, which is the default.",
    "A kernel in ieee or tf32x3 is then more exact than PyTorch. The results may differ by 1e-3.")
_IF = re.compile(r"@IF (\S+)@\n(.*?)(?:@ELSE@\n(.*?))?@END@\n", re.S)   # lines for files that have that word
_WIDTH = 116         # characters of a line of the docstring
_NUMBER = re.compile(r"\d+")
_LEAST_SERIES = 5    # so many repetitions of a line are written as a pattern
# KernelBench searches the text of an answer for these words and rejects it; `except` counts only outside comments.
_FORBIDDEN = (r"\bpass\b", r"\btry\s*:")
_FORBIDDEN_IN_CODE = (r"\bexcept\b", r"\bimport\s+threading\b")


def _names_taken() -> set[str]:
    """The names that the fixed part defines. A class of the same name would hide one that the file needs."""
    text = _FIXED.read_text(encoding="utf-8")
    return set(re.findall(r"^(?:class|def|import) (\w+)", text, re.M)) | set(re.findall(r"^from \S+ import (\w+)$", text, re.M))


def export_text(recipe: Recipe | Sequence[Recipe], *, constructor: Preset | None = None, class_name: str = "ModelNew",
                debug_sync: bool = False, notes: Sequence[str] = (), arch: str = "", other_layers: bool = True) -> str:
    """The text of the file. `recipe`: one or several, for other layers or for the same layer in other dtypes. The class is for
    the layer of the first recipe. With an empty `class_name` the file has functions and no class. `constructor`: the class has
    the signature and the parameter names of this preset's `Model`; by default those of nn.ConvTransposeNd. `debug_sync` turns
    on the debug mode that KW_DEBUG_SYNC=1 turns on otherwise. `notes`: sentences for the docstring. `arch`: with it the file
    contains the times measured on that GPU for similar layers, from which it decides whether its kernels are used for other
    layers. Without `other_layers` PyTorch computes those, and the file is shorter. Raises `BadRequest` for a preset of
    another layer, for an invalid `class_name`, and for a word that KernelBench rejects.
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    first = recipes[0]
    if class_name and (not class_name.isidentifier() or keyword.iskeyword(class_name) or class_name in _names_taken()):
        raise BadRequest(f"class_name {class_name!r} cannot be a class of the file: it is not a Python name, or one that "
                         "the file uses; choose ModelNew.", field="class_name")
    if constructor is not None and constructor.layer != first.layer:
        raise BadRequest(f"The recipe is for {first.layer}, preset {constructor.name} is {constructor.layer}; "
                         f"export it without the preset.", field="constructor")
    kernels = [[(c, render(c)) for c in r.chosen.values()] for r in recipes]
    proven = {c: r.proven[d] for r in recipes for d, c in r.chosen.items() if d in r.proven}
    every: list[tuple[Candidate, Rendered]] = []      # of several for one direction, layer and dtype, the first counts
    for one, rendered in (pair for found in kernels for pair in found):
        if all((one.direction, one.dtype, one.layer) != (c.direction, c.dtype, c.layer) for c, _ in every):
            every.append((one, rendered))
    served = [c for c, _ in every if not c.variant.name.startswith("naive")]
    known = {(c.variant.key, c.dtype, c.precision): evidence(c, arch) for c in served} if arch and other_layers else {}
    configs = {c: [{**c.variant.config({}), **tune} for *_, ratio, tune in known.get((c.variant.key, c.dtype, c.precision), ())
                   if ratio] for c in served}
    rules = _rules(configs)
    layers = list(dict.fromkeys((layer, positions) for rows in known.values() for layer, positions, *_ in rows))
    parts = {"DOCSTRING": _docstring(recipes, kernels, constructor, notes), "NAME": _name(every),
             "DTYPES": " or ".join(dict.fromkeys(r.workload.dtype for r in recipes)),
             "DEBUG_SYNC": str(int(debug_sync)), "CLASS": _class(first.layer, constructor, class_name) if class_name else "",
             "MADE_FOR": _rows(_made_for(r.workload) for r in recipes), "KERNELS": _table(every, proven),
             "RULES": _rows(f'"{key}": {rule}' for key, rule in rules.items() if _first(rules, rule) == key),
             "SAME_RULES": "".join(f'_RULES["{key}"] = _RULES["{same}"]\n' for key, rule in rules.items()
                                   if (same := _first(rules, rule)) != key),
             "KNOWN_ON": str(sm_of(arch) if arch else None),
             "LAYERS": _rows(map(repr, layers)),
             "KNOWN": _rows(f'("{key}", torch.{dtype}, "{precision}"): [' + _filled(
                 f"({layers.index((layer, positions))}, {ratio}, {tune})," for layer, positions, ratio, tune in rows) + "]"
                 for (key, dtype, precision), rows in _beside(served, known) if rows),
             "TEXTS": _rows((f'"{name}": {literal(text)}' for name, text in reduced_files(
                 every, configs, other_layers=other_layers).items()), 0)}
    present = parts["KERNELS"] + parts["TEXTS"] + " OTHER_LAYERS" * other_layers
    text = _IF.sub(lambda m: m[2] if m[1] in present else m[3] or "", _FIXED.read_text(encoding="utf-8"))
    text = re.sub(r"@([A-Z_]+)@", lambda m: parts[m[1]], text)
    _check_words(text)
    return text


def suite_files(suite: str, arch: str, *, precision: str = "", all_dtypes: bool = False, other_layers: bool = True
                ) -> Iterator[tuple[str, str]]:
    """Every layer's file, then README.md. A layer without a known kernel has a row that says so and no file. A file with
    KernelBench's constructor has the kernels of the other dtypes only with `all_dtypes`: KernelBench computes in float32. For
    `other_layers` see `export_text`."""
    rows, every = [], [*["--all-dtypes"] * all_dtypes, *["--one-layer"] * (not other_layers)]
    for preset in SUITES[suite].values():
        workload = preset.workload()
        try:
            recipe, used = best_recipe(workload, arch, precision=precision)
        except BadRequest as error:
            rows.append(f"| | {preset.name} | {preset.layer} | PyTorch: {error} | | |")
            continue
        name = preset.name.rpartition("/")[2].replace("-", "_") + ".py"
        original = problem_of(workload)
        others = [] if original and not all_dtypes else other_dtypes(workload, arch)
        text = export_text([recipe, *others], constructor=original, arch=arch, other_layers=other_layers,
                           notes=header_notes(used, workload, arch, precision, options=every))
        yield name, text
        rows += [_table_row(name, preset.name, entry) for entry in used]
    yield "README.md", "\n".join([
        f"# Files of the suite {suite} for {arch}", "",
        "Times are of the kernels alone, medians with a cold L2. PyTorch computes a direction that has no row.",
        "To compare a file with PyTorch on your GPU: `python FILE --check`.", "",
        f"Written by `{command(['--suite', suite, *every], arch, precision)} --out FOLDER`.", "",
        "| file | layer | direction | kernel | ms | PyTorch ms |", "|---|---|---|---|---|---|", *rows, ""])


def constructor_arguments(layer: ConvTranspose, preset: Preset | None = None) -> list[Any]:
    """The positional arguments with which the exported class constructs this layer (KernelBench's `get_init_inputs`)."""
    ignored = preset.ignored if preset else ()
    return [int(_DEFAULTS[name]) if name in ignored else _argument(getattr(layer, name))
            for name in (preset.constructor if preset else _FREE)]


def verify(call: Callable[[ModuleOrder], ModuleJudged], order: ModuleOrder) -> ModuleJudged:
    """Run the exported text in a fresh worker. On the CPU its kernels are built for the emulator. `call` sends the order to the
    worker. If the file kills its process or hangs, the reply has the corresponding status. Raises `BadRequest` if the order
    itself cannot be carried out.
    """
    require_torch()
    try:
        return call(order)
    except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
        if isinstance(error, WorkerFailed) and error.bad_request:
            raise BadRequest(str(error)) from error
        return ModuleJudged(**vars(outcome.failure(error, building=False)))


def best_rows(run: Run) -> dict[str, RunRow]:
    """Direction -> the row with the fastest right trial, for the directions of the fastest recipe. Without GPU times it is the
    first right row."""
    times = {t.trial_id: t.kernel_ms.median_ms if t.kernel_ms and not is_emulated(t) else float("inf")
             for t in run.trials if t.ok}
    best: dict[str, RunRow] = {}
    for row in run.rows:
        if row.trial_id in times and row.direction in LAUNCHES:
            if row.direction not in best or times[row.trial_id] < times[best[row.direction].trial_id]:
                best[row.direction] = row
    return {d: best[d] for d in fastest({d: times[row.trial_id] for d, row in best.items()})}


def judge_modules(call: Callable[..., ModuleJudged], run: Run, session: Session, device: str, scratch: Path) -> list[Trial]:
    """module_ms: the fastest right candidate of each direction becomes a ModelNew, judged against nn.ConvTranspose. Gives the
    trials of both, the latter in each of its modes; none when no candidate was right."""
    best = best_rows(run)
    if not best:
        return []
    request = run.request
    recipe = Recipe.of(request.workload, {d: row.candidate for d, row in best.items()})
    preset = problem_of(request.workload)
    text = export_text(recipe, constructor=preset)
    order = module_order(text, request.workload, device=device, scratch=scratch, preset=preset)
    try:
        result = call(replace(order, time=request.time, effort=request.effort), limit_s=max(300.0, 4 * request.run_timeout_s))
    except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
        result = ModuleJudged(**vars(outcome.failure(error, building=False)))
    return outcome.module_trials(session, run, result, recipe={d: row.candidate for d, row in best.items()}, text=text)


def proof_workload(workload: Workload, device: str) -> Workload:
    """The workload on which an exported file is judged. On a GPU it is the given one. On the emulator, which is thousands of
    times slower, the input is small: a batch of at most 2, and only a few tiles of positions."""
    if device != "cpu":
        return workload
    size = workload.input_size
    longest = {1: 300, 2: 14, 3: 6}[workload.layer.dims]
    least = tuple(ceil((2 * p - d * (k - 1) - op) / s) + 1 for k, s, p, op, d in zip(
        workload.layer.kernel_size, workload.layer.stride, workload.layer.padding, workload.layer.output_padding,
        workload.layer.dilation, strict=True))
    small = tuple(max(1, min(n, longest + low)) for n, low in zip(size, (max(0, v) for v in least), strict=True))
    return replace(workload, batch=min(workload.batch, 2), input_size=small, preset="")


def module_order(text: str, workload: Workload, *, device: str, scratch: Path, preset: Preset | None = None,
                 class_name: str = "ModelNew") -> ModuleOrder:
    """The order to judge an exported file. `preset`: the preset whose constructor the file has."""
    return ModuleOrder(text, workload, tuple(constructor_arguments(workload.layer, preset)), device, scratch, class_name,
                       attribute=preset.attribute if preset else "")


def note_lines(notes: Sequence[str]) -> list[str]:
    """The notes as lines of a docstring. Names in them, of sessions and devices, may be any text: quotes and backslashes are
    escaped, and a note with a word that KernelBench rejects is left out."""
    escaped = (plain(note).replace("\\", "\\\\").replace('"', '\\"') for note in notes
               if not any(re.search(word, note) for word in _FORBIDDEN))
    return [line for note in escaped for line in textwrap.wrap(note, _WIDTH, break_on_hyphens=False)]


def literal(text: str) -> str:
    """A Python expression for this text. If possible it consists of raw strings over several lines. Lines that differ only in
    numbers, which increase in step, are written once, as a pattern for `_each`."""
    if '"""' in text or text.endswith(("\\", '"')) or "\r" in text:
        return repr(text)
    lines = text.splitlines(keepends=True)
    parts, begin, at = [], 0, 0
    while at < len(lines):
        if (series := max((_series(lines, at, period) for period in (1, 2, 3)), key=lambda found: found[0]))[0]:
            parts += [*_raw("".join(lines[begin:at])), series[1]]
            begin = at = at + series[0]
        else:
            at += 1
    return " + ".join([*parts, *_raw("".join(lines[begin:]))]) or '""'


def _docstring(recipes: Sequence[Recipe], kernels: Sequence[Sequence[tuple[Candidate, Rendered]]], preset: Preset | None,
              notes: Sequence[str]) -> str:
    """The first part of the file's docstring; `kernels`: the kernels of each recipe."""
    layer, dtypes = recipes[0].layer, list(dict.fromkeys(r.workload.dtype for r in recipes))
    titles = list(dict.fromkeys(str(r.layer) for r in recipes))
    title = titles[0] if len(titles) == 1 else f"{len(titles)} layers"
    lines = [f'"""{title} in {" and ".join(dtypes)}, computed by CUDA kernels instead of PyTorch\'s.']
    for recipe, found in zip(recipes, kernels, strict=True):
        lines += ["", *([f"{recipe.layer} in {recipe.workload.dtype}:", ""] if len(recipes) > 1 else []),
                  *_directions(recipe, {c.direction: r for c, r in found})]
    lines += ["", *note_lines(notes)] if notes else []
    lines += ["", *_ABOUT_TF32, ""] if "float32" in dtypes else [""]
    kind = f"nn.ConvTranspose{layer.dims}d"
    original = f"KernelBench's problem {preset.number} (level 1)" if preset else f"{kind}, with its output_size"
    lines.append(f"Constructor, parameter names and forward are those of {original}.")
    return "\n".join(lines)


def _directions(recipe: Recipe, rendered: dict[str, Rendered]) -> list[str]:
    lines = []
    for direction in LAUNCHES:
        candidate = getattr(recipe, direction)
        if candidate is None and direction == BACKWARD:
            continue
        if candidate is None and direction != FORWARD and recipe.backward:
            lines.append(f"    {direction:<12} by backward; its other result is not used")
            continue
        if candidate is None:
            own = (f"torch.conv_transpose{recipe.layer.dims}d" if direction == FORWARD
                   else "torch.ops.aten.convolution_backward")
            lines.append(f"    {direction:<12} by PyTorch: {own}, with PyTorch's TF32 setting")
            continue
        config = " ".join(f"{k}={v}" for k, v in candidate.config.items())
        lines.append(f"    {direction:<12} {candidate.variant.name} {config} (candidate {rendered[direction].candidate_id})")
        lines.append(f"    {'':<12} computes in {candidate.precision}: {_PRECISION[candidate.precision]}")
        if direction == BACKWARD:
            lines.append(f"    {'':<12} both gradients from one launch, if both are needed")
    return lines


def _class(layer: ConvTranspose, preset: Preset | None, name: str) -> str:
    kind = f"ConvTranspose{layer.dims}d"
    if preset is None:
        return f'''class {name}(nn.{kind}):
    """nn.{kind} with the kernels of this file."""

    def forward(self, input, output_size=None):
        output_padding = self.output_padding if output_size is None else self._output_padding(
            input, output_size, list(self.stride), list(self.padding), list(self.kernel_size), {layer.dims},
            list(self.dilation))
        return conv_transpose(input, self.weight, self.bias, self.stride, self.padding, output_padding,
                              self.groups, self.dilation)

    def prepare(self, input, measure=False):
        return prepare(input, *_arguments(self), measure=measure)

    def kernels(self, input):
        return kernels(input, *_arguments(self))
'''
    signature = ", ".join(f"{n}={_DEFAULTS[n]}" if n in _DEFAULTS else n for n in preset.constructor)
    given = textwrap.fill(", ".join(f"{n}={n}" for n in preset.constructor if n not in preset.ignored), 104,
                          subsequent_indent=" " * 12)
    dropped = ", ".join(preset.ignored)
    ignored = f"  # {dropped}: not used, as in the original" if dropped else ""
    return f'''{_class(layer, None, kind)}

class {name}(nn.Module):
    """KernelBench's problem {preset.number} with the kernels of this file."""

    def __init__(self, {signature}):{ignored}
        super().__init__()
        self.{preset.attribute} = {kind}(
            {given})

    def forward(self, x):
        return self.{preset.attribute}(x)

    def prepare(self, x, measure=False):
        return self.{preset.attribute}.prepare(x, measure)

    def kernels(self, x):
        return self.{preset.attribute}.kernels(x)
'''


def _rules(served: Mapping[Candidate, Sequence[Mapping[str, int]]]) -> dict[str, str]:
    """Variant -> conditions and derived values of its template, without what is the same wherever the file uses the template: a
    precision, a direction, tunables. `served`: each candidate with the configs for other layers."""
    found = dict[str, str]()
    for template in {place(c.variant): None for c in served}:
        ones = {c: configs for c, configs in served.items() if place(c.variant) == template}
        uses = [{"precision": c.precision, "dtype": c.dtype, "element_bytes": DTYPES[c.dtype], "direction": c.direction,
                 "constant": c.form == "constant", **config}
                for c, configs in ones.items() for config in (c.config, *configs)]
        known = {n: v for n, v in uses[0].items() if all(use.get(n) == v for use in uses)}
        found |= {c.variant.key: _rule(c, known) for c in ones}
    return found


def _rule(candidate: Candidate, known: dict[str, Any]) -> str:
    variant, known = candidate.variant, dict(known)
    derived, truths = dict[str, str](), set[str]()
    for name, text in variant.derived:
        derived[name] = value = folded(text, known, truths=truths)
        if is_truth(value, truths):
            truths.add(name)
        if not names_in(value):
            known[name] = evaluate(value, {})
    needs = [one for text in variant.needs if (one := folded(text, known, truths=truths, is_condition=True)) != "True"]
    used, before = {"smem_bytes"}.union(*map(names_in, needs)), 0
    while before != (before := len(used)):
        used.update(*(names_in(text) for name, text in derived.items() if name in used))
    conditions = _filled(f"{text!r}," for text in needs)
    values = _filled(f"{name!r}: {text!r}," for name, text in derived.items() if name in used)
    return f"(({conditions}), {{{values}}})"


def _beside(served: Sequence[Candidate], known: Mapping[Kind, Sequence[Row]]) -> Iterator[tuple[Kind, list[Row]]]:
    """The evidence, with the tunables that differ from those of the file's kernel. Several kernels have none in common."""
    for (key, dtype, precision), rows in known.items():
        ours = [c for c in served if (c.variant.key, c.dtype, c.precision) == (key, dtype, precision)]
        own = ours[0].config if len(ours) == 1 else {}
        default = ours[0].variant.config({})
        yield (key, dtype, precision), [
            (layer, positions, ratio, {n: v for n, v in {**default, **tune}.items() if ratio and own.get(n) != v})
            for layer, positions, ratio, tune in rows]


def _filled(items: Iterable[str]) -> str:
    """The items in lines, as many in each line as fit."""
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) >= _WIDTH or len(lines) == 1:
            lines.append(" " * 7)
        lines[-1] += f" {item}"
    return "\n".join(lines)


def _first(rules: Mapping[str, str], rule: str) -> str:
    """The key of the first template with that rule."""
    return next(key for key, found in rules.items() if found == rule)


def _name(kernels: Sequence[tuple[Candidate, Rendered]]) -> str:
    """The namespace of the file's operators. Files with different kernels have different names."""
    return "kw_" + hashlib.sha256("".join(rendered.candidate_id for _, rendered in kernels).encode()).hexdigest()[:8]


def _table(kernels: Sequence[tuple[Candidate, Rendered]], proven: Mapping[Candidate, int]) -> str:
    lines = ["_KERNELS = ["]
    for candidate, rendered in kernels:
        variant = candidate.variant
        words = [f'"{candidate.direction}"', f"torch.{candidate.dtype}", f'"{variant.key}"',
                 f'"candidate {rendered.candidate_id}"', f'\n            "{place(variant)}"',
                 f'precision="{candidate.precision}"',
                 f"\n            layer={tuple(layer_fields(candidate.layer).values())}",
                 f"\n            tune={candidate.config!r}"]
        if candidate in proven:
            words.append(f"proven={proven[candidate]}")
        if serves_any_layer(candidate):
            words.append("any_layer=True")
        if candidate.form != "constant":
            words.append(f'form="{candidate.form}"')
        if candidate.compile_flags:
            words.append(f"flags={candidate.compile_flags!r}")
        if candidate.variant.min_sm != 80:
            words.append(f"min_sm={candidate.variant.min_sm}")
        if shared_bytes := derived_values(candidate, sm=max(EMULATED_SM, candidate.variant.min_sm)).get("smem_bytes"):
            words.append(f"shared_bytes={shared_bytes}")
        lines.append("    _Kernel(" + ", ".join(words).replace(", \n", ",\n") + "),")
    return "\n".join([*lines, "]"])


def _table_row(file: str, name: str, entry: BestKnown) -> str:
    ours, theirs = (f"{ms:.3f}" if ms else "not measured" for ms in (entry.ms, entry.baseline_ms))
    return f"| {file} | {name} | {entry.direction} | {entry.variant} in {entry.precision} | {ours} | {theirs} |"


def _made_for(workload: Workload) -> str:
    """(dtype, arguments of nn.ConvTranspose, shape of the input)."""
    given = {name: getattr(workload.layer, name) for name in _FREE}
    return f"(torch.{workload.dtype}, {given}, {workload.input_shape})"


def _rows(items: Iterable[str], indent: int = 4) -> str:
    lines = [f"{' ' * indent}{item},\n" for item in items]
    return "\n" + "".join(lines) if lines else ""


def _raw(text: str) -> list[str]:
    return [f'r"""{text}"""'] if text else []


def _series(lines: Sequence[str], at: int, period: int) -> tuple[int, str]:
    """(how many lines from there on repeat the first `period` lines with other numbers, the call that writes them); (0, "") if
    they are few. n is the number that increases least."""
    first, second = ("".join(lines[at + i * period:at + (i + 1) * period]) for i in (0, 1))
    shape = _NUMBER.sub("#", first)
    one, two = (list(map(int, _NUMBER.findall(block))) for block in (first, second))
    steps = [b - a for a, b in zip(one, two, strict=False) if b > a]
    if _NUMBER.sub("#", second) != shape or not steps or re.search(r"<\d*n", first):
        return 0, ""
    base = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if b - a == min(steps))
    factors = [(b - a) // min(steps) for a, b in zip(one, two, strict=True)]
    bases: list[int] = []
    while block := "".join(lines[at + len(bases) * period:at + (len(bases) + 1) * period]):
        found = list(map(int, _NUMBER.findall(block)))
        if _NUMBER.sub("#", block) != shape or any(
                a + f * (found[base] - one[base]) != b for a, b, f in zip(one, found, factors, strict=True)):
            break
        bases.append(found[base])
    if len(bases) < _LEAST_SERIES:
        return 0, ""
    told = iter(str(a) if not f else f"<{f if f != 1 else ''}n{a - f * one[base] or '':{'+' if a != f * one[base] else ''}}>"
                for a, f in zip(one, factors, strict=True))
    every = range(bases[0], bases[-1] + 1)
    numbers = f"range({every.start}, {every.stop})" if list(every) == bases else repr(tuple(bases))
    return len(bases) * period, f'_each({numbers}, r"""{_NUMBER.sub(lambda _: next(told), first)}""")'


def _argument(value: Any) -> Any:
    return value if not isinstance(value, tuple) else value[0] if len(set(value)) == 1 else list(value)


def _check_words(text: str) -> None:
    for line in text.splitlines():
        code = line.split("#")[0].split("//")[0]
        for pattern, where in (*((p, line) for p in _FORBIDDEN), *((p, code) for p in _FORBIDDEN_IN_CODE)):
            if found := re.search(pattern, where):
                raise BadRequest(f"The exported file would contain {found[0]!r}, which KernelBench rejects, in the "
                                 f"line {line.strip()!r}; use other words in that line of the template.", field="source")
