"""Failures: what an exception is called in the record, and whether the process must go."""

from __future__ import annotations

import pytest
import torch

from pytest_hwqueue.errors import CheckFailed, DeviceError, OwnCodeFailed
from pytest_hwqueue.harness.attempt import Failure, describe_failure


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("HIP out of memory"),
        DeviceError("cudaStreamCreateWithPriority failed with error 2: out of memory"),
        DeviceError("cuStreamCreate failed with error 2: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_out_of_memory_says_what_to_make_smaller(error: Exception) -> None:
    failure = describe_failure(error)
    assert failure.reason.startswith("out of memory: ")
    assert str(error) in failure.reason
    assert "--hwq-size" in failure.reason
    assert failure.retire_process


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("HIP error: invalid device function"),
        RuntimeError("wrapped: CUDA error: device-side assert triggered"),
        DeviceError("cuStreamSynchronize failed with error 700: CUDA_ERROR_ILLEGAL_ADDRESS"),
        RuntimeError("cuStreamSynchronize returned CUDA_ERROR_LAUNCH_FAILED"),
        RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
)
def test_device_error_retires_the_process(error: Exception) -> None:
    assert describe_failure(error) == Failure(f"device error: {error}", retire_process=True)


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no such error")
def test_torchs_own_accelerator_error_is_a_device_error() -> None:
    failure = describe_failure(torch.AcceleratorError("whatever it says"))
    assert failure == Failure("device error: whatever it says", retire_process=True)


@pytest.mark.parametrize(
    "text", ["CUDA error: GPU has fallen off the bus", "HIP error: the device is lost"]
)
def test_lost_device_is_called_so(text: str) -> None:
    failure = describe_failure(RuntimeError(text))
    assert failure.reason == f"device error (the device disappeared): {text}"
    assert failure.retire_process


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("seven"), "ValueError: seven"),
        (CheckFailed("stream 0: relative error 1"), "CheckFailed: stream 0: relative error 1"),
        (DeviceError("the CPU has no graphs"), "DeviceError: the CPU has no graphs"),
        (RuntimeError("one\n  line\tonly"), "RuntimeError: one line only"),
        (KeyError("missing"), "KeyError: 'missing'"),
    ],
)
def test_plain_error_is_named_and_costs_nothing_more(error: Exception, reason: str) -> None:
    assert describe_failure(error) == Failure(reason, retire_process=False)


def test_memory_of_the_host_runs_out_too() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**58, dtype=torch.float32)
    assert describe_failure(refused.value).reason.startswith("out of memory: ")


@pytest.mark.parametrize(
    "text",
    [
        "cudaStreamCreateWithPriority failed with error 700: an illegal memory access was "
        "encountered",
        "hipStreamGetPriority failed with error 719: unspecified launch failure",
    ],
)
def test_runtime_call_that_reports_a_sticky_error_retires_the_process(text: str) -> None:
    assert describe_failure(DeviceError(text)).retire_process


def test_exception_in_a_kernel_is_no_lost_device() -> None:
    failure = describe_failure(RuntimeError("CUDA error: unspecified launch failure"))
    assert "disappeared" not in failure.reason


def test_an_error_that_cannot_be_shown_is_still_a_failure_of_its_own() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert describe_failure(Silent()).reason == "Silent: its text cannot be shown, RuntimeError"


def test_a_long_text_loses_its_middle() -> None:
    reason = describe_failure(ValueError("begin" + "x" * 10_000_000 + "end")).reason
    assert reason.startswith("ValueError: begin")
    assert reason.endswith("end")
    assert len(reason) < 5000


def test_no_terminal_obeys_a_reason() -> None:
    for error in (ValueError("\x1b[2Jgone"), CheckFailed("\x1b[2Jgone")):
        assert describe_failure(error, CheckFailed).reason.endswith(r"\x1b[2Jgone")
    own = OwnCodeFailed("own code\n  line \x9b2J")
    own.__cause__ = ValueError()
    assert describe_failure(own).reason == "own code\n  line \\x9b2J"
