"""Rounds of runs within a budget: whole or not at all, and what is left out is listed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.plugin import budget
from pytest_hwqueue.plugin.budget import Budget
from pytest_hwqueue.plugin.keys import SETTINGS
from pytest_hwqueue.plugin.runs import Replication

Report = Callable[[pytest.TestReport], None]


class Clock:
    """Time that passes only where something is measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Measures:
    """Runs tests and judges them: each run takes as long as it is given, and then passes."""

    def __init__(self, clock: Clock, took_s: Sequence[float]) -> None:
        self._clock = clock
        self._took_s = iter(took_s)
        self.ran: list[str] = []

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        pass

    def run(self, item: pytest.Item, report: Report) -> None:
        self._clock.now_s += next(self._took_s)
        self.ran.append(item.nodeid)
        report(cast("Any", SimpleNamespace(passed=True, failed=False)))

    def take(self, report: pytest.TestReport) -> None:
        pass

    def close(self) -> None:
        pass

    def wanted(self) -> Sequence[str]:
        return []

    def outcome(self, nodeid: str, reports: Sequence[pytest.TestReport]) -> None:
        pass


def measured(
    took_s: Sequence[float], budget_s: float, runs: int, tests: int, earlier_s: dict[str, float]
) -> tuple[Measures, list[str]]:
    """What ran, in order, and what was left out."""
    clock = Clock()
    settings = SimpleNamespace(budget=budget_s, max_time=20.0, dir="absent", compare="")
    config: Any = SimpleNamespace(
        stash=pytest.Stash(), invocation_params=SimpleNamespace(dir=Path())
    )
    config.stash[SETTINGS] = settings
    items: Any = [
        SimpleNamespace(nodeid=f"test_{number}", stash=pytest.Stash()) for number in range(tests)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "time", clock)
        kept = Budget(config, items)
        patch.setattr(kept, "_earlier_s", earlier_s)
        runner: Any = Measures(clock, took_s)
        Replication(runner, items, runs, runner, kept, 0).reports(items[0])
    return runner, kept.left_out


@pytest.mark.parametrize(
    ("took_s", "earlier_s", "left_out"),
    [
        ([30], {}, ["1: not measured", "2: not measured", "0: measured in 1 of 5 runs"]),
        ([1, 1, 30], {}, [f"{number}: measured in 1 of 5 runs" for number in range(3)]),
        # Slower than expected when the round began, which is run whole.
        ([1, 1, 1, 30, 1, 1], {}, [f"{number}: measured in 2 of 5 runs" for number in range(3)]),
        # What does not fit even once leaves its time to the others.
        ([1] * 10, {"test_1": 100.0}, ["1: not measured"]),
        ([1] * 15, {}, []),
    ],
)
def test_what_does_not_fit_is_left_out(
    took_s: list[float], earlier_s: dict[str, float], left_out: list[str]
) -> None:
    runner, found = measured(took_s, 20.0, 5, 3, earlier_s)
    assert found == [f"test_{line}" for line in left_out]
    assert len(runner.ran) == len(took_s)


@given(
    took_s=st.lists(st.floats(0.1, 20.0), min_size=12, max_size=12),
    earlier_s=st.dictionaries(st.sampled_from(["test_0", "test_1", "test_2"]), st.floats(0.1, 50)),
    budget_s=st.floats(0.1, 60.0),
)
def test_cells_have_equally_many_runs(
    took_s: list[float], earlier_s: dict[str, float], budget_s: float
) -> None:
    runner, left_out = measured(took_s, budget_s, 4, 3, earlier_s)
    runs = Counter(runner.ran)
    assert len(set(runs.values())) == 1
    # In rounds: nothing runs twice before all have run once.
    (least,) = set(runs.values())
    assert [Counter(runner.ran[: len(runs)])[name] for name in runs] == [1] * len(runs)
    # Each test that has fewer runs than planned is listed, once, with how many it has.
    expected = {
        f"test_{number}: measured in {least} of 4 runs" if runs[f"test_{number}"]
        else f"test_{number}: not measured"
        for number in range(3) if runs[f"test_{number}"] < 4
    }  # fmt: skip
    assert sorted(left_out) == sorted(expected)
