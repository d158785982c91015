"""Searches for the capacity under every scheduler, one window of each in turn.

All schedulers advance together, so that machine drift affects them alike. Windows of an earlier,
interrupted command are reused, and invalid ones repeated.

A search begins at half of what the tenant serves alone or a little below. Rates are doubled or
halved, then bisected on a geometric grid. All searches of one command share the grid, so
that schedulers meet at equal rates and share the runs that their goals are compared with.

A rate is measured in up to so many windows. A window always runs to its end; after each, all
windows of the rate are judged together, and the rate is decided as soon as they suffice. Looking
several times would raise the error, so each look has its share of it (Bonferroni).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.metrics.latency import minimum_samples
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.scenarios.fields import TenantArrival
from pytest_hwqueue.scenarios.file import Scenario, Tenant, TenantChange
from pytest_hwqueue.scenarios.goals import Goal, GoalResult, parse_goal
from pytest_hwqueue.scenarios.planned_runs import Case, PlannedRun, own_run, solo_run
from pytest_hwqueue.scenarios.runs import PeakUnknown, ScenarioRuns
from pytest_hwqueue.tenancy.arrivals import Arrival, parse_arrival
from pytest_hwqueue.tenancy.spec import Colocation, Json
from pytest_hwqueue.which.runs import MeasureToFile, WhichRuns, check_device, records_in

if TYPE_CHECKING:
    from pytest_hwqueue.which.session import Measurer


RateVerdict = Literal["held", "broken", "undecided"]

ERROR = 0.05
"""Of one rate, half for each side: that it is called held and is not, or broken and is not."""

# A figure almost three times its bound says no more about where it crosses it.
_FAR = 1.0


@dataclass(frozen=True)
class Grid:
    """Rates ``start * 2 ** (index / steps)``; index 0 is the start.

    Attributes:
        start_per_s: the first rate.
        steps: rates for each doubling.
        least: lowest index that is searched.
        most: highest.

    """

    start_per_s: float
    steps: int
    least: int
    most: int

    def rate_per_s(self, index: int) -> float:
        """Return a rate with five digits, as it stands in plans."""
        return float(f"{self.start_per_s * 2 ** (index / self.steps):.5g}")


def make_grid(start_per_s: float, precision: float, least_per_s: float, most_per_s: float) -> Grid:
    """Return a grid whose neighbouring rates differ by at most ``precision``, such as 0.1.

    Raises:
        BadOption: if the start is not between the bounds.

    """
    if not least_per_s <= start_per_s <= most_per_s:
        raise BadOption(
            "--rates", f"{least_per_s:g}-{most_per_s:g}",
            f"the search starts at {start_per_s:g}/s, which must lie between them",
        )  # fmt: skip
    steps = math.ceil(math.log(2) / math.log1p(precision))
    # Of rates that are bounds themselves, rounding must lose none.
    least = math.ceil(steps * math.log2(least_per_s / start_per_s) - 1e-9)
    most = math.floor(steps * math.log2(most_per_s / start_per_s) + 1e-9)
    return Grid(start_per_s, steps, least, most)


def bracket(verdicts: Mapping[int, RateVerdict]) -> tuple[int | None, int | None]:
    """Return the highest index that held, and the lowest that broke; None where there is none.

    A rate that held above one that broke counts for nothing: the broken one bounds the interval.
    """
    high = min((i for i, verdict in verdicts.items() if verdict == "broken"), default=None)
    held = [i for i, verdict in verdicts.items() if verdict == "held"]
    return max((i for i in held if high is None or i < high), default=None), high


def first_index(grid: Grid, served_per_s: float) -> int:
    """Return where to begin: half of what the tenant serves alone, less up to a factor of two.

    The capacity is below that, and higher rates cost less: they take less time for as many
    requests, and break at once. Rates begin at whole doublings, whatever was served exactly, so
    that a search that is continued meets the same ones.
    """
    doublings = math.floor(math.log2(served_per_s / 2 / grid.start_per_s))
    return min(max(doublings * grid.steps, grid.least), grid.most)


def next_index(grid: Grid, verdicts: Mapping[int, RateVerdict], first: int) -> int | None:
    """Return the next rate to judge, by its index; None if the search is over.

    From the first, the rate is doubled until it breaks, and halved until it holds. Then the gap
    between the highest rate that held and the lowest that did not is bisected, and likewise the gap
    below the lowest that broke, until neighbours on the grid meet. Rates that stay undecided lie
    between.
    """
    if not verdicts:
        return first
    low, high = bracket(verdicts)
    if high is None and max(verdicts) < grid.most:
        return min(max(verdicts) + grid.steps, grid.most)
    if low is None and min(verdicts) > grid.least:
        return max(min(verdicts) - grid.steps, grid.least)
    between = [i for i in verdicts if (low is None or i > low) and (high is None or i < high)]
    if low is not None:
        above = min(between, default=high)
        if above is not None and above - low > 1:
            return (low + above) // 2
    if high is not None:
        below = max(between, default=low)
        if below is not None and high - below > 1:
            return (below + high + 1) // 2
    return None


def planned_windows(grid: Grid, at_most: int, first: int) -> Sequence[tuple[float, int]]:
    """Return a usual search's rates and their windows: the capacity lies just above the first.

    Rates next to it need all windows, those farther off one; what a search really needs depends on
    what it sees.
    """
    verdicts: dict[int, RateVerdict] = {}
    windows = []
    # Between the first and the next rate, so that neither is the capacity itself.
    while (index := next_index(grid, verdicts, first)) is not None:
        near = index in (first, first + 1)
        verdicts[index] = "undecided" if near else "held" if index < first else "broken"
        windows.append((grid.rate_per_s(index), at_most if near else 1))
    return windows


@dataclass(frozen=True)
class Looks:
    """How often a rate is looked at, and in how long windows.

    Attributes:
        at_most: windows of one rate.
        requests: expected in each.
        least_s: length of a window at any rate.

    """

    at_most: int
    requests: int
    least_s: float

    def window_s(self, rate_per_s: float) -> float:
        """Return a window's length in seconds, rounded up to milliseconds."""
        return max(self.least_s, -(-1000 * self.requests // rate_per_s) / 1000)

    @property
    def confidence(self) -> float:
        """Of a goal's interval at one look."""
        return 1 - ERROR / self.at_most


def least_requests(goals: Sequence[Goal], at_most: int) -> int:
    """Return with how many independent requests every percentile among goals can be judged."""
    confidence = Looks(at_most, 0, 0.0).confidence
    quantiles = [goal.quantile for goal in goals if goal.quantile is not None]
    return max((minimum_samples(each, confidence) for each in quantiles), default=1)


def verdict_on(
    runs: ScenarioRuns, case: Case, looks: Looks
) -> tuple[RateVerdict, list[GoalResult]]:
    """Return whether a rate holds, from all its windows, and its goals' results.

    It holds if every goal is met, which needs no correction for their number (Berger, Technometrics
    24, 1982), and is broken if any is missed, which does. The results are those of the judgement
    that decided.
    """
    met = runs.judge(case, confidence=looks.confidence)
    if all(goal.verdict == "met" for goal in met):
        return "held", met
    each = 1 - (1 - looks.confidence) / len(met)
    strict = runs.judge(case, confidence=each)
    if any(goal.verdict == "missed" for goal in strict):
        return "broken", strict
    return "undecided", met


def margin_of(result: GoalResult) -> float | None:
    """Return how far a figure is beyond its bound, as a logarithm; negative if it keeps to it.

    It is at most `_FAR`, also if the figure is infinite, and at least minus that.
    """
    goal = parse_goal(result.goal)
    upwards = goal.comparison in ("<", "<=")
    if not result.figure.n or goal.number <= 0:
        return None
    if result.figure.value is None:
        return _FAR
    if result.figure <= 0:
        return -_FAR if upwards else _FAR
    beyond = math.log(result.figure / goal.number)
    return min(max(beyond if upwards else -beyond, -_FAR), _FAR)


ATTEMPTS = 3
"""How often a window is measured until it is valid: a late generator is mostly a busy moment."""

_Key = tuple[str, int]


class KeptWindows:
    """The ``ok`` windows in a folder, by their whole plan; goals judge and do not measure."""

    def __init__(self, folder: Path) -> None:
        """Read a folder; one that does not exist holds nothing.

        Raises:
            RecordError: if a record cannot be read, or they come from different kinds of devices.

        """
        self.folder = folder
        self._windows: dict[_Key, tuple[ColocationRecord, Path]] = {}
        first: tuple[Path, ColocationRecord] | None = None
        for path, record in records_in(folder) if folder.is_dir() else ():
            if record.status != "ok" or record.traced:
                continue
            # `hwq which` ends windows when they are decided.
            if record.duration_s < record.plan["duration_s"]:
                continue
            if record.fingerprint is not None:
                first = first or (path, record)
                check_device(*first, record, path)
            self._windows[_key(record.plan, record.run)] = (record, path)

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, plan: Colocation, number: int) -> tuple[ColocationRecord, Path] | None:
        """Return the record of a window, and its file, if there is one."""
        return self._windows.get(_key(plan.to_json(), number))

    def keep(self, record: ColocationRecord, path: Path) -> None:
        """Add a window that was just measured."""
        if record.status == "ok":
            self._windows[_key(record.plan, record.run)] = (record, path)


class ResumingMeasurer:
    """Measures a run's windows of one length, each only if it is not kept, until it is valid."""

    def __init__(self, measurer: Measurer, kept: KeptWindows, window_s: float) -> None:
        self._measurer, self._kept, self._window_s = measurer, kept, window_s

    def __call__(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int
    ) -> tuple[ColocationRecord, Path]:
        """Return a window's record and file; the arguments are those of `Measurer`.

        An invalid window is repeated with the same arrivals, up to `ATTEMPTS` times in all. What
        made it invalid is the generator or the scheduler, never a latency.
        """
        plan = self._measurer.plan(run, peaks_per_s, self._window_s * share, number)
        kept = self._kept.find(plan, number)
        if kept is not None:
            return kept
        for _ in range(ATTEMPTS):
            record, path = self._measurer.window(run, peaks_per_s, self._window_s * share, number)
            if record.status != "invalid":
                break
        self._kept.keep(record, path)
        return record, path


def _key(plan: Json, number: int) -> _Key:
    measured = {name: value for name, value in plan.items() if name not in ("goals", "folder")}
    return json.dumps(measured, sort_keys=True), number


@dataclass
class Found:
    """What the search of one case has found.

    Attributes:
        case: the case.
        grid: of its rates; equal for all cases of one variant.
        first: index of the rate at which it begins.
        verdicts: by index of the rate.
        results: of the goals, likewise.
        windows: that each rate was judged by.
        stopped: why the search ended early; empty if it did not.
        complete: whether it came to its end.
        current: index of the rate that is being judged.

    """

    case: Case
    grid: Grid
    first: int = 0
    verdicts: dict[int, RateVerdict] = field(default_factory=dict)
    results: dict[int, list[GoalResult]] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)
    stopped: str = ""
    complete: bool = False
    current: int | None = None


