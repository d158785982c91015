"""Collects the notes below a table: why numbers are missing, and footnotes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_hwqueue.metrics.numbers import counted

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# The counts in a refusal differ from cell to cell; what it needs does not.
_COUNTS = re.compile(r"has (?P<has>\d+)(?: \((?P<missing>\d+) missing\))?")
_PLACE = "\0"


@dataclass
class _Refusal:
    cells: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    has: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    itself: bool = False


class Notes:
    """Collects one table's notes; each text appears once."""

    def __init__(self) -> None:
        self._footnotes: dict[str, int] = {}
        self._refusals: dict[tuple[str, str], _Refusal] = {}
        self._explanations: dict[str, str] = {}

    def footnote(self, text: str) -> str:
        """Return the mark of a footnote, new or known, such as ``²``."""
        number = self._footnotes.setdefault(text, len(self._footnotes) + 1)
        return superscript(number)

    def refuse(self, figure: str, reason: str, cell: str, tag: str | None = None) -> None:
        """Note a refused figure of a cell or of one of its tags."""
        found = _COUNTS.search(reason)
        pattern = _COUNTS.sub(_PLACE, reason, count=1) if found else reason
        refusal = self._refusals.setdefault((figure, pattern), _Refusal())
        if found:
            refusal.has.append(int(found["has"]))
            if found["missing"]:
                refusal.missing.append(int(found["missing"]))
        if cell not in refusal.cells:
            refusal.cells.append(cell)
        if tag is None:
            refusal.itself = True
        elif tag not in refusal.tags:
            refusal.tags.append(tag)

    def explain(self, name: str, text: str) -> None:
        """Explain a figure that has its own name, once below the table."""
        self._explanations.setdefault(name, text)

    def refused_in_short(self) -> dict[str, int]:
        """Return in how many cells each figure was refused, such as ``P99 of iteration``."""
        cells: dict[str, set[str]] = {}
        for (figure, _), refusal in self._refusals.items():
            whose = [f"{figure} of {tag}" for tag in refusal.tags]
            for what in [figure] * refusal.itself + whose:
                cells.setdefault(what, set()).update(refusal.cells)
        return {what: len(found) for what, found in cells.items()}

    def lines(self, cells: int) -> list[str]:
        """Return the notes of a table with so many cells, one unwrapped line each."""
        lines = [f"{name}: {text}" for name, text in self._explanations.items()]
        merged: dict[tuple[str, str], list[str]] = {}
        for (figure, pattern), refusal in self._refusals.items():
            reason = pattern
            if refusal.has:
                counts = f"has {_span(refusal.has)}"
                if refusal.missing:
                    counts += f" ({_span(refusal.missing)} missing)"
                reason = pattern.replace(_PLACE, counts)
            merged.setdefault((_subject(refusal, cells), reason), []).append(figure)
        lines += [
            f"{', '.join(dict.fromkeys(figures))} refused for {subject}: {reason}"
            for (subject, reason), figures in merged.items()
        ]
        lines += [f"{superscript(number)} {text}" for text, number in self._footnotes.items()]
        return lines


def superscript(number: int) -> str:
    """Return a number in superscript digits."""
    return str(number).translate(_SUPERSCRIPTS)


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _subject(refusal: _Refusal, cells: int) -> str:
    count = len(refusal.cells)
    if count == cells:
        which = "the cell" if cells == 1 else f"all {cells} cells"
    elif count == 1:
        which = refusal.cells[0]
    else:
        which = counted(count, "cell")
    if not refusal.tags:
        return which
    tags = " and ".join(refusal.tags)
    if refusal.itself:
        return f"{which} and {'its' if count == 1 else 'their'} {tags}"
    return f"{tags} of {which}"
