"""What an answer consists of, whatever shows it: headings, paragraphs, tables of figures, lists.

A builder makes a `Document` once; the terminal (`terminal.rendered`) and Markdown (here) show it
and know no figure's name. Styles are rich's words: ``bold``, ``dim``, ``red``, ``bold yellow``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.metrics.numbers import PrintedFigure

INTERVAL = f"[{CONFIDENCE * 100:.0f} %]"
"""Stands in the heading of a column whose figures have intervals."""

Line = str | list[str]
"""A paragraph, or parts of a line that is wrapped only between them."""


@dataclass(frozen=True)
class Column:
    """A column of text, or of figures aligned by number, unit and interval.

    Attributes:
        key: under which rows keep this column's content.
        header: first line of the heading; it says so if the figures have intervals.
        second: second line of the heading, after a unit shared by all figures.
        unit_in_header: whether a shared unit moves to the heading.
        shares: keys of the columns that must share that unit; by default its own.
        right: whether text is right-aligned.
        rank: where a table is too wide, columns go in the order of their ranks, the highest first;
            those of rank 0 stay.
        interval_rank: when the intervals of its figures go.
        kept: whether what went stands in a line below its row, or is left out.
        bars: whether its figures are shares, which the page draws as bars, too.

    """

    key: str
    header: str
    second: str = ""
    unit_in_header: bool = True
    shares: tuple[str, ...] = ()
    right: bool = False
    rank: int = 0
    interval_rank: int = 0
    kept: bool = True
    bars: bool = False

    @property
    def name(self) -> str:
        """The heading in one line."""
        return f"{self.header} {self.second}".strip()

    def is_filled(self, rows: Sequence[Row]) -> bool:
        """Whether any row has something for it; else a table leaves it out."""
        return any(row.parts(self) for row in rows)

    def has_intervals(self, rows: Sequence[Row]) -> bool:
        """Whether any of its figures has an interval, which its heading then says."""
        return any(each.interval for row in rows for each in row.figures.get(self.key, []))


@dataclass
class Row:
    """One row: text or figures by column, and lines below it under all columns.

    Attributes:
        texts: by column.
        figures: by column; several stand one below another.
        style: of the whole row.
        opens: whether it begins a group of rows.
        below: under all columns, in the row's style.
        reasons: by column, why its figure was refused; the page shows them in its place.
        links: by column, which of the page's cells has its details.

    """

    texts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[PrintedFigure]] = field(default_factory=dict)
    style: str = ""
    opens: bool = False
    below: list[Line] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def parts(self, column: Column) -> list[str]:
        """Return what a column holds, each part without the column's name."""
        text = self.texts.get(column.key)
        return ([text] if text else []) + [*map(str, self.figures.get(column.key, []))]


Level = Literal["bad", "warn", "good", "plain"]


@dataclass(frozen=True)
class Headline:
    """What a page says first: the sentence, how it is coloured, and what belongs to it."""

    level: Level
    sentence: str
    more: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Heading:
    """Opens a document (level 1) or a part of it (2)."""

    text: str
    level: int = 2
    style: str = "bold"


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several."""

    text: str
    style: str = "dim"


@dataclass(frozen=True)
class Verbatim:
    """Lines shown as they are, such as a program's last output."""

    text: str
    style: str = "dim"


@dataclass(frozen=True)
class Bullets:
    """Lines of equal standing under a heading, each with what it is about, or without.

    Attributes:
        about: a name for each group of lines, such as a scheduler's; empty for none.

    """

    about: dict[str, list[str]]


@dataclass(frozen=True)
class Command:
    """What can be typed to get the same; a terminal shows it to its user already."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows under columns; the first column names the row, and notes stand below all rows."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A picture, for media that draw.

    Attributes:
        title: its heading.
        spec: a Vega-Lite description; None if there is nothing to draw.
        note: how to read it, or why it is empty.
        left_out: by name, why something is not drawn.

    """

    title: str
    spec: dict[str, Any] | None
    note: str
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FoldedPart:
    """A sentence, and what it sums up: a terminal shows the sentence alone."""

    summary: str
    inside: Table | Bullets


Part = Heading | Paragraph | Verbatim | Bullets | Command | Table | FoldedPart | Chart


@dataclass(frozen=True)
class Document:
    """An answer, in the order of reading."""

    parts: Sequence[Part]


