"""The judge on right kernels, in every dtype, direction and layout; and what it says of orders it cannot follow."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from workbench.core.cache import digest_of
from workbench.core.candidate import Candidate
from workbench.core.errors import BadRequest
from workbench.core.layer import DIRECTIONS, DTYPES, MEMORY_FORMATS, ConvTranspose, Workload
from workbench.core.orders import BaselineOrder, DeviceOrder
from workbench.core.presets import preset
from workbench.core.replies import Event
from workbench.core.trial import Status
from workbench.core.variants import find
from workbench.measure import device, truth
from workbench.measure.kernel import launch
from workbench.measure.kernel.judge import judge
from workbench.measure.kernel.launch import Launcher, MissingSymbol, problem_of
from workbench.measure.kernel.stage import Stage
from workbench.measure.pytorch import baselines

from .conftest import CROPPED, WORKLOAD, Apart, Built, bad_candidate, build_batch, judge_apart, order

pytestmark = pytest.mark.xdist_group("bad_kernels")
VOLUME = Workload(ConvTranspose(3, 2, 3, (2, 1, 3), stride=(1, 2, 3), padding=(0, 0, 1)), 2, (3, 2, 4))


def _candidate(naive: Built, direction: str, dtype: str = "float32") -> Candidate:
    return next(c for c in naive.symbols if c.direction == direction and c.dtype == dtype)


def _judged(naive: Built, workload: Workload, direction: str, scratch: Path, **more: Any) -> Apart:
    request = order(naive, _candidate(naive, direction, workload.dtype), workload, scratch, **more)
    result = judge_apart(request)
    assert isinstance(result, Apart), f"the process ended: {result}"
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_naive_is_right(naive: Built, scratch: Path, direction: str, dtype: str) -> None:
    for workload in (WORKLOAD, CROPPED, VOLUME, replace(WORKLOAD, memory_format="channels_last"),
                     replace(VOLUME, memory_format="channels_last")):
        result = _judged(naive, replace(workload, dtype=dtype), direction, scratch)
        assert result.status == "OK", (workload, result.headline)
        names = {"forward": ["output"], "grad_input": ["grad_input"], "grad_weight": ["grad_weight", "grad_bias"]}
        wanted = [n for n in names[direction] if n != "grad_bias" or workload.layer.bias]
        assert list(result.errors) == wanted
        for errors in result.errors.values():
            assert errors.rel_l2 <= errors.allowed and errors.wrong == 0


def test_a_launcher_that_takes_channels_last(tmp_path: Path, scratch: Path) -> None:
    """Timed, so that its results are watched; in both formats of the caller. Told nothing, the judge finds it wrong."""
    layer = ConvTranspose(2, 17, 9, 2, stride=2)
    for direction in DIRECTIONS:
        native = Candidate(find("persistent_packed", direction), layer, "bfloat16", {"CHANNELS_LAST": 1}, form="constant")
        built = build_batch([native], tmp_path / direction)
        for memory_format in MEMORY_FORMATS:
            work = Workload(layer, 2, (4, 5), "bfloat16", memory_format)
            right = judge_apart(order(built, native, work, scratch, time=True))
            assert isinstance(right, Apart) and right.status == "OK", f"{direction} {memory_format}: {right}"
            wrong = judge_apart(order(built, native, work, scratch, channels_last=False))
            assert isinstance(wrong, Apart) and wrong.status == "MISMATCH", f"{direction} {memory_format}: {wrong}"


def test_a_timed_trial(naive: Built, scratch: Path) -> None:
    workload = preset("kb74").workload("small")
    result = _judged(naive, workload, "forward", scratch, time=True, limit_s=400.0)
    timing = result.kernel_ms
    assert result.status == "OK" and timing.samples == len(result.samples) and timing.median_ms > 0
    assert result.flags == ("emulated",) and result.restart is False
    elements = prod(workload.output_shape) + prod(workload.input_shape) + workload.layer.parameter_count
    assert result.memory == {"peak_bytes": 4 * elements, "workspace_bytes": 0}
    assert [e.phase for e in result.events] == ["check", "check", "check", "time", "recheck", "check"]


def test_a_truth_too_large_to_keep(naive: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(truth._KEPT_BYTES, "cpu", 0)
    monkeypatch.setitem(truth._BLOCK_ELEMENTS, "cpu", 100)
    for direction in DIRECTIONS:
        for workload in (WORKLOAD, VOLUME):
            result = _judged(naive, workload, direction, tmp_path, time=True)
            assert result.status == "OK", result.headline
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["skips_last_row", "past_the_workspace"])
def test_a_failed_trial_leaves_no_tensors(bad: Built, bad_root: Path, scratch: Path, name: str) -> None:
    """A GPU worker goes on to the next candidate: what the last one held must be free by then."""
    request = order(bad, bad_candidate(bad_root, name), WORKLOAD, scratch)
    gc.collect()
    gc.disable()
    try:
        assert judge(request, lambda event: None).status in ("UNWRITTEN", "OUT_OF_BOUNDS")
        assert not [o for o in gc.get_objects() if type(o) is Stage]
    finally:
        gc.enable()


def test_without_zones_for_memory_checkers(naive: Built, scratch: Path) -> None:
    assert _judged(naive, WORKLOAD, "grad_input", scratch, sanitize=True).status == "OK"


def test_a_library_for_another_layer_refuses(naive: Built, scratch: Path) -> None:
    request = order(naive, _candidate(naive, "forward"), WORKLOAD, scratch)
    missing = judge(replace(request, symbol="kw_forward_of_nobody"), lambda event: None)
    assert missing.status == "LAUNCH_FAILED" and "kw_forward_of_nobody" in missing.headline
    absent = judge(replace(request, library=scratch / "none.so"), lambda event: None)
    assert absent.status == "MACHINE_FAILED" and "none.so" in absent.headline
    another = judge(replace(request, digest="0" * 64), lambda event: None)
    assert another.status == "MACHINE_FAILED" and "was changed after the build" in another.headline
    assert judge(replace(request, digest=digest_of(request.library)), lambda event: None).status == "OK"


def test_more_than_the_machine_has(naive: Built, scratch: Path) -> None:
    vast = Workload(ConvTranspose(1, 1 << 10, 1 << 10, 1), 1 << 10, (1 << 20,))
    result = judge(order(naive, _candidate(naive, "forward"), vast, scratch), lambda event: None)
    assert result.status == "OUT_OF_MEMORY"
    assert result.headline.startswith("The check needs 8.00 TiB") or result.headline.startswith("The check needs 8 TiB"), result


def test_launcher(naive: Built) -> None:
    candidate = _candidate(naive, "grad_weight")
    launcher = Launcher(naive.library, naive.symbols[candidate], "grad_weight")
    assert launcher.workspace_bytes(problem_of(WORKLOAD)) >= 0
    assert launcher.last_error() == 0
    with pytest.raises(MissingSymbol, match="exports no kw_nothing_workspace"):
        Launcher(naive.library, "kw_nothing", "forward")
    assert list(problem_of(VOLUME))[:7] == [2, 3, 2, 4, *VOLUME.output_size]


def test_arguments_are_those_of_the_exporting_header() -> None:
    text = (Path(__file__).parents[2] / "kernel_templates" / "contract" / "export.cuh").read_text()
    for direction, names in launch.ARGUMENTS.items():
        macro = text.split(f"#define KW_EXPORT_{direction.upper()}(")[1].split("\n#define")[0]
        signature = macro.split("const Problem* problem, ")[1].split(")")[0].replace("\\\n", " ")
        declared = [part.split()[-1].lstrip("*").removesuffix("_out") for part in signature.split(",")]
        assert declared == [*names, "workspace", "stream"], direction


def test_device() -> None:
    here = device.describe(DeviceOrder("cpu"))
    assert here.kind == "cpu" and here.name and here.key == f"cpu-{here.arch}"
    assert 0 < here.free_bytes <= here.total_bytes
    with pytest.raises(BadRequest, match="device 'gpu' is not known; choose cpu or cuda:0."):
        device.describe(DeviceOrder("gpu"))
    with pytest.raises(BadRequest, match="cuda:99 does not exist"):
        device.describe(DeviceOrder("cuda:99"))


@pytest.mark.parametrize("workload", [WORKLOAD, replace(WORKLOAD, memory_format="channels_last"), CROPPED, VOLUME,
                                      replace(WORKLOAD, dtype="float64"), replace(WORKLOAD, dtype="bfloat16")],
                         ids=lambda w: f"{w.layer} {w.dtype} {w.memory_format}")
def test_eager_baseline(workload: Workload, scratch: Path) -> None:
    events: list[Event] = []
    answer = baselines.measure(BaselineOrder(workload, "cpu", (*DIRECTIONS, "backward"), ("default",), effort="quick",
                                             scratch=scratch), events.append)
    found = answer.baselines
    assert [b.direction for b in found] == [*DIRECTIONS, "backward"] and len(events) == 4
    for baseline in found:
        assert baseline.name == "eager" and baseline.status == Status.OK and baseline.flags == ()
        assert baseline.precision == {"float32": "ieee", "float64": "fp64", "bfloat16": "bf16"}[workload.dtype]
        assert baseline.kernel_ms.samples == len(baseline.samples)
        for errors in baseline.errors.values():
            assert errors.wrong == 0 and errors.rel_l2 <= errors.allowed


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    """Judging in this process must not start a pool of threads that a later fork would inherit."""
    import torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
