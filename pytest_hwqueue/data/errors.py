"""Errors: one base, which faces show, and subclasses where somebody tells them apart.

Texts say where (a file, an option, a field), what is wrong, and what to do. They travel to the
face, which shows them: `hwq`'s group of commands, or pytest's hooks (`plugin/reading.py`).
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_hwqueue.engine.scenarios.located_yaml import Problem


INTERRUPTED_BEFORE = "interrupted before it was measured"
"""The reason in the record of a run that a person or a signal ended."""


# How much of a refused value a message shows, and of a file's errors.
_SHOWN = 120
_SHOWN_LINES = 50
_LONG_WORD = re.compile(rf"\S{{{_SHOWN + 1},}}")
# All of Unicode's category Cc but the end of a line and the tab.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HwqError(Exception):
    """What a person is to know: where, what is wrong, and what to do.

    Attributes:
        exit_status: of `hwq`, if a command ends with it; commands that compare have their own.

    """

    exit_status: ClassVar[int] = 4

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it pass between processes, whatever its class is made of."""
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[HwqError], said: tuple[Any, ...]) -> HwqError:
    error = kind.__new__(kind, *said)
    error.args = said
    return error


class BadInput(HwqError, ValueError):
    """Something given cannot be used; the text names it, and says why or what is valid."""


def speaks_for_itself(error: BaseException) -> bool:
    """Whether an error's text says all, and its class's name would say nothing."""
    return type(error) in (HwqError, BadInput)


class BadOption(BadInput):
    """An option's value was refused; the text names the option, the value and what is valid.

    Args:
        option: as it was written; faces spell ``--hwq-x`` their own way.
        value: what was given.
        valid: what may be given, or what to do.

    """

    def __init__(self, option: str, value: str, valid: str) -> None:
        self.option, self.value, self.valid = option, value, valid
        if shortened(value) != value:
            # What is valid may be the words of an error that repeats the value.
            valid = valid.replace(value, shortened(value))
        super().__init__(f"{option}: {shortened(value)!r} is not valid; {valid}")


class BadScenario(BadInput):
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


class NotApplicable(HwqError):
    """A workload cannot run with a setting; the text says which and why."""


class SideFailed(HwqError):
    """A side of a comparison cannot be measured, or neither can; the text begins with its name.

    Args:
        sides: names of those at fault, A and B.
        reason: what is wrong, and what to do.

    """

    def __init__(self, sides: Sequence[str], reason: str) -> None:
        self.sides, self.reason = tuple(sides), reason
        super().__init__(f"{' and '.join(sides)}: {reason}")


class OwnCodeFailed(HwqError):
    """A user's own function raised; the text has the traceback of its own frames.

    Its ``__cause__`` is what was raised.
    """


class DeviceError(HwqError, RuntimeError):
    """The device or its runtime refused or failed; as torch's own errors, a RuntimeError."""


class LeaseError(HwqError):
    """The lease could not be taken; the text says why and what to do."""


class NotProven(HwqError):
    """A requested mode could not be shown to be active; the text says what was seen."""


class InvalidMeasurement(HwqError):
    """What was measured is not what the cell says; the text says what was measured."""


class RecordError(HwqError):
    """A record or a baseline cannot be read, used or written; the text names file and cause."""


class CheckFailed(HwqError, AssertionError):
    """A workload's result differs from its plain single-stream reference."""


class BoundMissed(HwqError, AssertionError):
    """A latency is not below its bound; the text has the figure, its interval and the bound."""


class BoundUndecided(UserWarning):
    """A latency is below its bound, but its interval contains it, or has no upper end."""


class RefusedFigure(HwqError, AssertionError):
    """A refused figure was used in a comparison; the text says what it lacks and how to get it."""


TRAVELLING: dict[str, type[HwqError]] = {
    "bad input": BadInput,
    "not applicable": NotApplicable,
    "own code failed": OwnCodeFailed,
    "device": DeviceError,
    "lease": LeaseError,
    "not proven": NotProven,
    "invalid measurement": InvalidMeasurement,
    "record": RecordError,
    "check failed": CheckFailed,
    "bound missed": BoundMissed,
    "refused figure": RefusedFigure,
    "error": HwqError,
}
"""What an error is in another process, made of its text there, by the word that travels."""


