"""Searches for the capacity under every scheduler, one after the other.

A scheduler's tenants are started once, and serve windows at one rate after the other. Tenants of
two schedulers never live at once, since they would share the device; what goals are compared with
is measured in starts of its own, once for each rate. What is found at the edge, the greatest rate
that held and the least that broke, is then confirmed in two fresh starts, each with a window at
either rate: what differs from start to start, such as where memory lies, differs there. Windows of
an earlier, interrupted command are reused, and invalid ones repeated.

A search begins at half of what the tenant serves alone or a little below. Rates are doubled or
lowered, then bisected on a geometric grid. All searches of one command share the grid, so that
schedulers meet at equal rates and share the runs that their goals are compared with. A search ends
at the latest when its time is used up (`SearchBudget`), of which enough is kept to confirm the
edge.

A rate is measured in up to so many windows. After each, all windows of the rate are judged
together, and the rate is decided as soon as they suffice. A window is also looked at while it runs,
and ends once the rate is broken, which no longer window would mend; that it holds takes a whole
one, in which a backlog has time to build up. Looking several times would raise the error, so each
window has its share of it, also those that confirm, and each look at it a part of that
(Bonferroni).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_hwqueue.answers.which.budget import CONFIRMING_STARTS, FITS_S, SearchBudget
from pytest_hwqueue.answers.which.rates import (
    RateGrid,
    RateVerdict,
    bracket,
    first_index,
    next_index,
)
from pytest_hwqueue.answers.which.runs import SameDevice, WhichRuns
from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, minimum_samples
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord, records_in
from pytest_hwqueue.engine.scenarios.file import TenantChange
from pytest_hwqueue.engine.scenarios.goals import Goal, GoalResult, parse_goal
from pytest_hwqueue.engine.scenarios.planned_runs import (
    Case,
    PlannedRun,
    own_run,
    peak_runs,
    reference_of,
    runs_needed,
    solo_run,
)
from pytest_hwqueue.engine.scenarios.runs import (
    ATTEMPTS,
    Decided,
    Measure,
    PeakUnknown,
    ScenarioRuns,
    WindowRecord,
)
from pytest_hwqueue.engine.tenants.arrivals import CLIENT, Arrival, at_peak, parse_arrival
from pytest_hwqueue.engine.tenants.looks import Look, planned_looks
from pytest_hwqueue.engine.tenants.servers import for_records

if TYPE_CHECKING:
    from pytest_hwqueue.engine.scenarios.measurer import Measurer


ERROR = 0.05
"""Of one rate, half for each side: that it is called held and is not, or broken and is not."""

# So much of the time is kept for two confirming starts, if they take no more; else for one.
_FOR_CONFIRMING = 0.4
# And so much for another end of the interval, if confirming shows that there is none yet.
_FOR_A_LOST_END = 0.1
# Of a rate's requests, the share that is completed at least where it does not overload.
_SERVED = 0.95
# A figure almost three times its bound says no more about where it crosses it.
_FAR = 1.0


@dataclass(frozen=True)
class RateLooks:
    """How often a rate is looked at, and in how long windows.

    Attributes:
        searched: most windows of one rate while it is searched.
        requests: expected in each.
        least_s: length of a window at any rate.
        fewest: requests that the goals' percentiles need at least; of a rate at which they come in
            `FITS_S`, no window is longer than that.

    """

    searched: int
    requests: int
    least_s: float
    fewest: int

    @property
    def at_most(self) -> int:
        """Windows of one rate, with those that confirm it."""
        return self.searched + CONFIRMING_STARTS

    def counted(self, rate_per_s: float) -> bool:
        """Whether requests are so rare that a search's windows are counted, and not its time."""
        return self.fewest > FITS_S * rate_per_s

    def window_s(self, rate_per_s: float) -> float:
        """Return a window's length in seconds, rounded up to milliseconds."""
        wanted_s = -(-1000 * self.requests // rate_per_s) / 1000
        if not self.counted(rate_per_s):
            wanted_s = min(wanted_s, FITS_S)
        return max(self.least_s, wanted_s)

    def planned(self, window_s: float) -> list[Look]:
        """Return the looks at one window, which share its part of the error; the last ends it."""
        looks = planned_looks(round(window_s * 1e9), 1, 1)
        part = ERROR / self.at_most / sum(look.error for look in looks)
        return [Look(look.window_ns, part * look.error) for look in looks]


def least_requests(goals: Sequence[Goal], confidence: float = CONFIDENCE) -> int:
    """Return with how many independent requests every percentile among goals can be judged."""
    quantiles = [goal.quantile for goal in goals if goal.quantile is not None]
    return max((minimum_samples(each, confidence) for each in quantiles), default=1)


def look_confidence(searched: int) -> float:
    """Return the confidence at a window's end, if a rate is searched in at most so many."""
    # A window so long that it is looked at as often as any.
    return 1 - RateLooks(searched, 0, 0.0, 0).planned(3600.0)[-1].error


def verdict_on(
    runs: ScenarioRuns, case: Case, confidence: float
) -> tuple[RateVerdict, list[GoalResult]]:
    """Return whether a rate holds, from all its windows, and its goals' results.

    It holds if every goal is met, which needs no correction for their number (Berger, Technometrics
    24, 1982), and is broken if any is missed, which does. The results are those of the judgement
    that decided.

    Args:
        runs: with the windows.
        case: which of them.
        confidence: of a goal's interval at this look.

    """
    met = runs.judge(case, confidence=confidence)
    if all(goal.verdict == "met" for goal in met):
        return "held", met
    each = 1 - (1 - confidence) / len(met)
    strict = met if len(met) == 1 else runs.judge(case, confidence=each)
    if any(goal.verdict == "missed" for goal in strict):
        return "broken", strict
    # What is missed at this confidence alone is as undecided as the rate.
    open_yet = zip(met, strict, strict=True)
    return "undecided", [sure if goal.verdict == "missed" else goal for goal, sure in open_yet]


class RateRuns(WhichRuns):
    """The runs of one rate.

    Attributes:
        confirms: whether the window that is measured confirms the rate.

    """

    def __init__(self, measure: Measure, looks: RateLooks, judged: Sequence[Case]) -> None:
        super().__init__(measure)
        self._looks = looks
        self._asked = judged
        self.confirms = False

    def verdict(self, case: Case) -> tuple[RateVerdict, list[GoalResult]]:
        """Return whether the rate holds by the last look at it, and its goals' results."""
        last = self.records(own_run(case))[-1]
        error = min(last.look_error, ERROR / self._looks.at_most)
        return verdict_on(self, case, 1 - error)

    def missing(self, case: Case) -> list[PlannedRun]:
        """Return the runs that the case's goals are compared with and that were not measured."""
        return [run for run in runs_needed(case) if not self.records_so_far(run)]

    def measure_compared(self, case: Case, run: PlannedRun) -> None:
        """Measure a run that goals are compared with until they are decided, or it is sharp."""
        for number in range(1, self._looks.searched + 1):
            self.measure_window(run, number)
            if self.is_sharp(run, self._asked or ()) or self.verdict(case)[0] != "undecided":
                break

    def provisional(self, case: Case, verdict: RateVerdict) -> RateVerdict:
        """Return a verdict as it would be if goals whose comparison is missing were met."""
        missing = {run.key for run in self.missing(case)}
        if verdict != "undecided" or not missing:
            return verdict
        known = [
            result
            for goal, result in zip(case.goals, self.verdict(case)[1], strict=True)
            if (compared := reference_of(case, goal)) is None or compared[0].key not in missing
        ]
        return "held" if all(result.verdict == "met" for result in known) else verdict

    def settled(self, case: Case) -> bool:
        """Whether a window may end early: once the rate is broken, also in blocks.

        One that confirms must show so by itself, too.
        """
        verdict, results = self.verdict(case)
        broken = verdict == "broken" and "missed" in self.sure(case, results)
        return broken and not (self.confirms and self._last(case).verdict(case)[0] != "broken")

    def _last(self, case: Case) -> RateRuns:
        """Return the rate as the last window alone shows it."""
        runs, key = RateRuns(self._attempt, self._looks, []), own_run(case).key
        runs._stored = {**self._stored, key: self._stored[key][-1:]}
        return runs


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
        same_device = SameDevice()
        for path, record in records_in(folder) if folder.is_dir() else ():
            if record.status != "ok" or record.traced:
                continue
            same_device.check(record, path)
            self._windows[_key(record.plan, record.run)] = (record, path)

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, plan: Colocation, number: int) -> tuple[ColocationRecord, Path] | None:
        """Return the record of a window, and its file, if there is one."""
        return self._windows.get(_key(for_records(plan), number))

    def keep(self, record: ColocationRecord, path: Path) -> None:
        """Add a window that was just measured."""
        if record.status == "ok":
            self._windows[_key(record.plan, record.run)] = (record, path)


