"""A fork: a candidate whose template or rendered source a person has edited.

The name of its variant is that of the original and four digits of a hash of the text: `naive_gather-3f2a`. A rendering is split
into its parts. The template's part becomes the new template; edited headers are kept beside it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .candidate import Candidate
from .errors import BadRequest, RenderError
from .identity import candidate_id, canonical
from .template import INCLUDE, render, sections
from .variants import TEMPLATES, Variant, find, header_name, parse

_TUNE = re.compile(r"\bstruct\s+Tune\b.*", re.S)
_VALUE = re.compile(r"\bstatic\s+constexpr\s+int\s+(\w+)\s*=\s*(-?\d+)\s*;")
_KEEPS = "Leave it as it is, and edit the template, or a header that it includes."


def fork(text: str, parent: Candidate, of: str) -> Candidate:
    """The candidate of an edited template or rendering. Before the edit the text was that of `parent`, whose id is `of`. Raises
    `BadRequest` for a text that is neither a template nor a rendering, for one of another kernel or layer, and for an unchanged
    one."""
    made = forked(text, parent, of)
    with suppress(RenderError):  # a template that cannot be rendered is reported by the run, with the line
        if render(made).candidate_id == of:
            raise BadRequest("The text makes the same program as before, because only comments or white space differ. Change "
                             "the code.",
                             field="source")
    return made


def forked(text: str, parent: Candidate, of: str) -> Candidate:
    """The same as `fork`, but the text may be unchanged."""
    text = text.replace("\r\n", "\n")
    if not text.lstrip().startswith("#line"):
        return _with_headers(_of_template(text, parent, of), parent.headers, of)
    parts = sections(text)
    if len(parts) < 2 or not parts[-1][0].startswith("instance of "):
        raise BadRequest('The rendering does not end with its parts "DIRECTION/VARIANT.cu" and "instance of ..."; keep the '
                         "lines that begin with #line.", field="source")
    (_, body), (last, instance) = parts[-2:]
    tune = _TUNE.search(instance)
    config = {name: int(value) for name, value in _VALUE.findall(tune[0] if tune else "")}
    made = _of_template(_with_includes(body, parent.variant.text), replace(parent, config=config or parent.config), of)
    headers = tuple((name, part.rstrip()) for name, part in parts[:-2])
    with suppress(RenderError):
        today = render(made)
        if canonical(today.tail) != canonical(instance):
            raise BadRequest(f'The part "{last}" differs from the one that the layer and its tunables give. '
                             f'{_KEEPS}', field="source")
        if [canonical(h) for _, h in today.headers] == [canonical(h) for _, h in headers]:
            return made
    return _with_headers(made, headers, of)


def named_in(text: str) -> tuple[str, str]:
    """The variant and the direction that are named in an edited text; "" if the text does not name them. Raises `BadRequest`.
    """
    text = text.replace("\r\n", "\n")
    if not text.lstrip().startswith("#line"):
        name, computes = header_name(text)
        return name, computes[0] if len(computes) == 1 else ""
    parts = sections(text)
    last = parts[-1][0].removeprefix("instance of ") if parts else ""
    direction, _, name = last.partition("/")
    return re.sub(r"-[0-9a-f]{4}\Z", "", name), direction


def variant_of_text(text: str, name: str, direction: str, *, root: Path | None = None) -> Variant:
    """The variant of a template's text. A template of that name need not exist. Raises `RenderError`."""
    try:
        path = find(name, direction, root=root).path
    except BadRequest:
        path = (root or TEMPLATES) / direction / f"{name}.cu"
    return parse(text, path, direction)


def base_name(variant: Variant) -> str:
    """The name of the variant's template; for a fork, that of the original."""
    return variant.name.rpartition("-")[0] if variant.forked_from else variant.name


def _of_template(text: str, parent: Candidate, of: str) -> Candidate:
    base, before = base_name(parent.variant), parent.variant
    variant = parse(text, before.path.with_name(f"{base}.cu"), parent.direction)
    if variant.direction != parent.direction:
        raise BadRequest(f"The edited text computes {variant.direction}; it was forked from a kernel of "
                         f"{parent.direction}. Leave the key computes as it was.", field="source")
    variant = _called(variant, base, candidate_id(variant.text, compile_flags=()), of)
    kept = {t.name: parent.config[t.name] for t in variant.tune if parent.config.get(t.name) in t.values}
    return replace(parent, variant=variant, config=kept, headers=(),
                   precision=parent.precision if parent.precision in variant.precision else "")


def _with_headers(made: Candidate, headers: tuple[tuple[str, str], ...], of: str) -> Candidate:
    if not headers:
        return made
    digest = candidate_id(*(part for _, part in headers), made.variant.text, compile_flags=())
    return replace(made, variant=_called(made.variant, base_name(made.variant), digest, of), headers=headers)


def _called(variant: Variant, base: str, digest: str, of: str) -> Variant:
    name = f"{base}-{digest[:4]}"
    return replace(variant, name=name, path=variant.path.with_name(f"{name}.cu"), forked_from=of)


def _with_includes(body: str, template: str) -> str:
    """A rendered template with the include lines of its original. They are put into their former lines if these are still
    empty, else below the header."""
    lines, own = body.split("\n"), template.split("\n")
    places = {n: line for n, line in enumerate(own) if INCLUDE.match(line)}
    if all(n < len(lines) and not lines[n].strip() for n in places):
        return "\n".join(places.get(n, line) for n, line in enumerate(lines))
    head, end, code = body.partition("*/")
    return "\n".join([head + end, *places.values(), code.lstrip("\n")])

