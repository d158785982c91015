"""Known truth: a queue with one server and a fixed service time (M/D/1), and its P99."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from pytest_hwqueue.answers.which.budget import CONFIRMING_STARTS
from pytest_hwqueue.answers.which.search import ERROR, RateLooks, verdict_on
from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures.of_requests import ServedRequests, worth_at
from pytest_hwqueue.engine.scenarios.deciding import agrees_in_blocks
from pytest_hwqueue.engine.scenarios.goals import GoalResult, evaluate, parse_goal
from pytest_hwqueue.engine.tenants.looks import planned_looks
from tools.capacity_rates import DESIGNS, load_with_p99, row, search

MS = 1e6


@lru_cache(maxsize=256)
def window(load: float, requests: float, seed: int) -> ServedRequests:
    """A window of M/D/1 with a service time of 1 ms, by Lindley's recursion."""
    random = np.random.default_rng(seed)
    # The first of a longer window of the same seed are those of a shorter one.
    due = np.cumsum(random.exponential(1 / load, 100 + round(2 * requests)))
    due = due[due < requests / load]
    # Each is done a service time after it is due or the one before it is done.
    number = np.arange(len(due))
    done = np.maximum.accumulate(due - number) + number + 1
    latency = ((done - due) * MS).astype(int).tolist()
    finished = (done * MS).astype(int).tolist()
    return ServedRequests(len(latency), latency, finished, int(requests / load * MS))


class Queue:
    """Stands in for a scenario's runs: judges one goal on a queue's windows."""

    def __init__(self, bound_ms: float) -> None:
        self.goal = parse_goal(f"high.p99 < {bound_ms} ms")
        self.windows: list[ServedRequests] = []

    def judge(self, case: object, *, confidence: float) -> list[GoalResult]:
        return [evaluate(self.goal, self.windows, confidence=confidence)]


LOOKS = RateLooks(searched=4, requests=717, least_s=0.0, fewest=368)
# Each with a sixteenth, an eighth, ... of the window, as one of more than 16 s has them.
PLANNED = [(look.window_ns / 1e11, look.error) for look in LOOKS.planned(100.0)]


def verdicts(load: float, bound_ms: float, seed: int) -> list[str]:
    """As a search comes to them: its own, and those after each window that confirms it, if any.

    A look before a window's end only breaks a rate, and one that confirms must be broken alone.
    """
    queue, alone, found = Queue(bound_ms), Queue(bound_ms), ["undecided"]
    for number in range(LOOKS.at_most):
        confirms = found != ["undecided"]
        if not confirms and number == LOOKS.searched:
            break
        queue.windows.append(ServedRequests(0, [], [], 1))
        for share, error in PLANNED:
            queue.windows[-1] = window(load, share * LOOKS.requests, 1000 * seed + number)
            alone.windows = queue.windows[-1:]
            each, _ = verdict_on(queue, None, 1 - error)  # type: ignore[arg-type]
            by_itself, _ = verdict_on(alone, None, 1 - error)  # type: ignore[arg-type]
            early = each == "broken" and agrees_in_blocks(
                queue.goal, False, queue.windows, 1 - error, None
            )
            if share == 1 or (early and (not confirms or by_itself == "broken")):
                break
        if confirms:
            found.append(each)
        elif each != "undecided":
            found = [each]
        if len(found) > CONFIRMING_STARTS:
            break
    return found


def verdict(load: float, bound_ms: float, seed: int) -> str:
    """As a search comes to it, and of the edge as two fresh starts leave it."""
    return verdicts(load, bound_ms, seed)[-1]


def test_looks_at_all_windows_of_a_rate_spend_the_error_once() -> None:
    assert [share for share, _ in PLANNED] == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]
    for window_s in (0.1, 5.0, 100.0):
        planned = LOOKS.planned(window_s)
        spent = sum(look.error for look in planned)
        assert spent * LOOKS.at_most == pytest.approx(ERROR)


