"""Who had the CPU while a thread wanted it, from all that the switches of its process tell.

Who ran next is often a thread of the same process that gives way itself at once, to whoever really
had the CPU. So each CPU's time is put together from the switches of all traced threads. Between two
of them others may have taken turns unseen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_hwqueue.metrics.cpu_events import OffCpu

_IDLE, _UNSEEN = 0, -1

# From when on, and who: thread and name.
_Turn = tuple[int, int, str | None]


def with_culprits(off_cpu: Sequence[OffCpu]) -> list[OffCpu]:
    """Return times off the CPU with who ran longest while the thread wanted it.

    That is ``next`` of one that was preempted. Of one that was woken late it is ``before``, which
    stays whoever made room where nobody is known to have run for half of that time.
    """
    cpus = _turns(off_cpu)
    own = {one.tid for one in off_cpu}
    return [_with_culprit(one, cpus, own) for one in off_cpu]


def _with_culprit(one: OffCpu, cpus: Mapping[int, Sequence[_Turn]], own: Collection[int]) -> OffCpu:
    where = one.cpu if one.reason == "preempted" else one.end_cpu
    if one.withheld is None or one.reason == "stopped" or where is None or where not in cpus:
        return one
    begin_ns, end_ns = one.withheld
    spent = _spent(cpus[where], begin_ns, end_ns, own)
    who = max(spent, key=lambda runner: spent[runner], default=None)
    if who is None or who[0] == _UNSEEN:
        return one
    tid, comm = who
    if one.reason == "preempted":
        return replace(one, next_tid=tid, next_comm=comm)
    if 2 * spent[who] >= end_ns - begin_ns:
        return replace(one, before_tid=tid, before_comm=comm)
    return one


def _spent(
    turns: Sequence[_Turn], start_ns: int, end_ns: int, own: Collection[int]
) -> dict[tuple[int, str | None], int]:
    """Return how long each thread ran between two times, as far as is known."""
    found: dict[tuple[int, str | None], int] = {}
    first = max(0, bisect_right(turns, start_ns, key=_when) - 1)
    last = bisect_left(turns, end_ns, key=_when)
    for index in range(first, last):
        when_ns, tid, comm = turns[index]
        # Others that came before may have gone meanwhile; a traced one would have been seen to.
        if tid == _IDLE or (when_ns < start_ns and tid not in own):
            continue
        until_ns = turns[index + 1][0] if index + 1 < last else end_ns
        found[tid, comm] = found.get((tid, comm), 0) + until_ns - max(start_ns, when_ns)
    return found


def _turns(off_cpu: Iterable[OffCpu]) -> dict[int, list[_Turn]]:
    """Return by CPU who ran there, from each switch of a traced thread on."""
    found: dict[int, list[_Turn]] = {}
    for one in off_cpu:
        if one.cpu is not None:
            next_tid = _UNSEEN if one.next_tid is None else one.next_tid
            found.setdefault(one.cpu, []).append((one.start_ns, next_tid, one.next_comm))
        if one.end_cpu is not None:
            found.setdefault(one.end_cpu, []).append((one.end_ns, one.tid, None))
    for turns in found.values():
        # One thread goes and another comes in one moment: who comes has both.
        turns.sort(key=_when)
    return found


def _when(turn: _Turn) -> int:
    return turn[0]
