"""The window that an undecided goal names decides it in most cases, by simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.figures.of_requests import ServedRequests, Session
from pytest_hwqueue.data.metrics.latency import minimum_samples, sufficient_samples
from pytest_hwqueue.engine.scenarios.deciding import (
    ASSURANCE,
    both_ends_by_s,
    chances,
    least_requests,
    may_decide,
    planned_window,
    requests_if,
    requests_to_decide,
)
from pytest_hwqueue.engine.scenarios.goals import evaluate, parse_goal

RATE, MS, S = 20, 1_000_000, 1_000_000_000
Make = Callable[[float, float, np.random.Generator], ServedRequests]


def window(seconds: float, slow: float, random: np.random.Generator) -> ServedRequests:
    """Requests at 20/s, each slow (20 ms) with a probability, else fast (1 ms)."""
    n = max(1, round(seconds * RATE))
    latency = np.where(random.random(n) < slow, 20 * MS, MS).tolist()
    due = (np.arange(n) * (S // RATE)).tolist()
    return ServedRequests(
        n, latency, [a + b for a, b in zip(due, latency, strict=True)], int(seconds * S)
    )


def poisson(seconds: float, rate: float, random: np.random.Generator) -> ServedRequests:
    finished = np.sort(random.uniform(0, seconds * S, random.poisson(rate * seconds)))
    times = finished.astype(int).tolist()
    return ServedRequests(len(times), [MS] * len(times), times, int(seconds * S))


def rare(random: np.random.Generator) -> float:
    # Most truths are not at the bound itself, which no window decides.
    return float(np.exp(random.uniform(np.log(0.0005), np.log(0.1))))


@pytest.mark.parametrize(
    ("text", "make", "truth", "seed", "windows", "seconds", "least", "slack"),
    [
        ("high.p99 < 10 ms", window, rare, 7, 300, 60, 50, 0.1),
        ("low.throughput >= 100/s", poisson, lambda random: random.uniform(85, 115), 8, 150, 20,
         20, 0.15),
    ],
)  # fmt: skip
def test_named_window_decides_in_most_cases(
    text: str, make: Make, truth: Callable[[np.random.Generator], float], seed: int, windows: int,
    seconds: float, least: int, slack: float,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    goal, decided = parse_goal(text), []
    for _ in range(windows):
        true = truth(random)
        first = evaluate(goal, [make(seconds, true, random)])
        if first.decided_by_s is not None:
            assert first.verdict == "undecided"
            assert f" would decide it at {first.rate_per_s:.4g}/s" in str(first)
            longer = evaluate(goal, [make(first.decided_by_s, true, random)])
            decided.append(longer.verdict != "undecided")
    assert len(decided) > least
    assert np.mean(decided) > ASSURANCE - slack


@pytest.mark.parametrize(
    ("text", "make", "truth", "seconds"),
    [
        ("high.p99 < 10 ms", window, rare, 30),
        ("low.throughput >= 100/s", poisson, lambda random: random.uniform(85, 115), 10),
    ],
)
def test_chances_of_being_decided_in_the_rest_are_what_comes(
    text: str, make: Make, truth: Callable[[np.random.Generator], float], seconds: float
) -> None:
    random = np.random.default_rng(4)
    goal = parse_goal(text)
    told: list[tuple[float, bool, bool]] = []
    while len(told) < 200:
        true = truth(random)
        halves = [make(seconds, true, random) for _ in range(2)]
        first = evaluate(goal, halves[:1])
        if first.verdict == "undecided":
            found = chances(goal, first, halves[:1], 0.95, None, 2.0)
            decided = evaluate(goal, halves).verdict != "undecided"
            told.append((sum(found), decided, may_decide([found])))
    expected, came, goes_on = np.array(told).T
    assert abs(expected.mean() - came.mean()) < 0.1
    likely = expected > np.median(expected)
    assert came[likely].mean() > came[~likely].mean() + 0.2
    ended = goes_on == 0
    assert ended.sum() > 20
    assert came[ended].mean() < 0.2


def test_attainment_of_99_percent_is_decided_by_the_window_of_a_p99() -> None:
    seen = [window(20, 0.005, np.random.default_rng(1))]
    p99, attained = (
        evaluate(parse_goal(text), seen, within_ns=10 * MS)
        for text in ("high.p99 < 10 ms", "high.attainment >= 99%")
    )
    assert (p99.verdict, attained.verdict) == ("undecided", "undecided")
    assert p99.decided_by_s == attained.decided_by_s is not None


def test_windows_that_are_named_begin_before_a_tenant_that_comes_later() -> None:
    random = np.random.default_rng(2)
    for text, seen in (
        ("high.p99 < 10 ms", window(20, 0.005, random)),
        ("high.throughput >= 100/s", poisson(2, 100, random)),
    ):
        at_once, later = (
            evaluate(parse_goal(text), [replace(seen, from_ns=from_ns)]) for from_ns in (0, 19 * S)
        )
        assert later.decided_by_s == pytest.approx((at_once.decided_by_s or 0) + 19)
    ends = [
        both_ends_by_s([replace(seen, from_ns=from_ns)], 0.99, 0.95) or 0 for from_ns in (0, 19 * S)
    ]
    assert ends[1] == pytest.approx(ends[0] + 19)


def test_where_no_length_would_decide_none_is_named() -> None:
    random = np.random.default_rng(2)
    alone = [window(10, 0.0, random)]
    # Ratios of several sessions differ however long they are.
    two = [replace(window(60, 0.0, random), session=Session("gpu", n)) for n in "ab"]
    for text, windows, reference in (
        ("high.p99 <= 1.3 x solo", alone, alone[:]),
        ("high.p99 < 10 ms", [ServedRequests(0, [], [], S)], None),
        ("high.throughput >= 100% of native", two, two[:]),
    ):
        result = evaluate(parse_goal(text), windows, reference)
        assert (result.verdict, result.decided_by_s) == ("undecided", None)
    # At the bound itself no window of a day decides.
    assert requests_if(0.01, 0.01, 0.95, 24 * 3600 * RATE) is None


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([0.5, 0.05, 0.01]), st.integers(0, 30), st.integers(31, 2000))
def test_requests_to_decide_are_enough_to_decide_at_all(
    allowed: float, slow: int, issued: int
) -> None:
    needed = requests_to_decide(allowed, slow, issued, 0.95, 10**7)
    if needed is not None:
        assert needed >= 1
        # Rarer slow requests than allowed are shown by no fewer than the least number.
        if slow / issued < allowed / 4:
            assert needed >= 0.5 * np.log(0.025) / np.log1p(-allowed)


def test_planned_windows_are_those_of_the_sample_size_rule() -> None:
    plan = planned_window(parse_goal("high.p99 < 10 ms"), 20.0, 0.95)
    assert plan is not None
    assert (minimum_samples(0.99, 0.95), sufficient_samples(0.99)) == (368, 1000)
    assert (plan.requests, plan.none_s) == (1000, 50)
    assert plan.least_s == pytest.approx(18.4)
    assert plan.none_s < (plan.half_s or 0)
    assert "1000 requests suffice, which take 50 s" in plan.too_short(5)
    assert plan.too_short(20) == ""
    assert planned_window(parse_goal("low.throughput >= 1/s"), 20.0, 0.95) is None
    attained = parse_goal("high.attainment >= 99%")
    assert least_requests(attained, 0.95) == 368
    same = planned_window(attained, 20.0, 0.95)
    assert same is not None
    assert (same.requests, same.none_s) == (1000, 50)


def test_advice_stands_in_the_check_and_before_and_after_measuring(tmp_path: Path) -> None:
    file = tmp_path / "short.hwq.yaml"
    file.write_text(
        "name: short\nduration: 1s\nwarmup: 100ms\nschedulers: [native]\ntenants:\n"
        "  - {name: high, workload: large_gemm_only, arrival: 'constant: 20/s', priority: 1}\n"
        "  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 8192}}\n"
        "goals: [high.p99 < 50 ms, low.p99 < 50 ms, device.busy > 1%]\n"
    )
    run = CliRunner(env={"COLUMNS": "200"})
    checked = run.invoke(main, ["scenario", "check", str(file)])
    assert "high.p99 < 50 ms at 20/s: a window of 50 s decides if no" in checked.output
    assert "low.p99" not in checked.output
    assert "device" not in checked.output
    command = ["which", str(file), "--device", "sim:h200", "--dir", str(tmp_path / "d")]
    short = run.invoke(main, [*command, "-v"])
    assert "high.p99 < 50 ms cannot be met in 1 s at 20/s" in short.stderr
    for text in ("would decide it at 20/s", "would decide each undecided goal"):
        assert text in " ".join(short.stdout.split())
    longer = run.invoke(main, [*command, "--duration", "60s"])
    assert "cannot be met" not in longer.stderr
    assert "would decide" not in longer.stdout
    for found in short, longer:
        told = " ".join(found.stdout.split())
        assert "No --duration decides device.busy > 1% under native: not observable" in told
