"""A document says the same in every medium: a figure put into it once is in all three."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_hwqueue.answers.page.render import Page, render_page
from pytest_hwqueue.data.document.document import (
    Bullets,
    Chart,
    Column,
    Command,
    Document,
    FoldedPart,
    Heading,
    Headline,
    Paragraph,
    Part,
    Row,
    Table,
    Verbatim,
    markdown,
)
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.metrics.numbers import PrintedFigure
from tests.answers.conftest import printed
from tests.answers.page.test_page import Parsed

WORDS = st.text("abcdefgh_", min_size=1, max_size=30)


def on_page(document: Document) -> str:
    """What a report's reader sees."""
    page = Page(Headline("plain", ""), [], False, [], [document])
    return Parsed(render_page(page)).text


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Columns of any rank, each row with a number of its own in some of them."""
    ranks = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    columns = [Column("name", draw(WORDS))]
    for number, rank in enumerate(ranks):
        columns.append(
            Column(
                f"c{number}", draw(WORDS), draw(WORDS | st.just("")), rank=rank,
                interval_rank=draw(st.integers(0, 4)),
            )
        )  # fmt: skip
    rows = []
    for number in range(draw(st.integers(1, 4))):
        row = Row({"name": f"{draw(WORDS)}{number}"}, opens=draw(st.booleans()))
        for column in columns[1:]:
            value = f"{number}{column.key[1:]}7{draw(st.integers(0, 9999))}.5"
            row.figures[column.key] = [PrintedFigure(value, "ms", draw(st.sampled_from(
                ["", f"[{value}1, {value}2]"]
            )))]  # fmt: skip
        rows.append(row)
    return Table(columns, rows, [draw(WORDS)])


@given(tables(), st.sampled_from([40, 60, 80, 120, 200]))
@settings(max_examples=15)
def test_every_figure_is_in_every_medium_at_every_width(table: Table, width: int) -> None:
    document = Document([Heading("heading", 1), table])
    shown = printed(document, width)
    assert max(map(cell_len, shown.splitlines())) <= width
    texts = [re.sub(r"\s+", "", text) for text in (shown, markdown(document), on_page(document))]
    for figure in (each for row in table.rows for shown in row.figures.values() for each in shown):
        ends = re.findall(r"[\d.]+", figure.interval)
        for text in texts:
            assert all(part in text for part in (figure.number, *ends)), figure


def test_each_kind_of_part_is_shown_as_the_medium_can() -> None:
    table = Table([Column("name", "cell"), Column("p99", "P99")], [
        Row({"name": "a ¹"}, {"p99": [PrintedFigure("1.5", "ms")]}, "red", below=["so | it is"])
    ], ["¹ note"])  # fmt: skip
    chart = Chart("pictured", {"mark": "point"}, "how to read", {"b": "no figure"})
    parts: list[Part] = [
        Heading("heading", 1), Paragraph("bold", "bold"), Paragraph("dim"), Verbatim("as  is"),
        Bullets({"": ["line"], "c": ["of c"]}), table, chart, FoldedPart("in short", table),
        FoldedPart("2 names", Bullets({"": ["one", "two"]})), Command("hwq run"),
    ]  # fmt: skip
    terminal = printed(Document(parts), 80)
    assert "pictured" not in terminal + markdown(Document(parts))
    assert "hwq run" not in terminal
    assert terminal.count("1.5") == 1, "what is folded is summed up"
    for line in (
        "## heading", "**bold**", "dim", "```text\nas  is\n```", "- line\n- `c` of c",
        "| ❌ `a` ¹ | 1.5 ms |", "- `a`: so \\| it is\n- ¹ note",
        "<details><summary>in short</summary>",
        "<details><summary>2 names</summary>\n\n- one\n- two\n\n</details>", "Command: `hwq run`",
    ):  # fmt: skip
        assert line in markdown(Document(parts))
    page = on_page(Document(parts))
    for text in (
        "pictured",
        "b is not drawn: no figure",
        "so | it is",
        "in short",
        "one; two",
        "hwq run",
    ):
        assert text in page


def test_the_page_draws_what_a_document_pictures() -> None:
    chart = Chart("pictured", {"mark": "point"}, "how to read")
    page = Page(Headline("plain", ""), [], False, [], [Document([chart, chart])])
    data = Parsed(render_page(page)).data
    assert data.count({"mark": "point"}) == 2


@settings(max_examples=50)
@given(st.lists(WORDS, max_size=3), st.integers(12, 80), st.booleans(), st.sampled_from("\n\t "))
def test_no_text_of_a_users_becomes_a_command_of_githubs_runner(
    words: list[str], width: int, colour: bool, between: str
) -> None:
    """It wraps at any word, and a line that begins with two colons is a command."""
    text = between.join([*words, "::error::injected", "::add-mask::x"])
    cell = Row({"cell": text}, style="red", below=[text])
    parts: list[Part] = [
        Paragraph(text), Bullets({text: [text]}), Verbatim(text), Heading(text, 1),
        Table([Column("cell", "cell")], [cell], [text]),
    ]  # fmt: skip
    lines = rendered(parts, width, colour).splitlines()
    bare = [re.sub(r"\x1b\[[\d;]*m", "", line).lstrip() for line in lines]
    assert not [line for line in bare if line.startswith("::")]
    assert "error" in "".join(bare)
