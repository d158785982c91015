"""The window that an undecided goal names decides it in most cases, by simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.metrics.latency import minimum_samples
from pytest_hwqueue.scenarios.deciding import (
    ASSURANCE,
    least_requests,
    planned_window,
    requests_if,
    requests_to_decide,
)
from pytest_hwqueue.scenarios.goals import evaluate, parse_goal
from pytest_hwqueue.tenancy.figures import Served, Session

RATE, MS, S = 20, 1_000_000, 1_000_000_000


def window(seconds: float, slow: float, random: np.random.Generator) -> Served:
    """Requests at 20/s, each slow (20 ms) with a probability, else fast (1 ms)."""
    n = max(1, round(seconds * RATE))
    latency = np.where(random.random(n) < slow, 20 * MS, MS).tolist()
    due = (np.arange(n) * (S // RATE)).tolist()
    return Served(n, latency, [a + b for a, b in zip(due, latency, strict=True)], int(seconds * S))


@pytest.mark.parametrize(
    ("text", "windows"), [("high.p99 < 10 ms", 300), ("high.attainment >= 99%", 120)]
)
def test_named_window_decides_in_most_cases(text: str, windows: int) -> None:
    random = np.random.default_rng(7)
    goal, decided, named = parse_goal(text), [], 0
    for _ in range(windows):
        # Most truths are not at the bound itself, which no window decides.
        slow = float(np.exp(random.uniform(np.log(0.0005), np.log(0.1))))
        first = evaluate(goal, [window(60, slow, random)], within_ns=10 * MS)
        if first.verdict != "undecided":
            assert first.decided_by_s is None
            continue
        if first.decided_by_s is None:
            continue
        named += 1
        longer = window(first.decided_by_s, slow, random)
        decided.append(evaluate(goal, [longer], within_ns=10 * MS).verdict != "undecided")
    assert named > windows / 6
    assert np.mean(decided) > ASSURANCE - 0.1


def test_named_window_decides_a_throughput_in_most_cases() -> None:
    random = np.random.default_rng(8)
    goal, decided = parse_goal("low.throughput >= 100/s"), []

    def poisson(seconds: float, rate: float) -> Served:
        finished = np.sort(random.uniform(0, seconds * S, random.poisson(rate * seconds)))
        times = finished.astype(int).tolist()
        return Served(len(times), [MS] * len(times), times, int(seconds * S))

    for _ in range(150):
        rate = random.uniform(85, 115)
        first = evaluate(goal, [poisson(20, rate)])
        if first.verdict == "undecided" and first.decided_by_s is not None:
            second = evaluate(goal, [poisson(first.decided_by_s, rate)])
            decided.append(second.verdict != "undecided")
    assert len(decided) > 20
    assert np.mean(decided) > ASSURANCE - 0.15


def test_text_names_window_and_rate() -> None:
    random = np.random.default_rng(1)
    result = evaluate(parse_goal("high.p99 < 10 ms"), [window(10, 0.001, random)])
    assert result.verdict == "undecided"
    assert "a window of " in str(result)
    assert "would decide it at 20/s" in str(result)


def test_without_an_interval_no_length_is_named() -> None:
    alone = window(10, 0.0, np.random.default_rng(2))
    ratio = evaluate(parse_goal("high.p99 <= 1.3 x solo"), [alone], [alone][:])
    nothing = evaluate(parse_goal("high.p99 < 10 ms"), [Served(0, [], [], S)])
    for result in (ratio, nothing):
        assert result.verdict == "undecided"
        assert result.decided_by_s is None


def test_ratios_of_several_sessions_differ_however_long_they_are() -> None:
    random = np.random.default_rng(4)
    windows = [replace(window(60, 0.0, random), session=Session("gpu", n)) for n in "ab"]
    result = evaluate(parse_goal("high.throughput >= 100% of native"), windows, windows[:])
    assert (result.verdict, result.sessions) == ("undecided", 2)
    assert result.decided_by_s is None


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


def test_at_the_bound_itself_no_window_of_a_day_decides() -> None:
    assert requests_if(0.01, 0.01, 0.95, 24 * 3600 * RATE) is None


def test_planned_windows_are_those_of_the_sample_size_rule() -> None:
    goal = parse_goal("high.p99 < 10 ms")
    plan = planned_window(goal, 20.0, 0.95)
    assert plan is not None
    assert plan.least_requests == minimum_samples(0.99, 0.95) == 368
    assert plan.least_s == pytest.approx(18.4)
    assert plan.half_s is not None
    assert plan.half_s > plan.least_s
    assert "368 requests that it needs take 19 s" in plan.too_short(5)
    assert plan.too_short(20) == ""
    assert planned_window(parse_goal("low.throughput >= 1/s"), 20.0, 0.95) is None
    assert least_requests(parse_goal("high.attainment >= 99%"), 0.95) == 368


SCENARIO = """\
name: short
duration: 1s
warmup: 100ms
schedulers: [native]
tenants:
  - {name: high, workload: large_gemm_only, arrival: "constant: 20/s", priority: 1}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 8192}, arrival: closed}
goals:
  - high.p99 < 50 ms
  - low.p99 < 50 ms
"""


def test_advice_stands_in_the_check_and_before_and_after_measuring(tmp_path: Path) -> None:
    file = tmp_path / "short.hwq.yaml"
    file.write_text(SCENARIO)
    run = CliRunner()
    checked = run.invoke(main, ["scenario", "check", str(file)])
    assert "high.p99 < 50 ms at 20/s: a window of 19 s decides if no" in checked.output
    assert "low.p99" not in checked.output
    command = ["which", str(file), "--device", "sim:h200", "--dir", str(tmp_path / "d")]
    short = run.invoke(main, command, env={"COLUMNS": "200"})
    assert "high.p99 < 50 ms cannot be met in 1 s at 20/s" in short.stderr
    assert "would decide it at 20/s" in " ".join(short.stdout.split())
    assert "would decide each in 4 of 5 cases" in " ".join(short.stdout.split())
    longer = run.invoke(main, [*command, "--duration", "240s"], env={"COLUMNS": "200"})
    assert "cannot be met" not in longer.stderr
    assert "would decide" not in longer.stdout
