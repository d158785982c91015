"""CPU counters of a measured pass, as records keep them: switches, waiting, interrupts.

They are read when the measured window opens and when it closes, never inside. What the kernel does
not report is null, never 0, with the reason in ``missing``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import Field

from pytest_hwqueue.metrics.plain_data import PlainData
from pytest_hwqueue.tracing.counters import (
    CounterInterval,
    CounterReading,
    RatesPerThousand,
    ThreadCounters,
    counted_between,
    read_counters,
)

ENQUEUING = "enqueuing"
"""Name of the thread that launches, whatever else it is called."""

_NS_PER_S = 1e9
_NO_SWITCHES = "the kernel shows no context switches of this process (/proc/self/task/*/status)"
_NO_TIMES = (
    "the kernel keeps no times on the run queue (/proc/self/task/*/schedstat, CONFIG_SCHED_INFO)"
)
_NO_SOFTIRQS = "/proc/softirqs cannot be read here"
_NOT_COUNTED = "no iteration was traced to count them in"
_NO_INTERRUPTS = "/proc/interrupts cannot be read here"


class ThreadCounts(PlainData):
    """One thread's counters during the pass; null is not reported by the kernel."""

    thread: int = Field(description="the kernel's id")
    name: str = Field(
        description="enqueuing for the one that launches, hwq-stream-N for a stream of the host "
        "device, else what the thread calls itself"
    )
    voluntary: int | None = Field(description="switches away from it when it waited")
    involuntary: int | None = Field(description="switches away from it when it could have run on")
    on_cpu_s: float | None
    run_delay_s: float | None = Field(description="ready to run, and waiting for a core")


class PerThousand(PlainData):
    """Counts per 1,000 launches or kernels; null is not reported by the kernel."""

    voluntary: float | None
    involuntary: float | None
    run_delay_us: float | None = Field(description="microseconds, of all threads")
    system_softirqs: dict[str, float] | None = Field(description="of the whole machine, by type")
    system_interrupts: dict[str, float] | None = Field(description="of the whole machine, by line")


class CpuCounters(PlainData):
    """Context switches, waiting for a core, and interrupts while a cell was measured.

    Threads are those of the measured process. Interrupts are the whole machine's: the kernel does
    not count them by process.
    """

    duration_s: float
    iterations: int = Field(description="in that time, with the few that lead in")
    launches: int = Field(
        description="in that time: calls of a stream's launch, each of which may launch several "
        "kernels; in graph dispatch each is a replay"
    )
    kernels: int | None = Field(None, description="in that time, from those of a traced iteration")
    threads: list[ThreadCounts] = Field(description="those that ran or were switched")
    idle_threads: int = Field(description="the others")
    ended_threads: int = Field(description="ended in that time, and counted nowhere")
    voluntary: int | None = Field(description="of all threads together")
    involuntary: int | None
    on_cpu_s: float | None
    run_delay_s: float | None
    system_softirqs: dict[str, int] | None = Field(description="of the whole machine, by type")
    system_interrupts: dict[str, int] | None = Field(
        description="hardware interrupts of the whole machine, by line and name, such as LOC Local "
        "timer interrupts"
    )
    per_1000_launches: PerThousand | None
    per_1000_kernels: PerThousand | None = None
    missing: dict[str, str] = Field(default_factory=dict, description="why something is null")

    def waited_most(self) -> tuple[str, float] | None:
        """Return the thread that waited longest for a core, and the share of the pass it waited.

        None if unknown.
        """
        known = [each for each in self.threads if each.run_delay_s is not None]
        if not known or self.duration_s <= 0:
            return None
        most = max(known, key=lambda each: each.run_delay_s or 0.0)
        return most.name, (most.run_delay_s or 0.0) / self.duration_s

    def with_kernels(self, of_an_iteration: int) -> CpuCounters:
        """Return a copy with rates per kernel, given the kernels of one iteration."""
        kernels = of_an_iteration * self.iterations
        rates = None
        if self.per_1000_launches is not None and kernels:
            rates = _scaled(self.per_1000_launches, self.launches / kernels)
        missing = {name: why for name, why in self.missing.items() if name != "kernels"}
        return self.model_copy(
            update={"kernels": kernels, "per_1000_kernels": rates, "missing": missing}
        )

    def without_kernels(self, reason: str) -> CpuCounters:
        """Return a copy with the reason why the number of kernels is unknown."""
        return self.model_copy(update={"missing": {**self.missing, "kernels": reason}})