def arrival_of(scenario: Scenario, case: Case, tenant: str) -> Arrival:
    """Return the arrivals whose rate is searched for; 1/s stands for a share of a peak.

    Raises:
        BadOption: if there is no such tenant in the case, or it has no rate.

    """
    tenants = {each.name: each for each in scenario.tenants_of(case.variant)}
    if tenant not in tenants:
        where = f" of {case.variant.name}" if case.variant is not None else ""
        raise BadOption("--tenant", tenant, f"the tenants{where} are {', '.join(tenants)}")
    text = tenants[tenant].arrival.at(1.0)
    kind = text.partition(":")[0].strip()
    if kind in ("closed", "trace"):
        raise BadOption(
            "--tenant", tenant,
            f"its arrival is {kind}, which has no rate to change; give it constant, poisson or "
            "lognormal arrivals in the scenario file",
        )  # fmt: skip
    return parse_arrival(text, Path())


def at_rate(
    scenario: Scenario, case: Case, tenant: str, rate_per_s: float
) -> tuple[Scenario, Case]:
    """Return the scenario and the case with a tenant's requests arriving at another rate."""
    arrival = replace(arrival_of(scenario, case, tenant), rate_per_s=rate_per_s)
    update = {"arrival": TenantArrival(str(arrival))}
    if case.variant is None:
        tenants = tuple(
            each.model_copy(update=update) if each.name == tenant else each
            for each in scenario.tenants
        )
        return scenario.model_copy(update={"tenants": tenants}), case
    change = case.variant.set.get(tenant, TenantChange()).model_copy(update=update)
    variant = case.variant.model_copy(update={"set": {**case.variant.set, tenant: change}})
    return scenario, replace(case, variant=variant)


def others_of(scenario: Scenario, case: Case, tenant: str) -> list[Tenant]:
    """Return the less urgent tenants, whose throughput higher rates cost; else all others."""
    others = [each for each in scenario.tenants_of(case.variant) if each.name != tenant]
    (own,) = (each for each in scenario.tenants_of(case.variant) if each.name == tenant)
    return [each for each in others if each.priority < own.priority] or others


class CapacitySearch:
    """Measures what it needs to find the capacity of each case."""

    def __init__(
        self,
        scenario: Scenario,
        found: Sequence[Found],
        tenant: str,
        looks: Looks,
        measure_for: Callable[[Scenario, float], MeasureToFile],
        begins: Callable[[Case, float, int], None] = lambda *_: None,
        decided: Callable[[Case, float, RateVerdict], None] = lambda *_: None,
    ) -> None:
        """Prepare a search.

        Args:
            scenario: the scenario.
            found: receives what is found of each case.
            tenant: whose rate changes.
            looks: how each rate is judged.
            measure_for: returns what measures a scenario's windows of so many seconds.
            begins: receives the case, the rate and the window's number before each.
            decided: receives each verdict.

        """
        self.scenario, self.tenant, self.looks, self.found = scenario, tenant, looks, found
        self._measure_for, self._begins, self._decided = measure_for, begins, decided
        # By variant and rate, or what runs alone, which has no rate to change.
        self._runs: dict[tuple[str | None, int | str], WhichRuns] = {}

    def begin(self) -> None:
        """Measure what the tenant serves alone, and begin each case's search there."""
        for found in self.found:
            (tenant,) = (
                each
                for each in self.scenario.tenants_of(found.case.variant)
                if each.name == self.tenant
            )
            greedy = tenant.model_copy(update={"arrival": TenantArrival("closed")})
            run = solo_run(self.scenario, found.case, greedy)
            runs = self._runs_of(found.case, "greedy", self.scenario, self.looks.least_s)
            runs.measure_up_to(run, 1)
            served_per_s = runs.peak_per_s(run)
            # Where that is not known, the scenario's own rate is as good as any.
            if served_per_s is not None:
                found.first = first_index(found.grid, served_per_s)

    def search(self) -> None:
        """Search all cases to their end."""
        active = list(self.found)
        while active:
            active = [found for found in active if self._advance(found)]

    def runs_at(self, found: Found, index: int) -> tuple[Scenario, Case, WhichRuns]:
        """Return the scenario and the case at a rate, and what was measured there."""
        rate = found.grid.rate_per_s(index)
        scenario, case = at_rate(self.scenario, found.case, self.tenant, rate)
        window_s = self.looks.window_s(rate)
        return scenario, case, self._runs_of(found.case, index, scenario, window_s)

    def alone(self, found: Found) -> tuple[dict[str, PlannedRun], WhichRuns]:
        """Return the runs of the other tenants alone, by name, and what was measured of them."""
        solos = {
            each.name: solo_run(self.scenario, found.case, each)
            for each in others_of(self.scenario, found.case, self.tenant)
        }
        # Once for all rates, as long as one of them takes at most.
        window_s = self.looks.at_most * self.looks.least_s
        return solos, self._runs_of(found.case, "alone", self.scenario, window_s)

    def _runs_of(
        self, case: Case, what: int | str, scenario: Scenario, window_s: float
    ) -> WhichRuns:
        place = (None if case.variant is None else case.variant.name, what)
        if place not in self._runs:
            self._runs[place] = WhichRuns(scenario, self._measure_for(scenario, window_s))
        return self._runs[place]

    def _advance(self, found: Found) -> bool:
        """Measure one window of a case, and judge; return whether there is more to do."""
        if not found.windows:
            solos, alone = self.alone(found)
            for run in solos.values():
                alone.measure_up_to(run, 1)
        if found.current is None:
            found.current = next_index(found.grid, found.verdicts, found.first)
        if found.current is None:
            found.complete = True
            return False
        index = found.current
        rate = found.grid.rate_per_s(index)
        scenario, case, runs = self.runs_at(found, index)
        number = found.windows.get(index, 0) + 1
        self._begins(found.case, rate, number)
        runs.measure_window(case, number)
        found.stopped = _unusable(runs, own_run(scenario, case), rate)
        if found.stopped:
            return False
        found.windows[index] = number
        verdict, found.results[index] = verdict_on(runs, case, self.looks)
        if verdict != "undecided" or number == self.looks.at_most:
            found.verdicts[index] = verdict
            found.current = None
            self._decided(found.case, rate, verdict)
        return True


def _unusable(runs: WhichRuns, run: PlannedRun, rate_per_s: float) -> str:
    """Return why a run's windows judge nothing; empty if they do."""
    try:
        records = runs.records(run)
    except PeakUnknown as error:
        return str(error)
    bad = next((record for record in records if record.status != "ok"), None)
    if bad is None:
        return ""
    each_time = f", each of {ATTEMPTS} times" if bad.status == "invalid" else ""
    return f"{bad.status} at {rate_per_s:g}/s{each_time}: {bad.reason}"
