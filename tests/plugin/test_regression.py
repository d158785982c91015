"""Which tests the gate asks to be run once more."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.plugin.regression import Regression


@pytest.mark.parametrize(
    ("convicts", "against", "asked"), [(False, "", 1), (True, "", 0), (True, "HEAD", 1)]
)
def test_a_session_that_fails_asks_for_no_more_runs_unless_they_confirm(
    convicts: bool, against: str, asked: int
) -> None:
    gate: Any = object.__new__(Regression)
    gate._judgings = {
        "first": SimpleNamespace(convicts=convicts, wanted=list),
        "second": SimpleNamespace(convicts=False, wanted=lambda: ["cell"]),
    }
    gate._settings = SimpleNamespace(against=against)
    gate._unmeasured, gate._asked, gate._runs = {}, {}, Counter(cell=2)
    gate._nodes = {"cell": "test_mine.py::test_mine"}
    assert gate.wanted() == ["test_mine.py::test_mine"] * asked
    # It was not run since.
    assert gate.wanted() == []
