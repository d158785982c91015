"""The summary in Markdown: regressions on top, passes folded away, no sign of a name misread."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_hwqueue.answers.session.outcome import render_markdown
from pytest_hwqueue.data.document.document import code, plain
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.judge.baselines.sources import UnmatchedCell
from pytest_hwqueue.judge.judging import Judgement
from tests.answers.conftest import make
from tests.stored_texts import assert_as_stored

# Where GitHub's tables end a cell: a bar that is not escaped.
_BAR = re.compile(r"(?<!\\)\|")


def test_what_is_written_is_as_stored(
    judgement: Judgement, session_records: list[RunRecord], run_records: list[RunRecord]
) -> None:
    hard: dict[str, Any] = {"device_kind": "sim", "device_name": "simulated H100_SXM"}
    model = [make(fingerprint=Fingerprint(hard=hard, soft={}))]
    passes = tuple(each for each in judgement.verdicts if each.verdict.state == "pass")
    many = tuple(UnmatchedCell(f"moe[cpu-s{n}-native-eager]", "not measured") for n in range(1, 8))
    fine = replace(judgement, baseline="cpu/main", verdicts=passes, missing=many)
    # What is worst comes first also among devices.
    assert_as_stored(__file__, "judgement.md", render_markdown([fine, judgement], []))
    texts = [render_markdown([], each) for each in (session_records, model, [])]
    assert_as_stored(__file__, "session.md", "\n=====\n\n".join(texts))
    assert_as_stored(__file__, "runs.md", render_markdown([], run_records))
    assert "on simulated H100\\_SXM (a model's figures, not measured)" in texts[1]
    assert "simulated" not in texts[0]


def test_what_records_and_verdicts_say_is_shown_and_never_interpreted(judgement: Judgement) -> None:
    kernel = "<script>alert(1)</script> of @octocat in #12 | ![x](https://elsewhere.invalid)"
    first = replace(judgement.verdicts[1], cell_id="a[x|<img src=x>-cuda-s1]", remark=kernel)
    failed = make(status="failed", reason=f"{kernel}\n\n## a heading")
    text = render_markdown([replace(judgement, verdicts=(first,))], [failed, make()])
    outside_code = re.sub(r"`[^`]*`", "", text)
    for sign in ("<script", "<img", "@octocat", "#12", "![", "\n## a heading"):
        assert not re.search(rf"(?<!\\){re.escape(sign)}", outside_code), sign
    assert outside_code.count(r"\<script\>alert(1)\</script\> of @&#8203;octocat") == 2
    tables = [block.split("\n") for block in text.split("\n\n") if block.startswith("|")]
    assert [len({len(_BAR.findall(row)) for row in rows}) for rows in tables] == [1, 1]
    shown = r"snake\_case \*x\* \<b\> a\|b two lines ask @&#8203;you, see #&#8203;12 (# @)"
    assert plain("snake_case *x* <b> a|b two\nlines ask @you, see #12 (# @)") == shown


@example("`a``")
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
