"""Reference and candidate in processes of their own, as the judge has them, before any question is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.measure.check.foreign import requests
from workbench.measure.check.foreign.process import ForeignProcess, Limits
from workbench.measure.check.party import Party
from workbench.measure.check.questions.cases import Case, setting_of
from workbench.measure.check.questions.drawn import Drawn
from workbench.measure.check.trialrun import TrialRun

from .forked import ForkedProcess


@contextmanager
def trial_of(text: str, reference: str, scratch: Path, *, kind: type[ForeignProcess] = ForkedProcess
             ) -> Iterator[tuple[TrialRun, Case]]:
    """On the CPU, with the given case of float32."""
    processes = [kind(name, device="cpu", limits=Limits(4 << 30), scratch=scratch) for name in ("reference", "candidate")]
    parties = [Party(process, source, class_name=name, emulate=False) for process, source, name in
               zip(processes, (reference, text), ("Model", "ModelNew"), strict=True)]
    try:
        facts = parties[0].load()
        answer, inputs = processes[0].ask(requests.Give(1))
        made, _ = processes[0].ask(requests.Make("first", answer.arguments, answer.keywords, 1))
        trial = TrialRun(*parties, device="cpu", dtype="float32", seed=20_011)
        trial.given, trial.parameters = inputs, list(facts.parameters)
        trial.attribute = made.structure.attribute if made.structure else ""
        setting = setting_of(facts.parameters, answer.arguments, answer.keywords, made.structure)
        if setting.layer is None:
            trial.drawn = Drawn(inputs, parties[0].draw, trial.generator)
        yield trial, Case("the given size", setting, tuple(tuple(x.shape) for x in inputs), ("float32",) * len(inputs))
    finally:
        for process in processes:
            process.close()
