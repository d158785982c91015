"""The scheduler modes: what they ask for, and that no mode is taken for active without proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue import options
from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.schedulers.native import Native
from pytest_hwqueue.schedulers.protocol import NotProven, Proof
from pytest_hwqueue.schedulers.registry import SCHEDULERS, open_scheduler
from pytest_hwqueue.schedulers.stream_priority import StreamPriority


class Reports:
    """Streams that report these priorities, in a device's numbers: lower is more urgent."""

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
    assert Native().priorities(urgency) == [0] * len(urgency)
    assert Native().unavailable("cpu", urgency) is None
    assert Native().unavailable("cuda", urgency) is None


@settings(deadline=None)
@given(st.lists(st.integers(-5, 0), min_size=1, max_size=8))
def test_native_is_proven_by_one_priority_only(seen: list[int]) -> None:
    urgency = [0] * len(seen)
    if len(set(seen)) == 1:
        proof = Native().proof(reports(*seen), urgency)
        assert (proof.mode, proof.device_priorities) == ("native", tuple(seen))
        assert str(seen[0]) in proof.evidence
    else:
        with pytest.raises(NotProven) as refused:
            Native().proof(reports(*seen), urgency)
        assert str(seen) in str(refused.value)


@settings(deadline=None)
@given(LEVELS)
def test_stream_priority_asks_for_what_the_work_deserves(urgency: list[int]) -> None:
    assert StreamPriority().priorities(urgency) == urgency


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
        proof = StreamPriority().proof(reports(*seen), urgency)
        assert proof == Proof("stream-priority", f"priorities read back: {seen}", tuple(seen))
    else:
        with pytest.raises(NotProven) as refused:
            StreamPriority().proof(reports(*seen), urgency)
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
        StreamPriority().proof(reports(*seen), [0, 0, 1, 1])


def test_stream_priority_needs_an_accelerator() -> None:
    reason = StreamPriority().unavailable("cpu", [0, 1])
    assert reason is not None
    assert "accelerator" in reason
    for kind in ("cuda", "hip"):
        assert StreamPriority().unavailable(kind, [0, 1]) is None


@pytest.mark.parametrize("urgency", [[0], [0, 0, 0], [1, 1]])
def test_stream_priority_that_would_change_nothing_says_so(urgency: list[int]) -> None:
    reason = StreamPriority().unavailable("cuda", urgency)
    assert reason is not None
    assert "would change nothing" in reason


def test_modes_are_those_of_the_command_line() -> None:
    assert tuple(SCHEDULERS) == options.SCHEDULERS
    for mode in SCHEDULERS:
        assert open_scheduler(mode).mode == mode
    with pytest.raises(KeyError):
        open_scheduler("round-robin")
