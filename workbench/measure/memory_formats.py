"""The memory format that PyTorch calls channels_last, by the number of a tensor's dimensions; other tensors have none."""

from __future__ import annotations

import torch

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
