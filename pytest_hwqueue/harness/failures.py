"""What went wrong in a cell, in words, and whether the process can be used any further."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_LOST = (
    "unspecified launch failure",
    "device is lost",
    "fallen off the bus",
    "no longer available",
)


@dataclass(frozen=True)
class Failure:
    """A cause for the record; after a device error the process must not measure again."""

    reason: str
    retire_process: bool


def describe_failure(error: BaseException) -> Failure:
    """Say what an exception raised while measuring means."""
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text.lower():
        return Failure(
            f"out of memory: {text}; use a smaller --hwq-size, fewer streams, or a parameter such "
            "as mm_dim",
            retire_process=True,
        )
    accelerator_error = getattr(torch, "AcceleratorError", ())
    if isinstance(error, accelerator_error) or "CUDA error" in text or "HIP error" in text:
        lost = " (the device disappeared)" if any(word in text for word in _LOST) else ""
        # Such an error stays with the process: every later call would report it again.
        return Failure(f"device error{lost}: {text}", retire_process=True)
    return Failure(f"{type(error).__name__}: {text}", retire_process=False)
