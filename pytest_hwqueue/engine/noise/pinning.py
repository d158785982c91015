"""The remedy: pins the measured process to some cores and raises its priority, verified.

Also chooses the neighbours' cores if they must stay off the measured ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.data.records.noise import RemedyRecord

# As in the study this is compared with: `taskset -c 0-3 nice -n -10`.
_MOST_CORES = 4
_NICE_STEPS = -10
_HIGHEST = -20
_CPUS = Path("/sys/devices/system/cpu")


def chosen_cores(allowed: Collection[int]) -> list[int]:
    """Return the cores to pin to: four, or half of the allowed ones if fewer than 8.

    Raises:
        NotProven: if fewer than two are allowed, so that pinning would restrict nothing.

    """
    if len(allowed) < 2:
        raise NotProven("there is only one core to run on, so pinning would restrict nothing")
    # From the end: the first core serves the interrupts that nobody distributes.
    return sorted(allowed)[-min(_MOST_CORES, len(allowed) // 2) :]


@dataclass(frozen=True)
class CoreIsolation:
    """Which cores the measured process and its neighbours get.

    Attributes:
        measured: cores that the measured process is pinned to.
        kept_free: those cores and their hyperthreads, without neighbours.
        neighbours: cores left for the neighbours.
        unknown: measured cores whose hyperthreads could not be read; assumed to have none.

    """

    measured: list[int]
    kept_free: list[int]
    neighbours: list[int]
    unknown: list[int]


def isolated_cores(
    measured: Collection[int],
    neighbours: Collection[int],
    hyperthreads: Mapping[int, Collection[int]],
) -> CoreIsolation:
    """Return `chosen_cores`, or fewer if they would leave the neighbours none.

    Args:
        measured: cores that the measured process may run on.
        neighbours: cores that the neighbours may run on.
        hyperthreads: all hyperthreads of the same physical core, by core, as far as known.

    Raises:
        NotProven: if every choice leaves the neighbours none.

    """
    chosen = chosen_cores(measured)
    for first in range(len(chosen)):
        cores = chosen[first:]
        kept_free = set(cores).union(*(hyperthreads.get(core, ()) for core in cores))
        if left := set(neighbours) - kept_free:
            unknown = [core for core in cores if core not in hyperthreads]
            return CoreIsolation(cores, sorted(kept_free), sorted(left), unknown)
    listed = ", ".join(map(str, sorted(kept_free)))
    raise NotProven(
        f"kept off core {chosen[-1]} and its hyperthreads ({listed}), neighbours are left no core: "
        "allow this process more of them (taskset, --cpuset-cpus), or ask for optimised, where "
        "neighbours may run on all"
    )


def isolation(pids: Iterable[int]) -> CoreIsolation:
    """Choose cores for the measured processes, and for neighbours that this process starts.

    Raises:
        NotProven: if there are not enough, or a process has ended.

    """
    own = os.sched_getaffinity(0)
    with translated(NotProven, "a measured process has ended", ProcessLookupError):
        measured = own.intersection(*(os.sched_getaffinity(pid) for pid in pids))
        return isolated_cores(measured, own, read_hyperthreads(measured))


def read_hyperthreads(cores: Iterable[int], cpus: Path = _CPUS) -> dict[int, set[int]]:
    """Return all hyperthreads of each core's physical core; leave out unreadable ones.

    Args:
        cores: by their numbers.
        cpus: where the kernel shows them.

    """
    found = {}
    for core in cores:
        with suppress(OSError):
            file = cpus / f"cpu{core}" / "topology" / "thread_siblings_list"
            # Empty where a container hides the file.
            if listed := listed_cores(file.read_text(encoding="ascii")):
                found[core] = listed
    return found


def listed_cores(text: str) -> set[int]:
    """Read cores as the kernel lists them, such as ``0-1,8``."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def unavailable(*, isolated: bool = False) -> str | None:
    """Return what this process lacks for the remedy and what to do, or None."""
    try:
        if isolated:
            isolation([])
        else:
            chosen_cores(os.sched_getaffinity(0))
    except NotProven as error:
        return str(error)
    return _why_not_raised()


