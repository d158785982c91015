"""Masks of compute units, as AMD documents them (no AMD hardware), and streams that are lent."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.compute_units import (
    IdleStreams,
    Partition,
    create_masked_stream,
    group_of,
)
from pytest_hwqueue.devices.kinds import Runtime
from pytest_hwqueue.errors import DeviceError


class Hip:
    """HIP's runtime, which keeps the masks that streams were created with."""

    def __init__(self) -> None:
        self.masks: dict[int, list[int]] = {}

    def call(self, name: str, first: Any, words: Any, array: Any) -> None:
        if name == "ExtStreamCreateWithCUMask":
            handle = 100 + len(self.masks)
            self.masks[handle] = list(array)
            assert len(array) == words.value
            first._obj.value = handle
        else:
            assert name == "ExtStreamGetCUMask"
            for index, word in enumerate(self.masks[first.value]):
                array[index] = word


def hip() -> Runtime:
    return cast(Runtime, Hip())


@given(split=st.lists(st.integers(1, 40), min_size=1, max_size=6), left=st.integers(1, 100))
def test_groups_are_disjoint_and_cover_the_gpu(split: list[int], left: int) -> None:
    runtime, units = hip(), sum(split) + left
    groups = [
        group_of(runtime, create_masked_stream(runtime, Partition(tuple(split), group), units))
        for group in range(len(split) + 1)
    ]
    assert [each.size for each in groups] == [*split, left]
    assert [number for each in groups for number in each.numbers] == list(range(units))


def test_too_few_units_are_refused() -> None:
    with pytest.raises(DeviceError, match="312 compute units asked for, and the GPU has 304"):
        create_masked_stream(hip(), Partition((312,), 0), 304)
    with pytest.raises(DeviceError, match="the GPU has 304, which leaves none for the others"):
        create_masked_stream(hip(), Partition((304,), 1), 304)


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
    numbers = [2, 1]

    def create(priority: int) -> int:
        if not numbers:
            raise DeviceError("out of streams")
        return numbers.pop()

    streams = IdleStreams(create)
    with pytest.raises(DeviceError, match="out of streams"):
        streams.take([0, 0, 0])
    assert streams.take([0, 0]) == [1, 2]
