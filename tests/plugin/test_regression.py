"""Which tests the gate asks to be run once more."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.plugin.regression import Regression


def asking(*, convicts: bool, against: str = "") -> Regression:
    """Of two devices' gates, one of which wants a run more, while the other may convict."""
    found: Any = object.__new__(Regression)
    gates = ((convicts, []), (False, ["cell"]))
    found._judgings = {
        str(number): SimpleNamespace(convicts=certain, wanted=lambda wanted=wanted: wanted)
        for number, (certain, wanted) in enumerate(gates)
    }
    found._settings = SimpleNamespace(against=against)
    found._unmeasured, found._asked, found._runs = {}, {}, Counter(cell=2)
    found._nodes = {"cell": "test_mine.py::test_mine"}
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("convicts", "against", "asked"), [(False, "", 1), (True, "", 0), (True, "HEAD", 1)]
)
def test_a_session_that_fails_asks_for_no_more_runs_unless_they_confirm(
    convicts: bool, against: str, asked: int
) -> None:
    gate = asking(convicts=convicts, against=against)
    assert gate.wanted() == ["test_mine.py::test_mine"] * asked
    # It was not run since.
    assert gate.wanted() == []
