"""What the event-driven model is given of a device."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.devices.partitions import Partition


@dataclass(frozen=True)
class Hardware:
    """What the model is given; times in ns.

    Attributes:
        slots: blocks of one slot that all multiprocessors hold together.
        slots_per_multiprocessor: how many of them each holds.
        connections: hardware queues per process and priority; streams beyond share them in turn.
        concurrent_kernels: kernels the device holds at once, from being started to having ended.
        start_ns: from ready to running.
        queue_switch_ns: added where the front end last served another queue.
        front_end_ns: time between two starts of kernels launched into streams.
        graph_start_ns: time between two starts of graph nodes.
        graph_gap_ns: from a graph node's being ready to its running.
        copy_bytes_per_s: bandwidth of each copy engine.
        time_slice_ns: how long one process has the device while others want it.
        process_switch_ns: how long nothing runs when the device goes to another process.
        share_processes: all processes' kernels share the multiprocessors, as under MPS.

    """

    slots: int
    slots_per_multiprocessor: int = 1
    connections: int = 8
    concurrent_kernels: int = 128
    start_ns: int = 0
    queue_switch_ns: int = 0
    front_end_ns: int = 0
    graph_start_ns: int = 0
    graph_gap_ns: int = 0
    copy_bytes_per_s: tuple[float, ...] = ()
    time_slice_ns: int = 2_000_000
    process_switch_ns: int = 0
    share_processes: bool = False

    def slots_of(self, partition: Partition | None) -> int:
        """Return the slots of a group's multiprocessors; all if there are no groups."""
        if partition is None:
            return self.slots
        slots = [count * self.slots_per_multiprocessor for count in partition.split]
        return [*slots, self.slots - sum(slots)][partition.group]


@dataclass(frozen=True)
class RequestHost:
    """How hosts of tenants behave; times in ns. By default all requests cost their host the same.

    Attributes:
        cold_factor: on the host work of a request before which its process rested.
        cold_after_ns: for how long it must have launched nothing to count as rested.
        spread: of the lognormal factor on each request's host work.
        handover_ns: from the end of a thread's turn to the begin of another thread's.

    """

    cold_factor: float = 1.0
    cold_after_ns: int = 0
    spread: float = 0.0
    handover_ns: int = 0
