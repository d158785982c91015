"""Shows what is being measured, with its rate and an estimate, on a terminal only.

What a person must know elsewhere too, such as why nothing happens, becomes a line of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """One transient line under pytest's output, on a terminal only."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = config.get_terminal_writer() if self._reporter is not None else None
        self._watched = bool(
            self._reporter is not None and self._reporter.isatty and self._reporter.verbosity >= 0
        )
        self._bar: Bar | None = None
        self._task: TaskID | None = None
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
        assert self._task is not None
        if bar.tasks[0].description != description:
            bar.reset(self._task, description=description, total=planned or None)
        bar.update(self._task, completed=done, total=planned or None)

    def clear(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> Bar:
        if self._bar is None:
            from rich import console, progress

            assert self._reporter is not None
            assert self._writer is not None
            self._reporter.ensure_newline()
            # pytest captures standard output; its own writer still reaches the terminal.
            shown_on = console.Console(file=self._writer._file, force_terminal=True)
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=20),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                console=shown_on,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self._bar
