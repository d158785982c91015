"""How far ``hwq which`` and ``hwq capacity`` are: a line on a terminal, and lines that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pytest_hwqueue.capacity.rates import RateVerdict
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.scenarios.planned_runs import Case

if TYPE_CHECKING:
    from typing_extensions import Self


class WhichProgress:
    """A transient line on a terminal, and a permanent one for each finished run."""

    _command, _what = "which", ""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._done, self._all = 0, 1

    def __enter__(self) -> Self:
        """Show the line."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        self._bar.stop()

    def run_begins(self, done: int, planned: int) -> None:
        """Note how many runs of how many are done."""
        self._done, self._all = done, planned
        self._what = f"{done}/{planned} runs, "
        self._bar.update(self._task, completed=done, total=planned)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        within = f" {done}/{planned}" if planned else ""
        self._bar.update(self._task, description=f"{self._what}{stage}{within}")

    def run_ended(self, record: ColocationRecord) -> None:
        """Report a finished run."""
        reason = f": {record.reason}" if record.reason else ""
        self.say(
            f"{self._done + 1}/{self._all} {record.id} run {record.run} {record.status} "
            f"({record.elapsed_s:.1f} s){reason}"
        )

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(f"hwq {self._command}: {text}", markup=False)


class SearchProgress(WhichProgress):
    """The same of a search for capacities: a permanent line for each verdict and each failure."""

    _command, _what = "capacity", "the tenant alone: "

    def window_begins(self, case: Case, rate_per_s: float, number: int) -> None:
        """Note the window that follows."""
        self._what = f"{case.id} at {rate_per_s:.4g}/s, window {number}: "

    def run_ended(self, record: ColocationRecord) -> None:
        """Count a run, and report one that failed."""
        self._done += 1
        if record.status != "ok":
            self.say(f"{record.id} run {record.run} {record.status}: {record.reason}")

    def rate_is_decided(self, case: Case, rate_per_s: float, verdict: RateVerdict) -> None:
        """Report a verdict."""
        self.say(f"{case.id} at {rate_per_s:.4g}/s: {verdict} ({self._done} runs so far)")
