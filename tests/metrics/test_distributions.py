"""The distributions that intervals need are those of scipy.stats."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_hwqueue.metrics.dependence import (
    binomial_cdf,
    binomial_quantile,
    binomial_sf,
    chi2_quantile,
    f_quantile,
    normal_cdf,
    proportion_interval,
    student_cdf,
    student_quantile,
)

PROBABILITIES = st.floats(0.001, 0.999)
COUNTS = st.integers(1, 20_000)
FREEDOMS = st.integers(1, 2_000)


@given(PROBABILITIES, COUNTS, PROBABILITIES)
def test_binomial(probability: float, n: int, p: float) -> None:
    binomial = stats.binom(n, p)
    count = binomial_quantile(probability, n, p)
    # By its definition, so that rounding of either side does not matter.
    assert binomial.cdf(count) >= probability * (1 - 1e-9)
    assert binomial.cdf(count - 1) < probability * (1 + 1e-9)
    counts = np.unique(np.clip([-1, 0, count - 1, count, n - 1, n], -1, n))
    assert binomial_cdf(counts, n, p) == pytest.approx(binomial.cdf(counts), rel=1e-8, abs=1e-14)
    assert binomial_sf(counts, n, p) == pytest.approx(binomial.sf(counts), rel=1e-8, abs=1e-14)


@given(PROBABILITIES, FREEDOMS, FREEDOMS)
def test_quantiles(probability: float, freedom: int, other: int) -> None:
    assert stats.t.cdf(student_quantile(probability, freedom), freedom) == pytest.approx(
        probability, rel=1e-7
    )
    assert stats.chi2.cdf(chi2_quantile(probability, freedom), freedom) == pytest.approx(
        probability, rel=1e-7
    )
    assert stats.f.cdf(f_quantile(probability, freedom, other), freedom, other) == pytest.approx(
        probability, rel=1e-6
    )


@given(st.floats(-30, 30), FREEDOMS)
def test_distribution_functions(x: float, freedom: int) -> None:
    assert normal_cdf(x) == pytest.approx(stats.norm.cdf(x), rel=1e-9, abs=1e-300)
    assert student_cdf(x, freedom) == pytest.approx(stats.t.cdf(x, freedom), rel=1e-7, abs=1e-300)


@given(COUNTS, st.data())
def test_proportion_interval(n: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, n))
    interval = stats.binomtest(number, n).proportion_ci(0.95, method="exact")
    assert proportion_interval(number, n, 0.95) == pytest.approx(
        (float(interval.low), float(interval.high)), rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize(("number", "n"), [(-1, 3), (4, 3), (0, 0)])
def test_no_proportion(number: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no proportion"):
        proportion_interval(number, n, 0.95)


def test_nothing_imports_scipy_stats() -> None:
    code = """
import pkgutil, importlib, sys, pytest_hwqueue
for module in pkgutil.walk_packages(pytest_hwqueue.__path__, "pytest_hwqueue."):
    if module.name != "pytest_hwqueue.__main__":
        importlib.import_module(module.name)
sys.exit(" ".join(name for name in sys.modules if name.startswith("scipy.stats")) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
