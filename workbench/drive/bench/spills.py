"""Does a recorded candidate spill registers on an architecture? The trial may say it; else nvcc is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ...core.candidate import Candidate
from ...core.env import find_toolchain, nvcc_problem
from ...core.template import render
from ...core.trial import Trial
from ..running.builds import BuildPool

_TIMEOUT_S = 300.0


def recorded_spills(trial: Trial, candidate: Candidate, arch: str) -> int | None:
    """Bytes that a thread stores beside its registers, as the trial has recorded it; None where it has not."""
    return _most(trial.resources.get(candidate.variant.arch or arch))


class Nvcc:
    """Compiles candidates for an architecture, several at a time; its answers are kept in the build cache."""

    def __init__(self) -> None:
        self.problem = nvcc_problem(find_toolchain(), None)  # why there is none, or None
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-workbench-")
        self._pool = BuildPool(Path(self._folder.name))
        self.size = self._pool.size  # callers that it serves at once

    def spills(self, candidate: Candidate, arch: str) -> int | None:
        """Bytes that a thread stores beside its registers; None where nvcc is not there or refuses the source."""
        if self.problem:
            return None
        answer = self._pool.resources_of(render(candidate), [arch], timeout_s=_TIMEOUT_S)
        return _most(answer.resources.get(candidate.variant.arch or arch)) if answer else None

    def __enter__(self) -> Nvcc:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()
        self._folder.cleanup()


def _most(kernels: Mapping[str, Any] | None) -> int | None:
    stored = [k["spill_store_bytes"] for k in (kernels or {}).values() if isinstance(k, dict) and "spill_store_bytes" in k]
    return max(stored, default=None)
