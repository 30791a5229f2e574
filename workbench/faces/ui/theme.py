"""The shared appearance of the pages: the style sheet, badges, the status line, facts, small tables, charts. This module
escapes all text for HTML, so callers pass plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from ...drive.reporting import plots

STYLE = """<style>
:root{--good:light-dark(#0B7A5E,#4CC9A4);--goodbg:light-dark(#E3F4EF,#12302A);--bad:light-dark(#B3420C,#FF8A5C);
--badbg:light-dark(#FCEBE2,#3A2018);--warn:light-dark(#8A6100,#E8B84A);--warnbg:light-dark(#FDF3DC,#352A12);
--mute:light-dark(#5B6472,#9AA4B2);--mutebg:light-dark(#EEF0F3,#232A33);--uns:light-dark(#6B4FC0,#A995F5);
--unsbg:light-dark(#EFEBFA,#28223F);--line:light-dark(#E1E4EA,#2A313B);--ink:light-dark(#1B2028,#E3E7ED);
--bg:light-dark(#FFFFFF,#0F1318);--bg2:light-dark(#F5F6F8,#171C23);--acc:light-dark(#1F5FBF,#6FA3F5);
--accbg:light-dark(#E8F0FC,#16263F);--codebg:light-dark(#F7F8FA,#141920);
--c1:light-dark(#2F6FD0,#6FA3F5);--c2:light-dark(#E39A00,#F0B23E);--c3:light-dark(#12917A,#35BFA3);
--c4:light-dark(#B0559B,#D884C4);--c5:light-dark(#57B7E6,#8AD3F7);--c6:light-dark(#7A6A4F,#B8A684)}
[data-testid="stMainBlockContainer"]{padding:3.9rem 1.5rem 2rem;max-width:1680px}
[data-testid="stMain"] [data-testid="stVerticalBlock"]{gap:.65rem}
[data-testid="stSidebarUserContent"] [data-testid="stVerticalBlock"]{gap:.45rem}
[data-testid="stSidebarUserContent"]{padding:0 1rem 1rem}
[data-testid="stSidebarHeader"]{height:2.2rem;min-height:2.2rem;margin-bottom:0;padding-bottom:0}
[data-testid="stWidgetLabel"] p{font-size:12px;color:var(--mute)}
[data-testid="stElementContainer"]:has(>[data-testid="stHtml"]>style:only-child){display:none}
[data-testid="stDataFrame"],.kw{font-variant-numeric:tabular-nums}
.kw{font-size:14px;line-height:1.45;color:var(--ink)}
.kw .mono,.mono{font-family:"Source Code Pro",ui-monospace,monospace;font-size:.93em}
.kw .mute{color:var(--mute)} .kw b{font-weight:600}
.kw .b{display:inline-block;padding:0 7px;border-radius:4px;font-size:11.5px;font-weight:600;letter-spacing:.02em;
line-height:19px;white-space:nowrap}
.kw .good{color:var(--good);background:var(--goodbg)}.kw .bad{color:var(--bad);background:var(--badbg)}
.kw .warn{color:var(--warn);background:var(--warnbg)}.kw .neu{color:var(--mute);background:var(--mutebg)}
.kw .uns{color:var(--uns);background:var(--unsbg)}.kw .run{color:var(--acc);background:var(--accbg)}
.kw h4{font-size:12px;font-weight:600;letter-spacing:.01em;color:var(--mute);margin:0 0 4px;padding:0}
.kw div+h4,.kw span+h4,.kw pre+h4{margin-top:12px}
.kw .layer{display:flex;align-items:baseline;gap:2px 14px;flex-wrap:wrap;margin-bottom:8px}
.kw .layer .mono{font-size:18px;font-weight:600}
.kw .facts{display:flex;flex-wrap:wrap;gap:0;row-gap:6px}
.kw .facts>div{padding:0 16px 0 0;margin-right:16px;border-right:1px solid var(--line)}
.kw .facts>div:last-child{border:0}.kw .facts span{display:block;font-size:11.5px;color:var(--mute);line-height:1.25}
.kw .facts b{font-size:14px}
.kw .strip{display:flex;gap:12px;align-items:baseline;border-left:3px solid var(--line);background:var(--bg2);
padding:9px 14px;border-radius:0 6px 6px 0;min-height:64px;box-sizing:border-box}
.kw .strip.sgood{border-color:var(--good)}.kw .strip.sbad{border-color:var(--bad)}
.kw .strip.srun{border-color:var(--acc)}.kw .strip.swarn{border-color:var(--warn)}
.kw .strip.suns{border-color:var(--uns)}
.kw .strip .t{font-size:15.5px;font-weight:600;overflow-wrap:anywhere}.kw .strip .s{color:var(--mute);font-size:13px}
.kw table{border-collapse:collapse;width:100%;font-size:13px}
.kw th{font-weight:600;font-size:12px;color:var(--mute);text-align:left;padding:4px 10px 4px 0;
border-bottom:1px solid var(--line);white-space:nowrap}
.kw td{padding:4.5px 10px 4.5px 0;border-bottom:1px solid var(--line);vertical-align:baseline}
.kw .scroll{overflow-x:auto}.kw td .mono{overflow-wrap:anywhere}
.kw td .mute{overflow-wrap:break-word}.kw .note{display:inline-block;min-width:16em}.kw .nw.mute{overflow-wrap:normal}
.kw tr:last-child td{border-bottom:0}.kw td.n,.kw th.n{text-align:right;white-space:nowrap}.kw .nw{white-space:nowrap}
.kw td.w1{width:1%;white-space:nowrap}
.kw .stage{display:inline-grid;grid-template-columns:repeat(4,34px);gap:2px;vertical-align:middle}
.kw .stage i{height:6px;background:var(--mutebg);border-radius:2px}.kw .stage i.d{background:var(--c3)}
.kw .stage i.r{background:var(--acc)}.kw .stage i.f{background:var(--bad)}
.kw .bar{position:relative;height:8px;background:var(--mutebg);border-radius:2px;overflow:hidden;min-width:60px}
.kw .bar i{position:absolute;left:0;top:0;bottom:0;background:var(--c1);border-radius:2px}
.kw pre{margin:0;font-family:"Source Code Pro",ui-monospace,monospace;font-size:12px;line-height:1.5;
white-space:pre-wrap;overflow-wrap:anywhere;background:var(--codebg);padding:8px 10px;
border-radius:6px;max-height:320px;overflow-y:auto}
.kw .foot{font-size:11.5px;color:var(--mute)}.kw summary{cursor:pointer;width:max-content;max-width:100%}
.kw summary:focus-visible{outline:2px solid var(--acc);outline-offset:2px}
.kw.wrong,.kw .wrong{font-size:12px;color:var(--bad);line-height:1.3}
.kw.faded{opacity:.45}
textarea{font-family:"Source Code Pro",monospace!important;font-size:12px!important;line-height:1.5!important;
white-space:pre!important;overflow-x:auto!important}
[data-testid="stCheckbox"]{padding:0}[data-testid="stCheckbox"] p{line-height:1.3}
[data-testid="stCheckbox"] *{white-space:normal!important;text-overflow:clip}
.st-key-variants [data-testid="stVerticalBlock"],.st-key-variants{gap:.15rem!important}
.st-key-variants [data-testid="stPopover"] button{min-height:26px;height:26px;padding:0 8px;justify-content:flex-start}
.st-key-variants [data-testid="stPopover"] button p{font-family:"Source Code Pro",monospace;font-size:11px;
overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.st-key-picks button{min-height:24px;padding:0 2px}.st-key-picks button p{font-size:13px}
[data-testid="stPopoverBody"] [data-testid="stWidgetLabel"] p{font-family:"Source Code Pro",monospace;font-size:11px}
.kwsvg svg{max-height:330px}.st-key-explain-row{margin-top:-.4rem}
.st-key-explain-row [data-testid="stTextInputRootElement"]{height:26px;min-height:26px}
.st-key-explain-row input{padding:0 8px;font-size:13px}
@media (max-width:1150px){.kw .facts>div:nth-child(n+6){display:none}.kw .facts>div:nth-child(5){border:0}
.kw .layer .mono{font-size:16px}.st-key-variants [data-testid="stCheckbox"] p{font-size:12px}}
.kw .diff{max-height:620px;overflow:auto;border:1px solid var(--line);border-radius:6px;background:var(--codebg)}
.kw .diff table{font-family:"Source Code Pro",ui-monospace,monospace;font-size:12px;line-height:17px;table-layout:fixed}
.kw .diff :is(td,th){border:0;padding:0 6px;vertical-align:top}
.kw .diff td{white-space:pre-wrap;overflow-wrap:anywhere;tab-size:2}
.kw .diff tbody th{font-weight:400;font-size:11px;line-height:17px;text-align:right;user-select:none}
.kw .diff thead th{position:sticky;top:0;background:var(--bg2);white-space:normal;overflow-wrap:anywhere;padding:3px 8px}
.kw .diff .gone{background:var(--badbg)}.kw .diff .came{background:var(--goodbg)}.kw .diff .none{background:var(--mutebg)}
.kw .diff em{font-style:normal;font-weight:600;border-bottom:2px solid}.kw .diff .gone em{border-color:var(--bad)}
.kw .diff .came em{border-color:var(--good)}
.kw .diff s{text-decoration:none;color:var(--mute);user-select:none;padding-right:6px}
.kw .diff .gap td{text-align:center;color:var(--mute);background:var(--bg2);font-size:11px}
.kw .wrongline{color:var(--bad);font-weight:600}
[class*="st-key-faded"]{opacity:.4} [class*="st-key-address"],.st-key-keys{display:none}
[data-has-shortcut] [aria-label^="Shortcut"]{display:none}
.kwsaid,.kwtold{position:absolute;top:0;left:0;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.kw [aria-description]:focus-visible{outline:2px solid var(--acc);outline-offset:2px;border-radius:2px}
.kw [aria-description]:focus-visible::after{content:attr(aria-description);position:fixed;z-index:9;margin:1.6em 0 0 -4em;
width:max-content;max-width:24em;padding:4px 8px;border:1px solid var(--line);border-radius:6px;background:var(--bg2);
color:var(--ink);font:400 12px/1.4 "Source Sans",sans-serif;white-space:normal;text-align:left}
</style>"""

_WRONG = ("MISMATCH", "NON_FINITE", "UNWRITTEN", "OUT_OF_BOUNDS", "WRONG_SHAPE", "WRONG_DTYPE", "WRONG_DEVICE",
          "INPUT_MODIFIED", "NO_GRADIENT", "NONDETERMINISTIC", "FAILED", "BAD INPUT")
_COULD_NOT = ("RENDER_FAILED", "NO_COMPILER", "MACHINE_FAILED", "BUILD_FAILED", "BUILD_TIMEOUT", "LAUNCH_FAILED",
              "KERNEL_FAULT", "RUN_TIMEOUT", "OUT_OF_MEMORY", "WORKER_DIED", "IMPLAUSIBLE", "WARN", "MISSING")
_MARKS = {"OK": ("✓", "good"), "PASSED": ("✓", "good"), "FOUND": ("✓", "good"), "CAUGHT": ("✓", "good"),
          "VERIFIED": ("✓", "good"), "NOT FOUND": ("!", "warn"),
          "FASTER": ("▲", "good"), "SLOWER": ("▼", "bad"), "SAME": ("=", "neu"), "UNSURE": ("?", "uns"),
          "RUNNING": ("●", "run"), "WAITING": ("●", "run"), "SKIPPED": ("–", "neu"), "CANCELLED": ("–", "neu"),
          "STOPPED": ("–", "neu"), "CHANGED": ("!", "warn"),
          **{w: ("✕", "bad") for w in _WRONG}, **{w: ("!", "warn") for w in _COULD_NOT}}
CHIP_COLOURS = {"good": "green", "bad": "red", "warn": "orange", "neu": "gray", "uns": "violet", "run": "blue"}
RUN_KEY, STOP_KEY, NEXT_KEY, PREVIOUS_KEY = "Ctrl+Enter", "Shift+S", "J", "K"  # a button shows its key on hover
# `/` moves the focus to the editor's search field. Without an editor it opens the search of the first table, else it moves to
# the first choice on the left. When its theme changes, Streamlit calls this function but does not draw the page again. The
# charts get their colours from the server, so this function asks for a new drawing.
# A status line is replaced as a whole, twice a second while something runs. Screen readers would miss it or repeat it, so
# they hear a copy of its sentence without seconds and counts, which changes only when the sentence does.
_KEYS = st.components.v2.component(
    "kernel_workbench_keys", html="<i hidden></i>", isolate_styles=False,
    js=r"""export default function({parentElement, setTriggerValue}) {
  const ground = getComputedStyle(parentElement).getPropertyValue('--st-background-color');
  if (window.kwGround && window.kwGround !== ground) setTriggerValue('theme', ground);
  window.kwGround = ground;
  if (window.kwKeys) return;
  window.kwKeys = true;
  const region = document.body.appendChild(document.createElement('div'));
  region.className = 'kwsaid';
  region.setAttribute('role', 'status');
  region.setAttribute('aria-live', 'polite');
  const count = / [\d\u202f]+( of [\d\u202f]+)?$/;   // with the narrow spaces of numbers.count
  let waits = 0, said = '';
  const say = () => {
    waits = 0;
    const now = [...document.querySelectorAll('[data-testid=stMain] .kw .strip')].map(strip => [
      ...strip.querySelectorAll('.b, .t')].map(part => part.textContent.replace(count, '')).join(' ')).join('. ');
    if (now !== said) region.textContent = said = now;
  };
  new MutationObserver(() => { waits ||= setTimeout(say, 400); }).observe(
    document.body, {childList: true, subtree: true, characterData: true});
  addEventListener('keydown', event => {
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.composedPath()[0].closest?.('input, textarea, select, [contenteditable=true]')) return;
    const find = [...document.querySelectorAll('*')].map(e => e.shadowRoot?.querySelector('.kwed .find')).find(Boolean)
      ?? document.querySelector('.gdg-search-bar input');
    const open = document.querySelector('[data-testid=stMain] [data-testid=stElementToolbarButton] [aria-label^=Search]');
    const first = document.querySelector('[data-testid=stSidebar] input[role=combobox]');
    if (!find && !open && !first) return;
    event.preventDefault();
    if (find) find.focus(); else if (open) open.click(); else first.focus();
  });
}""")
# The editor, the reader and the source beside machine code: editor.js says what its data are.
_CODE = st.components.v2.component(
    "kernel_workbench_editor", js=Path(__file__).with_name("editor.js").read_text(encoding="utf-8"),
    html="""<div class=kwed><div class=bar>
<button type=button class=run title="Ctrl-Enter"></button><button type=button class=revert>Revert</button>
<select class=jump aria-label="Jump to"></select>
<input class=find type=search placeholder="Search, or :line" aria-label="Search" spellcheck=false>
<button type=button class=previous aria-label="Previous match">↑</button>
<button type=button class=next aria-label="Next match">↓</button><span class=count aria-live=polite></span>
<span class=said aria-live=polite></span></div>
<div class=body><div class=numbers aria-hidden=true><pre></pre></div><div class=code><div class=marks aria-hidden=true></div>
<pre class=colours aria-hidden=true></pre><textarea spellcheck=false autocapitalize=off autocomplete=off></textarea></div></div>
<div class=errors role=status></div></div>""",
    css="""
.kwed{font-size:13px;color:var(--ink)}
.kwed .bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin-bottom:6px}
.kwed button,.kwed select,.kwed input{font:inherit;font-size:12.5px;height:28px;box-sizing:border-box;padding:0 9px;
border:1px solid var(--line);border-radius:6px;background:var(--bg);color:var(--ink)}
.kwed button{cursor:pointer}.kwed button:disabled{cursor:default;opacity:.5}
.kwed button.run{background:light-dark(#1F5FBF,#2C62B4);border-color:transparent;color:#fff;font-weight:600}
.kwed .find{width:13em}.kwed .jump{max-width:15em}.kwed .said,.kwed .count{color:var(--mute);font-size:12px}
.kwed :is(button,select,input):focus-visible{outline:2px solid var(--acc);outline-offset:1px}
.kwed .body{display:flex;height:560px;overflow:auto;resize:vertical;border:1px solid var(--line);border-radius:6px;
background:var(--codebg)}
.kwed .body:focus-within{border-color:var(--acc)}
.kwed .body,.kwed pre,.kwed textarea{font-family:"Source Code Pro",ui-monospace,monospace;font-size:12px;line-height:18px;
tab-size:2;letter-spacing:0}
.kwed .numbers{position:sticky;left:0;z-index:2;flex:none;padding:0 8px 0 10px;text-align:right;color:var(--mute);
background:var(--bg2);border-right:1px solid var(--line);user-select:none;min-height:100%}
.kwed .numbers pre{position:absolute;right:8px;margin:0;padding:6px 0;background:none}
.kwed .numbers b{color:var(--acc);font-weight:700}.kwed .numbers u{text-decoration:none;color:var(--acc)}
.kwed .chosen{position:absolute;left:-8px;right:0;height:18px;background:light-dark(#1F5FBF22,#6FA3F533);
border-left:3px solid var(--acc);box-sizing:border-box}.kwed .counted :is(textarea,.numbers){cursor:pointer}
.kwed .code{position:relative;flex:1 0 auto;margin-left:8px;min-height:100%}
.kwed .code pre,.kwed .code textarea{position:absolute;inset:0;margin:0;padding:6px 0;border:0;white-space:pre;overflow:hidden;
background:none}
.kwed .code textarea{width:100%;height:100%;resize:none;outline:0;color:transparent;caret-color:var(--ink)}
.kwed .code textarea::selection{background:light-dark(#1F5FBF55,#6FA3F566);color:transparent}
.kwed .code .colours{pointer-events:none;bottom:auto;overflow:visible}.kwed .colours i{font-style:normal}
.kwed .colours .c{color:light-dark(#66707F,#8B96A5)}.kwed .colours .s{color:light-dark(#0B7A5E,#4CC9A4)}
.kwed .colours .p{color:light-dark(#8A6100,#E8B84A)}.kwed .colours .k{color:light-dark(#1F5FBF,#8AB6FF)}
.kwed .colours .n{color:light-dark(#6B4FC0,#A995F5)}
.kwed .marks{position:absolute;inset:0;pointer-events:none}
.kwed .mark{position:absolute;left:-8px;right:0;height:18px;background:var(--badbg);border-left:3px solid var(--bad);
box-sizing:border-box}
.kwed .mark span{position:absolute;margin-left:5px;white-space:nowrap;color:var(--bad);font-weight:600}
.kwed .marks u{position:absolute;height:18px;text-decoration:none;background:light-dark(#E39A0044,#F0B23E44)}
.kwed .marks u.now{outline:1.5px solid light-dark(#8A6100,#F0B23E)}
.kwed .errors{display:flex;flex-direction:column;align-items:flex-start;gap:3px;margin-top:6px;max-height:110px;overflow:auto}
.kwed .errors button{border:0;padding:0;height:auto;background:none;color:var(--bad);text-align:left;font-size:12px}
.kwed .errors button.old{color:var(--mute)}""")
# Pictures of layers: SVG from numbers and fixed words, inserted without any other script.
# The Tab key reaches one output of each picture, and from it the arrow keys reach its neighbours. An output then shows its
# formula as on hover, and screen readers hear it.
_SVG = st.components.v2.component(
    "kernel_workbench_svg", html='<div class="kwsvg"></div><div class="kwtold" role="status"></div>', isolate_styles=False,
    css=".kwsvg{line-height:1.3}.kwsvg svg{max-width:100%;height:auto}",
    js="""function move(event) {
  const way = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  const here = event.target.closest('.out');
  if (!way || !here) return;
  event.preventDefault();
  const along = way[0] ? 0 : 1;
  const centre = output => { const box = output.querySelector('rect').getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2]; };
  const from = centre(here);
  const distance = output => { const by = centre(output).map((value, axis) => value - from[axis]);
    return by[along] * way[along] < 1 || Math.abs(by[1 - along]) > 1 ? Infinity : Math.abs(by[along]); };
  const next = [...here.closest('svg').querySelectorAll('.out')].reduce((a, b) => distance(b) < distance(a) ? b : a);
  if (distance(next) === Infinity) return;
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

export default function({parentElement, data}) {
  const box = parentElement.querySelector('.kwsvg'), told = parentElement.querySelector('.kwtold');
  if (box.kwShown === data.svg) return;
  if (box.kwShown === undefined) {
    box.addEventListener('keydown', move);
    box.addEventListener('focusin', event => {
      told.textContent = event.target.querySelector('.d .code')?.textContent ?? '';
    });
  }
  box.innerHTML = box.kwShown = data.svg;
  for (const svg of box.querySelectorAll('svg')) {
    const first = svg.querySelector('.pin') ?? svg.querySelector('.out');
    if (first) first.tabIndex = 0;
  }
  box.dataset.changes = 1 + +(box.dataset.changes ?? 0);
}""")


def keys() -> None:
    """The keys that Streamlit's buttons do not have, and a new drawing when the theme changes; asked for once by the entry
    file."""
    with st.container(key="keys"):
        _KEYS(key="keys-box", on_theme_change=lambda: None)


def button(label: str, *, key: str, on_click: Callable[..., None] | None = None, args: Sequence[Any] = (),
           **options: Any) -> bool:
    """`st.button`, but a click is not lost if another drawing of the page interrupts the one that it started. The callback
    notes the click; the next drawing of the button reads it. That drawing also has a value that was typed just before."""
    noted = _clicks()  # Streamlit may end a callback, too, wherever it uses st.session_state

    def note() -> None:
        noted.add(key)
        if on_click is not None:
            on_click(*args)

    st.button(label, key=key, on_click=note, **options)
    clicked = key in noted
    noted.discard(key)
    return clicked and not options.get("disabled")


def later() -> dict[str, Any]:
    """Values of the tab's state that the next drawing sets. Streamlit may end a drawing wherever `st.session_state` is used,
    but not where this dict is changed. So what a click starts and what it notes here cannot come apart, if the caller gets the
    dict before it asks for the click, and asks for a new drawing after it."""
    return st.session_state.setdefault("later", {})


def take_over() -> None:
    """For the start of a drawing: set what an earlier one noted in `later`. It stays noted until a drawing is whole, because
    the browser overwrites a widget's new value if the drawing ended before the widget."""
    st.session_state.update(later())


def whole() -> None:
    """For the end of a whole drawing of a page: what it took over is done, and a click on a button that is gone does nothing
    later."""
    _clicks().clear()
    later().clear()


def _clicks() -> set[str]:
    """The keys of the buttons whose click no drawing has read."""
    return st.session_state.setdefault("clicks", set())


def mark(word: str) -> tuple[str, str]:
    """(glyph, colour class) of a status, verdict or note."""
    return _MARKS.get(word, ("i", "neu"))


def chip(word: str) -> str:
    """`✓ OK`: glyph and word, for table cells."""
    return f"{mark(word)[0]} {word}"


def badge(word: str, text: str | None = None) -> str:
    glyph, colour = mark(word)
    return f'<span class="b {colour}">{glyph} {escape(text or word)}</span>'


def html(body: str, *, faded: bool = False) -> None:
    """HTML of the workbench. The caller must escape text in it."""
    st.html(f'<div class="kw{" faded" if faded else ""}">{body}</div>')


def svg(picture: str, *, key: str) -> None:
    """A picture of a layer."""
    _SVG(data={"svg": picture}, key=key, height="content")


def code(key: str, data: dict[str, Any], **options: Any) -> Any:
    """A text with line numbers, search and marks; see editor.js. `options`: the callbacks `on_run_change`, `on_picked_change`
    and `on_text_change`, and `default`, the values of its state."""
    return _CODE(key=key, height="content", data=data, **options)


def quoted(text: str) -> str:
    """HTML of a text in which code stands between backticks."""
    return re.sub("`([^`]+)`", r'<span class="mono">\1</span>', escape(text))


def strip(word: str, sentence: str, evidence: str = "", *, badge_text: str | None = None,
          more_badges: Sequence[str] = ()) -> str:
    """The status line of a page: a badge, a sentence with the number, and a line of evidence."""
    badges = badge(word, badge_text) + "".join(f" {badge(b)}" for b in more_badges)
    explained = _JARGON.sub(lambda found: meaning(found[0]), quoted(evidence))
    return (f'<div class="strip s{mark(word)[1]}"><span>{badges}</span><div><div class="t">{escape(sentence)}</div>'
            f'<div class="s">{explained}</div></div></div>')


def changed(what: Sequence[str], shown: str, button: str) -> str:
    """The status line above a faded result, whose inputs have changed."""
    return strip("CHANGED", f"{shown} was made with other values than the fields show now",
                 f"Changed since: {', '.join(what)}. Press {button} to do it again.")


def facts(pairs: Iterable[tuple[str, str, str]]) -> str:
    """(name, value, what it means, shown on hover)"""
    return ('<div class="facts">' + "".join(
        f"<div{hint(meaning)}><span>{escape(name)}</span><b>{escape(value)}</b></div>"
        for name, value, meaning in pairs) + "</div>")


def hint(meaning: str) -> str:
    """The attributes of an element that show its meaning on hover and on focus, and tell it to screen readers."""
    said = escape(meaning, quote=True)
    return said and f' tabindex=0 aria-description="{said}" title="{said}"'


# The meanings of table heads and row names, shown on hover on all pages.
MEANINGS = {
    "max abs": "The largest absolute difference from the result in float64",
    "rel. L2": "The norm of the difference from the result in float64, divided by the norm of that result",
    "allowed": "The largest relative L2 error that the precision and the length of the sum allow",
    "wrong": "How many values are outside their own tolerance, and how many values there are",
    "worst": "The value whose error is the largest, divided by the error that is allowed for it",
    "median": "The median of all samples. A sample is one launch, or one call of the module, with a cold L2 cache",
    "middle half": "Half the width of the middle 50 % of the samples, divided by the median",
    "95 % interval": "The interval contains the true ratio with 95 % confidence. Both sides were timed alternately",
    "occupancy": "Warps that are resident on a multiprocessor, divided by the maximum",
    "registers": "Registers of a thread. The compiler chooses their number",
    "shared memory": "Shared memory of a block: the static part, and the largest dynamic part that the launcher requests",
    "spills": "Bytes that the compiler stores in local memory because a thread has too few registers",
    "workspace": "Bytes that the launcher allocates beside inputs and outputs",
    "times as fast": "The time of the previous variant of the ladder, divided by the time of this one",
    "share": "The layer's share of the time of the whole step in PyTorch",
    "PyTorch / ours": "PyTorch's time divided by the file's time. Above 1 the file is faster",
    "precision": "How products are computed: ieee fp32, tf32, tf32x3 (three tf32 products), fp16 or bf16",
    "throttled": "The GPU lowered its clock while this was timed",
    "launch_bound": "The host needs more time to launch the kernel than the GPU needs to run it",
    "too_small": "The kernel is too short for an exact time",
    "kernel_ms": "The time of the kernels alone: outputs and workspace are allocated before",
    "module_ms": "The time of a call of the module, with allocation and autograd",
    "relative L2": "The norm of the difference from the result in float64, divided by the norm of that result",
    "physical limit": "The shortest time that this GPU allows: for the bytes that must move, or for the work",
}
_JARGON = re.compile("kernel_ms|module_ms|95 % interval|relative L2|physical limit")  # explained in a status line


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), plain: Sequence[int] = (),
          narrow: Sequence[int] = ()) -> str:
    """A small table. Cells must be HTML: pass `escape(text)` or `badge(...)`. `right`: right-aligned columns. `plain`: columns
    whose heads are also HTML. `narrow`: columns that are only as wide as needed."""
    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if i in right else ' class=w1' if i in narrow else ''}>{v}</{tag}>"
                       for i, v in enumerate(values))
    top = f"<tr>{cells([h if i in plain else meaning(h) for i, h in enumerate(head)], 'th')}</tr>" if any(head) else ""
    body = "".join(f"<tr>{cells(r, 'td')}</tr>" for r in rows)
    # A table that is too wide scrolls, so that the page does not.
    return f'<div class="scroll"><table>{top}{body}</table></div>'


def last_lines(text: str, most: int) -> str:
    """The last complete lines of a text, up to a number of characters. If the last line alone is longer, its end."""
    if len(text) <= most:
        return text
    cut, _, lines = text[-most:].partition("\n")
    return lines or cut


def excerpt(text: str, line: int, *, name: str = "", around: int = 3) -> str:
    """A line with the lines around it and their numbers. The line is marked. "" if the text does not have it."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = []
    for number in range(max(1, line - around), min(len(lines), line + around) + 1):
        body = f"{'>' if number == line else ' '} {number:5}  {escape(lines[number - 1])}"
        shown.append(f"<b class=wrongline>{body}</b>" if number == line else body)
    return (heading(f"{name}, line {line}" if name else f"Line {line}")) + f"<pre>{chr(10).join(shown)}</pre>"


def markdown(text: str) -> str:
    """Plain text for where Streamlit reads markdown, as in the help of a widget."""
    return "".join(f"\\{sign}" if sign in "\\[]*_`$:<>" else sign for sign in text)


def meaning(words: str, text: str = "") -> str:
    """`text` as HTML (default: the words), with the meaning of the words on hover."""
    said = MEANINGS.get(words)
    return f"<span{hint(said)}>{escape(text or words)}</span>" if said else escape(text or words)


def heading(text: str) -> str:
    return f"<h4>{escape(text)}</h4>"


def mode() -> str:
    """ "dark" or "light", as the browser shows it."""
    return "dark" if st.context.theme.type == "dark" else "light"


def chart(figure: go.Figure, *, key: str, alt: str, **options: Any) -> Any:
    return st.plotly_chart(figure, key=key, theme=None, config=plots.CONFIG, alt=alt, **options)
