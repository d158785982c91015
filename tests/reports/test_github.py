"""Workflow commands: whatever stands in a message, GitHub reads back the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.reports.outcome import Annotation, AnnotationLevel, render_annotations

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)


def read(command: str) -> tuple[str, dict[str, str], str]:
    """Read a command as GitHub's runner does."""
    found = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", command, re.DOTALL)
    assert found is not None
    properties = dict(part.split("=", 1) for part in found[2].split(","))

    def unescape(text: str, signs: dict[str, str]) -> str:
        return re.sub("%(25|0D|0A|3A|2C)", lambda match: signs.get(match[1], match[0]), text)

    data = {"25": "%", "0D": "\r", "0A": "\n"}
    both = data | {"3A": ":", "2C": ","}
    return (
        found[1],
        {key: unescape(value, both) for key, value in properties.items()},
        unescape(found[3], data),
    )


def test_a_regression_reads_as_expected() -> None:
    item = Annotation(
        "error",
        "benchmarks/test_suite.py",
        12,
        "P99 +20.0 %, regression",
        "tiny_kernel_stress[cuda-s8]: P99 is worse\nreproduce: pytest -k x",
    )
    assert render_annotations([item]) == (
        "::error file=benchmarks/test_suite.py,line=12,title=P99 +20.0 %25%2C regression::"
        "tiny_kernel_stress[cuda-s8]: P99 is worse%0Areproduce: pytest -k x"
    )


@pytest.mark.parametrize("level", ["error", "warning", "notice"])
def test_one_line_each_and_a_line_number_only_where_known(level: AnnotationLevel) -> None:
    item = Annotation(level, "a.py", None, "title", "message")
    assert render_annotations([item, item]) == "\n".join(
        [f"::{level} file=a.py,title=title::message"] * 2
    )
    assert render_annotations([]) == ""


@given(TEXT, TEXT, TEXT)
def test_everything_comes_back(file: str, title: str, message: str) -> None:
    command = render_annotations([Annotation("warning", file, 3, title, message)])
    assert "\n" not in command
    assert "\r" not in command
    properties = {"file": file, "line": "3", "title": title}
    assert read(command) == ("warning", properties, message)
