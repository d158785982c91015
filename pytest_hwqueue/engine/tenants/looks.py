"""Looks at a window while it is measured: it ends as soon as what is asked of it is decided.

All looks together are wrong no more often than a single one at the end: after a share s of the time
they have spent s² of its error (Lan and DeMets, Biometrika 70, 1983; the square is of the power
family of Kim and DeMets, Biometrika 74, 1987), and parts add up (Bonferroni). So early looks find
what is plain, and the last has three quarters of the error, and decides little less than it would
alone.

A tenant writes its requests' times into memory that it shares; whoever looks takes none of its
time, and sees what a shorter window would have measured: requests of its last part have its grace
to start, and are not looked at before.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.tenants import (
    LOOK_ERROR,
    ColocationRecord,
    RequestFailure,
    TenantResult,
)
from pytest_hwqueue.engine.tenants.open_loop import Load, Window, lateness
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.engine.tenants.tenant_window import demand_of

# Each look has twice the time of the one before.
_SHARES = tuple(Fraction(1, 2**power) for power in (4, 3, 2, 1, 0))
# Of a window: its grace alone is a second.
_LEAST_NS = 1_000_000_000
# Of Linux; elsewhere windows run to their end.
CAN_SHOW = hasattr(os, "memfd_create")


class Look(NamedTuple):
    """A look at a window after ``window_ns``, and how often it may be wrong."""

    window_ns: int
    error: float


# Takes over what a look sees, if that decides all that is asked; then the window ends.
Decided = Callable[[Look, list[TenantResult]], bool]


def planned_looks(duration_ns: int, number: int, rounds: int) -> list[Look]:
    """Return the looks at one of several windows that share the time; the last is at its end.

    Args:
        duration_ns: length of each window.
        number: which one, from 1.
        rounds: how many there are.

    """
    shares = sorted({*_SHARES, *(Fraction(end, rounds) for end in range(1, rounds + 1))})
    found, before = [], Fraction(0)
    for share in shares:
        # In windows, from the beginning of the one in which it falls.
        whole, part = divmod(share * rounds, 1)
        window_ns = round(part * duration_ns) if part else duration_ns
        if part and (window_ns < _LEAST_NS or Window(0, window_ns).over_ns >= duration_ns):
            continue
        if number == (whole + 1 if part else whole):
            found.append(Look(window_ns, LOOK_ERROR * float(share**2 - before**2)))
        before = share
    return found


@dataclass(frozen=True)
class Looks:
    """When to look at a window, and what decides.

    Attributes:
        planned: from `planned_looks`.
        decided: whether a look's record, which is not written, decides all that is asked.

    """

    planned: Sequence[Look]
    decided: Callable[[ColocationRecord], bool]


# Requests that are shown at most; of more, the later ones are not looked at, and nobody decides.
_ROOM = 1 << 20
# When a request finished, was due and started. The first is negative if it failed; it is written
# last and read first: where it is seen, the others are there.
_ROW = struct.Struct("3q")
_ROWS_AT_ONCE = 4096


class ShownTimes:
    """Memory in which one process shows the times of its requests to another.

    Pages that nothing was written to take no memory. It goes with the process, or is closed.

    Args:
        room: for so many requests.

    """

    def __init__(self, room: int = _ROOM) -> None:
        self.descriptor = os.memfd_create("hwq-times")
        os.ftruncate(self.descriptor, _ROW.size * room)
        self._memory = mmap.mmap(self.descriptor, _ROW.size * room)
        self._values = memoryview(self._memory).cast("q")
        self._next = 0

    def show(self, scheduled_ns: int, started_ns: int, finished_ns: int, failed: bool) -> None:
        """Show one request's times, in ns from the window's start."""
        at = self._next
        if at < len(self._values):
            values = self._values
            values[at + 1], values[at + 2] = scheduled_ns, started_ns
            values[at] = -finished_ns if failed else finished_ns
            self._next = at + 3

    def close(self) -> None:
        """Give the memory back; nobody looks any more."""
        self._values.release()
        self._memory.close()
        os.close(self.descriptor)


def shown_load(process: int, descriptors: Sequence[int]) -> Load:
    """Return what a process has shown so far, in order of arrival; failures without reasons.

    Args:
        process: its id.
        descriptors: of its `ShownTimes`.

    Raises:
        OSError: if they cannot be read, or there was no room for all.

    """
    rows: list[tuple[int, int, int]] = []
    for descriptor in descriptors:
        before = len(rows)
        for row in _rows(process, descriptor):
            if not row[0]:
                break
            rows.append(row)
        else:
            raise OSError(f"more than {len(rows) - before:,} requests")
    rows.sort(key=lambda row: row[1:])
    return Load(
        [scheduled_ns for _, scheduled_ns, _ in rows],
        [started_ns for *_, started_ns in rows],
        [abs(finished_ns) for finished_ns, *_ in rows],
        failed=[RequestFailure(index=n, reason="") for n, row in enumerate(rows) if row[0] < 0],
    )


def _rows(process: int, descriptor: int) -> Iterator[tuple[int, int, int]]:
    with open(f"/proc/{process}/fd/{descriptor}", "rb") as file:
        while read := file.read(_ROW.size * _ROWS_AT_ONCE):
            yield from _ROW.iter_unpack(read)


def served_all_ns(plan: Colocation, results: Mapping[str, TenantResult]) -> int | None:
    """Return when tenants that count their requests had served all, from the window's start.

    None if the window ends by time alone, or if one of them has not, or not within it.
    """
    until_ns = [results[name].until_ns if name in results else None for name in plan.counted]
    known = [each for each in until_ns if each is not None]
    return max(known) if known and len(known) == len(until_ns) else None


class Watch:
    """Looks at a window in which tenants serve requests in processes of their own.

    Attributes:
        ended_ns: when it was ended, from its beginning; None if it goes on to its end.

    """

    def __init__(
        self,
        plan: Colocation,
        early: Sequence[Look],
        shown: Mapping[str, tuple[int, Sequence[int]]],
    ) -> None:
        """Prepare to look.

        Args:
            plan: who runs, and when their requests are due.
            early: the looks before the window's end.
            shown: each tenant's process id, and the descriptors of its `ShownTimes`.

        """
        self._left = list(early)
        self.ended_ns: int | None = None
        self._shown = shown
        self._plan = plan
        looked_at = plan.tenants if early or plan.counted else ()
        self._demands = {each.name: demand_of(plan, each.name) for each in looked_at}

    def look(self, gone_ns: int) -> tuple[Look, list[TenantResult]] | None:
        """Return a look that is due and what it sees, so long after the window's beginning.

        None if none is due, or not all can be seen; that only lets the window last longer.
        """
        if not self._left or gone_ns < Window(0, self._left[0].window_ns).over_ns:
            return None
        look = self._left.pop(0)
        try:
            return look, [self._result(name, look.window_ns) for name in self._demands]
        except OSError:
            self._left.clear()
            return None

    def end(self, window_ns: int) -> None:
        """End the window, so long after its beginning; there is no further look."""
        self._left.clear()
        self.ended_ns = window_ns

    def _result(self, name: str, window_ns: int) -> TenantResult:
        load = self._within(name, shown_load(*self._shown[name]), window_ns)
        return delivered(self._plan.tenant(name), load, window_ns)

    def counted(self, result: TenantResult) -> TenantResult:
        """Return what counts of a tenant's result: all, or what belongs to the ended window.

        A tenant may have heard of the end while it served, or had already finished.
        """
        window_ns = self.ended_ns
        if window_ns is None:
            return result
        assert result.requests is not None
        assert result.throughput is not None
        items, unit = result.throughput.items_per_request, result.throughput.unit
        log = result.requests
        served = Load(log.scheduled_ns, log.started_ns, log.finished_ns, failed=result.failures)
        load = self._within(result.name, served, window_ns)
        return delivered(
            self._plan.tenant(result.name), load, window_ns,
            WorkDone(result.work, items, unit),
            lateness=lateness(load), memory_bytes=result.memory_bytes, counters=result.counters,
        )  # fmt: skip

    def _within(self, name: str, load: Load, window_ns: int) -> Load:
        """Return what came of a tenant's requests within a window, as its plan has them."""
        demand, concurrency = self._demands[name], self._plan.tenant(name).concurrency
        load = replace(load, closed=demand.schedule is None, concurrency=concurrency)
        return load.until(window_ns, demand)
