"""What /proc counts without privileges: context switches, run-queue delay, interrupts.

As records keep them of a measured pass, and, where no events can be traced, as delays of each step
of a loop. What the kernel does not report is null, never 0, with the reason in ``missing``.
Interrupts and softirqs are counted for the whole system, over all processes and CPUs.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pytest_hwqueue.data.records.counters import CpuCounters, PerThousand, ThreadCounts

ENQUEUING = "enqueuing"
"""Name of the thread that launches, whatever else it is called."""

_PROC = Path("/proc")
_SWITCHES = re.compile(r"^(non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)
_NS_PER_S = 1e9
_NO_SWITCHES = "the kernel shows no context switches of this process (/proc/self/task/*/status)"
_NO_TIMES = (
    "the kernel keeps no times on the run queue (/proc/self/task/*/schedstat, CONFIG_SCHED_INFO)"
)
_NOT_COUNTED = "no iteration was traced to count them in"


class ThreadCounters(NamedTuple):
    """One thread's counters since its start, or within an interval.

    Attributes:
        voluntary: switches because it waited.
        involuntary: switches while it could have continued.
        on_cpu_ns: time it ran.
        run_delay_ns: time it was ready to run but waited for a CPU.

    """

    voluntary: int | None
    involuntary: int | None
    on_cpu_ns: int | None
    run_delay_ns: int | None

    def as_recorded(self) -> dict[str, Any]:
        """Return them by the names and units of records."""
        return {
            "voluntary": self.voluntary,
            "involuntary": self.involuntary,
            "on_cpu_s": None if self.on_cpu_ns is None else self.on_cpu_ns / _NS_PER_S,
            "run_delay_s": None if self.run_delay_ns is None else self.run_delay_ns / _NS_PER_S,
        }


class CounterReading(NamedTuple):
    """All counters at one moment.

    Attributes:
        when_ns: of `time.monotonic_ns`.
        threads: by thread id.
        system_softirqs: of the whole system, by type.
        system_interrupts: of the whole system, by line and name ("36 virtio1-req.0", "LOC Local
            timer interrupts").

    """

    when_ns: int
    threads: Mapping[int, ThreadCounters]
    system_softirqs: Mapping[str, int] | None
    system_interrupts: Mapping[str, int] | None


class CpuCounting:
    """Counts while a window is open, never inside; the calling thread is the launching one.

    Args:
        launched: returns the number of launches so far.

    """

    def __init__(self, launched: Callable[[], int]) -> None:
        self._launched = launched
        self._readings: list[tuple[int, CounterReading]] = []

    def opened(self) -> None:
        """Count from here."""
        # What reading the machine's tables costs is no part of the window, nor is it below.
        self._readings = [(self._launched(), read_counters(threads_last=True))]

    def closed(self) -> None:
        """Count up to here."""
        self._readings.append((self._launched(), read_counters()))

    def counters(self, iterations: int) -> CpuCounters:
        """Return the counts of the window, which had this many iterations."""
        (launched, before), (launched_after, after) = self._readings
        main, launches = threading.get_native_id(), launched_after - launched
        return counters_of(before, after, _names(), main, iterations, launches)


def counters_of(
    before: CounterReading,
    after: CounterReading,
    names: Mapping[int, str],
    enqueuing: int,
    iterations: int,
    launches: int,
) -> CpuCounters:
    """Convert two readings of one process to a record's counters.

    Args:
        before: the pass.
        after: it, with totals that show what the kernel counts.
        names: of threads, by id.
        enqueuing: id of the launching thread.
        iterations: in between.
        launches: in between.

    """
    missing = {"kernels": _NOT_COUNTED}
    own = after.threads.get(enqueuing)
    unknown: dict[str, Any] = {}
    # A kernel, or a sandbox in its place, that does not count shows 0 for a thread that has run.
    if own is None or not (own.voluntary or own.involuntary):
        missing |= dict.fromkeys(("voluntary", "involuntary"), _NO_SWITCHES)
        unknown |= dict.fromkeys(("voluntary", "involuntary"))
    if own is None or not own.on_cpu_ns:
        missing |= dict.fromkeys(("on_cpu_s", "run_delay_s"), _NO_TIMES)
        unknown |= dict.fromkeys(("on_cpu_ns", "run_delay_ns"))
    threads = {tid: one._replace(**unknown) for tid, one in threads_between(before, after).items()}
    softirqs = _counted(before.system_softirqs, after.system_softirqs)
    interrupts = _counted(before.system_interrupts, after.system_interrupts)
    for table, counts in (("softirqs", softirqs), ("interrupts", interrupts)):
        if counts is None:
            missing[f"system_{table}"] = f"/proc/{table} cannot be read here"
    active = {tid: one for tid, one in threads.items() if tid == enqueuing or any(one)}
    columns: list[Any] = list(zip(*threads.values(), strict=True)) or [()] * 4
    total = ThreadCounters(*(None if None in column else sum(column) for column in columns))
    for name, value in total.as_recorded().items():
        if value is None:
            missing.setdefault(name, "a thread ended while it was read")
    system = {"system_softirqs": softirqs, "system_interrupts": interrupts}
    totalled = PerThousand(
        voluntary=total.voluntary,
        involuntary=total.involuntary,
        run_delay_us=None if total.run_delay_ns is None else total.run_delay_ns / 1e3,
        **system,
    )
    if not launches:
        missing["per_1000_launches"] = "there was no launch"
    return CpuCounters(
        duration_s=(after.when_ns - before.when_ns) / _NS_PER_S,
        iterations=iterations,
        launches=launches,
        threads=[
            ThreadCounts(
                thread=tid,
                name=ENQUEUING if tid == enqueuing else names.get(tid) or "thread",
                **each.as_recorded(),
            )
            for tid, each in active.items()
        ],
        idle_threads=len(threads) - len(active),
        ended_threads=len(before.threads.keys() - after.threads.keys()),
        **total.as_recorded(),
        **system,
        per_1000_launches=totalled.times(1000 / launches) if launches else None,
        missing=missing,
    )


def threads_between(before: CounterReading, after: CounterReading) -> dict[int, ThreadCounters]:
    """Return the counters between two readings of threads that were alive at the end."""
    return {
        tid: _thread_difference(before.threads.get(tid), counters)
        for tid, counters in after.threads.items()
    }


def read_counters(proc: Path = _PROC, *, threads_last: bool = False) -> CounterReading:
    """Read all counters of this process's threads and of the system.

    Args:
        proc: folder of the files.
        threads_last: read the threads' counters last, since their interval begins here and reading
            takes CPU time itself. Otherwise they are read first.

    """
    system = _system(proc) if threads_last else None
    threads, when_ns = _threads(proc), time.monotonic_ns()
    softirqs, interrupts = system or _system(proc)
    return CounterReading(when_ns, threads, softirqs, interrupts)


def _system(proc: Path) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    return _table(proc / "softirqs"), _table(proc / "interrupts")


def _threads(proc: Path) -> dict[int, ThreadCounters]:
    tasks = sorted((proc / "self" / "task").iterdir(), key=lambda one: int(one.name))
    found = {int(task.name): _thread(task) for task in tasks}
    return {tid: counters for tid, counters in found.items() if counters is not None}


def _thread(task: Path) -> ThreadCounters | None:
    """Return a thread's counters, or None if it has ended."""
    try:
        # A name is whatever bytes a thread gave itself.
        status = (task / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    switches = {bool(non): int(count) for non, count in _SWITCHES.findall(status)}
    try:
        on_cpu_ns, run_delay_ns, _ = map(int, (task / "schedstat").read_text().split())
    except OSError:
        # A kernel without CONFIG_SCHED_INFO, or a sandbox of another kernel.
        on_cpu_ns, run_delay_ns = None, None
    return ThreadCounters(switches.get(False), switches.get(True), on_cpu_ns, run_delay_ns)


def _table(path: Path) -> dict[str, int] | None:
    """Read /proc/softirqs or /proc/interrupts: a column for each CPU, then words; summed over CPUs.

    Lines with one figure for the whole system (ERR, MIS) keep it.
    """
    try:
        head, *lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return None
    cpus = len(head.split())
    table: dict[str, int] = {}
    for line in lines:
        label, _, rest = line.strip().partition(":")
        words = rest.split()
        counts = [int(word) for word in words[:cpus] if word.isdigit()]
        # A device's line has its controller and trigger before its handlers.
        named = words[len(counts) :]
        name = " ".join([label, *(named[-1:] if label.isdigit() else named)])
        table[name] = table.get(name, 0) + sum(counts)
    return table


def _names() -> dict[int, str]:
    """Return the names of this process's threads, by id."""
    names = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            names[int(task.name)] = (task / "comm").read_text(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    # Before 3.14 Python did not give the kernel its threads' names.
    names |= {each.native_id: each.name for each in threading.enumerate() if each.native_id}
    return names


class RunDelays:
    """Reads threads' run-queue time after each step of a loop, in about 2 µs per thread.

    Args:
        tids: threads of this process; one whose time cannot be read, or which ends, is left out.

    """

    def __init__(self, tids: Collection[int]) -> None:
        self._files: dict[int, int] = {}
        for tid in tids:
            # A kernel without CONFIG_SCHED_INFO, a sandbox, or a thread that has ended.
            with suppress(OSError):
                self._files[tid] = os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY)
        self._last = self._read()

    @property
    def threads(self) -> Collection[int]:
        """The threads whose time can be read."""
        return self._files.keys()

    def step(self) -> Mapping[int, int]:
        """Return the ns each thread has waited since the last call, by id; only if it waited."""
        now = self._read()
        waited = {tid: delay - self._last[tid] for tid, delay in now.items()}
        self._last = now
        return {tid: delay for tid, delay in waited.items() if delay > 0}

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read(self) -> dict[int, int]:
        delays = {}
        for tid, file in list(self._files.items()):
            turns = 0
            with suppress(ProcessLookupError):
                # Documentation/scheduler/sched-stats
                _, delays[tid], turns = map(int, os.pread(file, 128, 0).split())
            if not turns:
                # It has ended, or the kernel counts nothing: a thread that was started had a turn.
                delays.pop(tid, None)
                os.close(self._files.pop(tid))
        return delays


def _thread_difference(before: ThreadCounters | None, after: ThreadCounters) -> ThreadCounters:
    if before is None or (before.on_cpu_ns or 0) > (after.on_cpu_ns or before.on_cpu_ns or 0):
        # A thread that began in between, under a new id or one used before.
        return after
    pairs: Iterable[tuple[Any, Any]] = zip(before, after, strict=True)
    return ThreadCounters(*(None if None in (one, two) else two - one for one, two in pairs))


def _counted(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> dict[str, int] | None:
    if before is None or after is None:
        return None
    # A line that was not there before had counted nothing.
    counted = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in counted.items() if count}
