"""What a line of waits says: a verdict for each kind of law, and none where runs show none."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest

from pytest_hwqueue.data.metrics.preemption import (
    PreemptionVerdict,
    matters_us,
    preemption_verdict,
)
from pytest_hwqueue.data.metrics.straight_line import straight_line

LENGTHS_US = (50.0, 200.0, 1000.0, 4000.0)


def verdict(
    law: Callable[[float], float], spread: float = 0.01, runs: int = 5, seed: int = 1
) -> PreemptionVerdict:
    """Of runs about a law, each off by a share of it, and by a few µs."""
    random = np.random.default_rng(seed)
    drawn = [
        [law(x) * (1 + spread * random.standard_normal()) + 3 * random.standard_normal()
         for _ in range(runs)]
        for x in LENGTHS_US
    ]  # fmt: skip
    line = straight_line(LENGTHS_US, drawn, 0.95)
    return preemption_verdict(line, LENGTHS_US, [float(np.mean(each)) for each in drawn])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda x: x + 12, "waits"),
        (lambda x: 8 * x, "waits"),
        (lambda x: 0.3 * x + 20, "shorter"),
        (lambda x: 40.0, "bounded"),
        (lambda x: 0.0, "bounded"),
        # To the end of a time slice, however long the kernel is.
        (lambda x: 2000.0, "bounded"),
        (lambda x: min(x, 500.0), "no line"),
        (lambda x: 30.0 if x < 1000 else 2500.0, "no line"),
    ],
)
def test_each_law_is_told_from_the_others(
    law: Callable[[float], float], said: str, seed: int
) -> None:
    assert verdict(law, seed=seed) == said


def test_beside_short_kernels_a_wait_for_one_is_not_called_bounded() -> None:
    # Of 50 µs, what a wait for a kernel grows by is less than what does not matter.
    lengths_us = [10.0, 20.0, 50.0]
    for slope, said in ((0.99, "waits"), (0.0, "undecided")):
        runs = [[slope * x + 25 + off for off in (-0.2, 0.0, 0.2)] for x in lengths_us]
        line = straight_line(lengths_us, runs, 0.95)
        assert preemption_verdict(line, lengths_us, [fmean(each) for each in runs]) == said


def test_runs_that_differ_too_much_decide_nothing() -> None:
    said = [verdict(lambda x: 0.4 * x, spread=0.5, runs=3, seed=seed) for seed in range(10)]
    assert said.count("undecided") >= 7
    assert "waits" not in said


def test_a_misfit_that_does_not_matter_refuses_no_line() -> None:
    # Sure, since runs hardly differ, and below a tenth of each wait.
    assert verdict(lambda x: x + 15 * (x == 1000), spread=0.0) == "waits"


@pytest.mark.parametrize(("longest_us", "growth_us"), [(100, 50), (500, 50), (4000, 400)])
def test_growth_that_matters_is_a_share_of_the_longest(longest_us: float, growth_us: float) -> None:
    assert matters_us(longest_us) == growth_us
