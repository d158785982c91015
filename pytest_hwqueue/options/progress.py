"""Shows what is being measured, with its rate and an estimate, on a terminal only.

What a person must know elsewhere too, such as why nothing happens, becomes a line of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from rich.console import Console
    from rich.progress import Progress as Bar
    from typing_extensions import Self

    from pytest_hwqueue.answers.which.rates import RateVerdict
    from pytest_hwqueue.data.records.tenants import ColocationRecord
    from pytest_hwqueue.engine.scenarios.planned_runs import Case


def _open_bar(console: Console, *, counts: bool) -> Bar:
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


class Progress:
    """One transient line under pytest's output, on a terminal only."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = config.get_terminal_writer() if self._reporter is not None else None
        self._watched = bool(
            self._reporter is not None and self._reporter.isatty and self._reporter.verbosity >= 0
        )
        self._bar: Bar | None = None
        # What is left of the session.
        self.outlook = ""

    def show(self, text: str) -> None:
        """Show a sentence."""
        self.update(text, "", 0, 0)

    def announce(self, text: str) -> None:
        """Show a sentence that must be seen; where nobody watches, as a line of the output."""
        if self._watched:
            self.show(text)
        elif self._reporter is not None:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"hwqueue: {text}")

    def update(self, name: str, stage: str, done: int, planned: int) -> None:
        """Show a cell's progress; ``planned`` is 0 if unknown."""
        if not self._watched:
            return
        bar = self._open()
        description = "  ".join(filter(None, (self.outlook, name, stage)))
        (task,) = bar.tasks
        if task.description != description:
            bar.reset(task.id, description=description, total=planned or None)
        bar.update(task.id, completed=done, total=planned or None)

    def clear(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> Bar:
        if self._bar is None:
            from rich.console import Console

            assert self._reporter is not None
            assert self._writer is not None
            self._reporter.ensure_newline()
            # pytest captures standard output; its own writer still reaches the terminal.
            shown_on = Console(file=self._writer._file, force_terminal=True)
            self._bar = _open_bar(shown_on, counts=True)
            self._bar.start()
        return self._bar


class WhichProgress:
    """Of ``hwq which``: a transient line on a terminal; a permanent one for each finished run."""

    _command, _what = "which", ""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = _open_bar(self._console, counts=False)
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


class SearchProgress(WhichProgress):
    """The same of ``hwq capacity``: a permanent line for each verdict and each failure."""

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
