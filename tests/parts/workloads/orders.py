"""Finds races without waiting for one to happen: which launches meet in memory, in no order?

Each launch's operations are noted with the memory they read and write, and events give every launch
a vector clock (Lamport 1978; Fidge 1988), so neither values nor times matter. Tensors must be in
the host's memory, and what bypasses torch's operations is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.workload import Setup, Workload

from .perturbed import StreamBeside, group_for


def unordered(
    workload: Workload,
    streams: int,
    *,
    seed: int = 3,
    around: Callable[[Stream], Stream] = lambda stream: stream,
) -> list[str]:
    """Describe the races within two iterations back to back; none if all is ordered.

    Args:
        workload: not set up yet.
        streams: how many.
        seed: of the workload.
        around: wrapped around each stream; a test plants its race there.

    """
    return two_iterations(workload, streams, seed=seed, around=around).races()


def two_iterations(
    workload: Workload,
    streams: int,
    *,
    seed: int = 3,
    around: Callable[[Stream], Stream] = lambda stream: stream,
) -> AccessLog:
    """Run two iterations back to back; return what they did. Arguments as of `unordered`."""
    device = HostDevice()
    with (
        group_for(workload, device),
        device.open_streams(streams, gradients=workload.gradients) as pool,
    ):
        torch.manual_seed(seed)
        workload.setup(Setup(device, streams, seed))
        # What is made once, in the first iteration, is made before looking.
        workload.iterate(pool.streams)
        pool.synchronize()
        log = AccessLog()
        noted = [around(NotedStream(stream, log)) for stream in pool.streams]
        for _ in range(2):
            workload.iterate(noted)
        pool.synchronize()
        return log


# Storage, offset, sizes, strides.
Place = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass(eq=False)
class Launch:
    """One launch: what ended before it, and the tensors it read and wrote.

    Attributes:
        stream: its index.
        number: on its stream, from 1.
        name: of the function.
        before: by stream, the number of the last launch that is sure to have ended before; set by
            `AccessLog.order`.
        made: storages that it allocated.

    """

    stream: int
    number: int
    name: str
    before: Mapping[int, int] = field(default_factory=dict)
    # By place in memory; holding the tensors keeps their memory from being used for others.
    read: dict[Place, torch.Tensor] = field(default_factory=dict)
    written: dict[Place, torch.Tensor] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.name} on stream {self.stream}"

    def is_before(self, other: Launch) -> bool:
        """Whether this launch is sure to have ended when the other starts."""
        return other.before.get(self.stream, 0) >= self.number


class NotedStream(StreamBeside):
    """Notes what is launched, and in which order it stands; lets one launch run at a time.

    The order of enqueueing is one that every event allows, so no race happens while looking.
    """

    def __init__(self, stream: Stream, log: AccessLog) -> None:
        super().__init__(stream)
        self._log = log

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        launch = self._log.launched(self.index, getattr(function, "__qualname__", repr(function)))

        def noted() -> None:
            with _Noting(launch):
                function(*arguments)

        self.inner.launch(noted, tag=tag)
        self.inner.synchronize()

    def record(self, event: Event | None = None) -> Event:
        recorded = self.inner.record(event)
        self._log.recorded(self.index, recorded)
        return recorded

    def wait(self, event: Event) -> None:
        self.inner.wait(event)
        self._log.waited(self.index, event)


class AccessLog:
    """What all streams did, in the order of enqueueing; vector clocks say what that orders.

    Attributes:
        launches: of all streams.
        waits: how many there were.

    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.waits = 0
        # With the events themselves, so that no other one gets the id of one that is gone.
        self._steps: list[tuple[str, int, Any]] = []
        self._shared: dict[tuple[_Touch, _Touch], bool] = {}

    def launched(self, stream: int, name: str) -> Launch:
        """Note a launch."""
        number = 1 + sum(launch.stream == stream for launch in self.launches)
        launch = Launch(stream, number, name)
        self._steps.append(("launch", stream, launch))
        self.launches.append(launch)
        return launch

    def recorded(self, stream: int, event: Event) -> None:
        """Note an event."""
        self._steps.append(("record", stream, event))

    def waited(self, stream: int, event: Event) -> None:
        """Note a wait; an event recorded before the log began has passed."""
        self._steps.append(("wait", stream, event))
        self.waits += 1

    def order(self, left_out: Set[int] = frozenset()) -> None:
        """Give every launch what is before it, without the waits left out, by number."""
        clocks: dict[int, dict[int, int]] = {}
        passed: dict[int, dict[int, int]] = {}
        wait = 0
        for what, stream, of in self._steps:
            clock = clocks.setdefault(stream, {})
            if what == "launch":
                of.before = dict(clock)
                clock[stream] = of.number
            elif what == "record":
                passed[id(of)] = dict(clock)
            else:
                if wait not in left_out:
                    for other, number in passed.get(id(of), {}).items():
                        clock[other] = max(number, clock.get(other, 0))
                wait += 1

    def races(self, left_out: Set[int] = frozenset()) -> list[str]:
        """Describe launches that meet in memory and must not, each pair of functions once."""
        self.order(left_out)
        texts: dict[tuple[str, str], str] = {}
        by_storage = self._by_storage
        for touches in by_storage.values():
            for one, other in combinations(touches, 2):
                key = (one.launch.name, other.launch.name)
                if key not in texts and one.unordered_with(other) and self._share(one, other):
                    texts[key] = f"{one} what {other}, in no order"
        maker = {storage: launch for launch in self.launches for storage in launch.made}
        for storage, touches in by_storage.items():
            for touch in touches:
                made_by = maker.get(storage)
                if made_by is not None and made_by.stream != touch.launch.stream:
                    # An accelerator's allocator knows only the stream that memory was made on.
                    texts[made_by.name, touch.launch.name] = (
                        f"{touch} what {made_by} allocated: it may be given away before"
                    )
        return list(texts.values())

    def _share(self, one: _Touch, other: _Touch) -> bool:
        if (one, other) not in self._shared:
            bytes_of_both = _bytes_of(one.tensor), _bytes_of(other.tensor)
            self._shared[one, other] = bool(numpy.shares_memory(*bytes_of_both))
        return self._shared[one, other]

    @cached_property
    def _by_storage(self) -> dict[int, list[_Touch]]:
        found: dict[int, list[_Touch]] = {}
        for launch in self.launches:
            for writes, tensors in ((True, launch.written), (False, launch.read)):
                for place, tensor in tensors.items():
                    found.setdefault(place[0], []).append(_Touch(launch, writes, tensor))
        return found


