"""The layer picture on the page: SVG made of numbers and our own words, put in place without any other script."""

from __future__ import annotations

import streamlit as st

from ...core.layer import Workload
from .picture import layer_svg

_BOX = st.components.v2.component(
    "kernel_workbench_svg", html='<div class="kwsvg"></div>', isolate_styles=False,
    css=".kwsvg{line-height:1.3}.kwsvg svg{max-width:100%;height:auto}",
    js="""export default function({parentElement, data}) {
  const box = parentElement.querySelector('.kwsvg');
  if (box.dataset.shown !== data.svg) { box.innerHTML = data.svg; box.dataset.shown = data.svg }
}""")


def layer_picture(workload: Workload, *, faded: bool = False) -> None:
    """Draw it; `faded` when the fields beside it say something that is no layer."""
    with st.container(key="faded" if faded else "picture"):
        _BOX(data={"svg": layer_svg(workload)}, key="layer-picture", height="content")
