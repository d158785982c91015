"""The schema of causes: the tracing level, and each tail's requests by cause.

Plain data from what a traced pass saw; the same for a cell's record and a tenant's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field

from pytest_hwqueue.metrics.attribution import Attribution, TailAttribution
from pytest_hwqueue.metrics.cpu_events import InterruptTime, LaunchPairs
from pytest_hwqueue.metrics.critical_path import in_words
from pytest_hwqueue.metrics.latency import Share
from pytest_hwqueue.metrics.numbers import PlainData
from pytest_hwqueue.tracing.levels import ClockPair, Level, Refusal

_NS_PER_MS = 1e6
_MOST_NAMED = 3
_SLOWEST = {"p99": "1 %", "p95": "5 %"}


class RefusedLevel(PlainData):
    """A better tracing level, or a part of this one, that was not available."""

    level: Level
    errno: int | None = Field(description="of the system call; null if it was another reason")
    reason: str


class Named(PlainData):
    """Who or what caused requests to be slow."""

    what: str
    requests: int


class TailCauses(PlainData):
    """The causes of the requests above a percentile."""

    threshold_ms: float = Field(description="requests longer than this are the tail")
    median_ms: float = Field(description="of all requests")
    requests: int = Field(description="of the tail")
    shares: dict[str, Share] = Field(
        description="of the tail by cause, with 95 % intervals; what no cause explains is "
        "`unexplained`, and a cause that could not be seen is not here"
    )
    named: dict[str, list[Named]] = Field(
        description="by cause, what was named most often, the most frequent first"
    )
    not_seen: dict[str, str] = Field(description="causes that could not be seen, and why")
    unexplained_in: dict[str, Share] | None = Field(
        None,
        description="of the tail, what is unexplained and lost half of its delay on the `host`, "
        "waiting for the thread that launches, or on the `device`; null if that was not seen",
    )
    words: str = Field(description="the shares in one line")


class Causes(PlainData):
    """What a traced pass, separate from the measured one, saw of its slow requests."""

    level: Level = Field(
        description="of the CPU's trace: perf sees switches, and with tracepoints who ran instead, "
        "wake-ups and interrupts (perf-system and perf-self in older records: with tracepoints and "
        "without); rusage only how long threads waited for a core; none nothing"
    )
    refused_levels: list[RefusedLevel] = Field(description="what would have seen more, best first")
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


@dataclass(frozen=True)
class TracedWith:
    """How requests were traced.

    Attributes:
        level: of the CPU's trace.
        refused: what would have seen more.
        lost: records that did not fit; None without a trace.
        clocks: of the device against the host, in order; empty where they are one clock.

    """

    level: Level
    refused: Sequence[Refusal]
    lost: int | None
    clocks: Sequence[ClockPair] = ()


def describe_causes(
    attribution: Attribution,
    requests: int,
    traced: TracedWith,
    *,
    limits: Iterable[str] = (),
    pairs: LaunchPairs | None = None,
    interrupts: Sequence[InterruptTime] | None = None,
) -> Causes:
    """Return the causes that a record keeps.

    Args:
        attribution: of the requests.
        requests: how many there were.
        traced: by what means.
        limits: what could not be seen.
        pairs: of launches; None if switches could not be seen.
        interrupts: by type; None if they could not be seen.

    """
    clocks = traced.clocks
    return Causes(
        level=traced.level,
        refused_levels=[
            RefusedLevel(level=one.level, errno=one.errno, reason=one.reason)
            for one in traced.refused
        ],
        requests=requests,
        lost=traced.lost,
        clock_offset_ns=clocks[0].before.offset_ns if clocks else None,
        clock_uncertainty_ns=max(one.uncertainty_ns for one in clocks) if clocks else None,
        tails={name: _tail(tail) for name, tail in attribution.tails.items()},
        refused=dict(attribution.refused),
        limits=list(limits),
        launch_pairs=pairs,
        interrupts=None if interrupts is None else list(interrupts),
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


def _tail(tail: TailAttribution) -> TailCauses:
    return TailCauses(
        threshold_ms=tail.threshold_ns / _NS_PER_MS,
        median_ms=tail.median_ns / _NS_PER_MS,
        requests=len(tail.requests),
        shares=dict(tail.shares),
        named={
            cause: [Named(what=what, requests=number) for what, number in whats[:_MOST_NAMED]]
            for cause, whats in tail.whats.items()
        },
        not_seen={str(cause): reason for cause, reason in tail.not_seen.items()},
        unexplained_in=None
        if tail.unexplained_in is None
        else {str(place): share for place, share in tail.unexplained_in.items()},
        words=in_words(tail),
    )
