"""Workloads of other packages (entry points ``pytest_hwqueue.workloads``): a test for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_hwqueue import Hwq
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, declaration


def _test_of(name: str) -> Callable[[Hwq], None]:
    def test(hwq: Hwq) -> None:
        hwq.run()

    declared = declaration(name)
    marks = [pytest.mark.hwq_workload(name), getattr(pytest.mark, declared.mark)]
    if declared.family in {each.family for each in WORKLOADS.built_in.values()}:
        marks.append(getattr(pytest.mark, declared.family))
    for mark in marks:
        test = mark(test)
    return test


globals().update({f"test_{name}": _test_of(name) for name in WORKLOADS.added})
