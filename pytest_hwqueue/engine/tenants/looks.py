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
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import NamedTuple

from pytest_hwqueue.data.records.tenants import (
    LOOK_ERROR,
    ColocationRecord,
    RequestFailure,
    RequestTimes,
    TenantResult,
)
from pytest_hwqueue.engine.tenants.open_loop import RequestLog, Window, lateness
from pytest_hwqueue.engine.tenants.plan import Colocation
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.engine.tenants.tenant_window import WindowPlan

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


class _Times(NamedTuple):
    """One request's; ``finished_ns`` is negative of one that failed.

    It is written last and read first: where it is seen, the others are there.
    """

    finished_ns: int
    scheduled_ns: int
    started_ns: int


# Requests that are shown at most; of more, the later ones are not looked at, and nobody decides.
_MOST_SHOWN = 1 << 20
_ROW = struct.Struct(f"{len(_Times._fields)}q")
_ROWS_AT_ONCE = 4096


class ShownTimes:
    """Memory in which one process shows the times of its requests to another.

    Pages that nothing was written to take no memory. It goes with the process, or is closed.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("hwq-times")
        os.ftruncate(self.descriptor, _ROW.size * _MOST_SHOWN)
        self._memory = mmap.mmap(self.descriptor, _ROW.size * _MOST_SHOWN)
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


def seen_times(process: int, descriptors: Sequence[int]) -> list[_Times]:
    """Return what a process has shown so far, in order of arrival, as `RequestLog` has it.

    Args:
        process: its id.
        descriptors: of its `ShownTimes`.

    Raises:
        OSError: if they cannot be read, or there was no room for all.

    """
    rows: list[_Times] = []
    for descriptor in descriptors:
        written = list(takewhile(lambda row: row.finished_ns, _rows(process, descriptor)))
        if len(written) == _MOST_SHOWN:
            raise OSError(f"more than {_MOST_SHOWN:,} requests")
        rows += written
    return sorted(rows, key=lambda row: (row.scheduled_ns, row.started_ns))


def _rows(process: int, descriptor: int) -> Iterator[_Times]:
    with open(f"/proc/{process}/fd/{descriptor}", "rb") as file:
        while read := file.read(_ROW.size * _ROWS_AT_ONCE):
            yield from map(_Times._make, _ROW.iter_unpack(read))


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
        self._plans = {spec.name: WindowPlan(plan, spec.name) for spec in plan.tenants
                       if early or plan.counted}  # fmt: skip

    def look(self, gone_ns: int) -> tuple[Look, list[TenantResult]] | None:
        """Return a look that is due and what it sees, so long after the window's beginning.

        None if none is due, or not all can be seen; that only lets the window last longer.
        """
        if not self._left or gone_ns < Window(0, self._left[0].window_ns).over_ns:
            return None
        look = self._left.pop(0)
        try:
            return look, [self._result(name, look.window_ns) for name in self._plans]
        except OSError:
            self._left.clear()
            return None

    def end(self, window_ns: int) -> None:
        """End the window, so long after its beginning; there is no further look."""
        self._left.clear()
        self.ended_ns = window_ns

    def _result(self, name: str, window_ns: int) -> TenantResult:
        rows = seen_times(*self._shown[name])
        times = RequestTimes(
            scheduled_ns=[row.scheduled_ns for row in rows],
            started_ns=[row.started_ns for row in rows],
            finished_ns=[abs(row.finished_ns) for row in rows],
        )
        failed = [
            RequestFailure(index=n, reason="") for n, row in enumerate(rows) if row.finished_ns < 0
        ]
        log = self._log(name, times, failed, window_ns)
        return delivered(name, log, window_ns, own=self._plans[name].own)

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
        log = self._log(result.name, result.requests, result.failures, window_ns)
        return delivered(
            result.name, log, window_ns, WorkDone(result.work, items, unit),
            self._plans[result.name].own,
            lateness=lateness(log), memory_bytes=result.memory_bytes, counters=result.counters,
        )  # fmt: skip

    def _log(
        self, name: str, times: RequestTimes, failed: list[RequestFailure], window_ns: int
    ) -> RequestLog:
        plan = self._plans[name]
        return RequestLog(
            closed=plan.schedule is None,
            scheduled_ns=array("q", times.scheduled_ns),
            started_ns=array("q", times.started_ns),
            finished_ns=array("q", times.finished_ns),
            failed=failed,
            concurrency=plan.concurrency,
        ).until(window_ns, plan.due(window_ns))
