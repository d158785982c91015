"""Documents in a terminal: whatever its width, no line is longer and no figure is lost.

A table's width is known before it is drawn. Rich's own tables crop or wrap numbers that do not fit,
and cannot run a line under all columns.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pytest_hwqueue.data.document.document import (
    INTERVAL,
    Bullets,
    Chart,
    Column,
    Command,
    Document,
    FoldedPart,
    Heading,
    Line,
    Paragraph,
    Part,
    Row,
    Table,
    Verbatim,
    narrowed,
)
from pytest_hwqueue.data.document.standard_output import readable
from pytest_hwqueue.data.metrics.numbers import REFUSED, PrintedFigure

GAP = 2
"""Blanks between two columns."""
LEAST_WIDTH = 78
"""Cells that rules and lines below rows take at least, if the terminal has them."""
INDENT = 2
# Names that would fold into narrower columns stand on lines of their own, or a column goes.
_LEAST_NAME, _SHARE_OF_NAME = 12, 0.3
_FILE_WIDTH = 140

_BREAKS = re.compile(r"[^:/\[\]_\-, ]+[:/\[\]_\-, ]*|[:/\[\]_\-, ]+")


class Grid:
    """Rows laid out under columns; ``widths`` are how many cells each column takes.

    Args:
        columns: those that no row has anything for are left out.
        rows: at least one.
        widest: how many cells a name, in the first column, may take before it wraps.

    """

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Row], widest: int | None = None
    ) -> None:
        self.rows = rows
        self._columns = [column for column in columns if column.is_filled(rows)]
        self._content = [
            _content(column, rows, widest if column is columns[0] else None)
            for column in self._columns
        ]
        self._headers = [_header(column, rows) for column in self._columns]
        self.widths = [
            max(cell_len(line) for line in (*header, *(line for cell in cells for line in cell)))
            for header, cells in zip(self._headers, self._content, strict=True)
        ]

    @property
    def width(self) -> int:
        """How many cells the widest line takes; lines below rows wrap there or later."""
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    def draw(self, console: Console) -> int:
        """Print headings, rows and the lines below them; return the width of the rules.

        The console must be at least as wide as the grid.
        """
        width = min(console.width, max(self.width, LEAST_WIDTH))
        rule = Text("─" * width, style="dim")
        console.print(rule)
        for level, style in enumerate(("bold", "dim")):
            line = [header[level] for header in self._headers]
            if any(line):
                console.print(self._line(line, style))
        if any(any(header) for header in self._headers):
            console.print(rule)
        for index, row in enumerate(self.rows):
            if index and row.opens and (self._is_tall(index - 1) or self._is_tall(index)):
                console.print()
            cells = [content[index] for content in self._content]
            for level in range(max(map(len, cells))):
                parts = [cell[level] if level < len(cell) else "" for cell in cells]
                console.print(self._line(parts, row.style))
            print_below(console, row, width)
        console.print(rule)
        return width

    def _is_tall(self, index: int) -> bool:
        """Return whether a row's block has several lines, seen from its first or last row."""
        row = self.rows[index]
        alone = index + 1 == len(self.rows) or self.rows[index + 1].opens
        lines = max(len(content[index]) for content in self._content)
        return bool(row.below) or not row.opens or not alone or lines > 1

    def _line(self, parts: Sequence[str], style: str) -> Text:
        line = Text(style=style, no_wrap=True)
        for index, part in enumerate(parts):
            blanks = " " * (self.widths[index] - cell_len(part))
            right = self._columns[index].right
            line.append_text(quiet(blanks + part if right else part + blanks))
            line.append(" " * GAP)
        line.rstrip()
        return line


def fitted(columns: Sequence[Column], rows: Sequence[Row], width: int) -> Grid | None:
    """Return a grid of at most ``width`` cells; None if not even the least columns fit.

    Before a column goes, the first one, which holds names, is folded.
    """
    ranks = {rank for column in columns for rank in (column.rank, column.interval_rank)} - {0}
    least_name = max(_LEAST_NAME, int(width * _SHARE_OF_NAME))
    for level in (max(ranks, default=0) + 1, *sorted(ranks, reverse=True)):
        kept, shown = narrowed(columns, rows, level)
        grid = Grid(kept, shown)
        if grid.width <= width:
            return grid
        room = width - grid.width + grid.widths[0]
        if room >= least_name:
            return Grid(kept, shown, room)
    return Grid(kept, shown, room) if room >= _LEAST_NAME else None


