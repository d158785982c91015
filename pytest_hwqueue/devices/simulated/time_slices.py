"""Processes that take turns on the device: while one runs, the others' blocks stand still."""

from __future__ import annotations

from pytest_hwqueue.devices.simulated.multiprocessors import Multiprocessors, Schedule


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
        self._order: list[int] = []
        self._slots: dict[int, list[Multiprocessors]] = {}
        self._load: dict[int, int] = {}
        self._active = -1
        self._since_ns = 0
        self._token = 0
        self._ends = False

    def add(self, process: int, slots: Multiprocessors) -> None:
        """Register a process's slots; the first process has the device."""
        if process not in self._slots:
            self._order.append(process)
            self._slots[process] = []
            self._load[process] = 0
        self._slots[process].append(slots)
        if len(self._order) == 1:
            self._active = process
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
        if process == self._active and not self._load[process] and len(self._order) > 1:
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
        start = self._order.index(self._active)
        for process in self._order[start + 1 :] + self._order[:start]:
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
        if any(self._load[other] for other in self._order if other != process):
            self._end_at(self._since_ns + self._slice_ns)

    def _thaw(self, now_ns: int, process: int) -> None:
        if process == self._active:
            for slots in self._slots[process]:
                slots.thaw(now_ns)
