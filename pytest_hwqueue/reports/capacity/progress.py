"""Shows what a search is measuring and what it has decided, on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status

from pytest_hwqueue.capacity.rates import RateVerdict
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.scenarios.planned_runs import Case


class SearchProgress:
    """A transient line on a terminal, and a permanent one for each verdict and each failure."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status = Status("", console=self._console)
        self._what, self._windows = "", 0

    def __enter__(self) -> SearchProgress:
        """Show the line."""
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        self._status.stop()

    def window_begins(self, case: Case, rate_per_s: float, number: int) -> None:
        """Note the window that follows."""
        self._what = f"{case.id} at {rate_per_s:.4g}/s, window {number}"
        self._status.update(self._what)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        self._status.update(f"{self._what}: {stage}" + (f" {done}/{planned}" if planned else ""))

    def run_ended(self, record: ColocationRecord) -> None:
        """Count a run, and report one that failed."""
        self._windows += 1
        if record.status != "ok":
            self.say(f"{record.id} run {record.run} {record.status}: {record.reason}")

    def rate_is_decided(self, case: Case, rate_per_s: float, verdict: RateVerdict) -> None:
        """Report a verdict."""
        self.say(f"{case.id} at {rate_per_s:.4g}/s: {verdict} ({self._windows} runs so far)")

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(f"{self._command}: {text}", markup=False)
