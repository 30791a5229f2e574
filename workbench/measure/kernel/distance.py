"""The distance of a result from the truth, computed in pieces, so that no float64 copy of a large result is made."""

from __future__ import annotations

import torch

_CHUNK = 1 << 24  # elements compared at once


def distance(got: torch.Tensor, truth: torch.Tensor) -> tuple[float, float, float]:
    """(relative L2, largest, rms of the truth), computed where `got` is, a chunk at a time. A NaN comes through."""
    got, truth = got.reshape(-1), truth.reshape(-1)
    off, size, largest = (torch.zeros((), dtype=torch.float64, device=got.device) for _ in range(3))
    for start in range(0, got.numel(), _CHUNK):
        expected = truth[start:start + _CHUNK].to(got.device).double()
        difference = got[start:start + _CHUNK].double() - expected
        off += difference.square().sum()
        size += expected.square().sum()
        largest = torch.maximum(largest, difference.abs().max())
    return (float(off.sqrt()) / max(float(size.sqrt()), 1e-300), float(largest),
            float((size / max(1, got.numel())).sqrt()))


def beside_noise(found: list[tuple[float, float, float]], truths: list[torch.Tensor], least_norms: list[float]
                 ) -> list[tuple[float, float, float]]:
    """The same distances, relative to a norm of at least so much: for results that are zero but for rounding."""
    kept = []
    for (off, worst, rms), truth, least in zip(found, truths, least_norms, strict=True):
        count = max(1, truth.numel())
        norm = max(rms * count**0.5, 1e-300)
        kept.append((off * norm / max(norm, least), worst, max(rms, least / count**0.5)))
    return kept
