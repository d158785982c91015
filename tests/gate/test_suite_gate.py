"""Whole suites: round-robin re-runs, one rate for all cells, order independence, suite shifts."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.suite_gate import SuiteGate
from pytest_hwqueue.gate.verdict import THROUGHPUT, GateSettings, Verdict

SETTINGS = GateSettings()


def simulated(
    cells: int, rises: dict[int, float], seed: int = 0, sd: float = 0.02
) -> tuple[dict[str, list[ProcessRun]], dict[str, list[ProcessRun]]]:
    rng = np.random.default_rng(seed)
    old, fresh = {}, {}
    for i in range(cells):
        x = np.exp(sd * rng.standard_normal(10))
        y = (1 + rises.get(i, 0.0)) * np.exp(sd * rng.standard_normal(15))
        old[f"c{i:02d}"] = [ProcessRun(float(v), 1000, f"s{j}") for j, v in enumerate(x)]
        fresh[f"c{i:02d}"] = [ProcessRun(float(v), 1000, "new") for v in y]
    return old, fresh


def drive(gate: SuiteGate, fresh: dict[str, list[ProcessRun]]) -> dict[str, Verdict]:
    given_out = dict.fromkeys(fresh, 0)
    while wanted := gate.wanted():
        for key, count in wanted:
            for _ in range(count):
                gate.add(key, fresh[key][given_out[key]])
                given_out[key] += 1
    return gate.verdicts()


def states(verdicts: dict[str, Verdict], state: str) -> list[str]:
    return [key for key, verdict in verdicts.items() if verdict.state == state]


def test_regressed_cells_are_found_and_others_pass() -> None:
    old, fresh = simulated(20, {3: 0.3, 7: 0.3})
    verdicts = drive(SuiteGate(SETTINGS, old), fresh)
    assert states(verdicts, "regression") == ["c03", "c07"]
    assert len(states(verdicts, "pass")) == 18


def test_only_flagged_cells_run_again_fewest_runs_first() -> None:
    old, fresh = simulated(3, {1: 0.5, 2: 0.5}, sd=0.001)
    gate = SuiteGate(SETTINGS, old)
    assert gate.wanted() == [("c00", 2), ("c01", 2), ("c02", 2)]
    for key in ("c00", "c01"):
        for run in fresh[key][:2]:
            gate.add(key, run)
    gate.add("c02", fresh["c02"][0])
    assert gate.wanted() == [("c02", 1), ("c01", 2)]
    gate.add("c02", fresh["c02"][1])
    assert gate.wanted() == [("c01", 2), ("c02", 2)]
    verdicts = drive(gate, {key: runs[2:] for key, runs in fresh.items()})
    assert [len(verdict.new) for verdict in verdicts.values()] == [2, 8, 8]


@settings(max_examples=15)
@given(st.permutations(range(8)), st.integers(0, 10**6))
def test_order_of_cells_does_not_matter(order: list[int], seed: int) -> None:
    old, fresh = simulated(8, {0: 0.08, 1: 0.15}, seed, sd=0.04)
    keys = [f"c{i:02d}" for i in order]
    expected = drive(SuiteGate(SETTINGS, old), fresh)
    shuffled = SuiteGate(SETTINGS, {key: old[key] for key in keys})
    # All of a cell's runs at once, cell after cell: those that are not wanted are left out.
    for key in keys:
        for run in fresh[key]:
            shuffled.add(key, run)
    assert shuffled.verdicts() == expected
    assert list(shuffled.verdicts()) == sorted(keys)


def test_many_regressions_share_the_rate() -> None:
    """Benjamini-Hochberg: what is too weak alone is convicted in company."""
    old = {f"c{i}": [ProcessRun(1 + 0.01 * j, 1000, f"s{j}") for j in range(5)] for i in range(200)}
    values = [1.3 + 0.01 * j for j in range(15)]
    fresh = {key: [ProcessRun(v, 1000, "new") for v in values] for key in old}
    floor = 1 / math.comb(20, 5) / 0.75
    assert SETTINGS.rate / 200 < floor < 2 * SETTINGS.rate / 200
    alone = {
        key: runs if key == "c0" else [ProcessRun(1.0, 1000, "new")] * 2
        for key, runs in fresh.items()
    }
    assert states(drive(SuiteGate(SETTINGS, old), alone), "inconclusive") == ["c0"]
    pair = {**alone, "c1": fresh["c1"]}
    assert states(drive(SuiteGate(SETTINGS, old), pair), "regression") == ["c0", "c1"]


def test_cells_that_cannot_be_convicted_do_not_use_up_the_rate() -> None:
    old, _ = simulated(4, {})
    old["two runs"] = old["c00"][:2]
    old["none"] = []
    old["zero"] = [*old["c00"], ProcessRun(0.0, 1000, "s")]
    old["short"] = [ProcessRun(1.0, 100, "s")] * 10
    gate = SuiteGate(SETTINGS, old)
    assert gate.compared == 4
    assert [key for key, _ in gate.wanted()] == ["c00", "c01", "c02", "c03", "two runs"]
    gate.add("new cell", ProcessRun(1.0, 1000, "new"))
    verdicts = gate.verdicts()
    assert gate.compared == 4
    assert {key: verdicts[key].state for key in ("new cell", "none", "zero", "short")} == {
        "new cell": "no-baseline",
        "none": "no-baseline",
        "zero": "incomparable",
        "short": "inconclusive",
    }


def test_empty_suite() -> None:
    gate = SuiteGate(SETTINGS, {})
    assert (gate.wanted(), gate.verdicts(), gate.suite_shift()) == ([], {}, None)


def test_verdicts_can_be_asked_for_at_any_time() -> None:
    old, fresh = simulated(2, {0: 0.5})
    gate = SuiteGate(SETTINGS, old)
    assert states(gate.verdicts(), "inconclusive") == ["c00", "c01"]
    assert states(drive(gate, fresh), "regression") == ["c00"]


# ------------------------------------------------------------------ suite shift
def shifted(rises: Iterable[float], sentinel: float | None) -> tuple[SuiteGate, dict[str, Verdict]]:
    old, fresh = simulated(5, dict(enumerate(rises)), sd=0.005)
    if sentinel is not None:
        old["fixed"] = [ProcessRun(1.0, 1000, f"s{j}") for j in range(10)]
        fresh["fixed"] = [ProcessRun(1 + sentinel, 1000, "new")] * 15
    gate = SuiteGate(SETTINGS, old, sentinel="fixed" if sentinel is not None else None)
    return gate, drive(gate, fresh)


def test_a_machine_that_changed_makes_the_suite_incomparable() -> None:
    gate, verdicts = shifted([0.1] * 5, 0.08)
    shift = gate.suite_shift()
    assert shift is not None
    assert (shift.cells, shift.of_machine) == (5, True)
    assert shift.ratio == pytest.approx(1.1, abs=0.01)
    assert shift.sentinel_ratio == pytest.approx(1.08)
    assert {verdict.state for verdict in verdicts.values()} == {"incomparable"}
    assert {verdict.reason for verdict in verdicts.values()} == {"suite-shift"}
    # No cell was run again for it.
    assert {len(verdict.new) for verdict in verdicts.values()} == {2}


@pytest.mark.parametrize(
    ("rises", "sentinel"),
    [
        ([0.1] * 5, None),  # nobody to ask
        ([0.1] * 5, 0.01),  # the sentinel stood still: it is the product
        ([0.1] * 5, -0.08),  # the sentinel moved the other way
        ([0.3, 0.3, 0, 0, 0], 0.08),  # most cells stood still
    ],
)
def test_a_product_that_changed_is_judged(rises: list[float], sentinel: float | None) -> None:
    gate, verdicts = shifted(rises, sentinel)
    shift = gate.suite_shift()
    assert shift is not None
    assert not shift.of_machine
    slow = [f"c{i:02d}" for i, rise in enumerate(rises) if rise]
    assert [key for key in states(verdicts, "regression") if key != "fixed"] == slow


def test_shift_points_worse_wards() -> None:
    old = {"c": [ProcessRun(100.0, 10, f"s{i}") for i in range(10)]}
    gate = SuiteGate(SETTINGS, old, {"c": THROUGHPUT})
    drive(gate, {"c": [ProcessRun(50.0, 10, "new")] * 15})
    shift = gate.suite_shift()
    assert shift is not None
    assert shift.ratio == pytest.approx(2.0)


def test_sentinel_needs_a_baseline() -> None:
    with pytest.raises(ValueError, match="sentinel cell 'fixed' has no baseline"):
        SuiteGate(SETTINGS, {}, sentinel="fixed")
