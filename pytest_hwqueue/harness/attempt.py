"""One run of a cell or of tenants, from start to end; its record holds whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.errors import INTERRUPTED
from pytest_hwqueue.harness.failures import Failure, describe_failure
from pytest_hwqueue.records.cell import now
from pytest_hwqueue.records.noise import NoiseRound


@dataclass
class Found:
    """What is known about a run so far, named as in its record; kept if the run fails."""

    stage: str
    notes: list[str] = field(default_factory=list)
    noise: NoiseRound | None = None
    fingerprint: Fingerprint | None = None


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

    def fields(self, found: Found) -> dict[str, Any]:
        """Return the record's fields on what was found and how the run went."""
        failure = self.failure
        return {
            **vars(found),
            "status": failure.status if failure else "ok",
            "reason": failure.reason if failure else "",
            "stage": found.stage if failure else "",
            "started": self.started,
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
        failure = Failure(INTERRUPTED, retire_process=True)
        interruption = error
    return Attempt(started, round(time.perf_counter() - begin, 3), failure, interruption)
