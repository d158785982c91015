"""What the modelled device is given to do: plain data, times in whole virtual nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class KernelWork:
    """One kernel.

    Attributes:
        duration_ns: how long it runs with the whole device to itself.
        blocks: number of its blocks.
        slots_per_block: how many of a multiprocessor's slots one block occupies.
        waves_at_most: upper bound on the number of waves its blocks run in; a kernel whose blocks
            stay and fetch their work themselves (a persistent one) has 1.
        name: for timelines.
        within: whether a library launches it within the operation of the kernel before it, at no
            cost of its own to the host.
        memory_bound: whether the memory's bandwidth sets its duration, so that fewer
            multiprocessors run it as fast.

    """

    duration_ns: int
    blocks: int = 1
    slots_per_block: int = 1
    waves_at_most: int | None = None
    name: str = "kernel"
    within: bool = False
    # Follows from the others: no part of what tells kernels apart (`torch_kernels`).
    memory_bound: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class CopyWork:
    """One copy by a copy engine, which serves one copy at a time."""

    size_bytes: int
    engine: int = 0
    name: str = "copy"


class Point:
    """One recording of an event: passed once, at a time; who waits for it is notified."""

    __slots__ = ("place", "waiters", "when_ns")

    def __init__(self) -> None:
        self.when_ns: int | None = None
        # Among the points of the iteration that made it (see `repeats`); -1 in no iteration.
        self.place = -1
        self.waiters: list[Callable[[], None]] = []

    def pass_at(self, when_ns: int) -> None:
        """Mark the point as passed and wake who waits."""
        self.when_ns = when_ns
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph: a kernel, a copy, or None for an event's recording.

    Attributes:
        work: what it does.
        after: indices of the nodes that must have ended before it starts.

    """

    work: KernelWork | CopyWork | None
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphWork:
    """Work captured once and launched as one command; nodes stand behind those they wait for."""

    nodes: tuple[GraphNode, ...]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that wait for it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for before in node.after:
                found[before].append(index)
        return tuple(tuple(indices) for indices in found)


Work = KernelWork | CopyWork | GraphWork
