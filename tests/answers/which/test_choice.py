"""What is chosen of a table's cases, and how a figure is written."""

from __future__ import annotations

import pytest

from pytest_hwqueue.answers.which import words
from pytest_hwqueue.answers.which.file import WhichCase, WhichFile, WhichTenant, choices
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import in_unit
from pytest_hwqueue.engine.scenarios.goals import GoalResult, GoalVerdict


def tenant(name: str, priority: int, value: float, half: float) -> WhichTenant:
    none = Estimate()
    return WhichTenant(
        name=name, priority=priority, issued=1, completed=1, failed=0, unserved=0,
        requests_per_s=none, mean_ms=none, p50_ms=none, p90_ms=none, p95_ms=none,
        p99_ms=none, min_ms=none, max_ms=none, variation=none, unit="images", throughput_loss=None,
        p50_over_solo=None, p99_over_solo=None,
        throughput_items_per_s=Estimate(value=value, low=value - half, high=value + half),
    )  # fmt: skip


def judged(
    name: str, verdict: GoalVerdict | None, *throughputs: float, half: float = 0.5
) -> WhichCase:
    """A case with an urgent tenant and less urgent ones of these throughputs."""
    others = [tenant(f"low{index}", 0, each, half) for index, each in enumerate(throughputs)]
    goals = [] if verdict is None else [GoalResult(goal="g", verdict=verdict)]
    return WhichCase(
        id=name, role="case", variant=None, placement="processes", scheduler=name, status="ok",
        tenants=[tenant("high", 1, 1.0, half), *others], goals=goals,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "best", "alike"),
    [
        # Of modes that met all, the one that leaves most; those whose intervals overlap are alike.
        ([judged("a", "met", 90), judged("b", "met", 95), judged("c", "missed", 99)], "b", []),
        ([judged("a", "met", 94, half=1), judged("b", "met", 95, half=1)], "b", ["a"]),
        # Of several less urgent tenants the one that loses most counts; without one, nothing.
        ([judged("a", "met", 100, 10), judged("b", "met", 80, 80)], "b", []),
        ([judged("a", "met"), judged("b", "met")], None, []),
    ],
)
def test_the_mode_that_met_all_and_leaves_most_is_best(
    cases: list[WhichCase], best: str | None, alike: list[str]
) -> None:
    (choice,) = choices(cases)
    met = [each.id for each in cases if each.goals[0].verdict == "met"]
    assert (choice.met, choice.best, choice.alike) == (met, best, alike)


def told(*cases: WhichCase) -> tuple[str, str]:
    """Return the answer's sentence, and the one of what it leaves."""
    found = WhichFile(
        device="cuda", simulated=False, seed=0, command="", git_commit=None, fingerprint=None,
        scenario="mix", description="", complete=True, cases=[*cases], choices=choices(cases),
    )  # fmt: skip
    (choice,) = found.choices
    return words.headline(found, choice), words.what_it_leaves(found, choice)


def test_the_answer_says_that_native_is_enough() -> None:
    native, mps = judged("native", "met", 90), judged("mps", "met", 80)
    assert told(mps, native)[0] == "All goals were met under native and mps: native is enough."
    # Also where it was measured only to be compared with.
    compared = native.model_copy(update={"role": "reference"})
    assert told(mps, compared)[0] == "All goals were met under native and mps: native is enough."
    threads = native.model_copy(update={"id": "threads-native", "placement": "threads"})
    enough = "native and threads-native are enough"
    assert told(native, threads)[0] == f"{enough}: all goals were met."
    assert told(native, threads, mps)[0].endswith(f"and mps: {enough}.")
    missed = judged("native", "missed", 90)
    assert told(mps, missed)[0] == "All goals were met under mps."


def test_the_answer_ranks_only_what_can_be_told_apart() -> None:
    a, b, c = judged("a", "met", 94), judged("b", "met", 95), judged("c", "met", 80)
    assert told(a, c)[1].startswith(
        "Of these, a leaves the others most throughput: low0 94.0 images/s"
    )
    told_apart = "what they leave less urgent tenants: the intervals of that throughput overlap."
    assert told(a, b)[1].startswith(f"They cannot be told apart by {told_apart} b leaves low0 95.0")
    most = "b and a leave the others most throughput, and cannot be told apart by"
    assert told(a, b, c)[1].startswith(f"{most} {told_apart} b leaves low0 95.0")


def test_without_goals_nothing_is_met() -> None:
    (choice,) = choices([judged("a", None, 90)])
    assert not choice.goals
    assert choice.met == choice.missed == choice.undecided == []


def test_each_variant_has_its_own_choice() -> None:
    first = judged("x-a", "met", 90).model_copy(update={"variant": "x"})
    second = judged("y-a", "missed", 90).model_copy(update={"variant": "y"})
    found = choices([first, second])
    assert [(each.variant, each.best) for each in found] == [("x", "x-a"), ("y", None)]


@pytest.mark.parametrize(
    ("given", "unit", "text"),
    [
        (Estimate(value=4, low=3.5, high=4.5), "ms", "4.00 ms [3.50, 4.50]"),
        (Estimate(value=4, low=3.5), "ms", "4.00 ms [3.50, ∞]"),
        (Estimate(value=4), "ms", "4.00 ms"),
        (Estimate(value=1, low=0.99694, high=1), "share", "100.00 % [99.69, 100.00]"),
        (Estimate(value=0.04, low=0.031, high=0.05), "%", "4.00 % [3.10, 5.00]"),
        (Estimate(value=0.04, high=0.05), "%", "4.00 % [-∞, 5.00]"),
        (Estimate(value=1.3, low=1.2, high=1.4), "×", "1.30× [1.20, 1.40]"),
        (Estimate(value=7530, low=7500, high=7560), "images/s", "7.53 k images/s [7.50, 7.56]"),
        (Estimate(refused="none"), "ms", "—"),
    ],
)
def test_figures_are_printed_with_their_ends(given: Estimate, unit: str, text: str) -> None:
    assert str(in_unit(given, unit)) == text