class CpuCounting:
    """Counts while a window is open; the calling thread is the launching one.

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
        return counters_of(
            counted_between(before, after), after, _names(), threading.get_native_id(),
            iterations, launched_after - launched,
        )  # fmt: skip


def counters_of(
    interval: CounterInterval,
    after: CounterReading,
    names: Mapping[int, str],
    enqueuing: int,
    iterations: int,
    launches: int,
) -> CpuCounters:
    """Convert an interval to a record's counters.

    Args:
        interval: from before to after the pass.
        after: the reading at its end, whose totals show what the kernel counts.
        names: of threads, by id.
        enqueuing: id of the launching thread.
        iterations: in the interval.
        launches: in the interval.

    """
    missing = {"kernels": _NOT_COUNTED}
    own = after.threads.get(enqueuing)
    # A kernel, or a sandbox in its place, that does not count shows 0 for a thread that has run.
    switches = own is not None and bool((own.voluntary or 0) + (own.involuntary or 0))
    times = own is not None and bool(own.on_cpu_ns)
    if not switches:
        missing |= dict.fromkeys(("voluntary", "involuntary"), _NO_SWITCHES)
    if not times:
        missing |= dict.fromkeys(("on_cpu_s", "run_delay_s"), _NO_TIMES)
    if interval.system_softirqs is None:
        missing["system_softirqs"] = _NO_SOFTIRQS
    if interval.system_interrupts is None:
        missing["system_interrupts"] = _NO_INTERRUPTS
    known = CounterInterval(
        duration_ns=interval.duration_ns,
        threads={
            tid: ThreadCounters(
                each.voluntary if switches else None,
                each.involuntary if switches else None,
                each.on_cpu_ns if times else None,
                each.run_delay_ns if times else None,
            )
            for tid, each in interval.threads.items()
        },
        ended=interval.ended,
        system_softirqs=interval.system_softirqs,
        system_interrupts=interval.system_interrupts,
    )
    active = {tid: each for tid, each in known.threads.items() if _active(each) or tid == enqueuing}
    voluntary, involuntary = known.total("voluntary"), known.total("involuntary")
    on_cpu_s, run_delay_s = (_seconds(known.total(name)) for name in ("on_cpu_ns", "run_delay_ns"))
    for name, total in (
        ("voluntary", voluntary), ("involuntary", involuntary),
        ("on_cpu_s", on_cpu_s), ("run_delay_s", run_delay_s),
    ):  # fmt: skip
        if total is None:
            missing.setdefault(name, "a thread ended while it was read")
    if not launches:
        missing["per_1000_launches"] = "there was no launch"
    return CpuCounters(
        duration_s=known.duration_ns / _NS_PER_S,
        iterations=iterations,
        launches=launches,
        threads=[
            ThreadCounts(
                thread=tid,
                name=ENQUEUING if tid == enqueuing else names.get(tid) or "thread",
                voluntary=each.voluntary,
                involuntary=each.involuntary,
                on_cpu_s=_seconds(each.on_cpu_ns),
                run_delay_s=_seconds(each.run_delay_ns),
            )
            for tid, each in active.items()
        ],
        idle_threads=len(known.threads) - len(active),
        ended_threads=len(known.ended),
        voluntary=voluntary,
        involuntary=involuntary,
        on_cpu_s=on_cpu_s,
        run_delay_s=run_delay_s,
        system_softirqs=_plain(known.system_softirqs),
        system_interrupts=_plain(known.system_interrupts),
        per_1000_launches=_per_thousand(known.per_1000(launches)) if launches else None,
        missing=missing,
    )


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


def _active(thread: ThreadCounters) -> bool:
    counted = (thread.voluntary, thread.involuntary, thread.on_cpu_ns, thread.run_delay_ns)
    return any(counted)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS_PER_S


def _plain(counts: Mapping[str, int] | None) -> dict[str, int] | None:
    return None if counts is None else dict(counts)


def _per_thousand(rates: RatesPerThousand) -> PerThousand:
    return PerThousand(
        voluntary=rates.voluntary,
        involuntary=rates.involuntary,
        run_delay_us=rates.run_delay_us,
        system_softirqs=None if rates.system_softirqs is None else dict(rates.system_softirqs),
        system_interrupts=(
            None if rates.system_interrupts is None else dict(rates.system_interrupts)
        ),
    )


def _scaled(rates: PerThousand, factor: float) -> PerThousand:
    def by(value: float | None) -> float | None:
        return None if value is None else value * factor

    def all_by(values: Mapping[str, float] | None) -> dict[str, float] | None:
        return None if values is None else {name: value * factor for name, value in values.items()}

    return PerThousand(
        voluntary=by(rates.voluntary),
        involuntary=by(rates.involuntary),
        run_delay_us=by(rates.run_delay_us),
        system_softirqs=all_by(rates.system_softirqs),
        system_interrupts=all_by(rates.system_interrupts),
    )
