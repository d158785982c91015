"""Modes of priorities: what they ask for, and that none is taken for active without proof."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.devices.protocol import StreamPool
from pytest_hwqueue.parts.schedulers.declaration import BUILT_IN
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    CELL,
    MPS_CLIENT,
    Scheduler,
    TenantRequest,
    open_scheduler,
    prove_cell,
    unavailable_for_cell,
    unavailable_for_launchers,
    unavailable_for_process,
)

NATIVE, STREAM_PRIORITY = open_scheduler("native"), open_scheduler("stream-priority")


def reports(*priorities: int) -> StreamPool:
    """Streams that report these priorities, in a device's numbers: lower is more urgent."""
    pool = SimpleNamespace(streams=(), device_priorities=lambda: list(priorities))
    return cast("StreamPool", pool)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 0)), min_size=2, max_size=8)
    | st.integers(-5, 0).map(lambda number: [(0, number), (1, number), (2, number)])
    | st.permutations([(0, 0), (0, 0), (1, -1), (2, -5)])
)
def test_a_mode_is_proven_where_all_streams_report_what_it_asks_for_and_nowhere_else(
    streams: list[tuple[int, int]],
) -> None:
    urgency, seen = [level for level, _ in streams], [number for _, number in streams]
    assert NATIVE.priorities(urgency) == [0] * len(urgency)
    assert STREAM_PRIORITY.priorities(urgency) == urgency
    ordered = all(
        mine < other for level, mine in streams for less, other in streams if level > less
    )
    native = f"priority {seen[0]} read back from {counted(len(seen), 'stream')}"
    for mode, active, evidence in (
        (NATIVE, len(set(seen)) == 1, native),
        (STREAM_PRIORITY, ordered, f"priorities read back: {seen}"),
    ):
        if active:
            proof = prove_cell(mode, reports(*seen), urgency)
            assert proof == Proof(mode.mode, evidence, tuple(seen))
        else:
            with pytest.raises(NotProven) as refused:
                prove_cell(mode, reports(*seen), urgency)
            assert str(seen) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "kind", "urgency", "said"),
    [
        ("stream-priority", "cpu", [0, 1], "needs an accelerator"),
        ("stream-priority", "cuda", [0], "would change nothing: no stream's work is more urgent"),
        ("stream-priority", "hip", [1, 1], "would change nothing: no stream's work is more"),
        *(("stream-priority", kind, [0, 1], None) for kind in ("cuda", "hip")),
        ("native", "cpu", [0, 1], None),
        ("green-context", "sim", [0], "such as green-context:cell=32"),
        ("green-context:high=32", "sim", [0, 1], "no tenant is called high; there are cell, urgent "
         r"\(urgent: a single test's most urgent streams; cell: all others\)"),
        ("green-context:urgent=32", "sim", [1, 1], "no stream's work is more urgent than"),
    ],
)  # fmt: skip
def test_where_a_cell_can_have_a_mode(
    text: str, kind: str, urgency: list[int], said: str | None
) -> None:
    found = unavailable_for_cell(open_scheduler(text), kind, urgency)
    assert found is None if said is None else re.search(said, found or "")


def tenants(*priorities: int) -> list[TenantRequest]:
    """Tenants of these priorities."""
    return [TenantRequest(name, each) for name, each in zip("abc", priorities, strict=False)]


@pytest.mark.parametrize(
    ("text", "kind", "priorities", "said"),
    [
        *(("stream-priority", kind, (0, 1), None) for kind in ("cuda", "sim")),
        ("stream-priority", "cuda", (0,), None),
        ("stream-priority", "cpu", (0, 1), "needs an accelerator"),
        ("stream-priority", "cuda", (1, 1), "all tenants have priority 1"),
        ("native", "npu", (0, 1), None),
        ("mps", "cpu", (0, 1), "needs an NVIDIA GPU"),
        ("mps", "hip", (0, 1), "needs an NVIDIA GPU; on hip there is no MPS"),
        ("mps", "npu", (0, 1), "on npu there is no MPS"),
        ("mps-priority", "sim", (1, 1), "would change nothing: all tenants have priority 1"),
        ("mps-priority", "sim", (1, 2), "MPS knows two levels, .* \\[1, 2\\] are on one"),
        ("mps-partition", "sim", (0, 1), "no tenant has a share; give one"),
        ("mps-partition:lo=80%", "sim", (0, 1), "no tenant is called lo; there are a, b"),
        ("xsched", "cpu", (0, 1), "needs an accelerator"),
        ("xsched", "sim", (1, 1), "would change nothing: all tenants have priority 1"),
        ("xsched:policy=HHPF", "sim", (1, 1), "would change nothing"),
        # Policies that share need no priorities.
        ("xsched:policy=CFS", "sim", (1, 1), None),
        ("xsched", "cuda", (0, 256), "tenant b has priority 256; those of XSched go from -255"),
        ("green-context", "sim", (1, 0), "nobody has multiprocessors of their own; name a tenant "
         "and how many, such as green-context:a=32"),
        ("green-context:queues=apart", "sim", (1, 0), "nobody has multiprocessors of their own"),
        ("green-context:queues=4,hi=32", "cuda", (1, 0), "no tenant is called hi; there are a, b"),
        ("green-context:cell=32", "hip", (1, 0), "no tenant is called cell"),
        *(("green-context:a=32", kind, (1, 0), f":a=32 needs a GPU of NVIDIA or AMD; {kind} "
           "cannot be split") for kind in ("cpu", "npu")),
    ],
)  # fmt: skip
def test_where_tenants_can_have_a_mode(
    text: str, kind: str, priorities: tuple[int, ...], said: str | None
) -> None:
    found = open_scheduler(text).unavailable(kind, tenants(*priorities))
    assert found is None if said is None else re.search(said, found or "")


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        ("native", False), ("mps", False), ("xsched", False), ("env:A=1", False),
        ("stream-priority", True), ("green-context:cell=32", True),
    ],
)  # fmt: skip
def test_processes_that_launch_have_no_mode_of_one_processs_streams(
    mode: str, refused: bool
) -> None:
    opened = open_scheduler(mode)
    assert unavailable_for_launchers(opened, "threads") is None
    said = unavailable_for_launchers(opened, "processes") or ""
    assert bool(said) == refused
    assert not refused or "have threads launch (--launchers threads)" in said


