"""Kernel Workbench: transposed-convolution CUDA kernels, rendered, built, judged against PyTorch, and exported.

    import workbench as wb
    layer = wb.ConvTranspose1d(32, 64, 5, dilation=3)
    result = wb.run(layer, batch=2, input_size=64, directions=["forward"])
    result.frame
    result.figure()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# name -> module: taken in at first use, so that `import workbench` costs nothing.
_PUBLIC = {
    "BadRequest": "core.errors", "ConvTranspose": "core.layer", "Workload": "core.layer", "Candidate": "core.candidate",
    "ConvTranspose1d": "faces.notebook", "ConvTranspose2d": "faces.notebook", "ConvTranspose3d": "faces.notebook",
    "preset": "faces.notebook", "presets": "faces.notebook", "variants": "faces.notebook", "run": "faces.notebook",
    "open_session": "faces.notebook", "doctor": "faces.notebook", "export": "faces.notebook", "Result": "faces.notebook",
    "diff": "faces.notebook", "compare": "faces.notebook", "profile": "faces.notebook",
    "tune": "faces.notebook", "Tuned": "faces.notebook", "patch": "faces.notebook", "PatchedModel": "faces.notebook",
    "Session": "drive.sessions.session", "Trial": "core.trial", "Status": "core.trial",
}
__all__ = sorted(_PUBLIC)

if TYPE_CHECKING:
    from .core.candidate import Candidate
    from .core.errors import BadRequest
    from .core.layer import ConvTranspose, Workload
    from .core.trial import Status, Trial
    from .drive.sessions.session import Session
    from .faces.notebook import (
        ConvTranspose1d,
        ConvTranspose2d,
        ConvTranspose3d,
        PatchedModel,
        Result,
        Tuned,
        compare,
        diff,
        doctor,
        export,
        open_session,
        patch,
        preset,
        presets,
        profile,
        run,
        tune,
        variants,
    )


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
