"""How far ``hwq which`` is: a line on a terminal, and one for each finished run."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pytest_hwqueue.records.tenants import ColocationRecord


class WhichProgress:
    """A transient line on a terminal, and a permanent one for each finished run."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1)
        self._done, self._all = 0, 1

    def __enter__(self) -> WhichProgress:
        """Show the line."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Remove the line."""
        self._bar.stop()

    def run_begins(self, done: int, planned: int) -> None:
        """Note how many runs of how many are done."""
        self._done, self._all = done, planned
        self._bar.update(self._task, completed=done, total=planned)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        within = f" {done}/{planned}" if planned else ""
        self._bar.update(self._task, description=f"{stage}{within}")

    def run_ended(self, record: ColocationRecord) -> None:
        """Report a finished run."""
        reason = f": {record.reason}" if record.reason else ""
        self._console.print(
            f"hwq which: {self._done + 1}/{self._all} {record.id} run {record.run} "
            f"{record.status} ({record.elapsed_s:.1f} s){reason}",
            markup=False,
        )