class ResumingMeasurer:
    """Measures a run's windows of one length, each only if it is not kept."""

    def __init__(
        self, measurer: Measurer, kept: KeptWindows, window_s: float, looks: Sequence[Look]
    ) -> None:
        self._measurer, self._kept, self._window_s = measurer, kept, window_s
        self._looks = looks

    def __call__(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int,
        decided: Decided | None,
    ) -> WindowRecord:  # fmt: skip
        """Return a window's record and file; the arguments are those of `Measurer`."""
        window_s = self._window_s * share
        plan = self._measurer.plan(run, peaks_per_s, window_s, number)
        kept = self._kept.find(plan, number)
        # Where the goals have changed since, a window that ended early may decide nothing.
        if kept and (kept[0].duration_s >= plan.duration_s or (decided and decided(*kept))):
            return kept
        record, path = self._measurer.window(run, plan, number, self._looks, decided)
        self._kept.keep(record, path)
        return record, path


def _key(plan: Colocation, number: int) -> _Key:
    return json.dumps(asdict(replace(plan, goals=())), sort_keys=True), number


@dataclass
class CaseSearch:
    """What the search of one case has found.

    Attributes:
        case: the case.
        grid: of its rates; equal for all cases of one variant.
        budget: what the search may take.
        first: index of the rate at which it begins.
        verdicts: by index of the rate.
        results: of the goals, likewise.
        windows: that each rate was judged by.
        confirming: how many of these were in fresh starts, to confirm it.
        stopped: why the search ended early; empty if it did not.
        cut: whether its time was used up before neighbours on the grid met.

    """

    case: Case
    grid: RateGrid
    budget: SearchBudget
    first: int = 0
    verdicts: dict[int, RateVerdict] = field(default_factory=dict)
    results: dict[int, list[GoalResult]] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)
    confirming: dict[int, int] = field(default_factory=dict)
    stopped: str = ""
    cut: bool = False

    @property
    def edges(self) -> list[int]:
        """The greatest rate that held and the least that broke, by index; one may be missing."""
        return [index for index in bracket(self.verdicts) if index is not None]

    @property
    def unconfirmed(self) -> list[int]:
        """The edges that were not confirmed in as many starts as they should be."""
        return [i for i in self.edges if self.confirming.get(i, 0) < CONFIRMING_STARTS]


