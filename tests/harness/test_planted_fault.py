"""Weighing a planted fault: an effect that grows with its strength is met, or said to be missed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.harness.planted_fault import weighed


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
    assert (
        found.words(asked)
        == f"planted: the judged latency is {found.effect:+.1%} (asked for {asked:+.1%})"
    )


def test_an_effect_that_cannot_be_had_is_said() -> None:
    steps = weighed(lambda strength: 0.5 if strength >= 0.3 else 0.0, 0.1)
    assert steps.words(0.1).endswith("no strength of it comes nearer")
    nothing = weighed(lambda strength: 0.0, 0.1)
    assert nothing.words(0.1) == (
        "planted: the judged latency is +0.0% (asked for +10.0%); no strength of it comes nearer"
    )
