"""Weighing a planted fault: an effect that grows with its strength is met, and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.latency import summarise_latency
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.engine.cell.cell import CellDraft, OpenCell
from pytest_hwqueue.engine.cell.planted_fault import CellFault, weighed
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import parameters_for


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
    assert CellFault(0.1, plain).words(many) == (
        "planted to be +10%: P50 +10.0%, P99 +8.9%, against a short pass without it"
    )
    few = summarise_latency([1_100_000] * 20)
    assert CellFault(0.1, plain).words(few).startswith("planted to be +10%: P50 +10.0%, against")
    assert CellFault(0.1, None).words(many) == "planted to be +10% of whole iterations"
    for nothing in (None, summarise_latency([1])):
        assert "too few samples to say" in CellFault(0.1, plain).words(nothing)


class Accelerator:
    """Notes which spins are asked for."""

    capabilities = KINDS["cuda"]

    def __init__(self) -> None:
        self.waves: list[int] = []

    def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
        self.waves.append(waves)
        return lambda: None


@pytest.mark.parametrize("name", ["large_gemm_only", "tiny_kernel_stress"])
def test_work_that_fills_the_device_is_followed_by_a_spin_that_does(name: str) -> None:
    """Beside products a spin of one block runs unseen, until it outlasts all other streams'."""
    device = Accelerator()
    workload_type = workload_class(name)
    workload = workload_type(parameters_for(workload_type, "tiny", {}))
    open_cell = cast("Callable[..., OpenCell]", OpenCell)
    cell = open_cell(device, None, None, CellDraft("spins"), None, {(0, 0): 100.0})
    cell.iteration(workload)
    assert set(device.waves) == {int(name == "large_gemm_only")}
