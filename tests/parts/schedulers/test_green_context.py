"""Green contexts: who is given what, and that nothing counts as active that did not run there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError, NotProven
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.devices import green_contexts
from pytest_hwqueue.parts.devices.compute_units import Partition, open_pool
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import StreamPool
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    cell_partitions,
    impossible_split,
    open_scheduler,
    prove_cell,
    tenant_requests,
    unavailable_for_cell,
)

TENANTS = tenant_requests(
    [
        Tenant("high", "resnet18", priority=1),
        Tenant("low", "resnet18"),
        Tenant("batch", "resnet18"),
    ]
)


@pytest.mark.parametrize(
    ("mode", "split", "groups"),
    [
        ("high=32", (32,), [0, 1, 1]),
        ("low=64,high=16", (64, 16), [1, 0, 2]),
        # A single test names its most urgent streams, and all others.
        ("urgent=32", (32,), [1, 0, 1, 1]),
        ("cell=32", (32,), [0, 0, 0, 0]),
        ("urgent=16,cell=32", (16, 32), [1, 0, 1, 1]),
    ],
)
def test_the_named_have_their_own_and_the_others_share_what_is_left(
    mode: str, split: tuple[int, ...], groups: list[int]
) -> None:
    opened = open_scheduler(f"green-context:{mode}")
    if len(groups) == len(TENANTS):
        found = [opened.partition(tenant, tenant.priority) for tenant in TENANTS]
    else:
        found = list(cell_partitions(opened, [0, 2, 0, 1]) or ())
    assert found == [Partition(split, group) for group in groups]
    assert cell_partitions(open_scheduler("stream-priority"), [0, 1]) is None


def test_the_driver_is_asked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, ...], bool, bool]] = []

    def why_not(split: tuple[int, ...], *, others: bool, queues: bool) -> str | None:
        asked.append((split, others, queues))
        return "asked 30, given 32"

    monkeypatch.setattr(green_contexts, "why_not", why_not)
    mode = open_scheduler("green-context:high=30")
    assert mode.unavailable("cuda", TENANTS) == "green-context:high=30: asked 30, given 32"
    assert mode.unavailable("cuda", TENANTS[:1]) is not None
    assert mode.unavailable("hip", TENANTS) is None
    assert unavailable_for_cell(open_scheduler("green-context:cell=30"), "cuda", [0, 1])
    assert unavailable_for_cell(open_scheduler("green-context:urgent=30"), "cuda", [0, 1])
    mode = open_scheduler("green-context:queues=apart,high=32")
    assert mode.unavailable("cuda", TENANTS) is not None
    assert "alone; leave out queues" in (mode.unavailable("hip", TENANTS) or "")
    assert asked == [
        ((30,), True, False),
        ((30,), False, False),
        ((30,), False, False),
        ((30,), True, False),
        ((32,), True, True),
    ]


MODE = open_scheduler("green-context:high=4")
HIGH = InsideEvidence([], [0], asked_groups=[0], group_sizes=[4], ran_on=[[0, 1, 2, 3]])
LOW = InsideEvidence([], [0], asked_groups=[1], group_sizes=[3], ran_on=[[4, 5, 9]])
NO_GROUPS: dict[str, Any] = {"asked_groups": [], "group_sizes": [], "ran_on": []}


def test_disjoint_groups_of_the_right_size_are_proven() -> None:
    proof = MODE.proof({"high": 1, "low": 1}, {"high": HIGH, "low": LOW})
    assert proof.evidence.endswith(": high: 4 (0-3); the others: 3 (4-5, 9)")
    seen = {"multiprocessors seen by high": 4, "multiprocessors seen by the others": 3}
    assert proof.counts == seen
    assert proof.device_priorities == (0, 0)
    with pytest.raises(NotProven, match="several processes"):
        MODE.proof({"high": 1, "low": 2}, {"high": HIGH, "low": LOW})


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
        (NO_GROUPS, NO_GROUPS, "no stream was opened in a group"),
    ],
)
def test_anything_else_is_not_proven(high: dict[str, Any], low: dict[str, Any], said: str) -> None:
    inside = {"high": replace(HIGH, **high), "low": replace(LOW, **low)}
    with pytest.raises(NotProven, match=said):
        MODE.proof({"high": 1, "low": 1}, inside)


@pytest.mark.parametrize(
    ("mode", "read", "said"),
    [
        ("queues=apart", [8, 8], None),
        ("queues=4", [4, 4], None),
        ("queues=shared", [None, None], None),
        ("queues=apart", [8, None], "of the others, should have .* and its context shares them"),
        ("queues=4", [8, 4], "high, .* own for 4 streams at once, and its context has them for 8"),
    ],
)
def test_queues_of_their_own_are_read_back(
    mode: str, read: list[int | None], said: str | None
) -> None:
    opened = open_scheduler(f"green-context:{mode},high=4")
    partition = opened.partition(TENANTS[0], 1)
    assert partition is not None
    assert partition.queues == {"apart": 0, "4": 4}.get(mode.partition("=")[2])
    inside = {
        "high": replace(HIGH, group_queues=read[:1]),
        "low": replace(LOW, group_queues=read[1:]),
    }
    if said is None:
        evidence = opened.proof({"high": 1, "low": 1}, inside).evidence
        own = f"high: for {read[0]} streams; the others: for {read[1]} streams"
        assert evidence.endswith(own if read[0] else "3 (4-5, 9)")
    else:
        with pytest.raises(NotProven, match=said):
            opened.proof({"high": 1, "low": 1}, inside)


@given(
    urgency=st.lists(st.integers(0, 2), min_size=2, max_size=6).filter(lambda u: len(set(u)) > 1),
    eighths=st.integers(1, 15),
)
def test_a_cell_of_the_simulated_device_is_proven(urgency: list[int], eighths: int) -> None:
    mode = open_scheduler(f"green-context:urgent={8 * eighths}")
    partitions = cell_partitions(mode, urgency)
    pool = open_pool(SimulatedDevice("h200"), [0] * len(urgency), partitions, gradients=False)
    with pool as opened:
        counts = prove_cell(mode, opened, urgency, replayed=True).counts
    assert list(counts.values()) == [8 * eighths, 132 - 8 * eighths]


def test_queues_apart_are_no_part_of_the_model() -> None:
    device = SimulatedDevice("h200")
    for mode, said in (("queues=apart", "use a real device"), ("queues=shared", None)):
        opened = open_scheduler(f"green-context:{mode},cell=32")
        found = impossible_split(opened, device, [0])
        assert found is None if said is None else said in (found or "")


def test_a_cell_whose_streams_are_anywhere_or_untold_is_not_proven() -> None:
    def refuses(*, replayed: bool) -> None:
        raise DeviceError("cuLibraryLoadData failed with error 221")

    silent = SimpleNamespace(streams=(), device_priorities=lambda: [0], groups=refuses)
    with SimulatedDevice("h200").open_streams(1) as anywhere, HostDevice().open_streams(1) as host:
        for pool, said in (
            (anywhere, "should have 32 multiprocessors, not 0"),
            (host, "do not tell on which multiprocessors they run"),
            (cast("StreamPool", silent), "cannot be found out: cuLibraryLoadData failed"),
        ):
            with pytest.raises(NotProven, match=said):
                prove_cell(open_scheduler("green-context:cell=32"), pool, [0])
