"""Workflow commands: whatever stands in a message, GitHub reads back the same."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.session.outcome import annotation

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)


def test_annotations_read_as_expected_and_have_a_line_number_only_where_known() -> None:
    message = "tiny_kernel_stress[cuda-s8]: P99 is worse\nreproduce: pytest -k x"
    title = "P99 +20.0 %, regression"
    assert annotation("error", title, message, "benchmarks/test_suite.py", 12) == (
        "::error file=benchmarks/test_suite.py,line=12,title=P99 +20.0 %25%2C regression::"
        "tiny_kernel_stress[cuda-s8]: P99 is worse%0Areproduce: pytest -k x"
    )
    assert annotation("warning", "t", "message", "a.py") == "::warning file=a.py,title=t::message"


@given(TEXT, TEXT, TEXT)
def test_everything_comes_back(file: str, title: str, message: str) -> None:
    command = annotation("warning", title, message, file, 3)
    found = re.fullmatch(r"::warning file=([^:,]*),line=3,title=([^:,]*)::([^\r\n]*)", command)
    assert found is not None
    # GitHub's runner knows these escapes, and no others.
    escapes = set(re.findall("%..", f"{found[1]}{found[2]}"))
    assert escapes <= {"%25", "%0D", "%0A", "%3A", "%2C"}
    assert set(re.findall("%..", found[3])) <= {"%25", "%0D", "%0A"}
    assert [unquote(each) for each in found.groups()] == [file, title, message]
