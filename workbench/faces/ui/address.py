"""The address of a page contains all choices that change what is shown, so that a link or a reload shows the same again. A page
calls `wants` to read a value from the link, and `note` for each value that it shows. When the page is drawn, `finish` replaces
the address by the noted values. A choice adds no entry to the browser's history, so Back leads to the previous page.
`st.query_params` is only read, because writing to it adds an entry. Streamlit adds an entry if the server's answer names
another page than the browser shows. After two quick Backs that can be a late answer to the first one, and the entry would
delete the history for Forward. So no entry is added after Back or Forward until the user clicks or types.
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
    """Before the page is drawn. If the address is not the one that the page wrote last (after a link, or after Back), the
    page's choices are reset, so that each is read from the address. `own`: the keys of its widgets; a key that ends in a space
    means all keys with this beginning. If the drawing after a link was interrupted, the next drawing takes from
    the link all values that the user has not chosen meanwhile."""
    state = st.session_state
    came = {name: st.query_params.get_all(name) for name in st.query_params}
    cut_short = (page, came) == state.get(_CAME) and not state.get(_DRAWN, True)
    followed = bool(came) and (page, came) != state.get(_CAME) and came != state.get(f"address of {page}")
    if followed:
        for key in [k for k in state if isinstance(k, str) and any(k == o or o[-1] == " " and k.startswith(o) for o in own)]:
            del state[key]
        for key in own:
            state.pop(f"lost {key}", None)
        state.pop(f"address of {page}", None)  # the choices may differ from this address, also if this drawing is interrupted
    link = came if followed else state.get(_LINK, {}) if cut_short else {}
    state[_DRAWN], state[_LINK], state[_NOTES], state[_CAME] = False, link, {}, (page, came)


def wants(name: str) -> str:
    """The value of a name in the link that was just opened; "" if the link does not have it, or if no link was opened."""
    return wants_all(name)[-1]


def wants_all(name: str) -> list[str]:
    """The same as `wants` for a name that may occur several times; [""] if there is no value."""
    link = st.session_state.get(_LINK)
    return (st.query_params.get_all(name) if link is None else link.get(name)) or [""]


def seed(key: str, options: Iterable[str], usual: str, *, name: str = "") -> str:
    """Set the value of a widget before it is drawn: from the link, else the usual one. A value that was chosen already stays.
    Returns a value of the link that is not one of the options; the page then reports it."""
    state, options = st.session_state, list(options)
    if state.get(key) in options:
        return ""
    asked = wants(name or key)
    state[key] = asked if asked in options else usual
    return "" if asked in ("", *options) else asked[:_LONGEST]


def seek(key: str, options: Iterable[str], usual: str | None, *, asked: str) -> str:
    """The same as `seed` for a choice without a usual value, such as a session. If the link names one that does not exist,
    nothing is chosen until the user chooses. Returns the missing name until then."""
    state, lost, options = st.session_state, f"lost {key}", list(options)
    if state.get(key) in options:
        state[lost] = ""
    else:
        if asked:
            state[lost] = "" if asked in options else asked[:_LONGEST]
        state[key] = None if state.get(lost) else asked or usual
    return state.get(lost, "")


def note(name: str, shown: str | Sequence[str] | None, usual: str = "") -> None:
    """Note a value that the page shows. Usual values are not written into the address."""
    notes = st.session_state.setdefault(_NOTES, {})
    values = [shown] if isinstance(shown, str) else list(shown or ())
    notes[name] = [value for value in values if value and value != usual]


def finish(page: str, *, default: bool) -> None:
    """Called after the page is drawn: the noted values become the address."""
    st.session_state[_DRAWN] = True
    with st.container(key="address"):
        _write(page, default=default, key=f"address-{page}")


def again(page: str, part: str, *, default: bool = False) -> None:
    """Called at the end of a fragment: if the fragment is redrawn alone, its values are written into the address too."""
    if st.session_state.get(_DRAWN):
        with st.container(key=f"address {part}"):
            _write(page, default=default, key=f"address-{page}-{part}")


def _write(page: str, *, default: bool, key: str) -> None:
    shown = {name: values for name, values in st.session_state.get(_NOTES, {}).items() if values}
    st.session_state[f"address of {page}"] = shown
    _BOX(key=key, data={"page": "" if default else page,
                        "shown": [[name, value] for name, values in shown.items() for value in values]})
