"""The page: `streamlit run app.py`. `python app.py --headless-test ...` is `python -m workbench test ...`."""

from __future__ import annotations

import sys

try:
    from streamlit.runtime import exists
except ModuleNotFoundError:  # a test needs no page
    def exists() -> bool:
        return False


def page() -> None:
    import streamlit as st

    from workbench.faces.ui import pages, theme

    st.set_page_config(page_title="Kernel Workbench", page_icon="◧", layout="wide", initial_sidebar_state=290)
    st.html(theme.STYLE)
    theme.keys()
    st.navigation(pages.all_pages(), position="top").run()


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--headless-test"]:
        from workbench.faces.cli import main as command_line
        from workbench.faces.console import console
        return console(command_line, ["test", *arguments[1:]])
    print("Start the page with:  streamlit run app.py\n"
          "Test without a page:  python app.py --headless-test   (the same as python -m workbench test)\n"
          "Everything else:      python -m workbench --help")
    if arguments:
        print(f"{arguments[0]!r} is not known here.", file=sys.stderr)
    return 2 if arguments else 0


if exists():
    page()
elif __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:  # `streamlit run app.py` imports this file, serves what is called `app`, and runs this file for every browser
    from starlette.middleware import Middleware
    from streamlit.starlette import App

    from workbench.faces.ui.allowed_hosts import KnownHostsOnly

    app = App(__file__, middleware=[Middleware(KnownHostsOnly)])
