"""Where simulated kernels run: the front end, multiprocessors, time slices.

Blocks are never preempted within a process. Freed slots go to the most urgent kernel that still has
blocks to start, and among equals to the earliest; only when all of its blocks have started does the
next one get the remaining slots. A block takes the same time whatever runs next to it.

Streams may be bound to groups of multiprocessors: each group has slots of its own. There a kernel
needs more waves of the same blocks, except that memory, which all groups share, serves a few
multiprocessors as fast as all.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from pytest_hwqueue.parts.devices.simulated.costs import KernelWork

# A multiprocessor draws at most this multiple of its share of the memory's bandwidth: assumed, from
# 64 bytes a clock between it and the L2 cache (132 at 1.98 GHz: 16.7 TB/s, against 4.8 TB/s).
_MOST_BANDWIDTH = 3

# When, what to call with the time and the argument, and the argument.
Schedule = Callable[[int, Callable[[int, Any], None], Any], None]


class RunningKernel:
    """A started kernel that has blocks to run."""

    __slots__ = (
        "block_ns", "groups", "item", "jumped", "pending", "rank", "running", "slots_per_block",
        "start_ns",
    )  # fmt: skip

    def __init__(
        self, work: KernelWork, rank: tuple[int, int], item: Any, slots: int, whole: int
    ) -> None:
        # Windows make a million of these: no calls of `max` and `min`.
        slots_per_block = work.slots_per_block
        at_once = slots // slots_per_block or 1
        waves = -(-work.blocks // at_once)
        blocks, duration_ns = work.blocks, work.duration_ns
        if slots < whole:
            duration_ns = round(duration_ns * _slowness(work, waves, slots, whole))
        if work.waves_at_most is not None and waves > work.waves_at_most:
            waves = work.waves_at_most
            blocks = at_once * waves
        self.pending = blocks
        self.block_ns = -(-duration_ns // waves) or 1
        self.slots_per_block = slots_per_block if slots_per_block < slots else slots
        self.rank = rank
        self.item = item
        self.start_ns = -1
        self.groups: list[_Group] = []
        # Blocks of all its groups.
        self.running = 0
        self.jumped = 0

    def __lt__(self, other: RunningKernel) -> bool:
        return self.rank < other.rank


def _slowness(work: KernelWork, waves: int, slots: int, whole: int) -> float:
    """Return how many times as long a kernel takes in a group as on the whole device."""
    slowness = waves / -(-work.blocks // max(1, whole // work.slots_per_block))
    if work.memory_bound:
        return min(slowness, max(1.0, whole / (_MOST_BANDWIDTH * slots)))
    return slowness


@dataclass(slots=True, eq=False)
class _Group:
    """Blocks of one kernel that started together and end together."""

    kernel: RunningKernel
    blocks: int
    boundary_ns: int
    token: int = 0


class Multiprocessors:
    """The slots that one process's kernels see (or all kernels, if processes share them).

    Args:
        slots: blocks of one slot that the device holds at once.
        schedule: puts a call into the engine's calendar.
        finished: receives each kernel whose last block has ended.

    """

    def __init__(
        self, slots: int, schedule: Schedule, finished: Callable[[int, RunningKernel], None]
    ) -> None:
        self.slots = slots
        self.active = True
        self.changed = False
        self._free = slots
        self._schedule = schedule
        self._finished = finished
        self._waiting: list[RunningKernel] = []
        self._groups: dict[_Group, None] = {}
        self._jumper: RunningKernel | None = None
        self._frozen_ns = 0

    def add(self, now_ns: int, kernel: RunningKernel) -> None:
        """Queue a kernel's blocks for slots, which `allocate` assigns."""
        insort(self._waiting, kernel)
        if self._jumper is not None and self._waiting[0] is kernel:
            self._land(now_ns)
        self.changed = True

    def allocate(self, now_ns: int) -> None:
        """Assign free slots, after everything else that happens at this instant."""
        self.changed = False
        if not self.active:
            return
        waiting = self._waiting
        while waiting and self._free:
            head = waiting[0]
            if head is self._jumper:
                break
            pending = head.pending
            if not pending:  # its last blocks were started by a jump
                del waiting[0]
                continue
            slots_per_block = head.slots_per_block
            blocks = self._free // slots_per_block
            if not blocks:
                break
            if blocks > pending:
                blocks = pending
            self._free -= blocks * slots_per_block
            head.pending = pending - blocks
            head.running += blocks
            if head.start_ns < 0:
                head.start_ns = now_ns
            boundary_ns = now_ns + head.block_ns
            group = _Group(head, blocks, boundary_ns, 1)
            head.groups.append(group)
            self._groups[group] = None
            # As `_arm` would: most calls of the calendar are made here.
            self._schedule(boundary_ns, self._ended, (group, 1))
            if blocks < pending:
                break
            del waiting[0]
        if waiting and self._jumper is None:
            self._jump(waiting[0])

    def freeze(self, now_ns: int) -> None:
        """Stop all blocks where they are: another process has the device."""
        self._land(now_ns)
        self.active = False
        self._frozen_ns = now_ns
        for group in self._groups:
            # Those that end at this very instant have ended.
            if group.boundary_ns > now_ns:
                group.token += 1

    def thaw(self, now_ns: int) -> None:
        """Resume all blocks from where they were stopped."""
        self.active = True
        for group in sorted(self._groups, key=lambda group: (group.boundary_ns, group.kernel.rank)):
            group.boundary_ns += now_ns - self._frozen_ns
            self._arm(group)
        self.changed = True

    def _arm(self, group: _Group) -> None:
        group.token += 1
        self._schedule(group.boundary_ns, self._ended, (group, group.token))

    def _ended(self, now_ns: int, argument: tuple[_Group, int]) -> None:
        group, token = argument
        if group.token != token:
            return
        kernel = group.kernel
        if self._jumper is not None:
            self._land(now_ns)
        blocks = group.blocks
        self._free += blocks * kernel.slots_per_block
        kernel.running -= blocks
        kernel.groups.remove(group)
        del self._groups[group]
        if self._waiting:
            self.changed = True
        if not kernel.pending and not kernel.groups:
            self._finished(now_ns, kernel)

    def _jump(self, kernel: RunningKernel) -> None:
        """Skip the waves in which the kernel only takes back the slots that it frees.

        A kernel of a thousand waves that none outranks costs two calendar entries, not a thousand.
        `_land` undoes the rest of the jump as soon as anything else happens.
        """
        if len(kernel.groups) < len(self._groups):
            # Others' blocks are soon to end, and would undo the jump.
            return
        at_once = kernel.running
        if not at_once or kernel.pending < at_once:
            return
        kernel.jumped = kernel.pending // at_once
        kernel.pending -= kernel.jumped * at_once
        for group in kernel.groups:
            group.boundary_ns += kernel.jumped * kernel.block_ns
            self._arm(group)
        self._jumper = kernel

    def _land(self, now_ns: int) -> None:
        kernel = self._jumper
        if kernel is None:
            return
        self._jumper = None
        for group in kernel.groups:
            undone = (group.boundary_ns - now_ns) // kernel.block_ns
            if undone > kernel.jumped:
                undone = kernel.jumped
            if undone > 0:
                group.boundary_ns -= undone * kernel.block_ns
                kernel.pending += undone * group.blocks
                self._arm(group)
        kernel.jumped = 0


