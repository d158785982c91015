"""The interleaved mode: order, one look, drift, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_hwqueue.gate.interleaved import interleaved_order, judge_interleaved
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings

SETTINGS = GateSettings()


def sides(
    pairs: int, rise: float, drift: float = 0.0, sd: float = 0.02, seed: int = 0
) -> tuple[list[ProcessRun], list[ProcessRun]]:
    rng = np.random.default_rng(seed)
    order = np.array(interleaved_order(pairs))
    logs = sd * rng.standard_normal(2 * pairs) + drift * np.linspace(-0.5, 0.5, 2 * pairs)
    logs = logs + math.log1p(rise) * (order == "new")
    runs = [ProcessRun(float(np.exp(log)), 1000, "one") for log in logs]
    old = [run for run, side in zip(runs, order, strict=True) if side == "old"]
    return old, [run for run, side in zip(runs, order, strict=True) if side == "new"]


def test_order_is_abba() -> None:
    assert interleaved_order(3) == ["old", "new", "new", "old", "old", "new"]
    with pytest.raises(ValueError, match="pairs must be 1 or more"):
        interleaved_order(0)


@pytest.mark.parametrize("pairs", [2, 4, 12, 14])
def test_steady_drift_falls_on_both_sides(pairs: int) -> None:
    places = np.arange(2 * pairs)
    order = np.array(interleaved_order(pairs))
    assert places[order == "old"].mean() == places[order == "new"].mean()


def test_one_look_without_session_term() -> None:
    verdicts = judge_interleaved({"a": sides(12, 0.2), "b": sides(12, 0.0)}, SETTINGS, 100)
    assert [verdict.state for verdict in verdicts.values()] == ["regression", "pass"]
    (look,) = verdicts["a"].history
    assert (look.new_runs, look.p_worse) == (12, look.p_exact)
    assert look.p_exact is not None
    assert look.p_exact <= 1e-4
    wary = judge_interleaved({"a": sides(12, 0.2)}, replace(SETTINGS, tau=0.3), 100)["a"]
    assert wary == verdicts["a"]
    assert judge_interleaved({"a": sides(12, -0.3)}, SETTINGS)["a"].state == "improvement"


def test_sign_flips_see_through_drift() -> None:
    settings = replace(SETTINGS, pairs=14)
    drifting = {"a": sides(14, 0.1, drift=1.0)}
    assert judge_interleaved(drifting, settings, 100)["a"].state != "regression"
    found = judge_interleaved(drifting, settings, 100, sign_flips=True)["a"]
    assert found.state == "regression"
    assert found.p == pytest.approx(2.0**-14)
    assert found.sd is not None
    assert found.sd < 0.05
    quiet = judge_interleaved({"a": sides(14, 0.0, drift=1.0)}, settings, 100, sign_flips=True)
    assert quiet["a"].state == "pass"


def test_missing_runs() -> None:
    old, new = sides(12, 0.2)
    result = judge_interleaved({"a": (old, new[:-1])}, SETTINGS)["a"]
    assert (result.state, result.reason) == ("inconclusive", "runs-missing")


def test_refusals() -> None:
    old, new = sides(12, 0.0)
    elsewhere = [replace(run, session="two") for run in new]
    with pytest.raises(ValueError, match="interleaved runs of a come from 2 sessions"):
        judge_interleaved({"a": (old, elsewhere)}, SETTINGS)
    with pytest.raises(ValueError, match="need 12 pairs, has 12 old and 11 new runs"):
        judge_interleaved({"a": (old, new[:-1])}, SETTINGS, sign_flips=True)
    with pytest.raises(ValueError, match="at least 14 pairs to convict one of 100 cells"):
        judge_interleaved({"a": (old, new)}, SETTINGS, 100, sign_flips=True)
    with pytest.raises(ValueError, match="at least the 2 p-values, is 1"):
        judge_interleaved({"a": (old, new), "b": (old, new)}, SETTINGS, 1)


def test_a_noisy_comparison_is_blind_and_not_a_pass() -> None:
    result = judge_interleaved({"a": sides(12, 0.0, sd=0.5)}, SETTINGS)["a"]
    assert (result.state, result.reason) == ("inconclusive", "blind")
    assert "blind below +" in result.line


def test_a_noisy_figure_leaves_the_conviction_to_the_time_per_iteration() -> None:
    """+20 % of a small function, whose P99 differs by 50 % between runs and whose pace by 2 %."""
    old, new = sides(12, 0.2, sd=0.5)
    slow = sides(12, 0.2, sd=0.02, seed=1)
    with_pace = tuple(
        [replace(run, iteration_ns=pace.value) for run, pace in zip(runs, paces, strict=True)]
        for runs, paces in zip((old, new), slow, strict=True)
    )
    result = judge_interleaved({"a": (with_pace[0], with_pace[1])}, SETTINGS)["a"]
    assert (result.state, result.reason) == ("regression", "slower-iterations")
    assert result.by == "iteration_time"
    assert result.companion is not None
    assert result.companion.ratio == pytest.approx(1.2, rel=0.03)
    assert result.line.startswith("time per iteration +19.7 % (at most ")
    assert judge_interleaved({"a": (old, new)}, SETTINGS)["a"].state == "inconclusive"


def test_one_wild_run_of_an_interleaved_session_is_set_aside() -> None:
    old, new = sides(12, 0.2)
    for wild in (
        (old, [replace(new[0], value=10.0), *new[1:]]),
        ([ProcessRun(9.0, 9999, "one"), *old[1:]], new),
    ):
        result = judge_interleaved({"a": wild}, SETTINGS, 100)["a"]
        assert result.state == "regression"
        assert len(result.set_aside) == 1