def travelling_as(error: HwqError) -> str:
    """Return the word of the nearest class in `TRAVELLING` that an error belongs to."""
    words = {kind: word for word, kind in TRAVELLING.items()}
    return next(words[kind] for kind in type(error).__mro__ if kind in words)


@contextmanager
def within(place: str = "", *, remedy: str = "") -> Iterator[None]:
    """Begin our errors' texts with a place (a file, an option, a field), end them with a remedy."""
    try:
        yield
    except HwqError as error:
        said = f"{place}: {error}" if place else str(error)
        error.args = (f"{said}; {remedy}" if remedy else said,)
        raise


@contextmanager
def of_side(name: str) -> Iterator[None]:
    """Let our errors be a side's: what cannot be done, cannot be done with it.

    Args:
        name: of the side.

    Raises:
        SideFailed: for any other error of ours.

    """
    try:
        yield
    except SideFailed:
        raise
    except HwqError as error:
        raise SideFailed([name], str(error)) from error


@contextmanager
def translated(
    kind: Callable[[str], HwqError], said: str, *foreign: type[BaseException], remedy: str = ""
) -> Iterator[None]:
    """Let other errors be ours.

    Args:
        kind: what is raised.
        said: begins its text, which the other error's `complaint` follows.
        foreign: what is caught.
        remedy: ends it.

    """
    try:
        yield
    except foreign as error:
        text = f"{said}: {complaint(error)}" if said else complaint(error)
        raise kind(f"{text}; {remedy}" if remedy else text) from error


def complaint(error: BaseException) -> str:
    """Return what an error says, abridged; of pydantic's, the first field and what is wrong."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return abridged(error)
    first = problems()[0]
    field, reason = ".".join(map(str, first["loc"])), reason_of(first)
    return abridged(f"{field}: {reason}" if field else reason)


def reason_of(problem: Mapping[str, Any]) -> str:
    """Return what is wrong by one of pydantic's errors: in our own words where they are ours."""
    said: str = problem["msg"]
    return said.removeprefix("Value error, ")


@contextmanager
def refused_as(option: str, value: str) -> Iterator[None]:
    """Let bad input be an option's value, which `BadOption` names.

    Raises:
        BadOption: for bad input.

    """
    try:
        yield
    except BadInput as error:
        raise BadOption(option, value, str(error)) from None


@contextmanager
def files(doing: str, path: object, *, remedy: str = "") -> Iterator[None]:
    """Let what the system refuses be an error that names the file.

    Args:
        doing: what is done to the file, such as "read".
        path: of the file.
        remedy: what to do, if it can be said.

    Raises:
        RecordError: if the system refuses.

    """
    try:
        yield
    except OSError as error:
        said = f"cannot {doing} {path}: {error.strerror or error}"
        raise RecordError(f"{said}; {remedy}" if remedy else said) from error


def meant(name: str, known: Iterable[str], *, least_alike: float = 0.6) -> str:
    """Return ``did you mean X? ``, or nothing if no known name is near.

    Args:
        name: that is not known.
        known: the names there are.
        least_alike: similarity of near names, from 0 to 1, as `difflib` has it.

    """
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1, least_alike)
    return f"did you mean {near[0]}? " if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return which known name was probably meant, and all known names."""
    names = list(dict.fromkeys(known))
    return f"{meant(name, names)}there are {', '.join(names) or 'none'}"


def shortened(text: str) -> str:
    """Return a value as messages show it: a long one by its beginning, so that the rest is seen."""
    more = len(text) - _SHOWN
    return printable(text if more <= 0 else f"{text[:_SHOWN]}… ({more} more characters)")


def printable(text: str) -> str:
    """Return text without what a terminal would obey: control characters become escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def in_utf8(text: str) -> str:
    """Return text as UTF-8 can hold it: a path's bytes that are none of it become escapes."""
    return text.encode(errors="backslashreplace").decode()


def on_one_line(error: object) -> str:
    """Return an error's text on one line, as records hold reasons."""
    return " ".join(str(error).split())


def abridged(error: object) -> str:
    """Return an error's words on one line, of long ones (which users wrote) the beginning."""
    return printable(_LONG_WORD.sub(lambda found: shortened(found[0]), on_one_line(error)))
