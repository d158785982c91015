"""Masks of compute units as AMD documents them, and streams that are lent, without a device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices import accelerator
from pytest_hwqueue.parts.devices.accelerator import Accelerator
from pytest_hwqueue.parts.devices.compute_units import (
    IdleStreams,
    Partition,
    create_masked_stream,
    group_of,
)
from pytest_hwqueue.parts.devices.kinds import Runtime

from .gpus import Gpus


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
def test_no_stream_is_lent_twice(pools: list[tuple[list[int], bool]]) -> None:
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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus(1, {}, set())
    made.install(monkeypatch)
    return made


def broken() -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("error", "query", "again"),
    [
        (ValueError, lambda: True, True),
        (ValueError, iter([False, False, True]).__next__, True),
        (ValueError, lambda: False, False),
        (ValueError, broken, False),
        (KeyboardInterrupt, lambda: True, False),
    ],
    ids=["idle", "draining", "hanging", "broken", "ending"],
)
def test_the_streams_of_a_failed_cell_are_the_next_ones(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, error: type[BaseException],
    query: Callable[[], bool], again: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(accelerator, "_DRAINING_S", 0.05)
    device, gpus.query = Accelerator(0, "cuda"), query
    with pytest.raises(error), device.open_streams(1) as pool:
        raise error
    with device.open_streams(1) as following:
        assert (following.streams[0].handle == pool.streams[0].handle) == again


def test_the_end_of_a_capture_does_not_hide_what_broke_it(gpus: Gpus) -> None:
    gpus.graph = SimpleNamespace(capture_begin=lambda **_: None, capture_end=broken)

    def enqueue() -> None:
        raise ValueError("the user's own")

    with (
        Accelerator(0, "cuda").open_streams(1) as pool,
        pytest.raises(ValueError, match="the user's own"),
    ):
        pool.capture(0, enqueue)


def test_a_device_settles_once_before_its_first_pool(gpus: Gpus) -> None:
    device = Accelerator(0, "cuda")
    for _ in range(2):
        with device.open_streams(1):
            assert gpus.settled == [0]
