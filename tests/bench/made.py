"""Trials as a GPU bench records them, written by hand: what tables and best known configs are made from."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

from workbench.core.presets import preset
from workbench.core.trial import DEFAULT_ADVICE, FORMULATION, NOT_DROP_IN, Errors, Status, Timing, Trial
from workbench.core.trial_parts import Detail, TrialDevice
from workbench.drive.bench.execute import begin
from workbench.drive.bench.plan import BenchPlan
from workbench.drive.sessions.session import Session

H200 = TrialDevice("cuda", 0, "NVIDIA H200", "sm_90", 90, "nvidia_h200")
CPU = TrialDevice("cpu", 0, "some CPU", "x86_64", 90, "cpu")
_numbers = count()


def trial(layer: str, direction: str, name: str, ms: float | None, precision: str, *, kind: str = "candidate",
          size: str = "full", rel_l2: float = 2.9e-4, status: Status = Status.OK, config: dict | None = None,
          dtype: str = "float32", memory_format: str = "contiguous", **more) -> Trial:
    timing = Timing(ms, ms * 0.998, ms * 1.002, ms * 0.99, 60, "noise", True) if ms else None
    return Trial(f"t{next(_numbers):05}", "run", "2026-11-20T00:00:00Z", kind, name, direction, precision,
                 preset(layer).workload(size, dtype, memory_format=memory_format), more.pop("device", H200), status,
                 more.pop("headline", "Right."), DEFAULT_ADVICE[status], config=config or {}, kernel_ms=timing,
                 form="constant",
                 errors={"output": Errors(1e-4, 1e-3, rel_l2, 1e-3, (0,), 1.0, 1.0, 0, 10)} if ms else {}, **more)


def pytorch(layer: str, direction: str, tf32_ms: float, ieee_ms: float) -> list[Trial]:
    return [trial(layer, direction, "eager, TF32 on", tf32_ms, "tf32", kind="baseline", rel_l2=2.9e-4),
            trial(layer, direction, "eager, TF32 off", ieee_ms, "ieee", kind="baseline", rel_l2=2e-7)]


def strong(layer: str, direction: str, *, tf32_ms: float, unconverted_ms: float) -> list[Trial]:
    """Formulations as strong baselines record them: one right, one wrong and fast; and channels_last."""
    return [trial(layer, direction, "matmul + permute", tf32_ms, "tf32", kind="baseline", flags=(FORMULATION,)),
            trial(layer, direction, "matmul + fold", None, "", kind="baseline", flags=(FORMULATION,), status=Status.MISMATCH,
                  headline="This formulation is wrong: output has a relative L2 error of 1. It does not count."),
            trial(layer, direction, "channels_last, conversion not counted", unconverted_ms, "tf32", kind="baseline",
                  flags=(NOT_DROP_IN,), detail=Detail(way="channels_last"))]


def whole(layer: str, ours: tuple[float, float], tf32: tuple[float, float], ieee: tuple[float, float]) -> list[Trial]:
    """A module and nn.ConvTranspose in two modes: ms of forward and backward each."""
    def timed(name: str, ms: tuple[float, float], precision: str, kind: str) -> Trial:
        times = {d: Timing(m, m, m, m, 60, "noise", True) for d, m in zip(("forward", "backward"), ms, strict=True)}
        return replace(trial(layer, "backward", name, None, precision, kind=kind), module_ms=times)
    return [timed("ModelNew", ours, "tf32", "module"), timed("nn.ConvTranspose, TF32 on", tf32, "tf32", "module_baseline"),
            timed("nn.ConvTranspose, TF32 off", ieee, "ieee", "module_baseline")]


def recorded(root: Path, trials: list[Trial], *, name: str = "recorded-h200", **plan) -> Session:
    """A session that holds these trials and says which bench they belong to."""
    session = Session.create(root, name)
    begin(session, BenchPlan(**plan), H200.name)
    for one in trials:
        session.append(one)
    return session
