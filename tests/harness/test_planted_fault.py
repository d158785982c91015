"""Weighing a planted fault: an effect that grows with its strength is met, and told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.harness.planted_fault import Planted, weighed
from pytest_hwqueue.metrics.latency import summarise_latency


@given(
    asked=st.floats(0.05, 3), hidden=st.floats(0, 40), slope=st.floats(0.02, 2),
    offset=st.floats(0, 0.02),
)  # fmt: skip
def test_an_effect_that_sets_in_late_is_met(
    asked: float, hidden: float, slope: float, offset: float
) -> None:
    """Absorbed up to a strength, then linear; launching the fault alone costs something."""
    tried: list[float] = []

    def effect(strength: float) -> float:
        tried.append(strength)
        return offset + slope * max(0.0, strength - hidden)

    found = weighed(effect, asked)
    assert len(tried) <= 12
    assert found.effect == effect(found.strength)
    assert abs(found.effect - asked) <= 0.02


def test_a_fault_that_cannot_be_as_asked_for_is_felt_all_the_same() -> None:
    """One that is not felt would let a gate pass that was to fail."""
    steps = weighed(lambda strength: 0.5 if strength >= 50 else 0.0, 0.1)
    assert steps.effect == 0.5
    tried: list[float] = []
    nothing = weighed(lambda strength: tried.append(strength) or 0.0, 0.1)  # type: ignore[func-returns-value]
    assert (nothing.effect, nothing.strength) == (0.0, tried[-1])
    assert max(tried) <= 4**7


def test_a_record_says_what_the_fault_did_to_its_own_figures() -> None:
    plain = [1_000_000] * 99 + [2_000_000]
    many = summarise_latency([1_100_000] * 400)
    assert Planted(0.1, plain).words(many) == (
        "planted to be +10%: P50 +10.0%, P99 +8.9%, against a short pass without it"
    )
    few = summarise_latency([1_100_000] * 20)
    assert Planted(0.1, plain).words(few).startswith("planted to be +10%: P50 +10.0%, against")
    assert Planted(0.1, None).words(many) == "planted to be +10% of whole iterations"
    for nothing in (None, summarise_latency([1])):
        assert "too few samples to say" in Planted(0.1, plain).words(nothing)
