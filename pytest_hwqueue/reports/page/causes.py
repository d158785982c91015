"""Why slow requests were slow: who waited for whom, and the share of each cause in the tail."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.metrics.attribution import UNEXPLAINED
from pytest_hwqueue.metrics.numbers import counted, milliseconds, percent, time_unit
from pytest_hwqueue.metrics.shares import Share
from pytest_hwqueue.records.causes import Causes, TailCauses, causes_line

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class CauseView:
    """One cause of a tail.

    Attributes:
        cause: its name.
        text: its share of the tail's requests.
        interval: of that share, at 95 %.
        share: the same as a number from 0 to 1.
        ends: of the interval, likewise.
        named: what or whom requests waited for, the most frequent first, with their number.

    """

    cause: str
    text: str
    interval: str
    share: float
    ends: tuple[float, float]
    named: list[str]


@dataclass(frozen=True)
class TailView:
    """The tail above one percentile, by cause."""

    title: str
    causes: list[CauseView]
    not_seen: dict[str, str]


@dataclass(frozen=True)
class CausesView:
    """What a traced pass saw; ``line`` is what the terminal says."""

    line: str
    tails: list[TailView]
    refused: dict[str, str]
    limits: list[str]


def causes_view(causes: Causes | None) -> CausesView | None:
    """Return the causes of a run's slow requests; None if nobody looked for them."""
    if causes is None:
        return None
    return CausesView(
        line=causes_line(causes, "a traced pass of its own"),
        tails=[_tail(name, tail) for name, tail in causes.tails.items()],
        refused={name.upper(): reason for name, reason in causes.refused.items()},
        limits=list(causes.limits),
    )


def _tail(name: str, tail: TailCauses) -> TailView:
    unit = time_unit(tail.threshold_ms * _NS_PER_MS)
    title = (
        f"{counted(tail.requests, 'request')} above {name.upper()} of "
        f"{milliseconds(tail.threshold_ms, unit)}; the median took "
        f"{milliseconds(tail.median_ms, time_unit(tail.median_ms * _NS_PER_MS))}"
    )
    # What no cause explains comes last, whatever its share.
    ordered = sorted(tail.shares.items(), key=lambda each: (each[0] == UNEXPLAINED, -each[1].share))
    views = [_cause(cause, share, tail) for cause, share in ordered if share.number]
    return TailView(title, views, dict(tail.not_seen))


def _cause(cause: str, share: Share, tail: TailCauses) -> CauseView:
    shown = percent(share.share, share.interval)
    named = [f"{each.what} ({each.requests})" for each in tail.named.get(cause, [])]
    if cause == UNEXPLAINED and tail.unexplained_in:
        named = [
            f"lost on the {place}: {percent(part.share, part.interval)}"
            for place, part in tail.unexplained_in.items()
            if part.number
        ]
    return CauseView(cause, f"{shown.number} %", shown.interval, share.share, share.interval, named)