def narrowed(
    columns: Sequence[Column], rows: Sequence[Row], least: int
) -> tuple[list[Column], list[Row]]:
    """Return a table without columns and intervals of this rank or more."""
    gone = [column for column in columns if column.rank >= least]
    kept = [column for column in columns if column.rank < least]
    bare = [column for column in kept if column.interval_rank >= least]
    return kept, [_without(row, gone, bare) for row in rows]


def _without(row: Row, gone: Sequence[Column], bare: Sequence[Column]) -> Row:
    said = [f"{column.name} {part}" for column in gone if column.kept for part in row.parts(column)]
    figures = {key: row.figures[key] for key in row.figures if all(key != c.key for c in gone)}
    for column in bare:
        shown = figures.get(column.key, [])
        figures[column.key] = [replace(each, interval="") for each in shown]
        said += [
            f"interval of {column.name} {each.interval}"
            for each in shown
            if column.kept and each.interval
        ]
    first: list[Line] = [said] if said else []
    return replace(row, figures=figures, below=first + row.below)


_MARKS = re.compile(r" [⁰¹²³⁴-⁹]+")
# What a terminal says in colour.
_SIGNS = {"red": "❌", "bold red": "❌", "yellow": "⚠️", "green": "🟢"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
# Before a name or number these notify people and link threads; a sign of no width prevents that.
_REFERENCE = re.compile(r"([@#])(?=\w)")


def markdown(document: Document) -> str:
    """Return a document in GitHub-flavoured Markdown, with a final newline."""
    return "\n\n".join(block for part in document.parts for block in _markdown(part)) + "\n"


def _markdown(part: Part) -> list[str]:
    if isinstance(part, Heading):
        return [f"{'#' * (part.level + 1)} {plain(part.text)}"]
    if isinstance(part, Paragraph):
        bold = "**" * ("bold" in part.style)
        return [f"{bold}{plain(part.text)}{bold}"]
    if isinstance(part, Verbatim):
        return [f"```text\n{part.text}\n```"]
    if isinstance(part, Command):
        return [f"Command: {code(part.text)}"]
    if isinstance(part, FoldedPart):
        inside = _markdown(part.inside)
        return [f"<details><summary>{plain(part.summary)}</summary>", *inside, "</details>"]
    if isinstance(part, Bullets):
        return [
            "\n".join(
                " ".join(filter(None, ["-", code(name) if name else "", plain(line)]))
                for name, lines in part.about.items()
                for line in lines
            )
        ]
    # Markdown draws no chart.
    return _markdown_of_table(part) if isinstance(part, Table) else []


def _markdown_of_table(table: Table) -> list[str]:
    columns = [column for column in table.columns if column.is_filled(table.rows)]
    rows = []
    below = []
    for row in table.rows:
        cells = [row.parts(column) for column in columns]
        sign = [_SIGNS[row.style]] if row.style in _SIGNS else []
        first = [" ".join([*sign, *map(_marked, cells[0])])]
        others = [[plain(part) for part in cell] for cell in cells[1:]]
        rows.append(["<br>".join(each) for each in (first, *others)])
        name = _MARKS.sub("", row.texts.get(columns[0].key, ""))
        for line in row.below:
            text = line if isinstance(line, str) else "; ".join(line)
            below.append(f"- {code(name)}: {plain(text)}")
    notes = below + [f"- {plain(line)}" for line in table.notes]
    head = [
        plain(f"{each.name} {INTERVAL}" if each.has_intervals(table.rows) else each.name)
        for each in columns
    ]
    return [markdown_table(head, rows), *["\n".join(notes)] * bool(notes)]


def _marked(name: str) -> str:
    """Return a name as code, and behind it the marks of its footnotes."""
    return "".join([code(_MARKS.sub("", name)), *_MARKS.findall(name)])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a heading and rows, all text already escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return a name as a code span that also works in a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    # A backtick at an end would join the fence.
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def plain(text: str) -> str:
    """Return a sentence in one line, with Markdown's special characters escaped.

    Nobody is notified by an ``@name`` in it, and no thread linked by a ``#1``.
    """
    return _REFERENCE.sub(r"\1&#8203;", _SPECIAL.sub(r"\\\1", " ".join(text.split())))