class FrontEnd:
    """Serves ready work one by one, the most urgent first; ties go to the earlier one.

    Args:
        service_ns: time between two starts.
        start_ns: from being served to running.
        switch_ns: added if the last served work came from another queue.
        schedule: puts a call into the engine's calendar.
        started: receives each item when it may run.

    """

    def __init__(
        self,
        service_ns: int,
        start_ns: int,
        switch_ns: int,
        schedule: Schedule,
        started: Callable[[int, Any], None],
    ) -> None:
        self.waiting: list[tuple[tuple[int, int], int, Any]] = []
        self._service_ns = service_ns
        self._start_ns = start_ns
        self._switch_ns = switch_ns
        self._schedule = schedule
        self._started = started
        self._free_ns = 0
        self._wake_ns = -1
        self._last_queue = -1

    def offer(self, rank: tuple[int, int], queue: int, item: object) -> None:
        """Queue an item of a hardware queue for `serve`."""
        heappush(self.waiting, (rank, queue, item))

    def serve(self, now_ns: int, room: int) -> int:
        """Serve what can be served now, at most ``room`` items; return how many were served."""
        served = 0
        while self.waiting and served < room:
            if self._free_ns > now_ns:
                if self._wake_ns != self._free_ns:
                    self._wake_ns = self._free_ns
                    self._schedule(self._free_ns, _wake, None)
                break
            _, queue, item = heappop(self.waiting)
            served += 1
            same = self._last_queue in (queue, -1)
            start_ns = now_ns + self._start_ns + (0 if same else self._switch_ns)
            self._schedule(start_ns, self._started, item)
            self._free_ns = now_ns + self._service_ns
            self._last_queue = queue
        return served

    def rest(self, now_ns: int) -> tuple[int, int]:
        """Return what decides the next start if nothing waits: time until free, and queue."""
        return max(0, self._free_ns - now_ns), self._last_queue

    def resume(self, rest: tuple[int, int], now_ns: int) -> None:
        """Restore a state that `rest` has returned, at another time."""
        self._free_ns, self._last_queue = now_ns + rest[0], rest[1]
        self._wake_ns = -1


