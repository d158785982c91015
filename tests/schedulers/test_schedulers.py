"""The scheduler modes: what they ask for, and that no mode is taken for active without proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.errors import BadScheduler, NotProven
from pytest_hwqueue.schedulers.declaration import BUILT_IN
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import (
    CELL,
    Proof,
    SchedulerPaths,
    needs_environment,
    open_scheduler,
    prove_cell,
    tenant_requests,
    unavailable_for_cell,
    unavailable_for_process,
)

NATIVE, STREAM_PRIORITY = open_scheduler("native"), open_scheduler("stream-priority")


class Reports:
    """Streams that report these priorities, in a device's numbers: lower is more urgent."""

    streams = ()

    def __init__(self, priorities: Sequence[int]) -> None:
        self._priorities = list(priorities)

    def device_priorities(self) -> list[int]:
        return list(self._priorities)


def reports(*priorities: int) -> StreamPool:
    return cast(StreamPool, Reports(priorities))


LEVELS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@settings(deadline=None)
@given(LEVELS)
def test_native_asks_for_one_priority(urgency: list[int]) -> None:
    assert NATIVE.priorities(urgency) == [0] * len(urgency)
    assert unavailable_for_cell(NATIVE, "cpu", urgency) is None
    assert unavailable_for_cell(NATIVE, "cuda", urgency) is None


@settings(deadline=None)
@given(st.lists(st.integers(-5, 0), min_size=1, max_size=8))
def test_native_is_proven_by_one_priority_only(seen: list[int]) -> None:
    urgency = [0] * len(seen)
    if len(set(seen)) == 1:
        proof = prove_cell(NATIVE, reports(*seen), urgency)
        assert (proof.mode, proof.device_priorities) == ("native", tuple(seen))
        assert str(seen[0]) in proof.evidence
    else:
        with pytest.raises(NotProven) as refused:
            prove_cell(NATIVE, reports(*seen), urgency)
        assert str(seen) in str(refused.value)


@settings(deadline=None)
@given(LEVELS)
def test_stream_priority_asks_for_what_the_work_deserves(urgency: list[int]) -> None:
    assert STREAM_PRIORITY.priorities(urgency) == urgency


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 0)), min_size=2, max_size=8))
def test_stream_priority_is_proven_by_the_order_of_all_streams(
    streams: list[tuple[int, int]],
) -> None:
    urgency, seen = [level for level, _ in streams], [number for _, number in streams]
    ordered = all(
        mine < other
        for level, mine in streams
        for other_level, other in streams
        if level > other_level
    )
    if ordered:
        proof = prove_cell(STREAM_PRIORITY, reports(*seen), urgency)
        assert proof == Proof("stream-priority", f"priorities read back: {seen}", tuple(seen))
    else:
        with pytest.raises(NotProven) as refused:
            prove_cell(STREAM_PRIORITY, reports(*seen), urgency)
        assert str(seen) in str(refused.value)
        assert str(urgency) in str(refused.value)


@pytest.mark.parametrize(
    "seen",
    [
        (0, 0, 0, 0),  # a runtime that ignores priorities
        (0, -1, 0, 0),  # one stream did not get its own
        (-1, -1, 0, 0),  # the wrong way round
        (-1, -1, -1, -1),
    ],
)
def test_stream_priority_is_not_proven_by_streams_that_are_not_lower(seen: Sequence[int]) -> None:
    with pytest.raises(NotProven, match="urgent streams should report lower numbers"):
        prove_cell(STREAM_PRIORITY, reports(*seen), [0, 0, 1, 1])


def test_stream_priority_needs_an_accelerator() -> None:
    reason = unavailable_for_cell(STREAM_PRIORITY, "cpu", [0, 1])
    assert reason is not None
    assert "accelerator" in reason
    for kind in ("cuda", "hip"):
        assert unavailable_for_cell(STREAM_PRIORITY, kind, [0, 1]) is None


@pytest.mark.parametrize("urgency", [[0], [0, 0, 0], [1, 1]])
def test_stream_priority_that_would_change_nothing_says_so(urgency: list[int]) -> None:
    reason = unavailable_for_cell(STREAM_PRIORITY, "cuda", urgency)
    assert reason is not None
    assert "would change nothing" in reason


def test_devices_that_packages_add_are_served_by_what_they_can_do() -> None:
    differ = tenant_requests([("a", 0, None), ("b", 1, None)])
    served = {each.name: each.serves("npu") for each in BUILT_IN}
    # Nothing is known of it: an accelerator, on which NVIDIA's MPS does not run, not to be split.
    assert [name for name, serves in served.items() if not serves] == [
        "mps", "mps-priority", "mps-partition", "green-context",
    ]  # fmt: skip
    assert NATIVE.unavailable("npu", differ) is None
    assert "on npu there is no MPS" in (open_scheduler("mps").unavailable("npu", differ) or "")


