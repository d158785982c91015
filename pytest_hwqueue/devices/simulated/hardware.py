"""What the event-driven model is given of a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """What the model is given; times in ns.

    Attributes:
        slots: blocks of one slot that all multiprocessors hold together.
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