def _wake(now_ns: int, argument: None) -> None:
    """Schedule an instant, at which the engine serves the front ends anyway."""


class TimeSlices:
    """Gives the device to one process at a time, in turn, while several have work.

    A process with nothing to run gives up the device at once. While only one has work, its slices
    follow one another, and a second one that gets work waits for the end of the current slice.

    Args:
        slice_ns: length of a turn.
        switch_ns: how long nothing runs when the device goes to another process.
        schedule: puts a call into the engine's calendar.

    """

    def __init__(self, slice_ns: int, switch_ns: int, schedule: Schedule) -> None:
        self._slice_ns = slice_ns
        self._switch_ns = switch_ns
        self._schedule = schedule
        # Of each process, in the order of their turns.
        self._slots: dict[int, list[Multiprocessors]] = {}
        self._load: dict[int, int] = {}
        self._active = -1
        self._since_ns = 0
        self._token = 0
        self._ends = False

    def add(self, process: int, slots: Multiprocessors) -> None:
        """Register a process's slots; the first process has the device."""
        if not self._slots:
            self._active = process
        self._slots.setdefault(process, []).append(slots)
        self._load.setdefault(process, 0)
        slots.active = process == self._active

    def load(self, now_ns: int, process: int) -> None:
        """Note that a process has one more command issued."""
        self._load[process] += 1
        if process == self._active:
            return
        if not self._load[self._active]:
            self._give(now_ns, process)
        elif not self._ends:
            used_ns = now_ns - self._since_ns
            turns = max(1, -(-used_ns // self._slice_ns))
            self._end_at(self._since_ns + turns * self._slice_ns)

    def unload(self, now_ns: int, process: int) -> None:
        """Note that a command of a process has ended."""
        self._load[process] -= 1
        if process == self._active and not self._load[process] and len(self._slots) > 1:
            # Behind what else happens now: the next command may be issued at this very instant.
            self._schedule(now_ns, self._idle, self._token)

    def _idle(self, now_ns: int, token: int) -> None:
        if token == self._token and not self._load[self._active]:
            self._next(now_ns)

    def _end_at(self, when_ns: int) -> None:
        self._ends = True
        self._schedule(when_ns, self._slice_ended, self._token)

    def _slice_ended(self, now_ns: int, token: int) -> None:
        if token == self._token:
            self._ends = False
            self._next(now_ns)

    def _next(self, now_ns: int) -> None:
        """Give the device to the next process in turn that has work, if there is one."""
        order = list(self._slots)
        start = order.index(self._active)
        for process in order[start + 1 :] + order[:start]:
            if self._load[process]:
                self._give(now_ns, process)
                return

    def _give(self, now_ns: int, process: int) -> None:
        for slots in self._slots[self._active]:
            slots.freeze(now_ns)
        self._active = process
        self._token += 1
        self._ends = False
        self._since_ns = now_ns + self._switch_ns
        self._schedule(self._since_ns, self._thaw, process)
        if any(load for other, load in self._load.items() if other != process):
            self._end_at(self._since_ns + self._slice_ns)

    def _thaw(self, now_ns: int, process: int) -> None:
        if process == self._active:
            for slots in self._slots[process]:
                slots.thaw(now_ns)