def test_theory_is_that_of_the_simulated_queue() -> None:
    load = load_with_p99(5)
    assert load == pytest.approx(0.5608, abs=1e-4)
    latency = [each for seed in range(40) for each in window(load, 5000, seed).latency_ns]
    assert np.mean(np.array(latency) > 5 * MS) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("bound_ms", "seeds", "most"),
    [
        # ERROR is 5 %; more have a probability of 0.3 %.
        (10, 12, 3),
        pytest.param(5, 40, 6, marks=pytest.mark.slow),
        pytest.param(10, 40, 6, marks=pytest.mark.slow),
    ],
)
def test_at_the_capacity_itself_hardly_any_verdict_is_given(
    bound_ms: float, seeds: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any verdict there is a coin's: at most the stated error may be given, both sides together.
    load = load_with_p99(bound_ms)

    def wrong() -> int:
        return sum(verdict(load, bound_ms, seed) != "undecided" for seed in range(seeds))

    assert wrong() <= most
    assert ERROR == 0.05
    if bound_ms == 10:
        # The negative control: as if independent, most verdicts would be given.
        monkeypatch.setattr(
            figures, "independent_samples", lambda parts, *_: float(sum(map(len, parts)))
        )
        assert wrong() > 0.5 * seeds


def test_no_early_look_takes_one_busy_spell_for_many_slow_requests() -> None:
    goal = parse_goal("high.p99 < 10 ms")
    load, alone, in_blocks = load_with_p99(10), 0, 0
    for seed in range(150):
        for look in planned_looks(100_000_000_000, 1, 1)[:-1]:
            windows = [window(load, look.window_ns / 1e11 * 1148, 1000 * seed)]
            if evaluate(goal, windows, confidence=1 - look.error).verdict == "missed":
                alone += 1
                in_blocks += agrees_in_blocks(goal, False, windows, 1 - look.error, None)
    # The negative control: together, these looks may be wrong in a quarter of 5 %, both sides.
    assert alone > 0.05 * 150
    assert in_blocks <= 1


def test_far_off_the_capacity_the_verdict_is_right_and_never_wrong() -> None:
    load = load_with_p99(5)
    below = [verdict(0.5 * load, 5, seed) for seed in range(20)]
    assert below.count("held") >= 17
    assert "broken" not in below
    assert {verdict(1.3 * load, 5, seed) for seed in range(20)} == {"broken"}


def test_requests_of_a_queue_are_worth_fewer_and_independent_ones_themselves() -> None:
    assert worth_at([window(0.8, 4000, 1)], 0.9, 0.95) < 1000
    latency = np.random.default_rng(0).exponential(MS, 4000).astype(int).tolist()
    assert worth_at([ServedRequests(4000, latency, latency, 10**9)], 0.9, 0.95) > 2000
    never = [ServedRequests(4000, latency[:2000], latency[:2000], 10**9)]
    assert 1 <= worth_at(never, 0.9, 0.95) <= 4000
    assert worth_at([ServedRequests(3, [], [], 10**9)], 0.9, 0.95) >= 1


@pytest.mark.parametrize(
    ("seed", "goal_ms"),
    [
        (100, 1.5),
        (300, 3.5),
        *(pytest.param(seed, goal_ms, marks=pytest.mark.slow)
          for seed in (200, 400, 500, 600) for goal_ms in (1.5, 3.5)),
    ],
)  # fmt: skip
def test_capacity_is_within_a_fifth_of_the_theory_and_inside_its_interval(
    seed: int, goal_ms: float
) -> None:
    found = search(DESIGNS[0], goal_ms, seed)
    assert found.value_per_s == pytest.approx(found.theory_per_s, rel=0.2)
    assert found.low_per_s < found.theory_per_s < found.high_per_s
    assert found.broke_first == [f"high.p99 < {goal_ms} ms"]
    assert found.wrong == 0
    assert row(DESIGNS[0], [found])[4:6] == ["1 of 1", f"0 of {found.verdicts}"]
