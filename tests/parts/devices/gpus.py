"""Stand-ins for several GPUs: torch.cuda's current device, and the runtime that goes by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_hwqueue.parts.devices import kinds
from pytest_hwqueue.parts.devices.accelerator import Accelerator


class Gpus(threading.local):
    """A process with several GPUs. Which one is current belongs to a thread, and is the first.

    Attributes:
        current: of this thread.
        devices: of each stream, by its handle.
        tells: functions that runtime and driver have to tell a stream's device.
        available: whether torch can use them.
        making_on: where streams are made, whichever is current; None for there.
        settled: of each device that has settled, how many streams there were before.
        query: whether a stream is idle.
        graph: that is captured.
        ranges: of a profiler's, begun and ended.

    """

    current = 0

    def __init__(self, count: int, devices: dict[int, int], tells: set[str]) -> None:
        self.count = count
        self.devices = devices
        self.tells = tells
        self.available = True
        self.making_on: int | None = None
        self.settled: list[int] = []
        self.query: Callable[[], bool] = lambda: True
        self.graph = SimpleNamespace()
        self.ranges: list[tuple[str, str]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let torch and the runtime be these GPUs'."""
        replaced: dict[str, Any] = {
            "init": lambda: None, "synchronize": lambda *_: None, "set_device": self.set_device,
            "current_device": lambda: self.current, "device_count": lambda: self.count,
            "device": self.device, "get_device_properties": lambda index: SimpleNamespace(),
            "set_stream": lambda stream: self.set_device(stream.device_index),
            "ExternalStream": lambda handle, device: SimpleNamespace(
                device_index=device.index, query=self.query
            ),
            "current_stream": lambda index: SimpleNamespace(device_index=index),
            "Event": SimpleNamespace, "CUDAGraph": lambda: self.graph,
            "is_available": lambda: self.available, "nvtx": SimpleNamespace(range=self.range),
        }  # fmt: skip
        for name, stand_in in replaced.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        # It launches kernels; what is of interest here is on which streams of which device.
        monkeypatch.setattr(
            Accelerator, "_settle", lambda _: self.settled.append(len(self.devices))
        )
        monkeypatch.setattr(kinds, "open_library", lambda _: Library(self))

    def set_device(self, device: Any) -> None:
        self.current = getattr(device, "index", device)

    @contextmanager
    def device(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.ranges.append(("begin", name))
        yield
        self.ranges.append(("end", name))


class Library:
    """The runtime's library and the driver's, which has a stack of contexts."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._contexts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name.removeprefix("cuda").removeprefix("hip") == "StreamGetDevice":
            if name not in self._gpus.tells:
                raise AttributeError(name)
            return self._tell
        found = getattr(type(self), "_" + name.removeprefix("cuda").removeprefix("hip"), None)
        if found is None:
            raise AttributeError(name)
        return found.__get__(self)

    def _DeviceGetStreamPriorityRange(self, least: Any, greatest: Any) -> int:
        least._obj.value, greatest._obj.value = 0, -5
        return 0

    def _StreamCreateWithPriority(self, handle: Any, flags: Any, priority: Any) -> int:
        handle._obj.value = 100 + len(self._gpus.devices)
        where = self._gpus.making_on
        self._gpus.devices[handle._obj.value] = self._gpus.current if where is None else where
        return 0

    def _tell(self, handle: Any, device: Any) -> int:
        device._obj.value = self._gpus.devices[handle.value]
        return 0

    # A context's handle here is one more than its device.
    def _cuStreamGetCtx(self, handle: Any, context: Any) -> int:
        context._obj.value = self._gpus.devices[handle.value] + 1
        return 0

    def _cuCtxPushCurrent_v2(self, context: Any) -> int:
        self._contexts.append(context.value)
        return 0

    def _cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = self._contexts[-1] - 1
        return 0

    def _cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self._contexts.pop()
        return 0