def draw_table(console: Console, table: Table) -> int:
    """Print a table and its notes; in a terminal too narrow for it, row by row.

    Returns:
        The width of its rules.

    """
    grid = fitted(table.columns, table.rows, console.width) if table.rows else None
    if grid is not None:
        width = grid.draw(console)
    else:
        width = console.width
        for row in table.rows:
            _draw_alone(console, table.columns, row)
    for line in table.notes:
        console.print(paragraph(line, width))
    return width


def _draw_alone(console: Console, columns: Sequence[Column], row: Row) -> None:
    name, *others = columns
    # A number says nothing without its heading.
    title = f"{name.name} " * name.right + row.texts.get(name.key, "")
    console.print(Text("\n".join(fold(title, console.width)), style=row.style or "bold"))
    parts = [
        f"{column.name} {part}".strip()
        for column in others if column.kept or not column.rank
        for part in row.parts(column)
    ]  # fmt: skip
    first: list[Line] = [parts] if parts else []
    print_below(console, replace(row, below=first + row.below), console.width)


def print_document(document: Document, console: Console | None = None) -> None:
    """Print a document; no line is longer than the console is wide."""
    console = console or make_console()
    width = console.width
    # Its user typed the command.
    parts = [part for part in document.parts if not isinstance(part, Chart | Command)]
    for number, part in enumerate(parts):
        if number and _stands_apart(part, parts[number - 1]):
            console.print()
        if isinstance(part, Heading):
            width = console.width
        # What follows a table is no wider.
        width = _print(console, part, width)


