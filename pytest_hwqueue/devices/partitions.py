"""Streams whose kernels run on some of a device's multiprocessors, which no other group uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from pytest_hwqueue.devices.protocol import Device, StreamPool

if TYPE_CHECKING:
    from typing_extensions import Self


class Partition(NamedTuple):
    """Where a stream's kernels run: one group of a device that is split into disjoint groups.

    Attributes:
        split: multiprocessors (AMD: compute units) of each group; what is left is the last group.
        group: index of the stream's own; ``len(split)`` is what is left.

    """

    split: tuple[int, ...]
    group: int


class GroupEvidence(NamedTuple):
    """What a device shows of the group that one stream is in.

    Attributes:
        size: how many multiprocessors the device says that the stream has; 0 if it is in no group.
        numbers: of those that it runs on, ascending: as its kernels report, or as its mask says.

    """

    size: int
    numbers: list[int]


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
