"""Machine: what this machine has and what works; for each missing part the command that installs it; environment and cache."""

from __future__ import annotations

import time
from html import escape

import streamlit as st

from ...core import numbers
from ...core.cache import Cache
from ...core.env import cache_dir, environment
from ...core.roofline import CEILINGS, ceilings_for, kept
from ...drive.checking import attacks, selftest
from ...drive.machine import doctor
from . import address, results, state, theme

KEYS = ("machine_device",)  # the keys of the widgets here


def draw() -> None:
    findings = state.findings()
    with st.sidebar:
        devices = list(state.device_names())
        state.seed("machine_device", devices, devices[0], name="device")
        device = st.selectbox("Device", devices, format_func=state.device_label, key="machine_device", persist_state="session")
        address.note("device", device, devices[0])
        theme.html(theme.heading("Environment") + theme.table(
            ("", ""), [(f"<span class='mute nw'>{escape(str(k))}</span>", escape(str(v)))
                       for k, v in _environment().items() if v not in (None, "", [])], right=()))
        if theme.button("Refresh", key="machine_refresh", width="stretch", help="Search again after you install something"):
            state.findings.clear()
            state.device_names.clear()
            _environment.clear()
            st.rerun()
    theme.html(_strip(findings))
    theme.html(results.doctor_table(findings))
    with st.container(horizontal=True, vertical_alignment="center"):
        _cache()
    if device != state.CPU:
        theme.html(_ceilings(state.device_names()[device]))
        if theme.button("Measure the ceilings", key="machine_ceilings", disabled=bool(state.active_runs()),
                        help="About 5 s; uses the GPU"):
            waits = st.empty()
            with st.spinner("Measures reads, writes, copies and multiply-adds", show_time=True):
                state.runner().measure_ceilings(device, waits.text)
            st.rerun()
    theme.html(_recorded_ceilings())
    _selftest(device)


def _strip(findings: list[doctor.Finding]) -> str:
    where = doctor.devices(findings)
    missing = [f for f in findings if f.command]
    evidence = (f"{len(missing)} part{'s' if len(missing) != 1 else ''} can be installed: "
                f"{', '.join(f.name for f in missing)}. The table shows the install command of each part." if missing else
                "No installable part is missing.")
    return theme.strip("PASSED" if where else "MISSING", doctor.summary(findings), evidence,
                       badge_text="READY" if where else "NOT READY")


def _cache() -> None:
    use = Cache().usage()
    theme.html(theme.heading("Cache of built libraries")
               + f"{numbers.count(use.entries)} librar{'y' if use.entries == 1 else 'ies'}, {numbers.memory(use.bytes)} of "
                 f"{numbers.memory(use.limit_bytes)}<br><span class='mono mute'>{escape(str(cache_dir()))}</span>")
    if theme.button("Empty the cache", key="machine_empty", disabled=not use.entries,
                    help="The next run builds all libraries again"):
        Cache().clear()
        st.rerun()


def _ceilings(name: str) -> str:
    known = ceilings_for(name)
    if known is None:
        return (theme.heading("Ceilings")
                + '<span class="foot">This GPU has not been measured, so no floor is shown.</span>')
    rows = [("read", numbers.byte_rate(known.read_bytes_per_s)), ("write", numbers.byte_rate(known.write_bytes_per_s)),
            ("copy, read + write", numbers.byte_rate(known.copy_bytes_per_s)),
            *((p, numbers.flop_rate(rate)) for p, rate in known.flops_per_s.items())]
    how = "measured on this machine" if kept(name) else "as recorded by the project, not measured on this machine"
    return theme.heading(f"Ceilings of {known.name}, {how}") + theme.table(
        ("what", "rate", ""), [(escape(a), escape(b), "<span class=mute>predicted</span>" if a.split(",")[0] in
                                known.predicted else "") for a, b in rows], right=(1,))


