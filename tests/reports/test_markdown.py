"""The summary in Markdown: regressions on top, passes folded away, no sign of a name misread."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.markdown import code, plain, render_markdown
from pytest_hwqueue.reports.verdict_words import SEVERITY
from pytest_hwqueue.verdicts.judging import Judgement
from tests.reports.conftest import make
from tests.reports.stored_texts import assert_as_stored

# Where GitHub's tables end a cell: a bar that is not escaped.
_BAR = re.compile(r"(?<!\\)\|")


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text as rows of cells, headings first."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block.startswith("|")]
    return [
        [[cell.strip() for cell in _BAR.split(line)[1:-1]] for line in block] for block in blocks
    ]


def test_what_is_written_is_as_stored(
    judgement: Judgement, session_records: list[RunRecord], run_records: list[RunRecord]
) -> None:
    assert_as_stored(__file__, "judgement.md", render_markdown([judgement], []))
    assert_as_stored(__file__, "session.md", render_markdown([], session_records))
    assert_as_stored(__file__, "runs.md", render_markdown([], run_records))


def test_what_needs_a_reader_is_on_top_and_passes_are_folded(judgement: Judgement) -> None:
    text = render_markdown([judgement], [])
    first, passes = tables(text)
    assert {len(row) for row in (*first, *passes)} == {7}
    states = [row[4] for row in first[2:]]
    assert states == sorted(states, key=SEVERITY.index)
    assert {row[4] for row in passes[2:]} == {"pass"}
    folded = text.index("<details>")
    assert text.index("| ❌ |") < folded < text.index("| ✅ |") < text.index("</details>")


def test_a_simulated_device_is_called_so() -> None:
    hard: dict[str, str | int | float | bool | None] = {
        "device_kind": "sim", "device_name": "simulated H100_SXM"
    }  # fmt: skip
    record = make(fingerprint=Fingerprint(hard=hard, soft={}))
    assert "on simulated H100\\_SXM (a model's figures, not measured)" in render_markdown(
        [], [record]
    )
    assert "simulated" not in render_markdown([], [make()])


def test_what_records_and_verdicts_say_is_shown_and_never_interpreted(judgement: Judgement) -> None:
    kernel = "<script>alert(1)</script> of @octocat in #12 | ![x](https://elsewhere.invalid)"
    first = replace(judgement.verdicts[1], cell_id="a[x|<img src=x>-cuda-s1]", remark=kernel)
    failed = make(status="failed", reason=f"{kernel}\n\n## a heading")
    text = render_markdown([replace(judgement, verdicts=(first,))], [failed, make()])
    outside_code = re.sub(r"`[^`]*`", "", text)
    for sign in ("<script", "<img", "@octocat", "#12", "![", "\n## a heading"):
        assert not re.search(rf"(?<!\\){re.escape(sign)}", outside_code), sign
    assert outside_code.count(r"\<script\>alert(1)\</script\> of @&#8203;octocat") == 2
    assert {len(row) for table in tables(text) for row in table} == {7}


def test_what_is_worst_comes_first_also_among_devices(judgement: Judgement) -> None:
    passes = tuple(each for each in judgement.verdicts if each.verdict.state == "pass")
    fine = replace(judgement, baseline="cpu/main", verdicts=passes)
    text = render_markdown([fine, judgement], [])
    assert text.index("### Against `nvidia-h200/main`") < text.index("### Against `cpu/main`")


def test_nothing_is_a_heading() -> None:
    assert render_markdown([], []) == "## Hardware queues\n"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1))
def test_a_name_stays_one_code_span_in_one_cell(name: str) -> None:
    shown = code(name)
    assert not _BAR.search(shown)
    fence = re.match("`+", shown)
    assert fence is not None
    inner = shown[len(fence[0]) : -len(fence[0])]
    # No run of backticks inside is as long as the fence, so it ends where it should.
    assert fence[0] not in re.findall("`+", inner)
    assert inner.replace("\\|", "|").strip() == name or "\\|" in name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("snake_case *x* <b>", r"snake\_case \*x\* \<b\>"),
        ("two\nlines", "two lines"),
        ("ask @octocat, see #12 (# @)", "ask @&#8203;octocat, see #&#8203;12 (# @)"),
    ],
)
def test_sentences_are_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown
