"""The result of ``hwq capacity``: its schema, the capacity, its interval and what broke first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.answers.which.rates import RateVerdict, bracket
from pytest_hwqueue.answers.which.runs import WhichRuns
from pytest_hwqueue.answers.which.search import (
    ERROR,
    CapacitySearch,
    CaseSearch,
    margin_of,
    others_of,
)
from pytest_hwqueue.answers.which.table import in_unit, loss_of, records_of
from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures import over_sessions
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.records.origin import Origin, origin_of
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.engine.scenarios.goals import GoalResult, latency_bound_ns
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, own_run

KIND: Final = "pytest-hwqueue/capacity/"
"""How the schema of every version begins."""
_NS_PER_MS = 1e6
_P99 = figures.percentile(0.99)


class CapacityRate(PlainData):
    """What was seen at one arrival rate."""

    rate_per_s: float
    verdict: RateVerdict | None = Field(description="null if it was interrupted before that")
    windows: int
    confirming: int = Field(0, description="of them in fresh starts, to confirm the verdict")
    starts: int = Field(0, description="of its tenants for its windows; 0 where simulated")
    p99_ms: Estimate = Field(description="of the tenant; its interval counts queueing together")
    goals: list[GoalResult] = Field(description="with the intervals that decided")
    lost: dict[str, Estimate] = Field(
        description="share of its throughput alone that each other tenant loses"
    )
    records: list[str] = Field(description="files of its windows")


class CapacityCase(PlainData):
    """The capacity under one scheduler."""

    id: str
    variant: str | None
    placement: TenantPlacement
    scheduler: str
    capacity_per_s: Estimate = Field(
        description="greatest rate at which all goals hold; from the greatest rate shown to hold "
        "to the least shown to break. low is 0 if none held, high null if none broke"
    )
    broke_first: list[str] = Field(description="goals missed at the least rate that broke")
    reason: str = Field("", description="why the search ended early; empty if it did not")
    cut: bool = Field(
        False, description="its time was used up before neighbouring rates held and broke"
    )
    starts: int = Field(0, description="of its tenants, for all windows; 0 where simulated")
    unconfirmed_per_s: list[float] = Field(
        default_factory=list,
        description="ends of the interval whose rates were not confirmed in two fresh starts",
    )
    rates: list[CapacityRate] = Field(description="ascending")

    @property
    def held(self) -> list[CapacityRate]:
        """The rates up to the capacity's lower end that held."""
        low = self.capacity_per_s.low
        return [each for each in self.rates if each.verdict == "held" and each.rate_per_s <= low]


class CapacityFile(Origin):
    """How much load of one tenant a scenario carries under each scheduler."""

    schema_: Literal["pytest-hwqueue/capacity/2"] = Field(
        "pytest-hwqueue/capacity/2", alias="schema"
    )
    tenant: str = Field(description="whose arrival rate was searched")
    p99_goal_ms: float | None = Field(description="strictest bound on its P99, if any")
    others: list[str] = Field(description="tenants whose loss is reported")
    error: float = Field(description="most probability of a wrong verdict at a rate, both sides")
    windows_at_most: int = Field(description="of one rate, with those that confirm it")
    time_s: float = Field(
        0.0, description="for each scheduler, starts included, where its requests are frequent"
    )
    requests: int = Field(description="expected in a window")
    cases: list[CapacityCase]


def result(search: CapacitySearch, *, seed: int, complete: bool) -> CapacityFile:
    """Return what a search has found so far."""
    scenario, tenant = search.found[0].case.scenario, search.tenant
    records = [
        record
        for found in search.found
        for index in found.windows
        for record in records_of(*_run_at(search, found, index))
    ]
    bounds = [latency_bound_ns(found.case.goals, tenant) for found in search.found]
    bound_ns = min((bound for bound in bounds if bound is not None), default=None)
    others = (each for found in search.found for each in others_of(found.case, tenant))
    return CapacityFile(
        **{**origin_of(records), "seed": seed},
        scenario=scenario.name,
        description=scenario.description,
        tenant=tenant,
        p99_goal_ms=None if bound_ns is None else bound_ns / _NS_PER_MS,
        others=list(dict.fromkeys(each.name for each in others)),
        complete=complete,
        error=ERROR,
        windows_at_most=search.looks.at_most,
        time_s=max(found.budget.time_s for found in search.found),
        requests=search.looks.requests,
        cases=[_case(search, found) for found in search.found],
    )


def _case(search: CapacitySearch, found: CaseSearch) -> CapacityCase:
    low, high = bracket(found.verdicts)
    rate = found.grid.rate_per_s
    return CapacityCase(
        id=found.case.id,
        variant=found.case.variant and found.case.variant.name,
        placement=found.case.placement,
        scheduler=found.case.scheduler,
        capacity_per_s=Estimate(
            value=crossing(search, found),
            low=0.0 if low is None else rate(low),
            high=math.inf if high is None else rate(high),
            n=sum(
                round(_measured(search, found, i) * search.looks.requests) for i in found.windows
            ),
            unit="requests/s",
            refused=_open_end(found),
        ),
        broke_first=[]
        if high is None
        else [each.goal for each in found.results[high] if each.verdict == "missed"],
        reason=found.stopped,
        cut=found.cut,
        starts=_starts(
            record
            for index in found.windows
            for record in records_of(*_run_at(search, found, index))
        ),
        unconfirmed_per_s=[rate(index) for index in found.unconfirmed],
        rates=[_rate(search, found, index) for index in sorted(found.windows)],
    )


def _starts(records: Iterable[ColocationRecord]) -> int:
    """Return how often the tenants of windows were started."""
    return len({record.tenants_started for record in records} - {""})


def _open_end(found: CaseSearch) -> str:
    """Return why an end of the interval is missing."""
    low, high = bracket(found.verdicts)
    parts = [f"the search ended early, {found.stopped}"] if found.stopped else []
    if found.verdicts and low is None:
        parts.append(f"no rate was shown to hold, down to {_edge(found, min(found.verdicts))}")
    if found.verdicts and high is None:
        parts.append(f"no rate was shown to break, up to {_edge(found, max(found.verdicts))}")
    if not found.verdicts:
        parts.append("no rate was judged")
    return "; ".join(parts)


def _edge(found: CaseSearch, index: int) -> str:
    return f"{found.grid.rate_per_s(index):g}/s"


def _measured(search: CapacitySearch, found: CaseSearch, index: int) -> float:
    """Return the time that a rate was judged by, in whole windows."""
    window_s = search.looks.window_s(found.grid.rate_per_s(index))
    judged = records_of(*_run_at(search, found, index))[: found.windows[index]]
    return sum(record.duration_s for record in judged) / window_s


def crossing(search: CapacitySearch, found: CaseSearch) -> float | None:
    """Return the rate at which the first goal's figure crosses its bound; None if none is seen to.

    Over the rates of the bracket, the logarithm of a figure divided by its bound is fitted by a
    straight line over the logarithm of the rate, by least squares weighted by time measured:
    between rates that differ little any smooth response is nearly that, and every window counts.
    The line is not followed out of the bracket.
    """
    low, high = bracket(found.verdicts)
    if low is None or high is None:
        return None
    rates = [index for index in sorted(found.results) if low <= index <= high]
    weights = {i: _measured(search, found, i) for i in rates}
    crossings = []
    for number in range(len(found.results[low])):
        seen = [(i, margin_of(found.results[i][number]), weights[i]) for i in rates]
        known = [(i, margin, weight) for i, margin, weight in seen if margin is not None]
        at = _zero(known)
        if at is not None:
            crossings.append(at)
    index = min(crossings, default=(low + high) / 2)
    return found.grid.start_per_s * 2 ** (min(max(index, low), high) / found.grid.steps)


def _zero(points: Sequence[tuple[int, float, float]]) -> float | None:
    """Return where a rising line through weighted points crosses zero; None if none does."""
    total = sum(weight for _, _, weight in points)
    if len(points) < 2 or all(margin <= 0 for _, margin, _ in points):
        return None
    x = sum(weight * place for place, _, weight in points) / total
    y = sum(weight * margin for _, margin, weight in points) / total
    spread = sum(weight * (place - x) ** 2 for place, _, weight in points)
    slope = sum(weight * (place - x) * (margin - y) for place, margin, weight in points) / spread
    return x - y / slope if slope > 0 else None


def _rate(search: CapacitySearch, found: CaseSearch, index: int) -> CapacityRate:
    runs, run = _run_at(search, found, index)
    solos, alone = search.alone(found)
    p99 = over_sessions.absolute(_P99, runs.windows(run, search.tenant), CONFIDENCE)
    return CapacityRate(
        rate_per_s=found.grid.rate_per_s(index),
        verdict=found.verdicts.get(index),
        windows=found.windows[index],
        confirming=found.confirming.get(index, 0),
        starts=_starts(records_of(runs, run)),
        p99_ms=in_unit(p99, 1 / _NS_PER_MS, "ms"),
        goals=found.results[index],
        lost={
            name: loss_of(in_unit(_kept(runs, run, alone, solo)))
            for name, solo in solos.items()
            if alone.records_so_far(solo)
        },
        records=[path.name for _, path in runs.window_records(run)],
    )


def _kept(runs: WhichRuns, run: PlannedRun, alone: WhichRuns, solo: PlannedRun) -> Estimate:
    """Return a tenant's throughput divided by its throughput alone."""
    (name,) = (tenant.name for tenant in solo.tenants)
    return over_sessions.ratio(
        figures.throughput, runs.windows(run, name), alone.windows(solo, name), CONFIDENCE
    )


def _run_at(search: CapacitySearch, found: CaseSearch, index: int) -> tuple[WhichRuns, PlannedRun]:
    case, runs = search.runs_at(found, index)
    return runs, own_run(case)


def front(cases: Iterable[CapacityCase], other: str) -> list[tuple[str, CapacityRate]]:
    """Return the rates that held and that no other beats: more load, and no more lost by a tenant.

    The Pareto front of the modes, by their values; ascending by rate.
    """
    points = [
        (case.id, rate, lost.value)
        for case in cases
        for rate in case.held
        if (lost := rate.lost.get(other)) is not None and lost.value is not None
    ]
    best: list[tuple[str, CapacityRate]] = []
    least = math.inf
    for name, rate, share in sorted(points, key=lambda each: (-each[1].rate_per_s, each[2])):
        if share < least:
            least = share
            best.append((name, rate))
    return best[::-1]
