"""How a run of a cell or of tenants ended: its record holds whatever happens, and why."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_hwqueue.data.errors import (
    INTERRUPTED_BEFORE,
    HwqError,
    InvalidMeasurement,
    OwnCodeFailed,
    RecordError,
    on_one_line,
    printable,
    speaks_for_itself,
)
from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.noise import NoiseRound
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.data.records.timelines import TimelineData, TimelineFile, write_kept

_LOST = ("device is lost", "fallen off the bus", "no longer available")
_NO_MEMORY = re.compile(r"out[ _]of[ _]memory|can't allocate memory", re.IGNORECASE)
# torch's own words, those of a call of the runtime or the driver that failed, and its status.
_DEVICE_ERROR = re.compile(
    r"(CUDA|HIP) error|Triton Error \[|\b(cu|cuda|hip)[A-Z]\w+ failed with error"
    r"|\b(cuda|hip)Error[A-Z]|\b(CUDA|HIP)_ERROR_[A-Z]"
)


# Of a compiler's output, say, the beginning and the end are read.
_LONGEST_TEXT = 4000

Problem = Literal["failed", "timeout", "invalid", "skipped"]


class RunEnded(HwqError):
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
    found = _described(error, *verbatim)
    # Reasons are printed: whatever users' code has put into its exceptions, no terminal obeys it.
    return replace(found, reason=printable(found.reason))


def _described(error: Exception, *verbatim: type[Exception]) -> Failure:
    if isinstance(error, OwnCodeFailed) and isinstance(error.__cause__, Exception):
        return replace(_described(error.__cause__), reason=str(error))
    if isinstance(error, RunEnded):
        return Failure(str(error), retire_process=False, status=error.status)
    if isinstance(error, verbatim):
        return Failure(str(error), retire_process=False)
    text = _text_of(error)
    if isinstance(error, InvalidMeasurement):
        return Failure(text, retire_process=False, status="invalid")
    # A process that has not imported torch, such as a generator of load, has no error of it.
    torch: Any = sys.modules.get("torch")
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())) or _NO_MEMORY.search(text):
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
    kind = "" if speaks_for_itself(error) else f"{type(error).__name__}: "
    return Failure(f"{kind}{text}", retire_process=False)


def _text_of(error: Exception) -> str:
    """Return an error's text on one line, without the middle of a long one."""
    try:
        text = on_one_line(error)
    except Exception as second:
        return f"its text cannot be shown, {type(second).__name__}"
    more = len(text) - _LONGEST_TEXT
    if more <= 0:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]} … ({more} more characters) … {text[-half:]}"


@dataclass
class RunDraft:
    """What is known about a run so far, for its record; kept if the run fails."""

    stage: str
    notes: list[str] = field(default_factory=list)
    noise: NoiseRound | None = None
    fingerprint: Fingerprint | None = None
    timelines: TimelineFile | None = None
    # What figures are computed from, which `store` writes into files of its own.
    kept: TimelineData = field(default_factory=TimelineData)

    def store(self, folder: Path, stem: str) -> None:
        """Store what figures were computed from, in files of this stem; or note why not."""
        if self.kept.tables:
            try:
                self.timelines = write_kept(folder, stem, self.kept)
            except RecordError as error:
                self.notes.append(f"timelines are not stored: {error}")


@dataclass(frozen=True)
class Attempt:
    """How a run went.

    Attributes:
        started: UTC, ISO 8601.
        seconds: duration.
        failure: None if it succeeded.
        interruption: the exception that ended it from outside, such as KeyboardInterrupt.

    """

    started: str
    seconds: float
    failure: Failure | None = None
    interruption: BaseException | None = None

    def raise_interruption(self) -> None:
        """Raise the interruption, if any; only after the run's record has been made."""
        if self.interruption is not None:
            raise self.interruption

    def head(self, draft: RunDraft, provenance: Provenance) -> dict[str, Any]:
        """Return fields of a record's head (`Run`): what was found, how it went, by what code."""
        failure, fingerprint = self.failure, draft.fingerprint
        return {
            **provenance.fields(),
            "status": failure.status if failure else "ok",
            "reason": failure.reason if failure else "",
            "stage": draft.stage if failure else "",
            "started": self.started,
            "fingerprint": fingerprint and provenance.stamped(fingerprint),
            "noise": draft.noise,
            "timelines": draft.timelines,
            "notes": draft.notes,
        }


def attempt(run: Callable[[], None], *verbatim: type[Exception]) -> Attempt:
    """Run something once; every exception becomes a cause in the record.

    Args:
        run: the run.
        verbatim: exceptions whose text is used unchanged as the reason.

    """
    started, begin = now(), time.perf_counter()
    failure, interruption = None, None
    try:
        run()
    except Exception as error:
        failure = describe_failure(error, *verbatim)
    except BaseException as error:
        failure = Failure(INTERRUPTED_BEFORE, retire_process=True)
        interruption = error
    return Attempt(started, round(time.perf_counter() - begin, 3), failure, interruption)
