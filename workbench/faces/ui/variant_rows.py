"""The right half of the Workbench: the switch of the direction, and one row for each variant with a button that opens its
tunables. It returns `Candidate`s. The ticks and values of all directions are kept, because Run uses all of them. They are in
the address.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape

import streamlit as st

from ...core.candidate import Candidate, resolved_values, why_not
from ...core.errors import BadRequest
from ...core.layer import CONTIGUOUS, FORWARD, LAUNCHES, ConvTranspose, Workload
from ...core.precision import PRECISIONS_OF
from ...core.variants import Tunable, Variant
from . import address, results, state, theme
from .layer_form import EACH_ITS_OWN, Choice

MOST_CANDIDATES = 200
LIST_HEIGHT_PX = 206  # a longer list has its own scroll bar, so that times are visible on the first screen
KEYS = ("direction", "several", "tick ", "set ", "value ", "values ")  # the keys of the widgets here
_CHIP_CHARACTERS = 64


def take_from_link(variants: Sequence[Variant]) -> None:
    """Set the ticks and values of a link: `only` these variants, or all `without` those; `set` has the values. Values that
    the user has chosen since then stay."""
    by_key = {v.key: v for v in variants}
    lists = {name: [k for k in address.wants(name).split(",") if k] for name in ("only", "without")}
    for name, keys in lists.items():
        for key in keys:
            if key not in by_key:
                state.not_known("variant", key, "The other choices of the link are kept.")
        for variant in variants if keys else ():
            st.session_state.setdefault(f"tick {_key(variant)}", (variant.key in keys) == (name == "only"))
    for asked in filter(None, address.wants_all("set")):
        where, _, text = asked.partition("=")
        key, _, tunable = where.rpartition(".")
        known = {t.name: t for t in by_key[key].tune} if key in by_key else {}
        values = [int(v) for v in text.split(",") if v.lstrip("-").isdigit()]
        if tunable in known and values and set(values) <= set(known[tunable].values):
            st.session_state.setdefault(f"set {_key(by_key[key])} {tunable}", values)
            st.session_state["several"] = st.session_state.get("several", False) or len(values) > 1
        else:
            state.not_known("value", asked, "The variant's default is taken.")


def note(variants: Sequence[Variant], choice: Choice) -> None:
    """Note the ticks and values of the variants that serve this layer, for the address."""
    serving = [v for v in variants if not cannot(v, choice)]
    on = [v for v in serving if _ticked(v)]
    off = [v.key for v in serving if not _ticked(v)]
    short = off and on and len(on) < len(off)
    address.note("only", ",".join(v.key for v in on) if short else "")
    address.note("without", "" if short else ",".join(off))
    address.note("set", [f"{v.key}.{t.name}={','.join(map(str, chosen))}" for v in on for t in v.tune
                         if (chosen := _chosen_values(_key(v), t)) != [_default(t)]])
    address.note("several", "yes" if st.session_state.get("several") else "")


def direction_switch() -> str:
    state.seed("direction", LAUNCHES, FORWARD)
    direction = st.segmented_control("Direction", LAUNCHES, key="direction", required=True, label_visibility="collapsed",
                                     width="stretch", persist_state="session") or FORWARD
    address.note("direction", direction, FORWARD)
    return direction


def picks(variants: Sequence[Variant], direction: str) -> None:
    """Buttons for the usual choices of variants."""
    for label, directions, words in (("All", LAUNCHES, "Select every variant of every direction"),
                                     ("None", (), "Select nothing"),
                                     (f"Only {direction}", (direction,), f"Select all {direction} variants and nothing else")):
        st.button(label, key=f"pick {label.split()[0]}", type="tertiary", help=words, on_click=_tick_all,
                  args=(variants, directions))
    if "several" not in st.session_state:
        st.session_state["several"] = address.wants("several") == "yes"
    st.toggle("several values", key="several", persist_state="session",
              help="Each tunable takes a list of values. Every combination is a candidate.")


def variant_rows(variants: Sequence[Variant], direction: str, choice: Choice) -> None:
    """The rows of one direction: the variants that can run here, then a line that opens to the others and their reasons."""
    there = of_direction(variants, direction)
    others = [v for v in there if cannot(v, choice)]
    with st.container(key="variants", height=LIST_HEIGHT_PX, border=False):
        for variant in (v for v in there if v not in others):
            name_cell, chip_cell = st.columns([1.2, 1], vertical_alignment="center", gap="small")
            key = _key(variant)
            st.session_state.setdefault(f"tick {key}", True)
            name_cell.checkbox(variant.name, key=f"tick {key}", persist_state="session", help=theme.markdown(variant.idea))
            with chip_cell:
                _chip(variant, key, choice)
    if others:
        theme.html(_not_here(others, choice))


def chosen_candidates(variants: Sequence[Variant], workload: Workload, choice: Choice) -> list[Candidate]:
    """Every ticked variant of every direction, once for each combination of the chosen values."""
    found = []
    for variant in variants:
        key = _key(variant)
        if not _ticked(variant) or cannot(variant, choice):
            continue
        values = [_chosen_values(key, t) for t in variant.tune]
        for combination in itertools.product(*values):
            config = dict(zip((t.name for t in variant.tune), combination, strict=True))
            form = choice.form if choice.form in variant.forms else variant.forms[0]
            found.append(Candidate(variant, workload.layer, workload.dtype, config, choice.precision, form,
                                   choice.compile_flags))
    return found


def tick_only(variants: Sequence[Variant], chosen: Mapping[str, tuple[str, Mapping[str, int]]]) -> None:
    """For each direction, tick only the given variant, with the values of its config. Used by callbacks of buttons: widgets on
    the page get the new values at the next drawing."""
    for variant in variants:
        if variant.direction not in chosen:
            continue
        name, config = chosen[variant.direction]
        key = _key(variant)
        st.session_state[f"tick {key}"] = variant.name == name
        if variant.name == name:
            for tunable in variant.tune:
                st.session_state[f"set {key} {tunable.name}"] = [config.get(tunable.name, tunable.default)]
                for widget in ("value", "values"):
                    st.session_state.pop(f"{widget} {key} {tunable.name}", None)


def ticked(variants: Sequence[Variant], choice: Choice) -> dict[str, list[str]]:
    """Direction -> names of the variants that Run would use."""
    return {d: [v.name for v in of_direction(variants, d)
                if _ticked(v) and not cannot(v, choice)] for d in LAUNCHES}


def absent(variants: Sequence[Variant], choice: Choice) -> dict[str, dict[str, str]]:
    """Direction -> name -> why Run would not use that variant, in a few words."""
    return {d: {v.name: _absence(v, choice) for v in of_direction(variants, d)} for d in LAUNCHES}


def of_direction(variants: Sequence[Variant], direction: str) -> list[Variant]:
    return [v for v in variants if v.direction == direction]


def cannot(variant: Variant, choice: Choice) -> str | None:
    """The sentence that says why the variant, with its default config, cannot run for this layer, dtype, precision and GPU;
    None if it can."""
    dtype = choice.workload.dtype if choice.workload else st.session_state["dtype"]
    offered = [p for p in variant.precision if p in PRECISIONS_OF[dtype] and choice.precision in (p, EACH_ITS_OWN)]
    if not offered:
        return f"Not run: {variant.name} does not compute {dtype}{f' in {choice.precision}' if choice.precision else ''}."
    if choice.workload is None:
        return None
    return _why_not(variant, choice.workload.layer, dtype, choice.precision, state.sm(choice.device))


def arch(device: str) -> str:
    """The architecture of that GPU, such as `sm_90`; on the emulator, that of the emulated GPU."""
    return f"sm_{state.sm(device)}"


# Called about 200 times in a drawing, and a lookup in st.cache_data would take longer than the function.
@lru_cache(maxsize=4096)
def _why_not(variant: Variant, layer: ConvTranspose, dtype: str, precision: str, sm: int) -> str | None:
    return why_not(Candidate(variant, layer, dtype, {}, precision, variant.forms[0]), sm=sm)


def _absence(variant: Variant, choice: Choice) -> str:
    if cannot(variant, choice) is None:
        return results.NOT_TICKED
    dtype = choice.workload.dtype if choice.workload else st.session_state["dtype"]
    offered = [p for p in variant.precision if p in PRECISIONS_OF[dtype]]
    if not offered:
        return f"not in {dtype}"
    return "does not apply" if choice.precision in (*offered, EACH_ITS_OWN) else f"only in {', '.join(offered)}"


def _not_here(others: Sequence[Variant], choice: Choice) -> str:
    """The variants that cannot run here, by reason. It is closed at first, because the list is longer than what is of use."""
    by_reason: dict[str, list[str]] = {}
    for variant in others:
        hint = theme.hint(cannot(variant, choice) or "")
        by_reason.setdefault(_absence(variant, choice), []).append(f"<span{hint}>{escape(variant.name)}</span>")
    lines = "".join(f"<div>{escape(reason)}: {', '.join(names)}</div>" for reason, names in by_reason.items())
    return (f'<details class="foot"><summary>{len(others)} variant{" is" if len(others) == 1 else "s are"} not for this layer '
            f"and precision</summary>{lines}</details>")


def _chip(variant: Variant, key: str, choice: Choice) -> None:
    """The config in a few words; a click opens its tunables."""
    if not variant.tune:
        return
    values = {t.name: _chosen_values(key, t) for t in variant.tune}
    resolved = _resolved(variant, choice, {name: v[0] for name, v in values.items()}) if choice.workload else {}
    chip = st.popover(_chip_text(variant, values, resolved), key=f"chip {key}", on_change="rerun", width="stretch",
                      help=theme.markdown(f"The tunables of {variant.name}"))
    if not chip.open:
        return
    with chip:
        cells = st.columns(2, gap="small")
        for number, tunable in enumerate(variant.tune):
            with cells[number % 2]:
                _tunable(key, tunable, resolved.get(tunable.name))


def _chip_text(variant: Variant, values: Mapping[str, Sequence[int]], resolved: Mapping[str, int]) -> str:
    """"BLOCK 64, 128 · TILE_M auto 64": changed tunables first; the text is cut if it is too long."""
    order = sorted(variant.tune, key=lambda t: list(values[t.name]) == [_default(t)])
    words = [f"{t.name} {', '.join(_value_text(t, v, resolved.get(t.name)) for v in values[t.name])}" for t in order]
    text = " · ".join(words)
    while len(text) > _CHIP_CHARACTERS and len(words) > 1:
        words.pop()
        text = f"{' · '.join(words)} · {len(variant.tune) - len(words)} more"
    return text


def _tunable(key: str, tunable: Tunable, resolved: int | None) -> None:
    """A select box, or a box for several values. The choice is kept under the key `set ...` while the widget is not drawn."""
    several = st.session_state.get("several", False)
    kept, widget = f"set {key} {tunable.name}", f"{'values' if several else 'value'} {key} {tunable.name}"
    values = _chosen_values(key, tunable)
    if several:
        st.session_state.setdefault(widget, values)
        st.session_state[kept] = st.multiselect(tunable.name, tunable.values, key=widget,
                                                help=theme.markdown(tunable.help) or None, placeholder=str(_default(tunable)))
    else:
        st.session_state.setdefault(widget, values[0])
        st.session_state[kept] = [st.selectbox(
            tunable.name, tunable.values, key=widget, help=theme.markdown(tunable.help) or None,
            format_func=lambda v: _value_text(tunable, v, resolved))]


def _value_text(tunable: Tunable, value: int, resolved: int | None) -> str:
    """`64`; for 0 ("automatic") `auto 64`, or `auto` if the header does not derive the value."""
    if value or "(0: automatic)" not in tunable.help and resolved is None:
        return str(value)
    return "auto" if resolved is None else f"auto {resolved}"


@st.cache_data(max_entries=1024, show_spinner=False,
               hash_funcs={Variant: lambda v: (v.key, v.text), Choice: lambda c: (str(c.workload), c.precision, c.device)})
def _resolved(variant: Variant, choice: Choice, config: dict[str, int]) -> dict[str, int]:
    """Tunable -> the value that is used for its 0 on this layer and GPU, if the header derives it."""
    try:
        form = choice.form if choice.form in variant.forms else variant.forms[0]
        candidate = Candidate(variant, choice.workload.layer, choice.workload.dtype, config, choice.precision, form)
        return resolved_values(candidate, sm=state.sm(choice.device))
    except BadRequest:
        return {}


def _tick_all(variants: Sequence[Variant], directions: Sequence[str]) -> None:
    for variant in variants:
        st.session_state[f"tick {_key(variant)}"] = variant.direction in directions


def _ticked(variant: Variant) -> bool:
    return st.session_state.get(f"tick {_key(variant)}", True)


def _chosen_values(key: str, tunable: Tunable) -> list[int]:
    several = st.session_state.get("several", False)
    drawn = st.session_state.get(f"{'values' if several else 'value'} {key} "
                                 f"{tunable.name}")  # the link is newer than the kept value
    kept = (drawn if several else [drawn]) if drawn is not None else st.session_state.get(f"set {key} {tunable.name}", [])
    return [v for v in kept if v in tunable.values] or [_default(tunable)]


def _default(tunable: Tunable) -> int:
    return tunable.default_for(st.session_state.get("memory_format", CONTIGUOUS))


def _key(variant: Variant) -> str:
    return f"{variant.direction} {variant.name}"
