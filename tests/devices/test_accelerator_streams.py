"""An accelerator's pool after errors, with torch's calls replaced: no device is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_hwqueue.devices import accelerator_streams
from pytest_hwqueue.devices.accelerator_streams import AcceleratorPool
from pytest_hwqueue.devices.compute_units import IdleStreams


def pool_with(idle: IdleStreams[Any], query: Callable[[], bool]) -> AcceleratorPool:
    pool: Any = AcceleratorPool.__new__(AcceleratorPool)
    pool.device = SimpleNamespace(index=0)
    pool._idle, pool._kinds, pool._handles = idle, [(0, None)], idle.take([(0, None)])
    pool.streams = (SimpleNamespace(stream=SimpleNamespace(query=query)),)
    pool._gradients = nullcontext()
    found: AcceleratorPool = pool
    return found


@pytest.fixture(autouse=True)
def torch_without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("set_stream", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(accelerator_streams, "_DRAINING_S", 0.05)


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
    error: type[BaseException], query: Callable[[], bool], again: bool
) -> None:
    handles = count(1)
    idle: IdleStreams[Any] = IdleStreams(lambda _: next(handles))
    pool = pool_with(idle, query)
    with pytest.raises(error), pool:
        raise error
    assert idle.take([(0, None)]) == ([1] if again else [2])


def test_the_end_of_a_capture_does_not_hide_what_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = SimpleNamespace(capture_begin=lambda **_: None, capture_end=broken)

    def enqueue() -> None:
        raise ValueError("the user's own")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    pool = pool_with(IdleStreams(lambda _: 1), lambda: True)
    with pytest.raises(ValueError, match="the user's own"):
        pool.capture(0, enqueue)
