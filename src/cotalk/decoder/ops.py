"""What the decoder computes, each step once: the kernel on a GPU, its plain-torch twin elsewhere (same signatures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cotalk.decoder import twins
from cotalk.decoder.twins import PAGE

__all__ = ["PAGE", "on", "to_device"]


def to_device(
    values: Sequence[float] | torch.Tensor, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor on the device, without waiting for what runs there."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def on(device: torch.device) -> Any:
    """The module whose functions run there: `kernels` for CUDA, `twins` else."""
    if device.type != "cuda":
        return twins
    from cotalk.decoder import kernels  # needs triton, which only a GPU build of torch brings

    return kernels