def _recorded_ceilings() -> str:
    """The rates of known GPUs, from which the floors of recorded sessions are computed."""
    rates = {"read": "read_bytes_per_s", "write": "write_bytes_per_s", "copy": "copy_bytes_per_s"}
    rows = []
    for gpu in CEILINGS:
        cells = [(word, numbers.byte_rate(getattr(gpu, field))) for word, field in rates.items()]
        cells += [(p, numbers.flop_rate(rate)) for p, rate in gpu.flops_per_s.items()]
        rows.append((f"<span class=nw>{escape(gpu.name)}</span>", *(
            f"<span class='nw{' mute' if word in gpu.predicted else ''}'>{escape(value.split()[0])}</span>"
            for word, value in cells)))
    heads = ("GPU", *rates, *CEILINGS[0].flops_per_s)
    return (theme.heading("Ceilings of the GPUs that the project knows: memory in TB/s, arithmetic in TFLOP/s")
            + theme.table(heads, rows, right=range(1, len(heads)))
            + '<div class="foot">Grey: from the data sheet, or derived from another rate. The others were measured.</div>')


def _selftest(device: str) -> None:
    """The last self-test on this machine: each attack, what happened, and whether it was caught."""
    known = selftest.kept(device)
    theme.html(theme.heading("Self-test: adversarial kernels and modules"))
    if known is None:
        theme.html(f'<span class="foot">{attacks.total(device)} attacks are available. The self-test has not run '
                   "on this machine yet.</span>")
    else:
        when, found = known
        missed = [r for r in found if not r.caught]
        theme.html(theme.strip("FAILED" if missed else "PASSED", selftest.summary(found),
                               f"Run {time.strftime('%Y-%m-%d %H:%M', time.localtime(when))} on {device}. "
                               f"{_sentences(selftest.confinement(found))}"))
        theme.html(theme.table(("", "attack", "what it tries", "what happened"), [
            (theme.badge("NOTE" if r.kind == "control" else "CAUGHT" if r.caught else "FAILED"),
             f"<span class='mono nw'>{escape(r.name)}</span>",
             f"<span class=mute>{escape(r.idea)}</span>",
             f"<b>{escape(r.status)}</b> {escape(r.happened[:140])}") for r in [*missed, *(r for r in found if r.caught)]]))
    if (test := under_way()) is not None:
        _live_strip(test)
        st.button("Cancel the self-test", on_click=test.stop, key="selftest_stop", shortcut=theme.STOP_KEY,
                  help=f"Ends its processes. Key: {theme.STOP_KEY}")
        return
    last = _tests()[-1] if _tests() else None
    if last is not None and last.device == device:
        missed_any = known is not None and any(not r.caught for r in known[1])
        how = "– stopped" if last.stopped else "✕ failed" if last.problem or missed_any else "✓ passed"
        state.title(f"{how}, self-test, Machine")
    if last is not None and last.problem and last.device == device:
        theme.html(theme.strip("CANCELLED" if last.stopped else "FAILED", last.problem, f"{last.fought} of {last.total} "
                               "attacks had been run. A result is stored only after all attacks have run."))
    st.button("Run the self-test", disabled=bool(state.active_runs()), on_click=_begin_selftest, args=(device,),
              key="selftest_run", help="Two to five minutes; the same as python -m workbench selftest")


def under_way() -> selftest.SelfTest | None:
    """The running self-test. It belongs to the server: every tab shows it on this page, and its kernels are not among a tab's
    candidates."""
    return next((test for test in _tests() if not test.done), None)


@st.fragment(run_every=1)
def live_line(test: selftest.SelfTest) -> None:
    if test.done:
        st.rerun()
    theme.html(f'{theme.badge("RUNNING")} The self-test runs on {escape(test.device)}: {test.fought} of {test.total} '
               "attacks are done")


@st.fragment(run_every=0.5)
def _live_strip(test: selftest.SelfTest) -> None:
    if test.done:
        st.rerun()
    state.title(f"● self-test {test.fought}/{test.total}")
    theme.html(theme.strip("RUNNING", f"{test.text[:1].upper()}{test.text[1:]}",
                           f"{time.time() - test.started_at:.0f} s since start · closing the browser does not stop it",
                           badge_text=f"RUNNING {test.fought} of {test.total}"))


def _begin_selftest(device: str) -> None:
    if under_way() is None:  # another tab may have started one meanwhile
        _tests().append(selftest.SelfTest(device, state.runner()))


@st.cache_resource(show_spinner=False)
def _tests() -> list[selftest.SelfTest]:
    """The self-tests since the server began, oldest first."""
    return []


@st.cache_data(ttl=300, show_spinner=False)
def _environment() -> dict:
    return environment()


def _sentences(lines: str) -> str:
    """The lines as sentences in one text; "" for an older self-test without them."""
    return " ".join(f"{line[:1].upper()}{line[1:]}." for line in lines.splitlines())
