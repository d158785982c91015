"""Shows what is being measured, with its rate and an estimate, on a terminal only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from typing_extensions import Self

    from pytest_hwqueue.answers.which.rates import RateVerdict
    from pytest_hwqueue.data.records.tenants import ColocationRecord
    from pytest_hwqueue.engine.scenarios.planned_runs import Case


def open_bar(console: Console, *, counts: bool) -> Bar:
    """Return a transient line with one task, which is not shown yet."""
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        *[progress.MofNCompleteColumn()] * counts,
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    bar.add_task("", total=None)
    return bar


class WhichProgress:
    """Of ``hwq which``: a transient line on a terminal; a permanent one for each finished run."""

    _command, _what = "which", ""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = open_bar(self._console, counts=False)
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
        self._bar.update(self._bar.task_ids[0], completed=done, total=planned)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        within = f" {done}/{planned}" if planned else ""
        self._bar.update(self._bar.task_ids[0], description=f"{self._what}{stage}{within}")

    def run_ended(self, record: ColocationRecord) -> None:
        """Report a finished run."""
        reason = f": {record.reason}" if record.reason else ""
        which = "traced" if record.traced else f"run {record.run}"
        self.say(
            f"{self._done + 1}/{self._all} {record.id} {which} {record.status} "
            f"({record.elapsed_s:.1f} s){reason}"
        )

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(f"hwq {self._command}: {text}", markup=False)


class RoundsProgress(WhichProgress):
    """The same of a command that makes its scenario by itself."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command


class SearchProgress(WhichProgress):
    """The same of ``hwq capacity``: a permanent line for each verdict and each failure."""

    _command, _what = "capacity", "the tenant alone: "

    def window_begins(self, case: Case, rate_per_s: float, number: int) -> None:
        """Note the window that follows."""
        self._what = f"{case.id} at {rate_per_s:.4g}/s, window {number}: "

    def run_ended(self, record: ColocationRecord) -> None:
        """Count a run, and report one that failed, in one line.

        The last lines of a server that died stand in the table, in the row of the case.
        """
        self._done += 1
        if record.status != "ok":
            reason = record.reason.partition("\n")[0].rstrip(":")
            self.say(f"{record.id} run {record.run} {record.status}: {reason}")

    def rate_is_decided(self, case: Case, rate_per_s: float, verdict: RateVerdict) -> None:
        """Report a verdict."""
        self.say(f"{case.id} at {rate_per_s:.4g}/s: {verdict} ({self._done} runs so far)")
