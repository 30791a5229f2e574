"""The address of a page names everything that changes what is seen, so that a link or a reload shows the same again.

A page asks `wants` what a link says, and tells `note` what it shows. When it is drawn, `finish` writes the notes over what the
address said. No choice adds an entry to the browser's history, so Back leads to the page before. `st.query_params` is only
read: what is written there becomes an entry of its own.

Streamlit adds an entry when the server's answer names another page than the browser is on. After two quick Backs that is a late
answer to the first: the entry would cut off what Forward leads to. So no entry is added after Back or Forward until somebody
clicks or types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

_LINK, _NOTES, _CAME, _DRAWN = "address link", "address notes", "address came", "address drawn"
_LONGEST = 60  # characters of a value that is quoted

_BOX = st.components.v2.component(
    "kernel_workbench_address", html='<i class="kwaddress" hidden></i>', isolate_styles=False,
    js="""function keepForward() {
  if (history.kwKeepsForward) return;
  history.kwKeepsForward = true;
  const push = history.pushState;
  let went = false;
  history.pushState = function (...entry) { if (!went) return push.apply(history, entry); };
  addEventListener('popstate', () => { went = true; }, true);
  addEventListener('pointerdown', event => { if (event.button < 3) went = false; }, true);
  addEventListener('keydown', event => { if (!event.altKey && !event.metaKey &&
    !['Alt', 'Meta', 'BrowserBack', 'BrowserForward'].includes(event.key)) went = false; }, true);
}

export default function({data}) {
  keepForward();
  if (location.pathname.split('/').pop() !== data.page) return;  // the browser is on another page already
  const kept = [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith('embed'));
  const search = new URLSearchParams([...data.shown, ...kept]).toString();
  if (search === location.search.slice(1)) return;
  history.replaceState(history.state, '', location.pathname + (search ? '?' + search : '') + location.hash);
}""")


def begin(page: str, own: Sequence[str]) -> None:
    """Before the page is drawn. Where the browser came with another address than the page wrote last (a link, or Back to an
    earlier visit), the page's choices are forgotten, so that each is taken from that address. `own` are the keys of its
    widgets; one that ends in a space stands for all that begin so. Where the drawing that followed a link was cut short, the
    next one takes from the link what nobody has chosen."""
    state = st.session_state
    came = {name: st.query_params.get_all(name) for name in st.query_params}
    cut_short = (page, came) == state.get(_CAME) and not state.get(_DRAWN, True)
    followed = bool(came) and (page, came) != state.get(_CAME) and came != state.get(f"address of {page}")
    if followed:
        for key in [k for k in state if isinstance(k, str) and any(k == o or o[-1] == " " and k.startswith(o) for o in own)]:
            del state[key]
        for key in own:
            state.pop(f"lost {key}", None)
        state.pop(f"address of {page}", None)  # the choices no longer are what it says, also if this drawing is cut short
    link = came if followed else state.get(_LINK, {}) if cut_short else {}
    state[_DRAWN], state[_LINK], state[_NOTES], state[_CAME] = False, link, {}, (page, came)


def wants(name: str) -> str:
    """What the link that was just followed says of it; "" where it says nothing, or where no link was followed."""
    return wants_all(name)[-1]


def wants_all(name: str) -> list[str]:
    """As `wants`, of a name that may stand there several times; [""] for nothing."""
    link = st.session_state.get(_LINK)
    return (st.query_params.get_all(name) if link is None else link.get(name)) or [""]


def seed(key: str, options: Iterable[str], usual: str, *, name: str = "") -> str:
    """Before a widget is drawn: its value from the link, else the usual one, unless somebody chose already. Returns a value of
    the link that is none of the options; the page then says so."""
    state, options = st.session_state, list(options)
    if state.get(key) in options:
        return ""
    asked = wants(name or key)
    state[key] = asked if asked in options else usual
    return "" if asked in ("", *options) else asked[:_LONGEST]


def seek(key: str, options: Iterable[str], usual: str | None, *, asked: str) -> str:
    """As `seed`, of a thing without a stand-in, such as a session: where it is not here, nothing is chosen until somebody
    chooses. Returns what was asked for in vain, as long as that holds."""
    state, lost, options = st.session_state, f"lost {key}", list(options)
    if state.get(key) in options:
        state[lost] = ""
    else:
        if asked:
            state[lost] = "" if asked in options else asked[:_LONGEST]
        state[key] = None if state.get(lost) else asked or usual
    return state.get(lost, "")


def note(name: str, shown: str | Sequence[str] | None, usual: str = "") -> None:
    """What the page shows; what is usual need not stand in the address."""
    notes = st.session_state.setdefault(_NOTES, {})
    values = [shown] if isinstance(shown, str) else list(shown or ())
    notes[name] = [value for value in values if value and value != usual]


def finish(page: str, *, default: bool) -> None:
    """After the page is drawn: its notes become the address."""
    st.session_state[_DRAWN] = True
    with st.container(key="address"):
        _write(page, default=default, key=f"address-{page}")


def again(page: str, part: str) -> None:
    """At the end of a fragment: where it is drawn alone, its notes go into the address as well."""
    if st.session_state.get(_DRAWN):
        with st.container(key=f"address {part}"):
            _write(page, default=False, key=f"address-{page}-{part}")


def _write(page: str, *, default: bool, key: str) -> None:
    shown = {name: values for name, values in st.session_state.get(_NOTES, {}).items() if values}
    st.session_state[f"address of {page}"] = shown
    _BOX(key=key, data={"page": "" if default else page,
                        "shown": [[name, value] for name, values in shown.items() for value in values]})
