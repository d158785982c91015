"""A table whose columns were measured before it is drawn: it fits, or it is not drawn at all.

Rich's own tables crop or wrap numbers that do not fit and cannot let a line run under all columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pytest_hwqueue.reports.numbers import REFUSED, Figure

GAP = 2
"""Blanks between two columns."""

_BREAKS = re.compile(r"[^:/\[\]_\-, ]+[:/\[\]_\-, ]*|[:/\[\]_\-, ]+")


@dataclass(frozen=True)
class Column:
    """A column of text, or of figures that are aligned by number, unit and interval.

    Attributes:
        key: where a row keeps its content for this column.
        header: first line of the heading; a unit that all figures share goes into the second.
        second: second line of the heading.
        unit_in_header: whether a shared unit leaves the figures for the heading.
        right: whether text is aligned to the right.
        widest: the most cells that text takes before it goes on in the next line.

    """

    key: str
    header: str
    second: str = ""
    unit_in_header: bool = True
    right: bool = False
    widest: int | None = None


@dataclass
class Row:
    """One row: text or figures by column, and the lines that run under all columns."""

    texts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    style: str = ""
    below: list[Text] = field(default_factory=list)


class Grid:
    """Rows under columns, laid out; ``width`` says how many cells a line takes."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        self._rows = rows
        # A column that no row has anything for is left out.
        self._columns = [c for c in columns if any(_has(row, c) for row in rows)]
        self._content = [_content(column, rows) for column in self._columns]
        self._headers = [
            _header(column, rows, lines)
            for column, lines in zip(self._columns, self._content, strict=True)
        ]
        self._widths = [
            max(cell_len(line) for line in (*header, *(line for cell in cells for line in cell)))
            for header, cells in zip(self._headers, self._content, strict=True)
        ]

    @property
    def width(self) -> int:
        """Cells that the widest line takes; lines under the columns wrap at it or beyond."""
        return sum(self._widths) + GAP * (len(self._widths) - 1)

    def draw(self, console: Console) -> None:
        """Print headings, rows and the lines below them; the console must be wide enough."""
        rule = Text("─" * max(self.width, 1), style="dim")
        console.print(rule)
        for level in range(2):
            line = [header[level] for header in self._headers]
            if any(line):
                console.print(self._line(line, "bold" if level == 0 else "dim"))
        console.print(rule)
        for index, row in enumerate(self._rows):
            cells = [content[index] for content in self._content]
            for level in range(max(map(len, cells))):
                parts = [cell[level] if level < len(cell) else "" for cell in cells]
                console.print(self._line(parts, row.style))
            for text in row.below:
                console.print(Padding(text, (0, 0, 0, 2)))
        console.print(rule)

    def _line(self, parts: Sequence[str], style: str) -> Text:
        line = Text(style=style, no_wrap=True)
        for index, part in enumerate(parts):
            blanks = " " * (self._widths[index] - cell_len(part))
            right = self._columns[index].right
            line.append_text(quiet(blanks + part if right else part + blanks))
            line.append(" " * GAP)
        line.rstrip()
        return line


def quiet(text: str) -> Text:
    """Dim what stands beside the numbers: intervals in brackets, and the sign for refused."""
    shown = Text(text)
    shown.highlight_regex(r"\[-?[\d.]+, -?[\d.]+\]|—(?= |$)", "dim")
    return shown


def _has(row: Row, column: Column) -> bool:
    return bool(row.texts.get(column.key)) or bool(row.figures.get(column.key))


def _shared_unit(column: Column, rows: Sequence[Row]) -> str:
    """Return the unit of all figures in a column, or nothing if they differ."""
    units = {
        figure.unit
        for row in rows
        for figure in row.figures.get(column.key, [])
        if figure != REFUSED
    }
    return units.pop() if column.unit_in_header and len(units) == 1 else ""


def _header(
    column: Column, rows: Sequence[Row], cells: Sequence[Sequence[str]]
) -> tuple[str, str]:
    second = column.second
    if second.startswith("[") and not any("[" in line for cell in cells for line in cell):
        second = ""  # no interval stands below
    return column.header, " ".join(filter(None, (_shared_unit(column, rows), second)))


def _content(column: Column, rows: Sequence[Row]) -> list[list[str]]:
    """Return, for each row, the lines of its cell in a column."""
    shared = _shared_unit(column, rows)
    shown = [
        [
            Figure(figure.number, "", figure.interval) if figure.unit == shared else figure
            for figure in row.figures.get(column.key, [])
        ]
        for row in rows
    ]
    every = [figure for figures in shown for figure in figures]
    number = max((cell_len(figure.number) for figure in every), default=0)
    unit = max((cell_len(_unit(figure)) for figure in every), default=0)
    content = []
    for row, figures in zip(rows, shown, strict=True):
        lines = fold(row.texts.get(column.key, ""), column.widest)
        for figure in figures:
            blanks = " " * (number - cell_len(figure.number))
            behind = _unit(figure)
            interval = f" {figure.interval}" if figure.interval else ""
            padded = behind + " " * (unit - cell_len(behind)) + interval
            lines.append((blanks + figure.number + padded).rstrip())
        content.append([line for line in lines if line] or [""])
    return content


def _unit(figure: Figure) -> str:
    return str(Figure("", figure.unit))


def fold(text: str, widest: int | None) -> list[str]:
    """Break a name into lines of at most ``widest`` cells, behind a sign between its parts."""
    if widest is None or cell_len(text) <= widest:
        return [text]
    indent = len(text) - len(text.lstrip())
    lines = [""]
    for part in _BREAKS.findall(text):
        while part:
            if cell_len(lines[-1] + part) <= widest:
                lines[-1] += part
                break
            if lines[-1].strip():
                lines.append(" " * (indent + 2))
                continue
            # Not even one part fits: it is cut where the line ends, and nothing is lost.
            room = max(1, widest - cell_len(lines[-1]))
            lines[-1] += part[:room]
            part = part[room:]
            if part:
                lines.append(" " * (indent + 2))
    return lines