@dataclass(frozen=True)
class Remedy:
    """A pinned process with raised priority; ``record`` is as read back when it was applied."""

    pid: int
    record: RemedyRecord

    def undone(self) -> str | None:
        """Return which thread is no longer as set, or None."""
        for thread in _threads(self.pid):
            with suppress(psutil.NoSuchProcess):
                if (reason := _differs(thread, self.record)) is not None:
                    return f"{reason}: something in the measured process has set it since"
        return None


@contextmanager
def pinned(pid: int, isolated: CoreIsolation | None = None) -> Iterator[Remedy]:
    """Pin and raise a process with all its threads for the length of the ``with`` block.

    Processes it starts inherit both, so start neighbours first.

    Args:
        pid: of the process.
        isolated: its cores; None uses `chosen_cores`.

    Raises:
        NotProven: if the kernel refuses, or reading back gives different values.

    """
    before: dict[int, tuple[list[int], int]] = {}
    try:
        yield Remedy(pid, _apply(pid, isolated, before))
    finally:
        for thread in _threads(pid) if before else ():
            with suppress(psutil.NoSuchProcess):
                # One that was started meanwhile gets what the first one had.
                cores, nice = before.get(thread.pid, before[pid])
                thread.cpu_affinity(cores)
                thread.nice(nice)


def _apply(
    pid: int, isolated: CoreIsolation | None, before: dict[int, tuple[list[int], int]]
) -> RemedyRecord:
    """Set every thread, and note its previous state in ``before``."""
    with translated(NotProven, "a measured process has ended", psutil.NoSuchProcess):
        process = psutil.Process(pid)
        nice_before, cores_before = process.nice(), sorted(process.cpu_affinity())
    nice = _raised(nice_before)
    try:
        record = RemedyRecord(
            cores_before=cores_before,
            cores=isolated.measured if isolated else chosen_cores(cores_before),
            nice_before=nice_before, nice=nice, threads=process.num_threads(),
            kept_free=isolated.kept_free if isolated else [],
            hyperthreads_unknown=isolated.unknown if isolated else [],
        )  # fmt: skip
        # Each thread for itself, which is how the kernel counts; until no new one has come.
        while new := [thread for thread in _threads(pid) if thread.pid not in before]:
            for thread in new:
                with suppress(psutil.NoSuchProcess):
                    before[thread.pid] = (thread.cpu_affinity(), thread.nice())
                    thread.cpu_affinity(record.cores)
                    thread.nice(nice)
                    if (reason := _differs(thread, record)) is not None:
                        raise NotProven(reason)
    except psutil.AccessDenied:
        raise NotProven(_refused(nice)) from None
    except ValueError as error:
        raise NotProven(str(error)) from None
    return record


def _threads(pid: int) -> list[psutil.Process]:
    """Return a process's threads; to the kernel's scheduler each is a process."""
    threads = []
    with suppress(psutil.NoSuchProcess):
        for thread in psutil.Process(pid).threads():
            with suppress(psutil.NoSuchProcess):
                threads.append(psutil.Process(thread.id))
    return threads


def _differs(thread: psutil.Process, record: RemedyRecord) -> str | None:
    cores, nice = sorted(thread.cpu_affinity()), thread.nice()
    if (cores, nice) == (record.cores, record.nice):
        return None
    return (
        f"thread {thread.pid} has cores {cores} and nice {nice}, not {record.cores} and "
        f"{record.nice}"
    )


def _raised(nice: int) -> int:
    return max(_HIGHEST, nice + _NICE_STEPS)


def _why_not_raised() -> str | None:
    """Return why raising fails, by trying it on a short-lived thread."""

    def attempt() -> str | None:
        thread = psutil.Process(threading.get_native_id())
        nice = _raised(thread.nice())
        try:
            thread.nice(nice)
        except psutil.AccessDenied:
            return _refused(nice)
        back = thread.nice()
        return None if back == nice else f"nice {nice} was set, and nice {back} read back"

    with ThreadPoolExecutor(1) as trying:
        return trying.submit(attempt).result()


def _refused(nice: int) -> str:
    return (
        f"nice {nice} is refused: it takes root, CAP_SYS_NICE or a limit that allows it "
        f"(ulimit -e {20 - nice}, in containers --cap-add SYS_NICE)"
    )
