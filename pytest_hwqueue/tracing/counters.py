"""Counters in /proc that need no privileges: context switches, run-queue delay, interrupts.

What a file does not report is None, never 0. Thread counters are those of this process; interrupts
and softirqs are counted for the whole system, over all processes and CPUs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")
_SWITCHES = re.compile(r"^(non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class ThreadCounters:
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


@dataclass(frozen=True)
class CounterReading:
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


@dataclass(frozen=True)
class CounterInterval:
    """What happened between two readings, in the fields of `CounterReading`.

    Attributes:
        duration_ns: from one reading to the other.
        threads: of those alive at the end; threads that had ended by then are not counted.
        ended: threads that had ended.
        system_softirqs: of the whole system, by type, those without any left out.
        system_interrupts: of the whole system, by line and name, those without any left out.

    """

    duration_ns: int
    threads: Mapping[int, ThreadCounters]
    ended: tuple[int, ...]
    system_softirqs: Mapping[str, int] | None
    system_interrupts: Mapping[str, int] | None

    def total(
        self, field: Literal["voluntary", "involuntary", "on_cpu_ns", "run_delay_ns"]
    ) -> int | None:
        """Return the sum of a field over the threads; None if one lacks it."""
        total = 0
        for thread in self.threads.values():
            value: int | None = getattr(thread, field)
            if value is None:
                return None
            total += value
        return total

    def per_1000(self, launches: int) -> RatesPerThousand:
        """Return rates per 1,000 launches; ValueError without launches."""
        if launches < 1:
            raise ValueError(f"needs at least 1 launch, got {launches}")
        return RatesPerThousand(
            launches=launches,
            voluntary=_rate(self.total("voluntary"), launches),
            involuntary=_rate(self.total("involuntary"), launches),
            run_delay_us=_rate(self.total("run_delay_ns"), launches * 1000),
            system_softirqs=_rates(self.system_softirqs, launches),
            system_interrupts=_rates(self.system_interrupts, launches),
        )


@dataclass(frozen=True)
class RatesPerThousand:
    """Counts, and run-queue delay in µs, per 1,000 launches."""

    launches: int
    voluntary: float | None
    involuntary: float | None
    run_delay_us: float | None
    system_softirqs: Mapping[str, float] | None
    system_interrupts: Mapping[str, float] | None


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
    threads = {}
    for task in sorted((proc / "self" / "task").iterdir(), key=lambda one: int(one.name)):
        counters = _thread(task)
        if counters is not None:
            threads[int(task.name)] = counters
    return threads


def counted_between(before: CounterReading, after: CounterReading) -> CounterInterval:
    """Return what happened between two readings of one process."""
    return CounterInterval(
        duration_ns=after.when_ns - before.when_ns,
        threads={
            tid: _thread_difference(before.threads.get(tid), counters)
            for tid, counters in after.threads.items()
        },
        ended=tuple(tid for tid in before.threads if tid not in after.threads),
        system_softirqs=_table_difference(before.system_softirqs, after.system_softirqs),
        system_interrupts=_table_difference(before.system_interrupts, after.system_interrupts),
    )


def _thread(task: Path) -> ThreadCounters | None:
    """Return a thread's counters, or None if it has ended."""
    try:
        # A name is whatever bytes a thread gave itself.
        status = (task / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    switches = {bool(non): int(count) for non, count in _SWITCHES.findall(status)}
    try:
        on_cpu_ns, run_delay_ns = _run_times((task / "schedstat").read_text())
    except OSError:
        # A kernel without CONFIG_SCHED_INFO, or a sandbox of another kernel.
        on_cpu_ns, run_delay_ns = None, None
    return ThreadCounters(switches.get(False), switches.get(True), on_cpu_ns, run_delay_ns)


def _run_times(schedstat: str) -> tuple[int, int]:
    """Return time on the CPU and on the run queue, in ns (Documentation/scheduler/sched-stats)."""
    on_cpu, run_delay, _ = schedstat.split()
    return int(on_cpu), int(run_delay)


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
        name = " ".join([label, *_named(label, words[len(counts) :])])
        table[name] = table.get(name, 0) + sum(counts)
    return table


def _named(label: str, words: list[str]) -> list[str]:
    """Return the interrupt's name from the text after its counts.

    A device's line begins with its controller and trigger, and ends with its handlers.
    """
    return words[-1:] if label.isdigit() else words


def _thread_difference(before: ThreadCounters | None, after: ThreadCounters) -> ThreadCounters:
    if before is None or _decreased(before.on_cpu_ns, after.on_cpu_ns):
        # A thread that began in between, under a new id or one used before.
        return after
    return ThreadCounters(
        _difference(before.voluntary, after.voluntary),
        _difference(before.involuntary, after.involuntary),
        _difference(before.on_cpu_ns, after.on_cpu_ns),
        _difference(before.run_delay_ns, after.run_delay_ns),
    )


def _decreased(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after < before


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _table_difference(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> dict[str, int] | None:
    if before is None or after is None:
        return None
    # A line that was not there before had counted nothing.
    counted = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in counted.items() if count}


def _rate(count: int | None, launches: int) -> float | None:
    return None if count is None else count * 1000 / launches


def _rates(counts: Mapping[str, int] | None, launches: int) -> dict[str, float] | None:
    if counts is None:
        return None
    return {name: count * 1000 / launches for name, count in counts.items()}
