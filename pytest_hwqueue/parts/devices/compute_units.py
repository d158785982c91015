"""Parts of a device: compute units, partitions of them, streams that idle.

Masks of compute units are written against the HIP API reference ("hipExtStreamCreateWithCUMask",
"hipExtStreamGetCUMask"); not run on AMD hardware.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, cast

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.kinds import Runtime
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

if TYPE_CHECKING:
    from typing_extensions import Self


class Partition(NamedTuple):
    """Where a stream's kernels run: one group of a device that is split into disjoint groups.

    Attributes:
        split: multiprocessors (AMD: compute units) of each group; what is left is the last group.
        group: index of the stream's own; ``len(split)`` is what is left.
        queues: streams at once for which each group has hardware queues of its own, as far as
            there are; 0 for the driver's own number, None where all groups share all queues.

    """

    split: tuple[int, ...]
    group: int
    queues: int | None = None

    def numbers(self, units: int) -> range:
        """Return those of its group: groups follow one another in the order of the numbers."""
        begin = sum(self.split[: self.group])
        rest = self.group == len(self.split)
        return range(begin, units if rest else begin + self.split[self.group])


class GroupEvidence(NamedTuple):
    """What a device shows of the group that one stream is in.

    Attributes:
        size: how many multiprocessors the device says that the stream has; 0 if it is in no group.
        numbers: of those that it runs on, ascending: as its kernels report, or as its mask says.
        queues: streams at once for which its group is given hardware queues of its own, as the
            device says; None if it shares them, or this was not asked.

    """

    size: int
    numbers: list[int]
    queues: int | None = None


class PartitionedPool(StreamPool, Protocol):
    """A pool whose streams are in groups."""

    def groups(self, *, replayed: bool) -> list[GroupEvidence]:
        """Find out where each stream's kernels run; ``replayed`` if launched by a graph.

        Raises:
            DeviceError: if the device does not tell.

        """

    def __enter__(self) -> Self: ...


class PartitionedDevice(Device, Protocol):
    """A device whose `Capabilities.partitions` is set."""

    def open_partitioned(
        self,
        partitions: Sequence[Partition],
        priorities: Sequence[int],
        *,
        gradients: bool = False,
    ) -> PartitionedPool:
        """Create a stream for each partition; all have the same split.

        Raises:
            DeviceError: if the device cannot be split so, with what it would give.

        """


def open_pool(
    device: Device,
    priorities: Sequence[int],
    partitions: Sequence[Partition] | None,
    *,
    gradients: bool,
) -> StreamPool:
    """Create a stream for each priority, in groups of the multiprocessors if ``partitions``."""
    if partitions is None:
        return device.open_streams(len(priorities), priorities, gradients=gradients)
    splits = cast("PartitionedDevice", device)
    return splits.open_partitioned(partitions, priorities, gradients=gradients)


_BITS = 32
# As many as a mask may have; a word beyond the GPU's units is 0.
_MOST_UNITS = 1024


def create_masked_stream(runtime: Runtime, partition: Partition, units: int) -> int:
    """Create a stream on its group of the compute units; return its handle.

    HIP has no call that also takes a priority or the flag for non-blocking: such a stream has
    normal priority, and waits for work on the default stream.

    Args:
        runtime: HIP's.
        partition: which of them.
        units: how many compute units the GPU has.

    Raises:
        DeviceError: if there are too few.

    """
    wanted, numbers = sum(partition.split), partition.numbers(units)
    if wanted > units or not numbers:
        raise DeviceError(
            f"{wanted} compute units asked for, and the GPU has {units}"
            + (", which leaves none for the others" if wanted == units else "")
        )
    mask = (1 << numbers.stop) - (1 << numbers.start)
    words = -(-units // _BITS)
    array = (ctypes.c_uint32 * words)(
        *((mask >> (_BITS * word)) & (2**_BITS - 1) for word in range(words))
    )
    handle = ctypes.c_void_p()
    runtime.call("ExtStreamCreateWithCUMask", ctypes.byref(handle), ctypes.c_uint32(words), array)
    if not handle.value:
        raise DeviceError("hipExtStreamCreateWithCUMask returned no stream")
    return handle.value


def group_of(runtime: Runtime, handle: int) -> GroupEvidence:
    """Read a stream's mask back: the numbers of the units that it may use."""
    words = _MOST_UNITS // _BITS
    array = (ctypes.c_uint32 * words)()
    runtime.call("ExtStreamGetCUMask", ctypes.c_void_p(handle), ctypes.c_uint32(words), array)
    numbers = [bit for bit in range(_MOST_UNITS) if array[bit // _BITS] >> (bit % _BITS) & 1]
    return GroupEvidence(len(numbers), numbers)


Kind = TypeVar("Kind", bound=Hashable)


class IdleStreams(Generic[Kind]):
    """The streams of one device that no pool is using.

    None is ever destroyed. When page-locked memory is freed, torch's allocator records an event on
    every stream that copied from it, possibly long after the pool's end; on a destroyed stream that
    crashes the process (seen on an H200 with torch 2.11; pytorch/pytorch#66936 is the counterpart
    for device memory).

    Args:
        create: creates a stream of a kind (a priority, say) and returns its handle.

    """

    def __init__(self, create: Callable[[Kind], int]) -> None:
        self._create = create
        self._idle: dict[Kind, list[int]] = {}
        # Tenants that are threads of one process open their pools at once.
        self._lock = threading.Lock()

    def take(self, kinds: Sequence[Kind]) -> list[int]:
        """Return one stream of each kind, creating missing ones.

        Successive pools with the same request get the same streams in the same order.
        """
        taken: list[int] = []
        with self._lock:
            try:
                for kind in kinds:
                    idle = self._idle.get(kind)
                    taken.append(idle.pop(0) if idle else self._create(kind))
            except BaseException:
                self._put_back(kinds, taken)
                raise
        return taken

    def give_back(self, kinds: Sequence[Kind], handles: Sequence[int]) -> None:
        """Take streams back from a pool; they must be idle."""
        with self._lock:
            self._put_back(kinds, handles)

    def _put_back(self, kinds: Sequence[Kind], handles: Sequence[int]) -> None:
        for kind, handle in zip(reversed(kinds[: len(handles)]), reversed(handles), strict=True):
            self._idle.setdefault(kind, []).insert(0, handle)
