"""GitHub annotations: workflow commands that mark a line of a file in a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

AnnotationLevel = Literal["error", "warning", "notice"]


@dataclass(frozen=True)
class Annotation:
    """What GitHub shows next to a line.

    Attributes:
        level: error if it fails, warning if someone should look, else notice.
        file: path from the root of the repository.
        line: from 1; None for the file as a whole.
        title: a few words.
        message: any number of lines.

    """

    level: AnnotationLevel
    file: str
    line: int | None
    title: str
    message: str


def render_annotations(items: Sequence[Annotation]) -> str:
    """Return one workflow command per line, without a final newline; empty without items."""
    return "\n".join(map(_command, items))


def _command(item: Annotation) -> str:
    line = "" if item.line is None else str(item.line)
    properties = {"file": item.file, "line": line, "title": item.title}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    return f"::{item.level} {listed}::{_data(item.message)}"


def _data(text: str) -> str:
    """Escape a message as GitHub's toolkit does (actions/toolkit, core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
