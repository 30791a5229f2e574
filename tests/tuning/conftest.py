"""The broken templates and the listed GPU of the drive tests."""

from ..drive.conftest import broken, gpu

__all__ = ["broken", "gpu"]
