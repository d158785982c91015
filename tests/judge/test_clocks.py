"""A slow-down that a lower clock explains is incomparable, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.judge.clocks import Clocks, clocks_of
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.suite_gate import SuiteGate
from pytest_hwqueue.judge.verdict import P99, THROUGHPUT, GateSettings, Quantity, Verdict

SETTINGS = GateSettings(tau=0.005, session_effect=0.0)
NOMINAL, LOWER = 1980.0, 1782.0
# A time that is all cycles.
BY_CLOCK = NOMINAL / LOWER


def runs(
    seed: int, count: int, value: float, clock_mhz: float | None, failed: int = 0
) -> list[ProcessRun]:
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.004, count))
    session = "new" if seed else "old"
    return [
        ProcessRun(value * factor, 1000, session, failed, 2 * value * factor, clock_mhz)
        for factor in noise.tolist()
    ]


OLD = runs(0, 10, 1e6, NOMINAL)


def judged(new: list[ProcessRun], old: list[ProcessRun] = OLD, quantity: Quantity = P99) -> Verdict:
    gate = gate_of(new, old, quantity)
    (verdict,) = gate.verdicts().values()
    assert gate.convicts == (verdict.state == "regression")
    return verdict


def gate_of(new: list[ProcessRun], old: list[ProcessRun], quantity: Quantity) -> SuiteGate:
    gate = SuiteGate(SETTINGS, {"c": old}, {"c": quantity})
    remaining = iter(new)
    while gate.wanted():
        gate.add("c", next(remaining))
    return gate


def test_slower_by_the_clock_alone_is_incomparable_with_both_clocks_named() -> None:
    verdict = judged(runs(1, 15, BY_CLOCK * 1e6, LOWER))
    assert (verdict.state, verdict.reason, verdict.by) == ("incomparable", "lower-clock", "")
    assert verdict.main is not None
    assert verdict.main.ratio == pytest.approx(BY_CLOCK, rel=0.01)
    assert "1782 MHz, in the baseline 1980 MHz: in cycles P99 " in verdict.sentence
    assert "in time: P99 is worse: P99 +11" in verdict.sentence


@pytest.mark.parametrize(
    ("value", "clock_mhz"),
    [
        (BY_CLOCK, NOMINAL),
        (BY_CLOCK, NOMINAL * 1.1),
        (BY_CLOCK, NOMINAL * 0.995),  # a step of the clock, no other clock
        (BY_CLOCK, None),
        (BY_CLOCK * 1.1, LOWER),  # what is left in cycles is 10 %
        (2.0, LOWER),
    ],
)
def test_what_the_clock_does_not_explain_stays_a_regression(
    value: float, clock_mhz: float | None
) -> None:
    verdict = judged(runs(1, 15, value * 1e6, clock_mhz))
    assert (verdict.state, verdict.reason) == ("regression", "worse")


def test_a_clock_is_lower_from_one_percent_on() -> None:
    assert not Clocks(2000.0, 1980.0).lower
    assert Clocks(2000.0, 1979.0).lower
    assert not Clocks(1979.0, 2000.0).lower


def test_a_cell_that_the_clock_does_not_touch_passes_as_before() -> None:
    # Bound by launching or by memory: at a lower clock it takes fewer cycles.
    found = judged(runs(1, 15, 1e6, LOWER))
    assert (found.state, found.reason) == ("pass", "within-noise")
    assert found.sentence == judged(runs(1, 15, 1e6, None)).sentence


def test_one_run_without_a_clock_and_nothing_is_explained() -> None:
    new = runs(1, 15, BY_CLOCK * 1e6, LOWER)
    new[1] = replace(new[1], sm_clock_mhz=None)
    assert judged(new).state == "regression"
    assert clocks_of(OLD, new) is None
    assert clocks_of(OLD, new[:1]) == pytest.approx(Clocks(NOMINAL, LOWER))


def test_throughput_falls_with_the_clock() -> None:
    old, new = runs(0, 10, 500.0, NOMINAL), runs(1, 15, 500.0 / BY_CLOCK, LOWER)
    old, new = ([replace(run, iteration_ns=None) for run in side] for side in (old, new))
    assert judged(new, old, THROUGHPUT).reason == "lower-clock"
    same = [replace(run, sm_clock_mhz=NOMINAL) for run in new]
    assert judged(same, old, THROUGHPUT).state == "regression"


def test_a_ratio_of_latencies_has_no_cycles() -> None:
    ratio = replace(P99, name="convoy.p99", unit="")
    old, new = (
        [replace(run, iteration_ns=None) for run in side]
        for side in (OLD, runs(1, 15, BY_CLOCK * 1e6, LOWER))
    )
    assert judged(new, old, ratio).state == "regression"


def test_slower_iterations_are_the_clocks_too() -> None:
    new = [replace(run, value=1e6) for run in runs(1, 15, BY_CLOCK * 1e6, NOMINAL)]
    assert judged(new).reason == "slower-iterations"
    # The latency takes as long as before, so it takes fewer cycles.
    assert judged([replace(run, sm_clock_mhz=LOWER) for run in new]).reason == "lower-clock"


def test_failing_requests_are_never_the_clocks() -> None:
    verdict = judged(runs(1, 15, 1e6, LOWER, failed=300))
    assert (verdict.state, verdict.reason) == ("regression", "more-failures")
    assert judged(runs(1, 15, BY_CLOCK * 1e6, LOWER, failed=300)).state == "regression"


_GREEN = ("pass", "improvement")


@given(
    st.integers(0, 30), st.sampled_from([0.9, 1.0, 1.05, 1.11, 1.2, 1.5]),
    st.sampled_from([0.7, 0.9, 0.95, 1.0, 1.1]), st.sampled_from([2, 4, 10]),
)  # fmt: skip
def test_no_clock_makes_a_verdict_weaker(
    seed: int, value: float, clock: float, baseline: int
) -> None:
    old = runs(0, baseline, 1e6, NOMINAL)
    known = judged_whatever(runs(seed + 1, 15, value * 1e6, clock * NOMINAL), old)
    unknown = judged_whatever(runs(seed + 1, 15, value * 1e6, None), old)
    if known.reason == "lower-clock":
        assert clock < 0.99
        assert unknown.state not in _GREEN
    else:
        assert (known.state, known.reason) == (unknown.state, unknown.reason)


def judged_whatever(new: list[ProcessRun], old: list[ProcessRun]) -> Verdict:
    (verdict,) = gate_of(new, old, P99).verdicts().values()
    return verdict
