"""Names of cells in tables, and notes below them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_hwqueue.data.document.document import Heading, Paragraph, Part, Row
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import counted, grouped, percent
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.origin import Origin

# The key of the setting, its heading, and how a cell says it.
_SETTINGS: tuple[tuple[str, str, Callable[[Cell], str]], ...] = (
    ("device", "device", lambda cell: cell.device),
    ("streams", "streams", lambda cell: str(cell.streams)),
    ("scheduler", "scheduler", lambda cell: cell.scheduler),
    ("dispatch", "dispatch", lambda cell: cell.dispatch),
    ("size", "size", lambda cell: cell.size or ""),
    ("sync_mode", "sync mode", lambda cell: cell.sync_mode),
    ("cache", "cache", lambda cell: f"{cell.cache} cache"),
    ("variant", "variant", lambda cell: cell.variant),
)


SIMULATED = "SIMULATED: a model's figures, nothing was measured"
"""Stands where figures are drawn or tabulated without a word beside them."""
PACE_IN_WORDS = "time from one iteration's end to the next's, by events"
"""What the percentiles of a cell with a pace are of."""


class CellNames:
    """Names cells by what varies among them; at least one cell."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._first = cells[0]
        self.file = _common_file(cells)
        self.varying = [
            setting for setting in _SETTINGS if len({setting[2](cell) for cell in cells}) > 1
        ]

    def workload(self, cell: Cell) -> str:
        """Return the cell's name without the file that all cells share."""
        return cell.name.removeprefix(f"{self.file}::") if self.file else cell.name

    def in_short(self, cell: Cell) -> str:
        """Return the cell's name and what varies, such as ``moe s8 eager``."""
        return " ".join([self.workload(cell), *self.settings(cell, short=True)])

    def settings(self, cell: Cell, *, short: bool = False, streams: bool = True) -> list[str]:
        """Return the settings that vary: ``8 streams`` and ``graph``, or short, ``s8``.

        Args:
            cell: one of the cells.
            short: for a line that has little room.
            streams: whether their number is one of them.

        """
        said = {key: say(cell) for key, _, say in self.varying if streams or key != "streams"}
        if "streams" in said:
            said["streams"] = f"s{cell.streams}" if short else counted(cell.streams, "stream")
        return [text for text in said.values() if text]

    def constants(self) -> list[Part]:
        """Return the settings that all cells share, as far as a reader needs them, in a line."""
        varying = {setting[0] for setting in self.varying}
        said = {"streams": counted(self._first.streams, "stream")} | setting_words(self._first)
        parts = [text for key, text in said.items() if text and key not in varying]
        return [Paragraph(" · ".join(parts))] if parts else []


def setting_words(cell: Cell) -> dict[str, str]:
    """Return how it was measured, as far as a reader needs to know it; empty is usual."""
    return {
        "scheduler": f"scheduler {cell.scheduler}",
        "dispatch": f"dispatch {cell.dispatch}",
        "size": f"size {cell.size}" if cell.size else "",
        "sync_mode": f"sync mode {cell.sync_mode}" if cell.sync_mode != "per_iteration" else "",
        "cache": f"{cell.cache} cache" if cell.cache != "hot" else "",
        "variant": cell.variant,
    }


def title(subject: str, records: Sequence[RunRecord], what: str) -> Heading:
    """Return a table's heading: its subject, the devices, and how many cells are not fine."""
    # A record of a process that died may have no fingerprint; another one knows its device.
    known = {record.cell.device: name for record in records if (name := device_name(record))}
    labels = dict.fromkeys(record.cell.device for record in records)
    names = grouped((known.get(label, "unknown device"), label) for label in labels)
    devices = ", ".join(f"{name} ({', '.join(those)})" for name, those in names.items())
    bad = [record.status for record in records if record.status != "ok"]
    return heading(f"{subject} on {devices}{what}", bad, counted(len(records), "cell"))


def device_name(record: RunRecord) -> str:
    """Return what its device is; empty if its process died before that was known."""
    return "" if record.fingerprint is None else str(record.fingerprint.hard.get("device_name", ""))


def heading(text: str, bad: Sequence[str], of: str) -> Heading:
    """Return a heading that says how many of those under it are not fine.

    Args:
        text: what stands under it.
        bad: the statuses of those that are not.
        of: how many there are of what.

    """
    if not bad:
        return Heading(text)
    counts = ", ".join(f"{bad.count(status)} {status}" for status in dict.fromkeys(bad))
    return Heading(f"{text} · {counts} of {of}", style="bold red")


def _common_file(cells: Sequence[Cell]) -> str:
    """Return the file that all cells' names start with, if it is one file."""
    files = {cell.name.partition("::")[0] if "::" in cell.name else "" for cell in cells}
    return files.pop() if len(files) == 1 else ""


_NUMBERS = re.compile(r"\d[\d.]*")
Whose = TypeVar("Whose")


def by_kind(texts: Iterable[tuple[str, Whose]]) -> dict[str, tuple[str, list[Whose]]]:
    """Group whose texts differ only in numbers, which count as one: the first is kept."""
    found: dict[str, tuple[str, list[Whose]]] = {}
    for text, whose in texts:
        found.setdefault(_NUMBERS.sub("", text), (text, []))[1].append(whose)
    return found


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# The counts in a refusal differ from cell to cell; what it needs does not.
_COUNTS = re.compile(r"has (?P<has>\d+)(?: \((?P<missing>\d+) missing\))?")
_PLACE = "\0"
NO_REASON = "no reason was recorded"


