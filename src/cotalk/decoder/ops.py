"""What the decoder computes, each step once: the kernel on a GPU, its plain-torch twin elsewhere (same signatures)."""

from __future__ import annotations

from typing import Any

import torch

from cotalk.decoder import twins
from cotalk.decoder.twins import PAGE

__all__ = ["PAGE", "on"]


def on(device: torch.device) -> Any:
    """The module whose functions run there: `kernels` for CUDA, `twins` else."""
    if device.type != "cuda":
        return twins
    from cotalk.decoder import kernels  # needs triton, which only a GPU build of torch brings

    return kernels
