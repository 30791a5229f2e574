"""The Export page: layers by their names, and the file after the one that is chosen."""

from __future__ import annotations

from dataclasses import replace

from streamlit.testing.v1 import AppTest

from tests.bench.made import recorded, trial
from workbench.core.layer import Workload
from workbench.core.template import render
from workbench.core.trial import Trial
from workbench.drive.sessions.recorded import candidate_of


def _app() -> None:
    from workbench.faces.ui import export_page
    export_page.draw()


def judged(name: str, **more) -> Trial:
    """A trial of the very source that today's template makes."""
    made = trial(name, "forward", "naive_gather", 1.0, "ieee", **more)
    found = render(candidate_of(made))
    return replace(made, candidate_id=found.candidate_id, config=found.candidate.config)


def test_a_layer_is_shown_by_the_name_it_has_everywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    trials = [judged(name, size=size, **more) for name, size, more in (
        ("kb75", "full", {}), ("models/sam-1", "full", {}), ("models/sam-1", "full", {"memory_format": "channels_last"}),
        ("models/dcgan-2", "small", {}))]
    recorded(tmp_path, trials, layers=("kb75", "models/sam-1"))
    at = AppTest.from_function(_app, default_timeout=300).run()
    assert not at.exception
    layer = at.selectbox(key="export_workload")
    assert layer.options == ["models/dcgan-2 (small) float32", "models/sam-1 (full) float32 channels_last",
                             "models/sam-1 (full) float32", "KernelBench #75 (full) float32"]

    def chosen(workload: Workload) -> tuple[str, list[str]]:
        at.selectbox(key="export_workload").set_value(str(workload)).run()
        assert not at.exception
        forms = next(s for s in at.selectbox if s.label == "Constructor as in").options
        return "".join(e.body for e in at.get("html")), forms

    strip, forms = chosen(trials[2].workload)
    assert "model_new_sam_1.py is not verified yet" in strip and forms == ["nn.ConvTranspose2d"]
    strip, forms = chosen(trials[0].workload)
    assert "model_new_kb75.py is not verified yet" in strip and forms == ["KernelBench #75", "nn.ConvTranspose2d"]