@dataclass
class _Refusal:
    """Whose figure was refused, or drifts; ``tags`` has None where it is the cell's own."""

    cells: dict[str, None] = field(default_factory=dict)
    tags: dict[str | None, None] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)


class Notes:
    """Collects one table's notes; each text appears once."""

    def __init__(self) -> None:
        self._footnotes: dict[str, int] = {}
        self._refusals: dict[tuple[str, str], _Refusal] = {}
        self._drifts: dict[str, tuple[_Refusal, list[float]]] = {}
        self._explanations: dict[str, str] = {}

    def footnote(self, text: str) -> str:
        """Return the mark of a footnote, new or known, such as ``²``."""
        number = self._footnotes.setdefault(text, len(self._footnotes) + 1)
        return superscript(number)

    def refuse(self, figure: str, reason: str, cell: str, tag: str | None = None) -> None:
        """Note a refused figure of a cell or of one of its tags."""
        found = _COUNTS.search(reason)
        pattern = _COUNTS.sub(_PLACE, reason, count=1)
        refusal = self._refusals.setdefault((figure, pattern), _Refusal())
        for name, number in (found.groupdict() if found else {}).items():
            refusal.counts.setdefault(name, []).extend([int(number)] if number else [])
        refusal.cells[cell] = None
        refusal.tags[tag] = None

    def note(
        self,
        estimate: Estimate,
        figure: str,
        cell: str,
        tag: str | None = None,
        *,
        interval: bool = True,
    ) -> None:
        """Note why an estimate, or its interval where one is shown, is missing, and any drift."""
        reason = estimate.refused or NO_REASON
        if estimate.drift is not None:
            whose, sizes = self._drifts.setdefault(figure, (_Refusal(), []))
            whose.cells[cell] = None
            whose.tags[tag] = None
            sizes.append(estimate.drift)
        if estimate.value is None:
            self.refuse(figure, reason, cell, tag)
        elif interval and estimate.interval is None:
            self.refuse(f"interval of {figure}", reason, cell, tag)

    def remark(self, rows: Sequence[Row], remarks: Sequence[Sequence[str]]) -> None:
        """Put each row's remarks below it, and those of several rows below the table.

        Args:
            rows: with the text ``cell``, which gets the marks.
            remarks: of each row.

        """
        counts = Counter(text for each in remarks for text in each)
        for row, own in zip(rows, remarks, strict=True):
            row.below += [text for text in own if counts[text] == 1]
            marks = [self.footnote(text) for text in own if counts[text] > 1]
            row.texts["cell"] = " ".join([row.texts["cell"], *marks])

    def explain(self, name: str, text: str) -> None:
        """Explain a figure that has its own name, once below the table."""
        self._explanations.setdefault(name, text)

    def refused_in_short(self) -> dict[str, int]:
        """Return in how many cells each figure was refused, such as ``P99 of iteration``."""
        cells = grouped(
            (figure if tag is None else f"{figure} of {tag}", cell)
            for (figure, _), refusal in self._refusals.items()
            for tag in refusal.tags
            for cell in refusal.cells
        )
        return {what: len(set(found)) for what, found in cells.items()}

    def lines(self, cells: int) -> list[str]:
        """Return the notes of a table with so many cells, one unwrapped line each."""
        lines = [f"{name}: {text}" for name, text in self._explanations.items()]
        merged: list[tuple[tuple[str, str], str]] = []
        for (figure, pattern), refusal in self._refusals.items():
            reason = pattern
            if refusal.counts:
                has, missing = refusal.counts["has"], refusal.counts["missing"]
                more = f" ({_span(missing)} missing)" if missing else ""
                reason = pattern.replace(_PLACE, f"has {_span(has)}{more}")
            merged.append(((_subject(refusal, cells), reason), figure))
        lines += [
            f"{', '.join(dict.fromkeys(figures))} refused for {subject}: {reason}"
            for (subject, reason), figures in grouped(merged).items()
        ]
        for figure, (whose, sizes) in self._drifts.items():
            lines.append(f"{figure} of {_subject(whose, cells)} {drift_in_words(sizes)}")
        lines += [f"{superscript(number)} {text}" for text, number in self._footnotes.items()]
        return lines


def drift_in_words(sizes: Sequence[float]) -> str:
    """Return how far figures drift, each a share of itself, and what that does to the interval."""
    least, most = (f"{'+' * (size > 0)}{percent(size)}" for size in (min(sizes), max(sizes)))
    span = least if least == most else f"{least} to {most}"
    return f"drifts by {span} over its window, whose mean the interval is of"


def every_cell(count: int) -> str:
    """Return what all cells of a table are called in a sentence."""
    return {1: "the cell", 2: "both cells"}.get(count, f"all {count} cells")


def superscript(number: int) -> str:
    """Return a number in superscript digits."""
    return str(number).translate(_SUPERSCRIPTS)


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _subject(refusal: _Refusal, cells: int) -> str:
    count = len(refusal.cells)
    if count == cells:
        which = every_cell(cells)
    elif count == 1:
        which = next(iter(refusal.cells))
    else:
        which = counted(count, "cell")
    tags = " and ".join(filter(None, refusal.tags))
    if not tags:
        return which
    if None in refusal.tags:
        return f"{which} and {'its' if count == 1 else 'their'} {tags}"
    return f"{tags} of {which}"


def on_device(found: Origin) -> str:
    """Return where it was measured; empty if that is not known."""
    name, label = found.device_name, found.device
    return f" On {name}" + f" ({label})" * (label != name) if name else ""
