"""How many blocks a device holds at once is found by how long kernels of more and more take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.spins import steps_at_once


@given(
    at_once=st.integers(1, 200), most=st.integers(1, 200), alone_ns=st.floats(1e3, 1e7),
    longer=st.floats(1.0, 1.4),
)  # fmt: skip
def test_the_steps_that_begin_at_once_are_found(
    at_once: int, most: int, alone_ns: float, longer: float
) -> None:
    """Even if kernels that fit take a little longer the fuller the device is."""
    asked = []

    def took_ns(steps: int) -> float:
        asked.append(steps)
        fuller = longer if steps > 1 else 1.0
        return alone_ns * fuller * -(-steps // at_once)

    assert steps_at_once(took_ns, most) == min(at_once, most)
    assert len(asked) <= 1 + most.bit_length()