def arrival_of(case: Case, tenant: str) -> Arrival:
    """Return the arrivals whose rate is searched for; 1/s stands for a share of a peak.

    Raises:
        BadOption: if there is no such tenant in the case, or it has no rate.

    """
    tenants = {each.name: each for each in case.tenants}
    if tenant not in tenants:
        where = f" of {case.variant.name}" if case.variant is not None else ""
        raise BadOption("--tenant", tenant, f"the tenants{where} are {', '.join(tenants)}")
    text = at_peak(tenants[tenant].arrival, 1.0)
    kind = text.partition(":")[0].strip()
    if kind == CLIENT:
        raise BadOption(
            "--tenant", tenant,
            "its requests are sent by another project's client (server.client), at a rate that it "
            "alone decides; leave the client out of a copy, which gives the tenant an arrival",
        )  # fmt: skip
    if kind in ("closed", "trace"):
        raise BadOption(
            "--tenant", tenant,
            f"its arrival is {kind}, which has no rate to change; give it constant, poisson or "
            "lognormal arrivals in the scenario file",
        )  # fmt: skip
    return parse_arrival(text, Path())


def at_rate(case: Case, tenant: str, rate_per_s: float) -> Case:
    """Return the case with a tenant's requests arriving at another rate."""
    arrival = replace(arrival_of(case, tenant), rate_per_s=rate_per_s)
    update = {"arrival": str(arrival)}
    if case.variant is None:
        tenants = tuple(
            each.model_copy(update=update) if each.name == tenant else each
            for each in case.scenario.tenants
        )
        scenario = case.scenario.model_copy(update={"tenants": tenants})
        return replace(case, scenario=scenario)
    change = case.variant.set.get(tenant, TenantChange()).model_copy(update=update)
    variant = case.variant.model_copy(update={"set": {**case.variant.set, tenant: change}})
    return replace(case, variant=variant)


