"""Masks of compute units as AMD documents them, and streams that are lent, without a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices import accelerator
from pytest_hwqueue.parts.devices.accelerator import Accelerator, AcceleratorPool
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


def pool_with(idle: IdleStreams[Any], query: Callable[[], bool]) -> AcceleratorPool:
    pool: Any = AcceleratorPool.__new__(AcceleratorPool)
    pool.device = SimpleNamespace(index=0)
    pool._idle, pool._kinds, pool._handles = idle, [(0, None)], idle.take([(0, None)])
    pool.streams = (SimpleNamespace(stream=SimpleNamespace(query=query, device_index=0)),)
    pool._gradients = nullcontext()
    found: AcceleratorPool = pool
    return found


@pytest.fixture
def torch_without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(1, {}, set()).install(monkeypatch)
    monkeypatch.setattr(accelerator, "_DRAINING_S", 0.05)


def broken() -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.usefixtures("torch_without_device")
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
    error: type[BaseException], query: Callable[[], bool], again: bool
) -> None:
    handles = count(1)
    idle: IdleStreams[Any] = IdleStreams(lambda _: next(handles))
    pool = pool_with(idle, query)
    with pytest.raises(error), pool:
        raise error
    assert idle.take([(0, None)]) == ([1] if again else [2])


@pytest.mark.usefixtures("torch_without_device")
def test_the_end_of_a_capture_does_not_hide_what_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = SimpleNamespace(capture_begin=lambda **_: None, capture_end=broken)

    def enqueue() -> None:
        raise ValueError("the user's own")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    pool = pool_with(IdleStreams(lambda _: 1), lambda: True)
    with pytest.raises(ValueError, match="the user's own"):
        pool.capture(0, enqueue)


def test_a_process_settles_once_before_its_first_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Accelerator.__new__(Accelerator)
    made.index, done = 0, []
    made._create_stream, made._runtime = lambda _: None, None
    Gpus(1, {}, set()).install(monkeypatch)
    made._settle = lambda: done.append("settled")
    monkeypatch.setattr(accelerator, "AcceleratorPool", lambda *given: done.append("opened"))
    made.open_streams(1)
    made.open_streams(2)
    assert done == ["settled", "opened", "opened"]
