"""The summary in Markdown: regressions on top, passes folded away, no sign of a name misread."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.markdown import code, plain, render_markdown
from pytest_hwqueue.verdicts.judging import Judgement

MakeRecord = Callable[..., RunRecord]
# Where GitHub's tables end a cell: a bar that is not escaped.
_BAR = re.compile(r"(?<!\\)\|")


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text as rows of cells, headings first."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block.startswith("|")]
    return [
        [[cell.strip() for cell in _BAR.split(line)[1:-1]] for line in block] for block in blocks
    ]


def test_what_needs_a_reader_is_on_top_and_passes_are_folded(judgement: Judgement) -> None:
    text = render_markdown([judgement], [])
    assert "### Against `nvidia-h200/main`: 2 regressions, 2 incomparable" in text
    first, passes = tables(text)
    states = [row[4] for row in first[2:]]
    assert states == ["regression"] * 2 + ["incomparable"] * 2 + ["inconclusive", "improvement"]
    assert [row[4] for row in passes[2:]] == ["pass"] * 4
    folded = text.index("<details>")
    assert text.index("| ❌ |") < folded < text.index("| ✅ |") < text.index("</details>")
    assert "<summary>4 figures passed; the least worsening that each can detect" in text


def test_each_row_has_all_cells_and_each_reason_stands_below(judgement: Judgement) -> None:
    text = render_markdown([judgement], [])
    for table in tables(text):
        assert {len(row) for row in table} == {7}
    regression = judgement.verdicts[1]
    assert f"- `{regression.cell_id}`: {regression.verdict.sentence}" in text
    assert r"also different: torch\_version 2.10 / 2.11" in text
    assert r"driver\_major is 570 in one and 580 in the other" in text
    assert "needs K = T" not in text.partition("<details>")[0]


def test_missing_cells_and_those_without_baseline_are_named(judgement: Judgement) -> None:
    text = render_markdown([judgement], [])
    assert "- missing (failed: out of memory): `resnet[cuda-s4-native-graph]`" in text
    assert r"`tests/test_mine.py::test_attention[bf16\|1024-cuda-s1-native-eager]`" in text
    assert "- rate 1 % over 12 figures, min effect 5 %, tau auto" in text


def test_figures_have_their_intervals(session_records: list[RunRecord]) -> None:
    text = render_markdown([], session_records)
    assert text.startswith("## Hardware queues on NVIDIA H200\n")
    assert "### Against" not in text
    (table,) = tables(text)
    assert {len(row) for row in table} == {7}
    rows = {row[0]: row for row in table[2:]}
    gemm = rows["`large_gemm_only[cuda-s4-native-graph]`"]
    assert gemm[1:3] == ["1", "100"]
    assert re.fullmatch(r"\d\.\d\d ms \[\d\.\d\d, \d\.\d\d\]", gemm[3])
    assert gemm[5] == "—"
    assert "- P99 refused for 2 cells: needs at least 368 samples, has 50 to 100 (268 to" in text
    hetero = rows["`hetero_kernels[cuda-s8-native-eager]`"]
    assert re.search(r"k small kernels/s .*<br>.*TFLOP/s", hetero[6])
    assert rows["`hetero_kernels[cuda-s8-native-eager]` small"][3].startswith("5.52 ms [")


def test_failures_are_named_with_their_reason(session_records: list[RunRecord]) -> None:
    text = render_markdown([], session_records)
    assert "### 2 runs without figures" in text
    assert "- `large_gemm_only[cuda-s32-native-graph]` **failed** in stage set-up: out of m" in text
    assert "**skipped**: large\\_gemm\\_only takes 1 to 32 streams" in text


def test_a_cell_of_several_runs_has_one_row(run_records: list[RunRecord]) -> None:
    text = render_markdown([], run_records)
    (table,) = tables(text)
    assert [row[1] for row in table[2:]] == ["5", "3 of 4"]
    assert "the one whose P99 (P50 without a P99) is in their middle is shown" in text
    assert "` run 3 **timeout** in stage measure: ended after 300 s" in text


def test_a_simulated_device_is_called_so(make_record: MakeRecord) -> None:
    hard: dict[str, str | int | float | bool | None] = {
        "device_kind": "sim", "device_name": "simulated H100_SXM"
    }  # fmt: skip
    record = make_record(fingerprint=Fingerprint(hard=hard, soft={}))
    assert "on simulated H100\\_SXM (a model's figures, not measured)" in render_markdown(
        [], [record]
    )
    assert "simulated" not in render_markdown([], [make_record()])


def test_what_records_and_verdicts_say_is_shown_and_never_interpreted(
    judgement: Judgement, make_record: MakeRecord
) -> None:
    kernel = "<script>alert(1)</script> of @octocat in #12 | ![x](https://elsewhere.invalid)"
    first = replace(judgement.verdicts[1], cell_id="a[x|<img src=x>-cuda-s1]", remark=kernel)
    failed = make_record(status="failed", reason=f"{kernel}\n\n## a heading")
    text = render_markdown([replace(judgement, verdicts=(first,))], [failed, make_record()])
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
