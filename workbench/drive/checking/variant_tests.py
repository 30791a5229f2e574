"""The verb `test`: judges the chosen variants on awkward layers and gives one result per case."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ...core.awkward import awkward_workloads
from ...core.candidate import Candidate, why_not
from ...core.errors import RenderError
from ...core.facts import tensor_bytes
from ...core.layer import LAUNCHES, Workload
from ...core.precision import PRECISIONS_OF
from ...core.replies import Outcome
from ...core.template import Rendered, render
from ...core.trial import Status
from ...core.variants import Variant, discover
from ..machine.device_lock import held
from ..machine.doctor import resolve_device
from ..running import outcome
from ..running.candidate_selection import check_names
from ..running.request import RunRequest
from ..running.runner import Runner

DTYPES_OF = {"quick": ("float32",), "normal": ("float32", "float16"),
             "full": ("float32", "float64", "float16", "bfloat16")}
_FEW_LAYERS = {"quick": 1, "normal": 8}  # on how many layers a case is judged if each layer needs a build


@dataclass(frozen=True)
class CaseResult:
    """One variant on one workload."""

    variant: str            # "forward/naive_gather"
    form: str
    workload: str
    dtype: str
    precision: str
    status: str
    headline: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.status == Status.OK

    @property
    def line(self) -> str:
        tail = "" if self.ok else f"  {self.headline}"
        return f"{self.status:<16} {self.variant:<34} {self.form:<8} {self.dtype:<8} {self.precision:<6} {self.workload}{tail}"


@dataclass(frozen=True)
class Chosen:
    """The request: variants by name (default: all) in these directions, on these workloads (default: the awkward layers of the
    effort)."""

    effort: str = "normal"
    variants: tuple[str, ...] = ()
    directions: tuple[str, ...] = LAUNCHES
    workloads: tuple[Workload, ...] = ()
    templates: Path | None = None


def validate(runner: Runner, asked: Chosen, *, device: str = "auto",
             on_case: Callable[[CaseResult], None] = lambda case: None,
             on_text: Callable[[str], None] = lambda text: None) -> list[CaseResult]:
    """Judge every chosen variant on every workload, without timing.

    A variant with a run-time form is built once and judged on all layers. With effort `full` its constant form is also built,
    variants with only a constant form run on every layer that they serve, and every precision is judged on all layers. On
    `workloads` every precision is judged. This is not a run of a session: one build is judged on many workloads, and nothing is
    recorded. The builds, the judge and the outcomes are those of a run. The GPU's lock is held while kernels run; `on_text`
    gets the name of the process for which it waits.
    """
    device = resolve_device(device)
    there = discover(asked.templates)
    check_names(there, asked.variants, asked.directions, {})
    chosen = [v for v in there if v.direction in asked.directions
              and (not asked.variants or v.name in asked.variants or v.key in asked.variants)]
    cases: list[CaseResult] = []

    def report(candidate: Candidate, workload: Workload, result: Outcome, seconds: float) -> None:
        case = CaseResult(candidate.variant.key, candidate.form, f"{workload.layer} x {list(workload.input_shape)}",
                    workload.dtype, candidate.precision, str(result.status), result.headline, round(seconds, 3))
        cases.append(case)
        on_case(case)

    known = runner.device(device)
    ready: list[tuple[Candidate, Workload, Rendered]] = []
    for candidate, workload in planned(chosen, asked.effort, known.sm, asked.workloads):
        needed = tensor_bytes(workload, candidate.direction)
        if needed > known.free_bytes:
            report(candidate, workload, outcome.too_large(needed, known.free_bytes, device), 0.0)
            continue
        try:
            ready.append((candidate, workload, render(candidate)))
        except RenderError as error:
            report(candidate, workload, outcome.render_failed(error), 0.0)
    rendered = {r.candidate_id: r for _, _, r in ready}
    built = runner.build_all(list(rendered.values()), device)
    with held(device, on_text):
        for candidate, workload, item in ready:
            start = time.monotonic()
            build = built[item.candidate_id]
            result = build if build.status != Status.OK else runner.judge_once(
                device, item, build, RunRequest(workload, (), effort="quick", time=False))
            report(candidate, workload, result, time.monotonic() - start)
    return cases


def junit(cases: Sequence[CaseResult]) -> bytes:
    """The cases as a JUnit XML file."""
    bad = [c for c in cases if not c.ok]
    suite = ElementTree.Element("testsuite", name="kernel-workbench", tests=str(len(cases)), failures=str(len(bad)),
                                time=f"{sum(c.seconds for c in cases):.3f}")
    for case in cases:
        names = (case.variant, case.form, case.dtype, case.precision)
        element = ElementTree.SubElement(suite, "testcase", classname=".".join(names), name=case.workload,
                                         time=f"{case.seconds:.3f}")
        if not case.ok:
            ElementTree.SubElement(element, "failure", message=f"{case.status}: {case.headline}")
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def to_json(cases: Sequence[CaseResult]) -> list[dict[str, Any]]:
    return [asdict(c) for c in cases]


def planned(variants: Sequence[Variant], effort: str, sm: int, workloads: Sequence[Workload] = ()
            ) -> list[tuple[Candidate, Workload]]:
    """The cases of `validate` on a GPU of that compute capability. A variant that cannot run on a layer has no case there."""
    served = [(c, w) for v in variants for w in workloads or _awkward(v, effort)
              for c in _candidates(v, w, full=effort == "full") if why_not(c, sm=sm) is None]
    return served if workloads else _few_layers(served, effort)


def _awkward(variant: Variant, effort: str) -> list[Workload]:
    """The awkward workloads in the dtypes of that effort. A variant that computes none of them is judged in its first dtype."""
    dtypes = [dtype for dtype in DTYPES_OF[effort] if dtype in variant.dtypes] or variant.dtypes[:1]
    return [w for dtype in dtypes for w in awkward_workloads(effort, dtype)]


def _few_layers(plan: Sequence[tuple[Candidate, Workload]], effort: str) -> list[tuple[Candidate, Workload]]:
    """The plan in which, with any effort but `full`, variants without a run-time form run only on the first few layers, because
    each needs a build."""
    kept, tried = [], Counter[tuple[str, ...]]()
    for candidate, workload in plan:
        kind = (candidate.variant.key, candidate.form, candidate.precision)
        tried[kind] += 1
        if "runtime" in candidate.variant.forms or tried[kind] <= _FEW_LAYERS.get(effort, len(plan)):
            kept.append((candidate, workload))
    return kept


def _candidates(variant: Variant, workload: Workload, *, full: bool) -> list[Candidate]:
    forms = variant.forms if full else variant.forms[-1:]  # the last form in the header: the run-time form, if there is one
    offered = _offered(variant, workload)
    return [Candidate(variant, workload.layer, workload.dtype, {}, precision, form)
            for precision in (offered if full else offered[:1]) for form in forms]


def _offered(variant: Variant, workload: Workload) -> list[str]:
    return [p for p in variant.precision if p in PRECISIONS_OF[workload.dtype]]
