"""What was computed again, and where it differs from what a record says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A figure that is not what it is computed to be; ``-`` stands for one that is absent."""

    figure: str
    stored: str
    recomputed: str


@dataclass
class Recomputed:
    """One record, computed again.

    Attributes:
        path: of the record.
        id: of its cell or co-location.
        version: of the product that measured it; None if it does not say.
        git_commit: likewise.
        figures: numbers and texts that were compared.
        differences: those that differ.
        left_out: figures that could not be computed again, and why.

    """

    path: Path
    id: str
    version: str | None
    git_commit: str | None
    figures: int = 0
    differences: list[Difference] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def compare(self, name: str, stored: Any, recomputed: Any) -> None:
        """Compare a figure's parts, as JSON holds them: every digit counts."""
        ours, theirs = dict(_leaves(name, stored)), dict(_leaves(name, recomputed))
        for figure in {**ours, **theirs}:
            self.figures += 1
            a, b = ours.get(figure, _ABSENT), theirs.get(figure, _ABSENT)
            # 1 and true are equal in Python.
            if a != b or isinstance(a, bool) != isinstance(b, bool):
                self.differences.append(Difference(figure, _text(a), _text(b)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(f"{name}[{index}]", each)
    else:
        yield name, value


def _text(value: Any) -> str:
    return "-" if value is _ABSENT else "null" if value is None else str(value)
