"""The right half of the Workbench: direction switch, one row per variant with its tunables. Out come `Candidate`s.

Ticks and values of all directions are kept, whichever is shown: Run takes them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ...core.candidate import EMULATED_SM, Candidate, why_not
from ...core.env import Gpu, gpus
from ...core.layer import FORWARD, LAUNCHES, ConvTranspose, Workload
from ...core.precision import PRECISIONS_OF
from ...core.variants import Tunable, Variant
from . import results, state, theme
from .layer_form import EACH_ITS_OWN, Choice

MOST_CANDIDATES = 200
MOST_TUNABLES = 6  # a row shows so many; a variant with more has the rest one click away
LIST_HEIGHT_PX = 330  # about the picture beside it: a longer list scrolls in itself, so that times stand on the first screen


def direction_switch() -> str:
    return st.segmented_control("Direction", LAUNCHES, default=FORWARD, key="direction", required=True,
                                label_visibility="collapsed", width="stretch", persist_state="session") or FORWARD


def variant_rows(variants: Sequence[Variant], direction: str, choice: Choice) -> None:
    """Rows of one direction; a variant that cannot run here is greyed and says why."""
    several, there = st.session_state.get("several", False), of_direction(variants, direction)
    with st.container(key="variants", height=LIST_HEIGHT_PX, border=False):
        for variant in there:
            reason = cannot(variant, choice)
            name_cell, *cells = st.columns([1.05, 0.74, 0.74], vertical_alignment="top", gap="small")
            key = _key(variant)
            st.session_state.setdefault(f"tick {key}", True)
            label = f"**{variant.name}**  \n:gray[:small[{_markdown(reason or variant.idea)}]]"
            name_cell.checkbox(label, key=f"tick {key}", disabled=reason is not None, persist_state="session",
                               help="  \n".join(f"`{t.name}`: {t.help}" for t in variant.tune if t.help) or None)
            if reason:
                continue  # what cannot run has nothing to choose
            for number, tunable in enumerate(variant.tune[:MOST_TUNABLES]):
                _tunable(cells[number % len(cells)], key, tunable, several)
            if rest := variant.tune[MOST_TUNABLES:]:
                with st.expander(f"{variant.name}: {len(rest)} more tunables"):
                    more = st.columns(4, gap="small")
                    for number, tunable in enumerate(rest):
                        _tunable(more[number % len(more)], key, tunable, several)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.toggle("Try several values of a tunable", key="several", persist_state="session",
                  help="Each tunable takes a list of values. Every combination is a candidate.")
        serve = sum(cannot(v, choice) is None for v in there)
        theme.html(f'<span class="foot">{serve} of {len(there)} variants serve this layer; the list scrolls</span>')


def chosen_candidates(variants: Sequence[Variant], workload: Workload, choice: Choice) -> list[Candidate]:
    """Every ticked variant of every direction, once for each combination of the chosen values."""
    found = []
    for variant in variants:
        key = _key(variant)
        if not st.session_state.get(f"tick {key}", True) or cannot(variant, choice):
            continue
        values = [_chosen_values(key, t) for t in variant.tune]
        for combination in itertools.product(*values):
            config = dict(zip((t.name for t in variant.tune), combination, strict=True))
            form = choice.form if choice.form in variant.forms else variant.forms[0]
            found.append(Candidate(variant, workload.layer, workload.dtype, config, choice.precision, form,
                                   choice.compile_flags))
    return found


def tick_only(variants: Sequence[Variant], chosen: Mapping[str, tuple[str, Mapping[str, int]]]) -> None:
    """Direction -> (variant, config): tick that variant with those values and no other of its direction. For the
    callback of a button: widgets that are on the page take the new values at the next drawing."""
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
    """Direction -> names of the variants that Run would take."""
    return {d: [v.name for v in of_direction(variants, d)
                if st.session_state.get(f"tick {_key(v)}", True) and not cannot(v, choice)] for d in LAUNCHES}


def absent(variants: Sequence[Variant], choice: Choice) -> dict[str, dict[str, str]]:
    """Direction -> name -> why Run would not take that variant there when it is not ticked, in a few words."""
    return {d: {v.name: _absence(v, choice) for v in of_direction(variants, d)} for d in LAUNCHES}


def of_direction(variants: Sequence[Variant], direction: str) -> list[Variant]:
    return [v for v in variants if v.direction == direction]


def cannot(variant: Variant, choice: Choice) -> str | None:
    """The sentence why the variant does not serve this layer, dtype, precision and GPU at its default config."""
    dtype = choice.workload.dtype if choice.workload else st.session_state["dtype"]
    offered = [p for p in variant.precision if p in PRECISIONS_OF[dtype] and choice.precision in (p, EACH_ITS_OWN)]
    if not offered:
        return f"Not run: {variant.name} does not compute {dtype}{f' in {choice.precision}' if choice.precision else ''}."
    if choice.workload is None:
        return None
    return _why_not(variant, choice.workload.layer, dtype, choice.precision, _sm(choice.device))


def arch(device: str) -> str:
    """`sm_90`: of that GPU; on the emulator of the one whose limits it has."""
    return f"sm_{_sm(device)}"


@st.cache_data(max_entries=512, show_spinner=False,
               hash_funcs={Variant: lambda v: (v.key, v.text), ConvTranspose: lambda layer: str(layer.to_json())})
def _why_not(variant: Variant, layer: ConvTranspose, dtype: str, precision: str, sm: int) -> str | None:
    return why_not(Candidate(variant, layer, dtype, {}, precision, variant.forms[0]), sm=sm)


def _sm(device: str) -> int:
    if device == state.CPU:
        return EMULATED_SM
    return next((g.sm for g in _cards() if f"cuda:{g.index}" == device), EMULATED_SM)


@st.cache_data(ttl=60, show_spinner=False)
def _cards() -> list[Gpu]:
    return gpus()


def _absence(variant: Variant, choice: Choice) -> str:
    if cannot(variant, choice) is None:
        return results.NOT_TICKED
    dtype = choice.workload.dtype if choice.workload else st.session_state["dtype"]
    offered = [p for p in variant.precision if p in PRECISIONS_OF[dtype]]
    if not offered:
        return f"not in {dtype}"
    return "does not apply" if choice.precision in (*offered, EACH_ITS_OWN) else f"only in {', '.join(offered)}"


def _tunable(cell: DeltaGenerator, key: str, tunable: Tunable, several: bool) -> None:
    """One select box, or a list of values; what is chosen is kept under `set ...` while the widget is not drawn."""
    kept, widget = f"set {key} {tunable.name}", f"{'values' if several else 'value'} {key} {tunable.name}"
    values = _chosen_values(key, tunable)
    if several:
        st.session_state.setdefault(widget, values)
        st.session_state[kept] = cell.multiselect(tunable.name, tunable.values, key=widget,
                                                  placeholder=str(tunable.default))
    else:
        st.session_state.setdefault(widget, values[0])
        st.session_state[kept] = [cell.selectbox(tunable.name, tunable.values, key=widget)]


def _chosen_values(key: str, tunable: Tunable) -> list[int]:
    kept = st.session_state.get(f"set {key} {tunable.name}", [])
    return [v for v in kept if v in tunable.values] or [tunable.default]


def _key(variant: Variant) -> str:
    return f"{variant.direction} {variant.name}"


def _markdown(text: str) -> str:
    """Idea or reason as plain text inside coloured markdown: brackets and markers are escaped."""
    for sign in "\\[]*_`$:<>":
        text = text.replace(sign, "\\" + sign)
    return text

