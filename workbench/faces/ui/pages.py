"""The pages in the order of the navigation, and a way to go to one of them."""

from __future__ import annotations

from functools import cache

import streamlit as st
from streamlit.navigation.page import StreamlitPage


def all_pages() -> list[StreamlitPage]:
    return [page(name) for name in ("workbench", "tune", "inspect", "compare", "bench", "check", "model", "export", "machine")]


@cache
def page(name: str) -> StreamlitPage:
    """The one page object of that name; each page's module is read when the page is first made."""
    from . import (
        bench_page,
        check_page,
        compare_page,
        export_page,
        inspect_page,
        machine_page,
        model_page,
        state,
        tune_page,
        workbench_page,
    )
    module = {"workbench": workbench_page, "tune": tune_page, "inspect": inspect_page, "compare": compare_page,
              "bench": bench_page, "check": check_page, "model": model_page, "export": export_page,
              "machine": machine_page}[name]
    return st.Page(state.guarded(module.draw, name, module.KEYS), title=name.capitalize(), url_path=name,
                   default=name == state.FRONT)