def others_of(case: Case, tenant: str) -> list[Tenant]:
    """Return the less urgent tenants, whose throughput higher rates cost; else all others."""
    others = [each for each in case.tenants if each.name != tenant]
    (own,) = (each for each in case.tenants if each.name == tenant)
    return [each for each in others if each.priority < own.priority] or others


class RateProgress(Protocol):
    """Follows a search."""

    def window_begins(self, case: Case, rate_per_s: float, number: int) -> None:
        """Window ``number`` of a rate follows."""

    def rate_is_decided(self, case: Case, rate_per_s: float, verdict: RateVerdict) -> None:
        """A rate has its verdict."""


class CapacitySearch:
    """Measures what it needs to find the capacity of each case."""

    def __init__(
        self,
        found: Sequence[CaseSearch],
        tenant: str,
        looks: RateLooks,
        measure_for: Callable[[float], ResumingMeasurer],
        start_anew: Callable[[], None],
        progress: RateProgress,
    ) -> None:
        """Prepare a search.

        Args:
            found: receives what is found of each case, at least one.
            tenant: whose rate changes.
            looks: how each rate is judged.
            measure_for: returns what measures windows of so many seconds.
            start_anew: lets the next window's tenants start anew.
            progress: is told of each window and verdict.

        """
        self.tenant, self.looks, self.found = tenant, looks, found
        self._measure_for, self._start_anew = measure_for, start_anew
        self._progress = progress
        # By variant and rate, or what has no rate to change.
        self._runs: dict[tuple[str | None, int | str], RateRuns] = {}

    def begin(self) -> None:
        """Measure what the tenant serves alone, and begin each case's search there."""
        for found in self.found:
            (tenant,) = (each for each in found.case.tenants if each.name == self.tenant)
            greedy = replace(tenant, arrival="closed")
            run = solo_run(found.case, greedy)
            runs = self._runs_of(found.case, "greedy", self.looks.least_s)
            runs.measure_window(run, 1)
            served_per_s = runs.peak_per_s(run)
            # Where that is not known, the scenario's own rate is as good as any.
            if served_per_s is not None:
                found.first = first_index(found.grid, served_per_s)

    def search(self) -> None:
        """Search all cases to their end, one after the other."""
        for found in self.found:
            solos, alone = self.alone(found)
            for run in solos.values():
                alone.measure_window(run, 1)
            try:
                while not found.stopped and (
                    self._narrow(found) or self._compare(found) or self._confirm(found)
                ):
                    pass
            finally:
                self._drop_provisional(found)
            for index in found.windows.keys() - found.verdicts.keys():
                found.verdicts[index] = "undecided"

    def _drop_provisional(self, found: CaseSearch) -> None:
        """Leave rates undecided whose goals were compared with nothing: below the edge, mostly."""
        for index, verdict in found.verdicts.items():
            case, runs = self.runs_at(found, index)
            if verdict == "held" and runs.missing(case):
                found.verdicts[index] = "undecided"

    def runs_at(self, found: CaseSearch, index: int) -> tuple[Case, RateRuns]:
        """Return the case at a rate, and what was measured there."""
        rate = found.grid.rate_per_s(index)
        case = at_rate(found.case, self.tenant, rate)
        window_s = self.looks.window_s(rate)
        return case, self._runs_of(found.case, index, window_s, rate)

    def alone(self, found: CaseSearch) -> tuple[dict[str, PlannedRun], RateRuns]:
        """Return the runs of the other tenants alone, by name, and what was measured of them."""
        solos = {
            each.name: solo_run(found.case, each) for each in others_of(found.case, self.tenant)
        }
        # Once for all rates, as long as one of them takes at most.
        window_s = self.looks.at_most * self.looks.least_s
        return solos, self._runs_of(found.case, "alone", window_s)

    def _runs_of(
        self, case: Case, what: int | str, window_s: float, rate_per_s: float | None = None
    ) -> RateRuns:
        place = (None if case.variant is None else case.variant.name, what)
        if place not in self._runs:
            judged = [
                each.case if rate_per_s is None else at_rate(each.case, self.tenant, rate_per_s)
                for each in self.found
                if each.case.variant == case.variant
            ]
            self._runs[place] = RateRuns(self._measure_for(window_s), self.looks, judged)
        return self._runs[place]

    def _narrow(self, found: CaseSearch) -> bool:
        """Measure a window of the next rate, and judge; return whether there was one."""
        meets = {
            index: _meets(results) and not self._overloads(found, index)
            for index, results in found.results.items()
        }
        index = next_index(found.grid, found.verdicts, meets, found.first)
        if index is None or found.cut:
            return False
        if not self._may_narrow(found, index):
            found.cut = True
            return False
        self._measure(found, index)
        return True

    def _may_narrow(self, found: CaseSearch, index: int) -> bool:
        """Whether there is time for a window of a rate, and then to confirm the edge."""
        if not found.windows:
            return True
        budget, rate = found.budget, found.grid.rate_per_s(index)
        window_s, counted = self.looks.window_s(rate), self.looks.counted(rate)
        edges_s = [window_s * _taken("held"), window_s * _taken("broken")]
        # Where windows must be long, confirming once is what time is kept for; and an end of the
        # interval that is not confirmed is better than none.
        starts, kept_s = CONFIRMING_STARTS, _FOR_A_LOST_END * budget.time_s
        if not counted and starts * budget.takes_s(edges_s, 1) > _FOR_CONFIRMING * budget.time_s:
            starts = 1
        if len(found.edges) < len(bracket(found.verdicts)):
            starts, kept_s = int(not found.confirming), 0.0
        # What goals are compared with is native's, and counted to no mode that needs it.
        return budget.allows([window_s, *edges_s * starts], starts, kept_s=kept_s, counted=counted)

    def _measure(self, found: CaseSearch, index: int) -> None:
        """Measure a window of a rate, and judge all its windows."""
        rate = found.grid.rate_per_s(index)
        case, runs = self.runs_at(found, index)
        number = found.windows.get(index, 0) + 1
        self._progress.window_begins(found.case, rate, number)
        own = own_run(case)
        self._share_peaks(found, runs, own)
        runs.confirms = index in found.verdicts
        runs.measure_window(own, number)
        found.stopped = _unusable(runs, own, rate)
        if found.stopped:
            return
        found.budget.count(runs.records(own)[number - 1 :])
        for compared in runs.missing(case):
            # What it is alone at this rate says where goals break; nothing else would.
            if [tenant.name for tenant in compared.tenants] == [self.tenant]:
                self._share_peaks(found, runs, compared)
                runs.measure_compared(case, compared)
        verdict, results = runs.verdict(case)
        provisional = runs.provisional(case, verdict)
        # Together: of what is interrupted while it is judged, a table has nothing.
        found.windows[index], found.results[index] = number, results
        if runs.confirms and _starts_alone(runs.records(own)):
            found.confirming[index] = found.confirming.get(index, 0) + 1
        if runs.confirms or provisional != "undecided" or number >= self.looks.searched:
            self._decide(found, index, provisional)

    def _overloads(self, found: CaseSearch, index: int) -> bool:
        """Whether a rate leaves requests behind, whatever its goals are compared with."""
        case, runs = self.runs_at(found, index)
        windows = runs.windows(own_run(case), self.tenant)
        issued = sum(window.issued for window in windows)
        return sum(len(window.latency_ns) for window in windows) < _SERVED * issued

    def _decide(self, found: CaseSearch, index: int, verdict: RateVerdict) -> None:
        if found.verdicts.get(index) != verdict:
            found.verdicts[index] = verdict
            self._progress.rate_is_decided(found.case, found.grid.rate_per_s(index), verdict)

    def _share_peaks(self, found: CaseSearch, runs: RateRuns, run: PlannedRun) -> None:
        """Give a rate's runs what has no rate: peaks, and tenants alone that goals need."""
        for peak in peak_runs(run).values():
            self._share(found, runs, peak)

    def _share(self, found: CaseSearch, runs: RateRuns, run: PlannedRun) -> None:
        _, alone = self.alone(found)
        alone.measure_window(run, 1)
        if not runs.records_so_far(run):
            for record, path in alone.window_records(run):
                runs.add(run, record, path)

    def _compare(self, found: CaseSearch) -> bool:
        """Measure what goals are compared with at the greatest rate that may hold, and judge.

        Return whether any of it lacked. It takes a start of its own, so rates below that have none.
        """
        low, _ = bracket(found.verdicts)
        if low is None:
            return False
        case, runs = self.runs_at(found, low)
        missing = runs.missing(case)
        for run in missing:
            if all(tenant.name != self.tenant for tenant in run.tenants):
                self._share(found, runs, run)
            else:
                self._share_peaks(found, runs, run)
                runs.measure_compared(case, run)
        if not missing:
            return False
        verdict, found.results[low] = runs.verdict(case)
        if verdict == "undecided":
            # By its other goals alone it was decided; now it may need further windows.
            del found.verdicts[low]
            while self._lacks_verdict(found, low) and self._may_narrow(found, low):
                self._measure(found, low)
        if low not in found.verdicts or verdict != "undecided":
            self._decide(found, low, verdict)
        return True

    def _lacks_verdict(self, found: CaseSearch, index: int) -> bool:
        waits = found.windows[index] < self.looks.searched and not found.stopped
        return waits and index not in found.verdicts

    def _confirm(self, found: CaseSearch) -> bool:
        """Measure a window of each edge that lacks it, in a fresh start; return whether any did.

        The two starts have the edges in mirrored order.
        """
        edges = found.unconfirmed
        rates = [found.grid.rate_per_s(index) for index in edges]
        windows_s = [
            self.looks.window_s(rate) * _taken(found.verdicts[index])
            for index, rate in zip(edges, rates, strict=True)
        ]
        counted = all(map(self.looks.counted, rates))
        if not edges or not found.budget.allows(windows_s, 1, counted=counted):
            return False
        self._start_anew()
        backwards = any(found.confirming.get(index) for index in edges)
        before = bracket(found.verdicts)
        for index in edges[::-1] if backwards else edges:
            if not found.stopped:
                self._measure(found, index)
        if bracket(found.verdicts) != before:
            # There are other neighbours to find.
            found.cut = False
        return True


def _starts_alone(records: Sequence[ColocationRecord]) -> bool:
    """Whether the last window's tenants were started for none before it; simulated ones are not."""
    *before, last = (record.tenants_started for record in records)
    return not last or last not in before


def _taken(verdict: RateVerdict) -> float:
    """Return the share of a window that a rate mostly takes: one that is broken ends it early."""
    return 0.5 if verdict == "broken" else 1.0


def _meets(results: Sequence[GoalResult]) -> bool:
    """Whether a rate's figures, as far as they are known, keep to their bounds."""
    return all((margin_of(result) or 0.0) <= 0 for result in results)


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
