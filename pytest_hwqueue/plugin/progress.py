"""Shows under pytest's output what is being measured, with its rate, on a terminal only.

What a person must know elsewhere too, such as why nothing happens, becomes a line of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.plugin.pytest_internals import terminal_file

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """One transient line under pytest's output, on a terminal only."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._config = config
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

            from pytest_hwqueue.options.progress import open_bar

            assert self._reporter is not None
            self._reporter.ensure_newline()
            # pytest captures standard output; its own writer still reaches the terminal.
            shown_on = Console(file=terminal_file(self._config), force_terminal=True)
            self._bar = open_bar(shown_on, counts=True)
            self._bar.start()
        return self._bar