def test_every_mode_opens(tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text("proof: {maps: any}")
    for declared in BUILT_IN:
        text = "preload:any" if declared.name == "preload" else declared.name
        scheduler = open_scheduler(text, SchedulerPaths(preloads=(tmp_path,)))
        assert scheduler.mode == text
        assert scheduler.priorities([0, 1, 0]) == (
            [0, 1, 0] if text == "stream-priority" else [0] * 3
        )
    with pytest.raises(BadScheduler, match="no scheduler mode 'round-robin'"):
        open_scheduler("round-robin")


def test_which_modes_need_an_environment() -> None:
    named = {each.name for each in BUILT_IN if not needs_environment(each.name)}
    # Without its name, preload cannot be read; whoever opens it is told.
    assert named == {"native", "stream-priority", "green-context"}
    assert needs_environment("round-robin")


def test_cells_under_a_mode_with_an_environment_are_judged_before_their_process_starts() -> None:
    mps = open_scheduler("mps")
    assert "needs an NVIDIA GPU" in (unavailable_for_process(mps, "cpu") or "")
    assert "not for single tests" in (unavailable_for_process(mps, "sim") or "")
    assert unavailable_for_cell(mps, "cpu", [0]) is None


def inside(*priorities: tuple[int, int], maps: Sequence[str] = ()) -> dict[str, InsideEvidence]:
    """Tenants of one stream each: priority asked for, and the device's own."""
    return {
        f"t{number}": InsideEvidence(list(maps), [seen], [asked])
        for number, (asked, seen) in enumerate(priorities)
    }


def test_native_tenants_are_proven_by_one_priority_and_no_interceptor() -> None:
    mode = open_scheduler("native")
    assert mode.placements == {"processes", "threads"}
    assert mode.environment(CELL) == {}
    assert mode.priorities([5]) == [0]
    proof = mode.proof({"t0": 1, "t1": 2}, inside((0, 0), (0, 0), maps=["/lib/libcuda.so.1"]))
    assert proof == Proof("native", "all 2 streams report priority 0", (0, 0))
    with pytest.raises(NotProven, match="should share one priority"):
        mode.proof({"t0": 1, "t1": 1}, inside((0, 0), (0, -1)))
    with pytest.raises(NotProven, match=r"tenant t0 has /x/libshimcuda\.so mapped; remove"):
        mode.proof({"t0": 1}, inside((0, 0), maps=["/x/libshimcuda.so"]))


def test_stream_priority_orders_tenants_of_one_process() -> None:
    mode = open_scheduler("stream-priority")
    assert mode.placements == {"threads"}
    assert mode.priorities([5]) == [5]
    one = {"t0": 1, "t1": 1}
    proof = mode.proof(one, inside((0, 0), (5, -5)))
    assert proof.device_priorities == (0, -5)
    with pytest.raises(NotProven, match="urgent streams should report lower numbers"):
        mode.proof(one, inside((0, 0), (5, 0)))
    with pytest.raises(NotProven, match="several processes"):
        mode.proof({"t0": 1, "t1": 2}, inside((0, 0), (5, -5)))


def test_stream_priority_of_tenants_needs_an_accelerator_and_a_difference() -> None:
    mode = open_scheduler("stream-priority")
    differ = tenant_requests([("a", 0, None), ("b", 1, None)])
    assert mode.unavailable("cuda", differ) is None
    assert mode.unavailable("sim", differ) is None
    assert "needs an accelerator" in (mode.unavailable("cpu", differ) or "")
    assert mode.unavailable("cuda", differ[:1]) is None
    equal = tenant_requests([("a", 1, None), ("b", 1, None)])
    assert "all tenants have priority 1" in (mode.unavailable("cuda", equal) or "")


def test_modes_without_services_start_and_write_nothing(tmp_path: Path) -> None:
    for text in ("native", "stream-priority"):
        mode = open_scheduler(text)
        with mode.services(tmp_path / "logs"):
            mode.check()
            mode.observe({"t0": 1})
    assert not (tmp_path / "logs").exists()


def test_a_cell_under_a_mode_proves_its_own_process(tmp_path: Path) -> None:
    (tmp_path / "torch.yaml").write_text("proof: {maps: libtorch}")
    (tmp_path / "none.yaml").write_text("proof: {maps: libnothing}")
    paths = SchedulerPaths(preloads=(tmp_path,))
    with HostDevice().open_streams(2) as pool:
        proof = prove_cell(open_scheduler("preload:torch", paths), pool, [0, 0])
        assert (proof.mode, proof.device_priorities) == ("preload:torch", (0, 0))
        with pytest.raises(NotProven, match=rf"tenant cell \(process {os.getpid()}\)"):
            prove_cell(open_scheduler("preload:none", paths), pool, [0, 0])


def test_a_cell_whose_process_was_not_started_under_the_mode_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "HWQ_XSERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with HostDevice().open_streams(1) as pool:
        for text in ("mps", "xsched"):
            with pytest.raises(NotProven, match="was not started under"):
                prove_cell(open_scheduler(text, SchedulerPaths(tmp_path)), pool, [0])