def test_where_a_process_can_have_a_mode() -> None:
    # Of a device that a package adds nothing is known: an accelerator, without NVIDIA's MPS.
    assert {each.name for each in BUILT_IN if not each.serves("npu")} == {
        "mps", "mps-priority", "mps-partition", "mps-static", "green-context",
    }  # fmt: skip
    # Whether a mode with an environment can serve is asked before its process starts.
    mps = open_scheduler("mps")
    assert "needs an NVIDIA GPU" in (unavailable_for_process(mps, "cpu") or "")
    assert "not for single tests" in (unavailable_for_process(mps, "sim") or "")
    # What scenario files could not simulate either is not sent there.
    for mode in ("xsched-app", "xsched:level=3", "mps-partition", "mps-static"):
        assert unavailable_for_process(open_scheduler(mode), "sim") == (
            f"the simulator does not model {mode}; use a real device"
        )
    assert unavailable_for_cell(mps, "cpu", [0]) is None


def inside(*priorities: tuple[int, int], maps: Sequence[str] = ()) -> dict[str, InsideEvidence]:
    """Tenants of one stream each: priority asked for, and the device's own."""
    return {
        f"t{number}": InsideEvidence(list(maps), [seen], [asked])
        for number, (asked, seen) in enumerate(priorities)
    }


def test_tenants_of_one_process_or_several_are_proven() -> None:
    assert NATIVE.placements == {"processes", "threads"}
    assert STREAM_PRIORITY.placements == {"threads"}
    assert NATIVE.environment(CELL) == STREAM_PRIORITY.environment(CELL) == {}
    one, several = {"t0": 1, "t1": 1}, {"t0": 1, "t1": 2}
    proof = NATIVE.proof(several, inside((0, 0), (0, 0), maps=["/lib/libcuda.so.1"]))
    assert proof == Proof("native", "priority 0 read back from 2 streams", (0, 0))
    assert STREAM_PRIORITY.proof(one, inside((0, 0), (5, -5))).device_priorities == (0, -5)
    shim: dict[str, Any] = {"maps": ["/x/libshimcuda.so"]}
    for mode, pids, found, said in (
        (NATIVE, one, inside((0, 0), (0, -1)), "should share one priority"),
        (NATIVE, one, inside((0, 0), **shim), r"t0 has /x/libshimcuda\.so mapped, so XSched"),
        (STREAM_PRIORITY, one, inside((0, 0), (5, -5), **shim), "choose the scheduler xsched"),
        (STREAM_PRIORITY, one, inside((0, 0), (5, 0)), "streams should report lower numbers"),
        (STREAM_PRIORITY, several, inside((0, 0), (5, -5)), "several processes"),
    ):
        with pytest.raises(NotProven, match=said):
            mode.proof(pids, found)


@pytest.mark.parametrize("mode", [NATIVE, STREAM_PRIORITY])
def test_a_client_of_the_users_mps_is_named_and_no_tenant_may_be_one(mode: Scheduler) -> None:
    client = InsideEvidence([], [0, -(mode is STREAM_PRIORITY)], [0, 5], mps_client=True)
    proof = mode.proof({CELL.name: 1}, {CELL.name: client})
    assert proof.evidence.endswith(f"; {MPS_CLIENT}")
    for told in (False, None):
        alone = mode.proof({CELL.name: 1}, {CELL.name: replace(client, mps_client=told)})
        assert MPS_CLIENT not in alone.evidence
    tenants = {"high": replace(client, mps_client=False), "low": client}
    with pytest.raises(NotProven, match=r"has low among its clients.*echo quit"):
        mode.proof({"high": 1, "low": 1}, tenants)