@dataclass(frozen=True, eq=False)
class _Touch:
    launch: Launch
    writes: bool
    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"{self.launch} {'writes' if self.writes else 'reads'}"

    def unordered_with(self, other: _Touch) -> bool:
        one, two = self.launch, other.launch
        if one.stream == two.stream or not (self.writes or other.writes):
            return False
        return not (one.is_before(two) or two.is_before(one))


def _bytes_of(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """Return an array at the tensor's place in its storage, as if that began at byte 1.

    Nothing reads it: FSDP frees storages and makes them again, elsewhere.
    """
    size = tensor.element_size()
    steps = tuple(size * step for step in tensor.stride())
    place = {"data": (1 + size * tensor.storage_offset(), False), "strides": steps}
    described = {**place, "shape": tuple(tensor.size()), "typestr": f"|V{size}", "version": 3}
    return numpy.asarray(SimpleNamespace(__array_interface__=described))


class _Noting(TorchDispatchMode):
    """Notes what the operations of the current thread read and write, for one launch."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launch = launch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        if func.is_view:
            return result
        launch = self._launch
        given: set[int] = set()
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else options.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if func.namespace == "c10d":
                # Its schemas do not say what a collective writes.
                written = argument.name == "tensors" or argument.name.startswith("output")
            for tensor in _tensors(value):
                place = _place(tensor)
                given.add(place[0])
                (launch.written if written else launch.read)[place] = tensor
        for tensor in _tensors(result):
            place = _place(tensor)
            if place[0] not in given:
                launch.made.add(place[0])
                launch.written[place] = tensor
        return result


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> Place:
    storage: int = tensor.untyped_storage()._cdata
    return storage, int(tensor.storage_offset()), tuple(tensor.size()), tuple(tensor.stride())
