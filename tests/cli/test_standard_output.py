"""Whatever the standard streams can take, a command prints what it has to say."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.document.document import Paragraph
from pytest_hwqueue.data.document.standard_output import readable
from pytest_hwqueue.data.document.terminal import rendered
from tests.acceptance.inner import plain_environment


def hwq(
    arguments: str, redirection: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m pytest_hwqueue {arguments} {redirection}"
    return subprocess.run(
        ["sh", "-c", command], env=plain_environment(**variables), capture_output=True,
        encoding=variables.get("PYTHONIOENCODING", "utf-8"), check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "redirection", "expected"),
    [
        (
            {"PYTHONIOENCODING": "ascii"},
            "",
            "hetero_kernels         P0    latency_sensitive    2-128",
        ),
        ({"TERM": "dumb", "COLUMNS": "40"}, "", "hetero_kernels         P0      2–128"),
        ({}, ">&-", ""),
        ({}, "| head -1", ""),
    ],
)
def test_a_list_is_printed_on_any_stream(
    variables: Mapping[str, str], redirection: str, expected: str
) -> None:
    done = hwq("list", redirection, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


def test_help_is_there_without_docstrings() -> None:
    plain, stripped = hwq("run --help"), hwq("run --help", PYTHONOPTIMIZE="2")
    assert plain.stdout == stripped.stdout
    assert "Measure workloads by name" in stripped.stdout


@given(st.text(), st.sampled_from(["ascii", "latin-1", "utf-8"]))
def test_any_text_is_made_readable(text: str, encoding: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "__stdout__", io.TextIOWrapper(io.BytesIO(), encoding))
        found = readable(text.encode("utf-8", "replace").decode())
        assert found.encode(encoding).decode(encoding) == found
        if text.isascii():
            assert found == text
        table = rendered([Paragraph("P99 1.2 µs × 3 ≥ 5 ¹ ─ …")], 80, False)
    expected = {"ascii": "P99 1.2 us x 3 >= 5 ^1 - ...", "latin-1": "P99 1.2 µs × 3 >= 5 ¹ - ..."}
    assert table == expected.get(encoding, "P99 1.2 µs × 3 ≥ 5 ¹ ─ …")
