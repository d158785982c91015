"""Failures: what the end of a run is called in its record, and whether the process must go."""

from __future__ import annotations

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed, DeviceError, InvalidMeasurement, OwnCodeFailed
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.cell.attempt import (
    Failure,
    RunDraft,
    RunEnded,
    attempt,
    describe_failure,
)

# Younger than the oldest torch supported.
_ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", None)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("HIP out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        DeviceError("cuStreamCreate failed with error 2: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_out_of_memory_says_what_to_make_smaller(error: Exception) -> None:
    failure = describe_failure(error)
    assert failure.reason.startswith(f"out of memory: {error}; use a smaller --hwq-size")
    assert failure.retire_process


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("HIP error: invalid device function"),
        RuntimeError("wrapped: CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        DeviceError("cuStreamSynchronize failed with error 700: CUDA_ERROR_ILLEGAL_ADDRESS"),
        DeviceError("cudaStreamCreate failed with error 700: an illegal memory access"),
        DeviceError("hipStreamGetPriority failed with error 719: unspecified launch failure"),
        RuntimeError("cuStreamSynchronize returned CUDA_ERROR_LAUNCH_FAILED"),
        RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        *([] if _ACCELERATOR_ERROR is None else [_ACCELERATOR_ERROR("whatever it says")]),
    ],
)
def test_device_error_retires_the_process(error: Exception) -> None:
    assert describe_failure(error) == Failure(f"device error: {error}", retire_process=True)


@pytest.mark.parametrize(
    "text", ["CUDA error: GPU has fallen off the bus", "HIP error: the device is lost"]
)
def test_lost_device_is_called_so(text: str) -> None:
    lost = Failure(f"device error (the device disappeared): {text}", retire_process=True)
    assert describe_failure(RuntimeError(text)) == lost


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _own() -> OwnCodeFailed:
    own = OwnCodeFailed("own code\n  line \x9b2J")
    own.__cause__ = ValueError()
    return own


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("seven"), "failed", "ValueError: seven"),
        (RuntimeError("one\n  line\tonly"), "failed", "RuntimeError: one line only"),
        (CheckFailed("\x1b[2Jgone"), "failed", r"CheckFailed: \x1b[2Jgone"),
        (InvalidMeasurement("late"), "invalid", "late"),
        (RunEnded("timeout", "why\nso"), "timeout", "why\nso"),
        (RunEnded("skipped", "why\nso"), "skipped", "why\nso"),
        # What the caller takes verbatim, in its own words, but no terminal obeys it.
        (DeviceError("out of memory\nhere \x1b[2J"), "failed", "out of memory\nhere \\x1b[2J"),
        (_own(), "failed", "own code\n  line \\x9b2J"),
        (_Silent(), "failed", "_Silent: its text cannot be shown, RuntimeError"),
        (KeyboardInterrupt(), "failed", "interrupted before it was measured"),
        (SystemExit(3), "failed", "interrupted before it was measured"),
    ],
)
def test_each_exception_is_a_status_a_reason_and_the_stage(
    error: BaseException, status: str, reason: str
) -> None:
    found = RunDraft("set-up")

    def run() -> None:
        found.stage = "measure"
        raise error

    done = attempt(run, DeviceError)
    fields = done.head(found, Provenance())
    assert (fields["status"], fields["reason"], fields["stage"]) == (status, reason, "measure")
    assert done.failure is not None
    interrupted = not isinstance(error, Exception)
    assert done.failure.retire_process == interrupted
    assert done.interruption is (error if interrupted else None)


def test_a_run_that_went_well_has_no_reason_and_no_stage() -> None:
    found = RunDraft("set-up", ["a note"])
    done = attempt(lambda: found.notes.append("another"))
    fields = done.head(found, Provenance())
    assert (fields["status"], fields["reason"], fields["stage"]) == ("ok", "", "")
    assert (fields["notes"], fields["started"]) == (["a note", "another"], done.started)


def test_a_long_text_loses_its_middle() -> None:
    reason = describe_failure(ValueError("begin" + "x" * 10_000_000 + "end")).reason
    assert reason.startswith("ValueError: begin")
    assert reason.endswith("end")
    assert len(reason) < 5000
