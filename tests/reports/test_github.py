"""Workflow commands: whatever stands in a message, GitHub reads back the same."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.reports.outcome import Annotation, render_annotations

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)


def test_annotations_read_as_expected_and_have_a_line_number_only_where_known() -> None:
    items = [
        Annotation(
            "error", "benchmarks/test_suite.py", 12, "P99 +20.0 %, regression",
            "tiny_kernel_stress[cuda-s8]: P99 is worse\nreproduce: pytest -k x",
        ),
        Annotation("warning", "a.py", None, "title", "message"),
        Annotation("notice", "a.py", None, "title", "message"),
    ]  # fmt: skip
    assert render_annotations(items).split("\n") == [
        "::error file=benchmarks/test_suite.py,line=12,title=P99 +20.0 %25%2C regression::"
        "tiny_kernel_stress[cuda-s8]: P99 is worse%0Areproduce: pytest -k x",
        "::warning file=a.py,title=title::message",
        "::notice file=a.py,title=title::message",
    ]
    assert render_annotations([]) == ""


@given(TEXT, TEXT, TEXT)
def test_everything_comes_back(file: str, title: str, message: str) -> None:
    command = render_annotations([Annotation("warning", file, 3, title, message)])
    found = re.fullmatch(r"::warning file=([^:,]*),line=3,title=([^:,]*)::([^\r\n]*)", command)
    assert found is not None
    # GitHub's runner knows these escapes, and no others.
    escapes = set(re.findall("%..", f"{found[1]}{found[2]}"))
    assert escapes <= {"%25", "%0D", "%0A", "%3A", "%2C"}
    assert set(re.findall("%..", found[3])) <= {"%25", "%0D", "%0A"}
    assert [unquote(each) for each in found.groups()] == [file, title, message]
