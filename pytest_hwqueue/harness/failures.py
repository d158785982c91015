"""Describes what went wrong in a run, and whether the process is still usable."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import torch

from pytest_hwqueue.errors import InvalidMeasurement, OwnCodeFailed

_LOST = ("device is lost", "fallen off the bus", "no longer available")
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
# torch's own words, and those of a runtime's call that failed.
_DEVICE_ERROR = re.compile(r"(CUDA|HIP) error|\b(cuda|hip)[A-Z]\w+ failed with error")


Problem = Literal["failed", "timeout", "invalid", "skipped"]


class RunEnded(Exception):
    """The run has ended early; the text says why."""

    def __init__(self, status: Problem, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Failure:
    """A cause for the record; after a device error, the process must not measure again."""

    reason: str
    retire_process: bool
    status: Problem = "failed"


def describe_failure(error: Exception, *verbatim: type[Exception]) -> Failure:
    """Return the failure that an exception means; ``verbatim`` ones keep their own text."""
    if isinstance(error, OwnCodeFailed) and isinstance(error.__cause__, Exception):
        return replace(describe_failure(error.__cause__), reason=str(error))
    if isinstance(error, RunEnded):
        return Failure(str(error), retire_process=False, status=error.status)
    if isinstance(error, verbatim):
        return Failure(str(error), retire_process=False)
    text = " ".join(str(error).split())
    if isinstance(error, InvalidMeasurement):
        return Failure(text, retire_process=False, status="invalid")
    if isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(text):
        return Failure(
            f"out of memory: {text}; use a smaller --hwq-size, fewer streams, or a parameter such "
            "as mm_dim",
            retire_process=True,
        )
    accelerator_error = getattr(torch, "AcceleratorError", ())
    if isinstance(error, accelerator_error) or _DEVICE_ERROR.search(text):
        lost = " (the device disappeared)" if any(word in text for word in _LOST) else ""
        # Such an error stays with the process: every later call would report it again.
        return Failure(f"device error{lost}: {text}", retire_process=True)
    return Failure(f"{type(error).__name__}: {text}", retire_process=False)
