"""Green contexts: who is given what, and that nothing counts as active that did not run there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices import green_contexts
from pytest_hwqueue.devices.compute_units import Partition, open_pool
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadScheduler, DeviceError, NotProven
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import (
    TenantRequest,
    cell_partitions,
    open_scheduler,
    parse_schedulers,
    prove_cell,
    tenant_requests,
    unavailable_for_cell,
)

TENANTS = tenant_requests([("high", 1, None), ("low", 0, None), ("batch", 0, None)])


def groups_of(mode: str, tenants: Sequence[TenantRequest] = TENANTS) -> list[Partition | None]:
    return [open_scheduler(mode).partition(tenant, tenant.priority) for tenant in tenants]


def test_the_named_have_their_own_and_the_others_share_what_is_left() -> None:
    assert groups_of("green-context:high=32") == [Partition((32,), group) for group in (0, 1, 1)]
    assert groups_of("green-context:low=64,high=16") == [
        Partition((64, 16), group) for group in (1, 0, 2)
    ]


@pytest.mark.parametrize(
    ("mode", "groups"),
    [("urgent=32", [1, 0, 1, 1]), ("cell=32", [0, 0, 0, 0]), ("urgent=16,cell=32", [1, 0, 1, 1])],
)
def test_a_single_test_names_its_urgent_streams_and_all_others(
    mode: str, groups: list[int]
) -> None:
    found = cell_partitions(open_scheduler(f"green-context:{mode}"), [0, 2, 0, 1])
    assert found is not None
    assert [partition.group for partition in found] == groups


def test_other_modes_split_nothing() -> None:
    assert cell_partitions(open_scheduler("stream-priority"), [0, 1]) is None


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("green-context", "nobody has multiprocessors of their own; name a tenant and how many, "
         "such as green-context:high=32"),
        ("green-context:hi=32", "no tenant is called hi; there are high, low, batch"),
        ("green-context:cell=32", "no tenant is called cell"),
    ],
)  # fmt: skip
def test_tenants_that_cannot_be_served(mode: str, said: str) -> None:
    for device in ("sim", "cuda", "hip"):
        assert said in (open_scheduler(mode).unavailable(device, TENANTS) or "")


@pytest.mark.parametrize(
    ("mode", "urgency", "said"),
    [
        ("green-context", [0], "such as green-context:cell=32"),
        ("green-context:high=32", [0, 1], "in a single test nobody is called high; there are "
         "urgent (its most urgent streams) and cell (all others)"),
        ("green-context:urgent=32", [1, 1], "no stream's work is more urgent than another's"),
    ],
)  # fmt: skip
def test_cells_that_cannot_be_served(mode: str, urgency: list[int], said: str) -> None:
    assert said in (unavailable_for_cell(open_scheduler(mode), "sim", urgency) or "")


@pytest.mark.parametrize("text", ["high=0", "high=-8", "high=8.5", "high=25%", "high=9999"])
def test_only_whole_numbers_are_read(text: str) -> None:
    with pytest.raises(BadScheduler, match="give a whole number from 1 to 1024"):
        parse_schedulers(f"native,green-context:{text}")


def test_the_cpu_and_other_devices_cannot_be_split() -> None:
    for device in ("cpu", "npu"):
        reason = open_scheduler("green-context:high=32").unavailable(device, TENANTS)
        assert reason == (
            f"green-context:high=32 needs a GPU of NVIDIA or AMD; {device} cannot be split"
        )


def test_the_driver_is_asked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, ...], bool]] = []

    def why_not(split: tuple[int, ...], *, others: bool) -> str | None:
        asked.append((split, others))
        return "asked 30, given 32"

    monkeypatch.setattr(green_contexts, "why_not", why_not)
    mode = open_scheduler("green-context:high=30")
    assert mode.unavailable("cuda", TENANTS) == "green-context:high=30: asked 30, given 32"
    assert mode.unavailable("cuda", TENANTS[:1]) is not None
    assert mode.unavailable("hip", TENANTS) is None
    assert unavailable_for_cell(open_scheduler("green-context:cell=30"), "cuda", [0, 1]) is not None
    assert unavailable_for_cell(open_scheduler("green-context:urgent=30"), "cuda", [0, 1])
    assert asked == [((30,), True), ((30,), False), ((30,), False), ((30,), True)]


MODE = open_scheduler("green-context:high=4")
HIGH = InsideEvidence([], [0], asked_groups=[0], group_sizes=[4], ran_on=[[0, 1, 2, 3]])
LOW = InsideEvidence([], [0], asked_groups=[1], group_sizes=[3], ran_on=[[4, 5, 9]])
TOGETHER = {"high": 1, "low": 1}


def test_disjoint_groups_of_the_right_size_are_proven() -> None:
    proof = MODE.proof(TOGETHER, {"high": HIGH, "low": LOW})
    assert proof.evidence.endswith(": high: 4 (0-3); the others: 3 (4-5, 9)")
    assert proof.counts == {
        "multiprocessors seen by high": 4,
        "multiprocessors seen by the others": 3,
    }
    assert proof.device_priorities == (0, 0)


@pytest.mark.parametrize(
    ("high", "low", "said"),
    [
        ({"group_sizes": [5]}, {}, "in the group of high, should have 4 multiprocessors, not 5"),
        ({"group_sizes": [0]}, {}, "in the group of high, should have 4 multiprocessors, not 0"),
        ({}, {"group_sizes": [0]}, "should have some multiprocessors, not 0"),
        ({"ran_on": [[0, 1, 2]]}, {}, r"has 4 multiprocessors and ran on 3 \(0-2\)"),
        ({"ran_on": [[0, 1, 2, 3, 4]]}, {}, r"has 4 multiprocessors and ran on 5 \(0-4\)"),
        ({"ran_on": [[]]}, {}, r"ran on 0 \(none\)"),
        ({}, {"ran_on": [[3, 4, 5]]}, "high and of the others both ran on multiprocessors 3"),
        ({"asked_groups": [], "group_sizes": [], "ran_on": []},) * 2 + ("opened in a group",),
    ],
)
def test_anything_else_is_not_proven(high: dict[str, Any], low: dict[str, Any], said: str) -> None:
    inside = {"high": replace(HIGH, **high), "low": replace(LOW, **low)}
    with pytest.raises(NotProven, match=said):
        MODE.proof(TOGETHER, inside)


def test_groups_of_several_processes_are_not_proven() -> None:
    with pytest.raises(NotProven, match="several processes"):
        MODE.proof({"high": 1, "low": 2}, {"high": HIGH, "low": LOW})


@given(
    urgency=st.lists(st.integers(0, 2), min_size=2, max_size=6).filter(lambda u: len(set(u)) > 1),
    eighths=st.integers(1, 15),
)
def test_a_cell_of_the_simulated_device_is_proven(urgency: list[int], eighths: int) -> None:
    mode = open_scheduler(f"green-context:urgent={8 * eighths}")
    device = SimulatedDevice("h200")
    partitions = cell_partitions(mode, urgency)
    with open_pool(device, [0] * len(urgency), partitions, gradients=False) as pool:
        proof = prove_cell(mode, pool, urgency, replayed=True)
    assert dict(proof.counts) == {
        "multiprocessors seen by urgent": 8 * eighths,
        "multiprocessors seen by the others": 132 - 8 * eighths,
    }


def test_streams_opened_anywhere_are_not_proven() -> None:
    mode = open_scheduler("green-context:cell=32")
    with (
        SimulatedDevice("h200").open_streams(1) as pool,
        pytest.raises(NotProven, match="should have 32 multiprocessors, not 0"),
    ):
        prove_cell(mode, pool, [0])
    with (
        HostDevice().open_streams(1) as host,
        pytest.raises(NotProven, match="do not tell on which multiprocessors they run"),
    ):
        prove_cell(mode, host, [0])


class Silent:
    """Streams of which the driver tells nothing."""

    streams = ()

    def device_priorities(self) -> list[int]:
        return [0]

    def groups(self, *, replayed: bool) -> list[object]:
        raise DeviceError("cuLibraryLoadData failed with error 221")


def test_what_the_driver_refuses_is_said() -> None:
    mode = open_scheduler("green-context:cell=32")
    with pytest.raises(NotProven, match="cannot be found out: cuLibraryLoadData failed"):
        prove_cell(mode, cast(StreamPool, Silent()), [0])
