"""Background load, origin and causes in a record.

Plain data from what a traced pass saw; the same for a cell's record and a tenant's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.attribution import TailAttribution
from pytest_hwqueue.data.metrics.cpu_events import InterruptTime, LaunchPairs
from pytest_hwqueue.data.metrics.critical_path import in_words
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.records.tracing import Level, Refusal

if TYPE_CHECKING:
    pass


NoiseStatus = Literal["quiet", "applied", "not applied"]


class Placement(PlainData):
    """How the kernel schedules a process; null if unreadable."""

    session: int = Field(description="id of its session; autogroups go by it")
    autogroup: str | None = Field(description="such as ``/autogroup-25 nice 0``")
    cgroup: str | None = Field(description="of the CPU controller")
    cpu_weight: str | None = Field(
        description="of that cgroup, such as ``cpu.weight 100``; a root cgroup has none"
    )
    nice: int
    cores: list[int] = Field(description="that it may run on")


class Done(PlainData):
    """What a neighbour's processes did during a round; null if unreadable."""

    on_cpu_s: float | None = Field(description="time on a core, summed over all threads")
    waiting_s: float | None = Field(description="time ready to run, waiting for a core")
    handed_over_bytes: int | None = Field(
        description="by write calls, to sockets and files (wchar of /proc/PID/io)"
    )
    disk_written_bytes: int | None = Field(description="write_bytes of /proc/PID/io")


class NeighbourRecord(PlainData):
    """One neighbour of a round."""

    name: str
    commands: list[list[str]]
    version: str | None = Field(description="what the program says of itself; null if not asked")
    notes: list[str] = Field(default_factory=list)
    placement: Placement | None = Field(
        description="of its first program's first process; null if that had ended"
    )
    done: Done


class Machine(PlainData):
    """The whole machine's load during a round, by all processes and not only the neighbours.

    What could not be read is absent, with the reason in ``missing``.
    """

    pressure_share: dict[str, float] = Field(
        description="share of the time in which some task waited (PSI ``some``), by resource"
    )
    softirqs: dict[str, int] = Field(description="raised, by type; those that rose")
    interrupts: dict[str, int] = Field(
        description="by the kernel's name, such as LOC; ``device`` sums the numbered lines"
    )
    steal_s: float | None = Field(description="taken by the hypervisor, summed over all cores")
    missing: dict[str, str] = Field(default_factory=dict)


class RemedyRecord(PlainData):
    """How the measured process was pinned and raised, as read back from the kernel."""

    cores_before: list[int]
    cores: list[int]
    nice_before: int
    nice: int
    threads: int
    kept_free: list[int] = Field(
        default_factory=list,
        description="cores that neighbours were kept off: those of ``cores`` and their "
        "hyperthreads; empty if neighbours could run there too",
    )
    hyperthreads_unknown: list[int] = Field(
        default_factory=list,
        description="cores whose hyperthreads could not be read, so neighbours were not kept off",
    )


class NoiseRound(PlainData):
    """The background load of one measured round."""

    noise: str
    status: NoiseStatus
    reason: str = Field("", description="why it was not applied")
    started: str = Field(description="UTC, ISO 8601")
    duration_s: float = Field(description="from settled to the end of the round")
    autogroup_enabled: bool | None = Field(description="null where the kernel has no autogroups")
    measured: Placement | None = Field(
        description="of the measured process, or the first of several; null if it had ended"
    )
    measured_on_cpu_s: float | None = Field(description="of all measured processes together")
    measured_run_delay_s: float | None = Field(
        description="time their threads were ready to run and waited for a core"
    )
    core_speed_per_s: float | None = Field(
        None,
        description="rounds of a fixed loop that the enqueuing thread did per second of its CPU "
        "time, right behind the samples: fewer where its core shares hardware or clocks lower; "
        "null where a scenario's tenants or a block of a test were measured",
    )
    remedy: RemedyRecord | None
    neighbours: list[NeighbourRecord]
    machine: Machine


_NS_PER_MS = 1e6
_MOST_NAMED = 3
_SLOWEST = {"p99": "1 %", "p95": "5 %"}


class Culprit(PlainData):
    """Who or what caused requests to be slow."""

    what: str
    requests: int


class TailCauses(PlainData):
    """The causes of the requests above a percentile."""

    threshold_ms: float = Field(description="requests longer than this are the tail")
    median_ms: float = Field(description="of all requests")
    requests: int = Field(description="of the tail")
    shares: dict[str, Estimate] = Field(
        description="of the tail by cause, with 95 % intervals; what no cause explains is "
        "`unexplained`, and a cause that could not be seen is not here"
    )
    named: dict[str, list[Culprit]] = Field(
        description="by cause, what was named most often, the most frequent first"
    )
    not_seen: dict[str, str] = Field(description="causes that could not be seen, and why")
    unexplained_in: dict[str, Estimate] | None = Field(
        None,
        description="of the tail, what is unexplained and lost half of its delay on the `host`, "
        "waiting for the thread that launches, or on the `device`; null if that was not seen",
    )
    words: str = Field(description="the shares in one line")


class Causes(PlainData):
    """What a traced pass, separate from the measured one, saw of its slow requests."""

    level: Level = Field(
        description="of the CPU's trace: perf sees switches, and with tracepoints who ran instead, "
        "wake-ups and interrupts; rusage only how long threads waited for a core; none nothing"
    )
    refused_levels: list[Refusal] = Field(description="what would have seen more, best first")
    requests: int = Field(description="that were traced")
    lost: int | None = Field(
        description="records of the CPU's trace that did not fit; null without such a trace"
    )
    clock_offset_ns: int | None = Field(
        description="of the device's clock against the host's, before the pass; null if they are "
        "one clock"
    )
    clock_uncertainty_ns: int | None = Field(description="of that offset, at most, on either side")
    tails: dict[str, TailCauses] = Field(description="by percentile: p95, p99")
    refused: dict[str, str] = Field(description="the reason for each percentile that is missing")
    limits: list[str] = Field(description="what this pass could not see, in words")
    launch_pairs: LaunchPairs | None = Field(
        description="gaps between launches, with and without a context switch inside; null where "
        "switches could not be seen"
    )
    interrupts: list[InterruptTime] | None = Field(
        description="time they took from requests, by type; null where they could not be seen"
    )


def causes_line(causes: Causes, where: str = "a traced run of its own") -> str:
    """Return in one line the causes of the highest percentile, and ``where`` they occurred.

    One line, such as "causes of the slowest 1 % in a traced run of its own (412 requests, level
    perf): 61 % queued behind its own conv on stream 7; 35 % unexplained".
    """
    run = f"in {where} ({causes.requests} requests, level {causes.level})"
    for name, share in _SLOWEST.items():
        if name in causes.tails:
            return f"causes of the slowest {share} {run}: {causes.tails[name].words}"
    reasons = "; ".join(dict.fromkeys(causes.refused.values()))
    return f"causes of the slowest requests are not known: {run}, {reasons}"


def tail_causes(tail: TailAttribution) -> TailCauses:
    """Return the causes of a tail that a record keeps."""
    return TailCauses(
        threshold_ms=tail.threshold_ns / _NS_PER_MS,
        median_ms=tail.median_ns / _NS_PER_MS,
        requests=len(tail.requests),
        shares=tail.shares,
        named={
            cause: [Culprit(what=what, requests=number) for what, number in whats[:_MOST_NAMED]]
            for cause, whats in tail.whats.items()
        },
        not_seen={str(cause): reason for cause, reason in tail.not_seen.items()},
        unexplained_in=tail.unexplained_in,
        words=in_words(tail),
    )
