"""The remedy: what is measured is pinned to some cores, and its priority raised; read back."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import psutil

from pytest_hwqueue.noise.record import RemedyRecord
from pytest_hwqueue.schedulers.protocol import NotProven

# As in the study that this stands beside: `taskset -c 0-3 nice -n -10`.
_MOST_CORES = 4
_NICE_STEPS = -10
_HIGHEST = -20


class RemedyRefused(NotProven):
    """The measured process could not be pinned or raised, or did not stay so."""


def chosen_cores(allowed: Collection[int]) -> list[int]:
    """Return the cores to pin to: four, or half of the allowed ones where these are fewer than 8.

    Raises:
        ValueError: if fewer than two are allowed: pinning would restrict nothing.

    """
    if len(allowed) < 2:
        raise ValueError("there is only one core to run on, so pinning would restrict nothing")
    # From the end: the first core serves the interrupts that nobody distributes.
    return sorted(allowed)[-min(_MOST_CORES, len(allowed) // 2) :]


def unavailable() -> str | None:
    """Say what this process lacks for the remedy, and what to do; None if it lacks nothing."""
    try:
        chosen_cores(os.sched_getaffinity(0))
    except ValueError as error:
        return str(error)
    return _why_not_raised()


class Remedy:
    """A process that is pinned and raised.

    Attributes:
        record: as read back when it was applied.

    """

    def __init__(self, pid: int, record: RemedyRecord) -> None:
        self.record = record
        self._pid = pid

    def undone(self) -> str | None:
        """Say which thread is no longer as it was set; None if all are."""
        for thread in _threads(self._pid):
            with suppress(psutil.NoSuchProcess):
                if (reason := _differs(thread, self.record)) is not None:
                    return f"{reason}: something in the measured process has set it since"
        return None


@contextmanager
def pinned(pid: int) -> Iterator[Remedy]:
    """Pin and raise a process with all its threads for the length of the ``with`` block.

    What it starts meanwhile inherits both, so neighbours are started before.

    Raises:
        RemedyRefused: if the kernel refuses, or reads back something else.

    """
    before: dict[int, tuple[list[int], int]] = {}
    try:
        yield Remedy(pid, _apply(pid, before))
    finally:
        for thread in _threads(pid) if before else ():
            with suppress(psutil.NoSuchProcess):
                # One that was started meanwhile gets what the first one had.
                cores, nice = before.get(thread.pid, before[pid])
                thread.cpu_affinity(cores)
                thread.nice(nice)


def _apply(pid: int, before: dict[int, tuple[list[int], int]]) -> RemedyRecord:
    """Set every thread, adding to ``before`` how it was."""
    try:
        process = psutil.Process(pid)
        nice_before, cores_before = process.nice(), sorted(process.cpu_affinity())
    except psutil.NoSuchProcess:
        raise RemedyRefused(f"the measured process {pid} has ended") from None
    nice = _raised(nice_before)
    try:
        record = RemedyRecord(
            cores_before=cores_before, cores=chosen_cores(cores_before),
            nice_before=nice_before, nice=nice, threads=process.num_threads(),
        )  # fmt: skip
        # Each thread for itself, which is how the kernel counts; until no new one has come.
        while new := [thread for thread in _threads(pid) if thread.pid not in before]:
            for thread in new:
                with suppress(psutil.NoSuchProcess):
                    before[thread.pid] = (thread.cpu_affinity(), thread.nice())
                    thread.cpu_affinity(record.cores)
                    thread.nice(nice)
                    if (reason := _differs(thread, record)) is not None:
                        raise RemedyRefused(reason)
    except psutil.AccessDenied:
        raise RemedyRefused(_refused(nice)) from None
    except ValueError as error:
        raise RemedyRefused(str(error)) from None
    return record


def _threads(pid: int) -> list[psutil.Process]:
    """Return the threads of a process; to the kernel's scheduler each is a process."""
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
    """Try it on a thread that ends at once: rights are granted in too many ways to look up."""
    reasons: list[str] = []

    def attempt() -> None:
        thread = psutil.Process(threading.get_native_id())
        nice = _raised(thread.nice())
        try:
            thread.nice(nice)
        except psutil.AccessDenied:
            reasons.append(_refused(nice))
            return
        if thread.nice() != nice:
            reasons.append(f"nice {nice} was set, and nice {thread.nice()} read back")

    trying = threading.Thread(target=attempt)
    trying.start()
    trying.join()
    return reasons[0] if reasons else None


def _refused(nice: int) -> str:
    return (
        f"nice {nice} is refused: it takes root, CAP_SYS_NICE or a limit that allows it "
        f"(ulimit -e {20 - nice}, in containers --cap-add SYS_NICE)"
    )
