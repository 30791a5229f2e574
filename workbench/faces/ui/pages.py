"""The pages in the order of the navigation, and a way to go to one of them. The module of a page is named after it."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from . import state

NAMES = ("workbench", "tune", "inspect", "compare", "bench", "check", "model", "export", "machine")


def all_pages() -> list[StreamlitPage]:
    return [page(name) for name in NAMES]


@cache
def page(name: str) -> StreamlitPage:
    """The page object of that name. Its module is imported when the page is first made, because the modules of pages refer to
    each other by this function."""
    module = import_module(f"{__package__}.{name}_page")
    return st.Page(state.guarded(module.draw, name, module.KEYS), title=name.capitalize(), url_path=name,
                   default=name == state.FRONT)
