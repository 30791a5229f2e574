"""The sidebar of the Workbench: all choices about the layer and its run. It returns a `Choice`. Fields are text, as in PyTorch:
an int or "3, 5, 7". Below a field with a wrong value is one sentence about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ...core.command import parse_layer
from ...core.env import find_toolchain
from ...core.errors import BadRequest
from ...core.layer import DTYPES, MEMORY_FORMATS, ConvTranspose, Workload
from ...core.precision import CLASSES_OF, PRECISIONS_OF, pytorchs_own
from ...core.presets import PRESETS, SIZES, Preset, parse_preset
from ...core.toolchain import refused_by_nvcc
from ...core.variants import FORMS, Variant
from ...drive.running.request import EFFORTS
from . import address, state

Value = int | bool | str | tuple[int, ...]
EACH_ITS_OWN = ""  # each variant's first precision, as on the command line without --precision
_EACH = "each"  # its name in the address
FREE = {f"free{d}": d for d in (1, 2, 3)}
_FREE_VALUES = {1: ("4096", 8), 2: ("64, 64", 4), 3: ("16, 16, 16", 2)}
_UNKNOWN = "unknown_in_link"  # sentences about the link, shown until a layer is chosen
_PAIRS = (("in_channels", "out_channels"), ("kernel_size", "stride"), ("padding", "output_padding"),
          ("dilation", "groups"), ("batch", "input_size"))
_FIELDS = tuple(f for pair in _PAIRS for f in pair)
_TEXT, _TEXT_PROBLEM = "layer_text", "layer text problem"
# The keys of the widgets that both Workbench and Tune draw.
_ON_BOTH = ("preset", _TEXT, "size", *_FIELDS, "bias", "dtype", "memory_format", "precision", "device", "session")
KEYS = (*_ON_BOTH, "flags", "flags open", "form", "effort", "modules")  # the keys of the widgets here
_DRAWN_ON = "form for tuning"   # whether the page Tune drew the form last
_WHOLE_NUMBERS = ("in_channels", "out_channels", "groups", "batch")
_MEMORY = {"contiguous": ("NCL", "NCHW", "NCDHW"), "channels_last": ("NLC", "NHWC", "NDHWC")}  # by dimensions


@dataclass(frozen=True)
class Choice:
    """The values of the sidebar. `workload`: None while a field is wrong. `problems`: the sentences about wrong fields."""

    workload: Workload | None
    problems: tuple[str, ...]
    preset: Preset | None
    device: str
    precision: str
    session: str
    compile_flags: tuple[str, ...]
    form: str
    effort: str
    modules: bool
    linked: str = ""    # the GPU of a link that this machine does not have: results of a GPU are shown, but Run uses `device`

    def floor_precision(self, dtype: str) -> str:
        """The precision of the floor: the chosen one, else the fastest of the dtype."""
        return self.precision or ("tf32" if "tf32" in PRECISIONS_OF[dtype] else PRECISIONS_OF[dtype][0])


def layer_form(variants: list[Variant], *, tuning: bool = False) -> Choice:
    """Draw the sidebar. `tuning`: the precision is a class, and there are no options of a single run."""
    with st.sidebar:
        _seed(tuning=tuning)
        st.selectbox("Layer", [*FREE, *PRESETS], key="preset", format_func=_title, on_change=_fill, persist_state="session",
                     help="Each field below can be changed.")
        st.text_input("Layer as in PyTorch", key=_TEXT, persist_state="session", on_change=_read_text,
                      label_visibility="collapsed", placeholder="or ConvTranspose2d(32, 16, 4)")
        if sentence := st.session_state.get(_TEXT_PROBLEM):
            st.html(f'<div class="kw wrong" role="alert">{escape(sentence)}</div>')
        edited = st.empty()
        for sentence in st.session_state.get(_UNKNOWN, ()):
            st.html(f'<div class="kw wrong" role="alert">{escape(sentence)}</div>')
        problems: dict[str, str] = {}
        slots: dict[str, DeltaGenerator] = {}
        values: dict[str, Value] = {}
        for pair in _PAIRS:
            for cell, name in zip(st.columns(2, gap="small"), pair, strict=True):
                text = cell.text_input(name.replace("input_size", "input size"), key=name, persist_state="session")
                try:
                    values[name] = _parsed(name, text)
                except BadRequest as error:
                    problems[name] = str(error)
            slots |= dict.fromkeys(pair, st.empty())
        chosen, precision_slot = _selects()
        values |= chosen
        slots |= {"memory_format": st.empty()}
        workload = None
        try:
            workload = None if problems else _workload(values)
        except BadRequest as error:
            problems[error.field or "padding"] = str(error)
        preset = PRESETS.get(st.session_state["preset"])
        if workload and preset and not workload.preset:
            edited.html(f'<div class="kw"><div class="foot">Edited: no longer {escape(preset.label)}.</div></div>')
        if problems:
            problems = {**problems, **_each_alone(values, problems)}
        for slot in dict.fromkeys(slots.values()):
            sentences = [s for f, s in problems.items() if slots.get(f) is slot]
            if sentences:
                slot.html("".join(f'<div class="kw wrong" role="alert">{escape(s)}</div>' for s in sentences))
        choice = _rest(workload, tuple(problems.values()), values["dtype"], variants, precision_slot, tuning=tuning)
        st.session_state[_DRAWN_ON] = tuning   # set last, so that it is not set after an interruption
        return choice


def layer_of_fields() -> Workload | None:
    """The layer of the fields, before they are drawn; None if a value is wrong."""
    _seed(tuning=False)
    fields = st.session_state
    try:
        values: dict[str, Value] = {name: _parsed(name, fields[name]) for name in _FIELDS}
        return _workload({**values, "dtype": fields["dtype"], "memory_format": fields["memory_format"],
                          "bias": fields["bias"] == "yes"})
    except BadRequest:
        return None


def show(workload: Workload, device: str, session: str) -> None:
    """Fill the form with that workload; used by callbacks of buttons."""
    layer = workload.layer
    st.session_state["preset"] = f"free{layer.dims}"
    if workload.preset:
        chosen, st.session_state["size"] = parse_preset(workload.preset)
        st.session_state["preset"] = chosen.name
    for field in _FIELDS[:8]:
        st.session_state[field] = _text(getattr(layer, field))
    st.session_state.update({
        "batch": str(workload.batch), "input_size": ", ".join(map(str, workload.input_size)),
        "bias": "yes" if layer.bias else "no", "dtype": workload.dtype, "memory_format": workload.memory_format,
        "device": device, "session": session, _UNKNOWN: [], _TEXT_PROBLEM: ""})


def _title(name: str) -> str:
    return PRESETS[name].listed if name in PRESETS else f"own layer: ConvTranspose{FREE[name]}d"


def _seed(*, tuning: bool) -> None:
    """First drawing of a tab: from the address, else #74 in the size that suits the device. If it was interrupted, by a
    click or by another address, the next drawing begins anew. `bias` is written last, so it is missing in that case."""
    if all(name in st.session_state for name in ("preset", *_FIELDS, "bias")):
        if st.session_state.get(_DRAWN_ON, tuning) != tuning:
            # Two pages draw these widgets. Streamlit gives those of the other page their default values, unless they are set.
            for name in _ON_BOTH:
                if name in st.session_state:
                    st.session_state[name] = st.session_state[name]
        return
    has_gpu = any(d != state.CPU for d in state.device_names())
    for name in ("preset", "size", "dtype", "memory_format"):
        st.session_state.pop(name, None)
    unknown = {key: address.seed(key, there, usual) for key, there, usual in (
        ("preset", (*PRESETS, *FREE), "kb74"), ("size", SIZES, "full" if has_gpu else "small"),
        ("dtype", DTYPES, "float32"), ("memory_format", MEMORY_FORMATS, "contiguous"))}
    values, bias = _preset_values(st.session_state["preset"], st.session_state["size"])
    st.session_state[_UNKNOWN] = [
        f"The {name} {asked!r} in the link is not known. The page shows {st.session_state[name]}."
        for name, asked in unknown.items() if asked]
    for name in _FIELDS:
        st.session_state[name] = address.wants(name) or values[name]
    asked = address.wants("bias")
    st.session_state["bias"] = asked if asked in ("yes", "no") else bias


def _read_text() -> None:
    """Write the layer of the text into the fields. Batch and input size stay if the number of dimensions does."""
    fields = st.session_state
    text, fields[_TEXT_PROBLEM] = fields[_TEXT].strip(), ""
    try:
        layer = parse_layer(text) if text else None
    except BadRequest as error:
        fields[_TEXT_PROBLEM] = f"{error} The fields did not change."
        return
    if layer is None:
        return
    if layer.dims != _dims():
        spatial, batch = _FREE_VALUES[layer.dims]
        fields["batch"], fields["input_size"] = str(batch), spatial
    fields["preset"], fields["bias"], fields[_TEXT] = f"free{layer.dims}", "yes" if layer.bias else "no", ""
    for name in _FIELDS[:8]:
        fields[name] = _text(getattr(layer, name))
    _forget()


def _forget() -> None:
    """After another layer was chosen: no sentence is about the one before. The browser gets the memory format once more,
    because its name depends on the number of dimensions."""
    st.session_state.update({_UNKNOWN: [], _TEXT_PROBLEM: "", "memory_format": st.session_state["memory_format"]})


def _fill() -> None:
    """Write the chosen preset, in the chosen size, into the fields."""
    values, bias = _preset_values(st.session_state["preset"], st.session_state.get("size") or "small")
    for name, text in values.items():
        st.session_state[name] = text
    st.session_state["bias"] = bias
    _forget()


def _preset_values(name: str, size: str) -> tuple[dict[str, str], str]:
    if name in FREE:
        spatial, batch = _FREE_VALUES[FREE[name]]
        values = {"in_channels": "16", "out_channels": "16", "kernel_size": "4", "stride": "2", "padding": "1",
                  "output_padding": "0", "dilation": "1", "groups": "1", "batch": str(batch), "input_size": spatial}
        return values, "yes"
    work = PRESETS[name].workload(size)
    layer = work.layer
    return {**{f: _text(getattr(layer, f)) for f in _FIELDS[:8]}, "batch": str(work.batch),
            "input_size": ", ".join(map(str, work.input_size))}, "yes" if layer.bias else "no"


def _text(value: int | tuple[int, ...]) -> str:
    if isinstance(value, int):
        return str(value)
    return str(value[0]) if len(set(value)) == 1 else ", ".join(map(str, value))


def _selects() -> tuple[dict[str, Value], DeltaGenerator]:
    """Draw dtype, memory format and bias. Returns the place beside dtype for the precision, which depends on the dtype."""
    one, precision_slot = st.columns(2, gap="small")
    dtype = one.selectbox("dtype", list(DTYPES), key="dtype", persist_state="session")
    one, two = st.columns(2, gap="small")
    layouts = {name: by_dimension[_dims() - 1] for name, by_dimension in _MEMORY.items()}
    memory = one.selectbox("memory", MEMORY_FORMATS, key="memory_format", persist_state="session",
                           format_func=layouts.get)
    bias = two.selectbox("bias", ["no", "yes"], key="bias", persist_state="session")
    return {"dtype": dtype, "memory_format": memory, "bias": bias == "yes"}, precision_slot


def _dims() -> int:
    name = st.session_state["preset"]
    return FREE.get(name) or PRESETS[name].layer.dims


def _parsed(name: str, text: str) -> int | tuple[int, ...]:
    words = [w for w in re.split(r"[\s,;()\[\]×x]+", text.strip()) if w]
    label = name.replace("input_size", "input size")
    if not words or not all(re.fullmatch(r"[+-]?\d+", w) for w in words):
        kind = "a whole number" if name in _WHOLE_NUMBERS else "a whole number, or one for each dimension: 3, 5, 7"
        raise BadRequest(f"{label} {text.strip()!r} cannot be read; give {kind}.", field=name)
    numbers = tuple(int(w) for w in words)
    if name in _WHOLE_NUMBERS and len(numbers) > 1:
        raise BadRequest(f"{label} takes one number, not {len(numbers)}.", field=name)
    return numbers[0] if len(numbers) == 1 else numbers


def _workload(values: dict[str, Value]) -> Workload:
    name = st.session_state["preset"]
    layer = ConvTranspose(_dims(), **{f: values[f] for f in _FIELDS[:8]}, bias=values["bias"])
    work = Workload(layer, values["batch"], values["input_size"], values["dtype"], values["memory_format"])
    if name in PRESETS:  # only an unchanged preset keeps its name
        for size in SIZES:
            same = PRESETS[name].workload(size, values["dtype"])
            if (same.layer, same.batch, same.input_size) == (work.layer, work.batch, work.input_size):
                return Workload(layer, work.batch, work.input_size, work.dtype, work.memory_format,
                                preset=f"{name}/{size}")
    return work


def _each_alone(values: dict[str, Value], known: dict[str, str]) -> dict[str, str]:
    """Field -> what is wrong with its value alone. Each field is checked by itself, so that one error does not hide another."""
    found = {}
    for field in (f for f in values if f in _FIELDS and f not in known):
        harmless: dict[str, Value] = {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "stride": 1 << 20}
        try:
            if field in ("batch", "input_size"):
                Workload(ConvTranspose(_dims(), 1, 1, 1), **{"batch": 1, "input_size": 1, field: values[field]})
            elif field != "groups" or isinstance(values[field], int) and values[field] < 1:
                ConvTranspose(_dims(), **harmless | {field: values[field]})
        except BadRequest as error:
            if error.field in (field, None, ""):
                found[field] = str(error)
    return found


def _rest(workload: Workload | None, problems: tuple[str, ...], dtype: str, variants: list[Variant],
          precision_slot: DeltaGenerator, *, tuning: bool) -> Choice:
    devices = list(state.device_names())
    if st.session_state.get("device") not in devices:
        asked = address.wants("device")
        st.session_state["device"] = asked if asked in devices else devices[0]
        st.session_state["missing device"] = "" if asked in devices else asked[:60]
    precision = _precision(dtype, st.session_state["device"], variants, precision_slot, tuning=tuning)
    device = st.selectbox("Device", devices, key="device", format_func=state.device_label, persist_state="session",
                          on_change=_choose_device)
    if (missing := st.session_state.get("missing device")) and not _is_gpu(missing):
        state.not_known("device", missing, f"The page shows {device}.")
    name = st.session_state["preset"]
    if name in PRESETS:
        st.segmented_control("Size", SIZES, key="size", required=True, width="stretch", on_change=_fill,
                             persist_state="session")
    session = _session(workload, device)
    _remember(name, device, dtype)
    linked = "" if (linked := _linked(device)) == device else linked
    if tuning:
        return Choice(workload, problems, PRESETS.get(name), device, precision, session, (), FORMS[0], "", False,
                      linked)
    st.session_state.setdefault("flags", address.wants("flags"))
    # It opens for a link whose flags are refused, so that the sentence is seen.
    st.session_state.setdefault("flags open", bool(_refused(tuple(st.session_state["flags"].split()))))
    with st.expander("Compile flags and effort", key="flags open", on_change="rerun"):
        flags = st.text_input("compile flags", key="flags", placeholder="-O3 --use_fast_math", persist_state="session",
                              help="nvcc gets these flags after the project's flags, for every candidate.")
        if refusal := _refused(tuple(flags.split())):
            st.html(f'<div class="kw wrong" role="alert">{escape(refusal)}</div>')
            problems = (*problems, refusal)
        state.seed("form", FORMS, FORMS[0])
        form = st.selectbox("layer form", FORMS, key="form", persist_state="session",
                            help="constant: the layer parameters are constants in the code. runtime: one build "
                                 "serves all layers.")
        state.seed("effort", EFFORTS, EFFORTS[1])
        effort = st.selectbox("effort", EFFORTS, key="effort", persist_state="session",
                              help="The most samples that a timing takes: few with quick, many with full.")
        st.session_state.setdefault("modules", address.wants("modules") == "yes")
        modules = st.checkbox("Also time the ModelNew", key="modules", persist_state="session",
                              help="Builds one module from the best candidates. Compares its forward and backward time "
                                   "(module_ms) with nn.ConvTranspose.")
    for shown, value, usual in (("flags", flags, ""), ("form", form, FORMS[0]), ("effort", effort, EFFORTS[1]),
                                ("modules", "yes" if modules else "", "")):
        address.note(shown, value, usual)
    return Choice(workload, problems, PRESETS.get(name), device, precision, session, tuple(flags.split()), form, effort,
                  modules, linked)


def _precision(dtype: str, device: str, variants: list[Variant], slot: DeltaGenerator, *, tuning: bool) -> str:
    """The choice of the precision. Initially it is PyTorch's default on this GPU (or on the emulated GPU), so that the fast
    kernels are listed."""
    offered = [p for p in PRECISIONS_OF[dtype] if any(p in v.precision for v in variants)] or [PRECISIONS_OF[dtype][0]]
    if tuning:
        offered = list(CLASSES_OF.get(dtype, offered[:1]))
    usual = own if (own := pytorchs_own(dtype, state.sm(device))) in offered else offered[0]
    if len(offered) > 1 and not tuning:
        offered.append(EACH_ITS_OWN)
    if st.session_state.get("precision") not in offered:
        asked = address.wants("precision")
        st.session_state["precision"] = EACH_ITS_OWN if asked == _EACH else asked if asked in offered and asked else usual
        if asked and asked not in (*offered, _EACH):
            state.not_known("precision", asked, f"The page shows {usual}.")
    precision = slot.selectbox(
        "precision", offered, key="precision", persist_state="session", format_func=lambda p: p or "each variant's default",
        help="The precision class. Kernels of a stricter precision are included. tf32: tensor cores, about three decimal "
             "digits; PyTorch uses it for convolutions. ieee: fp32 multiply-adds." if tuning else
             "ieee: fp32 multiply-adds. tf32: tensor cores, three decimal digits; PyTorch uses it for convolutions. tf32x3: "
             "three tf32 products, about as exact as fp32. each variant's default: the first precision that it lists.")
    address.note("precision", precision or _EACH, usual)
    return precision


@st.cache_data(max_entries=64, show_spinner=False)
def _refused(flags: tuple[str, ...]) -> str:
    """Why nvcc does not accept these flags; "" if it accepts them. Without nvcc only words that are not flags are found."""
    stray = next((f for f in flags[:1] if not f.startswith("-")), "")
    if stray:
        return f"{stray!r} is not a compile flag; a flag begins with -."
    return refused_by_nvcc(find_toolchain(), flags) if flags else ""


def _is_gpu(device: str) -> bool:
    return re.fullmatch(r"cuda:\d+", device) is not None


def _choose_device() -> None:
    st.session_state["missing device"] = ""


def _session(workload: Workload | None, device: str) -> str:
    """The session of the tab. If the address names none, it is that of the newest run of its layer and device, else a new
    session."""
    run = state.latest_run(workload, device) if workload else None
    return state.choose_session("Session", key="session", new=True, default=run.session.name if run else None) or state.NEW


def _remember(preset: str, device: str, dtype: str) -> None:
    """Note the values for the address: preset, size, device, dtype, memory format, and edited fields."""
    address.note("preset", preset)
    if preset in PRESETS:
        address.note("size", st.session_state["size"])
    expected, bias = _preset_values(preset, st.session_state.get("size") or "small")
    for name in _FIELDS:
        address.note(name, st.session_state[name], expected[name])
    address.note("bias", st.session_state["bias"], bias)
    address.note("dtype", dtype, "float32")
    address.note("memory_format", st.session_state["memory_format"], "contiguous")
    # The device is always in the address, because the first device of the machine that opens the link may be another one.
    address.note("device", _linked(device))


def _linked(device: str) -> str:
    """The GPU of the link, as long as this machine does not have it and no other device was chosen."""
    missing = st.session_state.get("missing device") or ""
    return missing if _is_gpu(missing) else device
