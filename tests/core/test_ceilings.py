"""Measured ceilings are kept per GPU, found by name, preferred to what ships, and never trusted when they are torn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.ceilings import ceilings_for, folder, keep, kept
from workbench.core.presets import preset
from workbench.core.replies import Rates
from workbench.core.roofline import floor

MEASURED = Rates("NVIDIA H200", "3d59-00", read_bytes_per_s=4.33e12, write_bytes_per_s=4.69e12, copy_bytes_per_s=4.29e12,
                 l2_bytes=60 << 20, flops_per_s={"ieee": 51e12, "tf32": 412e12, "tf32x3": 137e12, "fp16": 761e12,
                                                 "bf16": 787e12, "fp64": 62e12})


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))


def test_measured_ones_are_preferred() -> None:
    assert kept("NVIDIA H200") is None
    shipped = ceilings_for("NVIDIA H200")
    keep(MEASURED)
    found = ceilings_for("NVIDIA H200")
    assert found == kept("NVIDIA H200") != shipped
    assert (found.read_bytes_per_s, found.predicted) == (4.33e12, frozenset())
    assert kept("NVIDIA A100") is None
    limit = floor(preset("kb74").workload("full"), "forward", "ieee", found)
    assert limit.ms > 0 and not limit.predicted


def test_the_newest_measurement_counts() -> None:
    keep(MEASURED)
    keep(replace(MEASURED, read_bytes_per_s=4.0e12))
    assert kept("NVIDIA H200").read_bytes_per_s == 4.0e12 and len(list(folder().glob("*.json"))) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "kernel-workbench/ceilings/9", "name": "NVIDIA H200"}'])
def test_a_torn_record_is_as_good_as_none(text: str) -> None:
    folder().mkdir(parents=True)
    (folder() / "x.json").write_text(text)
    assert kept("NVIDIA H200") is None
