"""Attempts: what a run's end means for its record."""

from __future__ import annotations

from typing import get_args

import pytest

from pytest_hwqueue.errors import DeviceError, InvalidMeasurement
from pytest_hwqueue.harness.attempt import Found, Problem, RunEnded, attempt


def failing(error: BaseException) -> tuple[str, str, str]:
    """Status, reason and stage in the record of a run that raises."""
    found = Found("set-up")

    def run() -> None:
        found.stage = "measure"
        raise error

    fields = attempt(run, DeviceError).fields(found)
    return fields["status"], fields["reason"], fields["stage"]


def test_a_run_that_went_well_has_no_reason_and_no_stage() -> None:
    found = Found("set-up", ["a note"])
    done = attempt(lambda: found.notes.append("another"))
    assert done.failure is None
    assert done.seconds >= 0
    assert done.fields(found) == {
        "status": "ok", "reason": "", "stage": "", "notes": ["a note", "another"],
        "started": done.started, "noise": None, "fingerprint": None,
        "timelines": None,
    }  # fmt: skip
    done.raise_interruption()


@pytest.mark.parametrize("status", get_args(Problem))
def test_a_run_that_is_over_says_its_status(status: Problem) -> None:
    assert failing(RunEnded(status, "why\nso")) == (status, "why\nso", "measure")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("seven"), "failed", "ValueError: seven"),
        (InvalidMeasurement("late"), "invalid", "late"),
        # In its own words, lines and all.
        (DeviceError("out of memory\nhere"), "failed", "out of memory\nhere"),
        (KeyboardInterrupt(), "failed", "interrupted before it was measured"),
    ],
)
def test_each_exception_is_a_status_and_a_reason(
    error: BaseException, status: str, reason: str
) -> None:
    assert failing(error) == (status, reason, "measure")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interruption_is_raised_when_its_record_is_made(error: BaseException) -> None:
    def run() -> None:
        raise error

    done = attempt(run)
    with pytest.raises(type(error)) as raised:
        done.raise_interruption()
    assert raised.value is error
