"""Streams that are lent: never one to two pools, and the same ones again."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.compute_units import IdleStreams
from pytest_hwqueue.errors import DeviceError

PRIORITIES = st.lists(st.integers(-1, 2), max_size=8)


@given(pools=st.lists(st.tuples(PRIORITIES, st.booleans()), max_size=12))
def test_no_stream_is_lent_twice_or_with_another_priority(
    pools: list[tuple[list[int], bool]],
) -> None:
    numbers = count(1)
    made: dict[int, int] = {}

    def create(priority: int) -> int:
        made[number := next(numbers)] = priority
        return number

    streams = IdleStreams(create)
    lent: set[int] = set()
    for priorities, closes in pools:
        taken = streams.take(priorities)
        assert [made[handle] for handle in taken] == priorities
        assert len(set(taken)) == len(taken)
        assert not lent & set(taken)
        if closes:
            streams.give_back(priorities, taken)
            assert streams.take(priorities) == taken
            streams.give_back(priorities, taken)
        else:
            lent |= set(taken)


def test_where_the_runtime_refuses_what_was_taken_is_there_again() -> None:
    numbers = iter([1, 2])

    def create(priority: int) -> int:
        try:
            return next(numbers)
        except StopIteration:
            raise DeviceError("out of streams") from None

    streams = IdleStreams(create)
    with pytest.raises(DeviceError, match="out of streams"):
        streams.take([0, 0, 0])
    assert streams.take([0, 0]) == [1, 2]