def rendered(parts: Sequence[Part], width: int, colour: bool) -> str:
    """Return a document's parts as a terminal of this width shows them, without a newline at ends.

    Characters that standard output cannot encode are replaced by plain ones.

    Args:
        parts: in the order of reading.
        width: in cells; no line is longer.
        colour: whether to write ANSI escape sequences.

    """
    buffer = StringIO()
    console = Console(
        file=buffer, width=max(width, 1), force_terminal=colour, force_jupyter=False,
        color_system="standard" if colour else None, no_color=not colour, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    print_document(Document(parts), console)
    lines = buffer.getvalue().split("\n")
    return readable("\n".join(_no_command(line.rstrip()) for line in lines).strip("\n"))


# A runner of GitHub takes a line that begins so for a command, whoever wrote the text.
_COMMAND = re.compile(r"^((?:\s|\x1b\[[\d;]*m)*)::")


def _no_command(line: str) -> str:
    """Return a line with something invisible before the colons of a workflow command."""
    return _COMMAND.sub("\\1\N{WORD JOINER}::", line)


# Styles of an answer, and of what belongs to it.
_ANSWERS = ("bold", "none")


def _stands_apart(part: Part, before: Part) -> bool:
    """Whether a blank line goes between two parts: around answers, and before what is new."""
    answers = [isinstance(each, Paragraph) and each.style in _ANSWERS for each in (part, before)]
    if isinstance(before, Heading):
        return False
    return (
        any(answers) != all(answers)
        or isinstance(part, Heading)
        or (isinstance(part, Table) and isinstance(before, Table))
    )


def _print(console: Console, part: Part, width: int) -> int:
    """Print a part; return how wide the next one may be."""
    if isinstance(part, Heading | Paragraph):
        console.print(paragraph(part.text, width, part.style))
    elif isinstance(part, FoldedPart):
        console.print(paragraph(part.summary, width, ""))
    elif isinstance(part, Verbatim):
        console.print(Text(part.text, style=part.style))
    elif isinstance(part, Table):
        return draw_table(console, part)
    else:
        assert isinstance(part, Bullets)
        for name, lines in part.about.items():
            if name:
                console.print(paragraph(name, width, ""))
            print_below(console, Row(below=[*lines]), width)
    return width


def make_console() -> Console:
    """Return a console on standard output; files and pipes get wide lines, so rows stay whole.

    The environment variable COLUMNS sets another width there.
    """
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(width=wide, highlight=False)


def print_below(console: Console, row: Row, width: int) -> None:
    """Print the lines below a row, indented, at most ``width`` cells wide."""
    indent = " " * INDENT
    for item in row.below:
        if isinstance(item, list):
            lines = flow(item, width - INDENT)
            console.print(quiet("\n".join(indent + line for line in lines)))
        else:
            lines = _wrapped(item, width - INDENT)
            console.print(Text("\n".join(indent + line for line in lines), style=row.style))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap each line of a text, which keeps its indent."""
    return [
        piece
        for line in text.split("\n")
        for piece in textwrap.wrap(line, max(width, 1), break_on_hyphens=False) or [""]
    ]


def flow(parts: Sequence[str], width: int) -> list[str]:
    """Wrap parts into lines of at most ``width`` cells, breaking only between parts that fit."""
    lines = [parts[0]]
    for part in parts[1:]:
        # What stands in parentheses explains the part before it.
        longer = f"{lines[-1]} {part}" if part.startswith("(") else f"{lines[-1]} · {part}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return [piece for line in lines for piece in _wrapped(line, width)]


def paragraph(text: str, width: int, style: str = "dim") -> Text:
    """Wrap a sentence, indenting further lines; never break before a percent sign."""
    kept = text.replace(" %", "\xa0%")
    lines = textwrap.wrap(
        kept, max(width, INDENT + 1), subsequent_indent=" " * INDENT, break_on_hyphens=False
    )
    return Text("\n".join(lines).replace("\xa0", " "), style=style)


def quiet(text: str) -> Text:
    """Dim intervals in brackets, and the sign for refused."""
    shown = Text(text)
    shown.highlight_regex(r"\[-?[\d.]+, -?[\d.]+\]|—(?= |$)", "dim")
    return shown


def _shared_unit(column: Column, rows: Sequence[Row]) -> str:
    """Return the unit shared by a column's figures, or an empty string."""
    units = {
        figure.unit
        for row in rows
        for key in (column.key, *column.shares)
        for figure in row.figures.get(key, [])
        if figure != REFUSED
    }
    return units.pop() if column.unit_in_header and len(units) == 1 else ""


def _header(column: Column, rows: Sequence[Row]) -> tuple[str, str]:
    interval = f" {INTERVAL}" if column.has_intervals(rows) else ""
    second = " ".join(filter(None, (_shared_unit(column, rows), column.second)))
    return column.header + interval, second


def _content(column: Column, rows: Sequence[Row], widest: int | None) -> list[list[str]]:
    """Return the lines of each row's cell in a column."""
    shared = _shared_unit(column, rows)
    shown = [
        [
            PrintedFigure(figure.number, "", figure.interval) if figure.unit == shared else figure
            for figure in row.figures.get(column.key, [])
        ]
        for row in rows
    ]
    every = [figure for figures in shown for figure in figures]
    number = max((cell_len(figure.number) for figure in every), default=0)
    unit = max((cell_len(_unit(figure)) for figure in every), default=0)
    content = []
    for row, figures in zip(rows, shown, strict=True):
        lines = fold(row.texts.get(column.key, ""), widest)
        for figure in figures:
            blanks = " " * (number - cell_len(figure.number))
            behind = _unit(figure)
            interval = f" {figure.interval}" if figure.interval else ""
            padded = behind + " " * (unit - cell_len(behind)) + interval
            lines.append((blanks + figure.number + padded).rstrip())
        content.append([line for line in lines if line] or [""])
    return content


def _unit(figure: PrintedFigure) -> str:
    return str(PrintedFigure("", figure.unit))


def fold(text: str, widest: int | None) -> list[str]:
    """Break a name into lines of at most ``widest`` cells, after its separators."""
    if "\n" in text:
        return [line for part in text.split("\n") for line in fold(part, widest)]
    if widest is None or cell_len(text) <= widest:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + INDENT)
    lines = [""]
    for part in _BREAKS.findall(text):
        rest = part
        if cell_len(lines[-1] + rest) > widest and lines[-1].strip():
            lines.append(indent)
        while cell_len(lines[-1] + rest) > widest:
            # Not even one part fits: it is cut where the line ends, and nothing is lost.
            room = max(1, widest - cell_len(lines[-1]))
            lines[-1] += rest[:room]
            rest = rest[room:]
            lines.append(indent)
        lines[-1] += rest
    return lines
