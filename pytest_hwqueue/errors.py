"""Errors that users may catch: about options and files, devices and modes, and records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_hwqueue.scenarios.located_yaml import Problem


INTERRUPTED = "interrupted before it was measured"
"""The reason in the record of a run that a person or a signal ended."""


# How much of a refused value a message shows, and of a file's errors.
_SHOWN = 120
_SHOWN_LINES = 50
_LONG_WORD = re.compile(rf"\S{{{_SHOWN + 1},}}")
# All of Unicode's category Cc but the end of a line and the tab.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BadOption(ValueError):
    """An option's value was refused; the text names the option, the value and what is valid."""

    def __init__(self, option: str, value: str, valid: str) -> None:
        self.option, self.value, self.valid = option, value, valid
        if shortened(value) != value:
            # What is valid may be the words of an error that repeats the value.
            valid = valid.replace(value, shortened(value))
        super().__init__(f"{option}: {shortened(value)!r} is not valid; {valid}")


class BadCombination(BadOption):
    """An option cannot be followed together with another; its value is not to blame."""

    def __init__(self, option: str, value: str, valid: str) -> None:
        super().__init__(option, value, valid)
        self.args = (f"{option}={shortened(value)} cannot be followed here: {valid}",)


def shortened(text: str) -> str:
    """Return a value as messages show it: a long one by its beginning, so that the rest is seen."""
    more = len(text) - _SHOWN
    return printable(text if more <= 0 else f"{text[:_SHOWN]}… ({more} more characters)")


def printable(text: str) -> str:
    """Return text without what a terminal would obey: control characters become escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def on_one_line(error: object) -> str:
    """Return an error's text on one line, as records hold reasons."""
    return " ".join(str(error).split())


def abridged(error: object) -> str:
    """Return an error's words on one line, of long ones (which users wrote) the beginning."""
    return printable(_LONG_WORD.sub(lambda found: shortened(found[0]), on_one_line(error)))


class BadNoise(ValueError):
    """A noise was refused; the text names what was wrong and what is valid."""


class BadScheduler(ValueError):
    """A scheduler mode was refused; the text names the part that was wrong and what is valid."""


class BadDescription(ValueError):
    """A file was refused; the text names it, and the field that is wrong."""


class BadParameter(ValueError):
    """A workload's parameter was refused; the text names it, its value and what is valid."""


class BadFunction(ValueError):
    """A user's own function cannot be used; the text names it, says why and what is valid."""


class OwnCodeFailed(RuntimeError):
    """A user's own function raised; the text has the traceback of its own frames.

    Its ``__cause__`` is what was raised.
    """


class UnknownWorkload(ValueError):
    """No workload has this name; the text lists the existing ones."""


class BadExtension(ValueError):
    """Another package's addition cannot be used; the text names package, entry point, cause."""


class ReportFailed(RuntimeError):
    """A report could not be written; the session continues and shows the text, which says why."""


class BadScenario(ValueError):
    """A scenario file was refused; the text has one line per error."""

    def __init__(self, file: Path, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.line))
        lines = []
        for problem in self.problems[:_SHOWN_LINES]:
            field = f"{problem.field}: " if problem.field else ""
            lines.append(printable(f"{file}:{problem.line}: ") + abridged(field + problem.reason))
        more = len(self.problems) - _SHOWN_LINES
        if more > 0:
            lines.append(printable(f"{file}: {more} more problems"))
        super().__init__("\n".join(lines))


class BadGoal(ValueError):
    """A goal was refused; the text says which part and what is valid."""


class BadArrival(ValueError):
    """An arrival was refused; the text says which part and what is valid."""


class NotApplicable(ValueError):
    """A workload cannot run with a setting; the text says which and why."""


class DeviceError(RuntimeError):
    """The device or its runtime refused or failed; the text says what and what to do."""


class ServerUnusable(RuntimeError):
    """A tenant's server does not answer as it should before the window; the text says how."""


class GitHubError(RuntimeError):
    """GitHub refused a request or did not answer; the text says why and what to do.

    Attributes:
        status: of the HTTP answer; None if there was none.
        retry_s: seconds after which the same request may succeed; None if it will not.

    """

    def __init__(
        self, text: str, *, status: int | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.retry_s = status, retry_s


class LeaseError(RuntimeError):
    """The lease could not be taken; the text says why and what to do."""


class NotProven(RuntimeError):
    """A requested mode could not be shown to be active; the text says what was seen."""


class CheckFailed(AssertionError):
    """A workload's result differs from its plain single-stream reference."""


class InvalidMeasurement(RuntimeError):
    """What was measured is not what the cell says; the text says what was measured."""


class RecordError(ValueError):
    """A record could not be read or written; the text names the file and the cause."""


class BaselineError(ValueError):
    """A baseline cannot be used or changed; the text names the file, the reason and what to do."""


class NoBaseline(BaselineError):
    """There is no baseline of that name: none has been stored, and nothing is damaged."""


class BadBound(ValueError):
    """A bound was refused; the text says what is valid."""


class BoundMissed(AssertionError):
    """A latency is not below its bound; the text has the figure, its interval and the bound."""


class RefusedFigure(AssertionError):
    """A refused figure was used in a comparison; the text says what it lacks and how to get it."""
