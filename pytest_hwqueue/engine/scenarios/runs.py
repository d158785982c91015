"""Runs of a scenario, in turn, and the verdicts on its goals.

A relative goal needs its reference from the same session, and near in time: all runs of a scenario
take turns in mirrored order (ABBA), so that machine drift affects all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.figures import over_sessions
from pytest_hwqueue.data.figures.of_requests import Estimator, percentile, throughput, worth_at
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.metrics.latency import minimum_samples, sufficient_samples
from pytest_hwqueue.data.metrics.numbers import duration
from pytest_hwqueue.engine.scenarios.deciding import agrees_in_blocks, chances, may_decide
from pytest_hwqueue.engine.scenarios.goals import (
    CONFIDENCE,
    NATIVE,
    SOLO,
    EndedBy,
    Goal,
    GoalResult,
    GoalVerdict,
    estimator_of,
    evaluate,
)
from pytest_hwqueue.engine.scenarios.planned_runs import (
    Case,
    PlannedRun,
    native_run,
    once,
    own_run,
    peak_runs,
    reference_of,
    runs_needed,
    runs_with_references,
    solo_run,
    within_of,
)
from pytest_hwqueue.engine.scenarios.traced_windows import enough_s, served_all, traced_ended_by
from pytest_hwqueue.engine.tenants.arrivals import is_closed
from pytest_hwqueue.engine.tenants.device_use import TIME_SLICES, in_time_slices, used

if TYPE_CHECKING:
    from pytest_hwqueue.data.figures.of_requests import ServedRequests, Session
    from pytest_hwqueue.data.metrics.estimate import Estimate
    from pytest_hwqueue.data.records.tenants import ColocationRecord
    from pytest_hwqueue.engine.tenants.tenant_cells import References


ROUNDS = 2
"""Into how many runs, in mirrored order, a window is cut where goals compare runs."""
ATTEMPTS = 3
"""How often a window is measured until it is valid: a late generator is mostly a busy moment."""


class PeakUnknown(HwqError):
    """A rate is a share of a tenant's peak, and the peak could not be measured."""


class NotMeasured(PeakUnknown):
    """The session ended before a run had its turn; a goal that needs it is undecided."""


# A record and its file.
WindowRecord = tuple["ColocationRecord", Path]
# Whether a look at a run decides all that is asked of it, by its record and the file it will have.
Decided = Callable[["ColocationRecord", Path], bool]
# Measures a run: peaks by tenant, share of the scenario's duration, number of the round, and what
# ends its window early; None measures it to its end.
Measure = Callable[[PlannedRun, Mapping[str, float], float, int, Decided | None], WindowRecord]
_MENDED_FIRST: tuple[EndedBy, ...] = ("duration", "requests", "trace")
# Of a figure by which others are divided: how far its interval may reach from its middle.
_SHARP = 0.05


class ScenarioRuns:
    """The runs of one scenario in one session, measured on first use and kept."""

    def __init__(self, measure: Measure) -> None:
        self._attempt = measure
        self._stored: dict[str, list[WindowRecord]] = {}
        self._traced: dict[str, list[WindowRecord]] = {}
        # Of a run's key and a tenant: its requests in records, which stay here with their sessions.
        self._served: dict[
            tuple[str, str], tuple[list[WindowRecord], list[Session], list[ServedRequests]]
        ] = {}
        self._run: int | None = None
        # The tests whose goals end windows early; None measures all windows to their end.
        self._asked: Sequence[Case] | None = None
        # Whether the rows of their table must have figures before that.
        self._with_figures = False
        # How many windows share a run's time; 0 where nobody has planned that.
        self._rounds = 0

    def begin_run(self, number: int) -> None:
        """Forget all measurements; from now on, measure everything anew, as this run."""
        if number != self._run:
            self._run = number
            self.forget()

    def forget(self) -> None:
        """Forget all measurements: whoever needs one again measures it anew."""
        self._stored.clear()
        self._traced.clear()
        self._served.clear()

    def measure_run(self, case: Case) -> None:
        """Measure what a test and its interference ratios need in this run, each once."""
        assert self._run is not None
        for run in once([*runs_with_references(case), *runs_needed(case)]):
            self.measure_window(run, self._run, first=self._run)

    def measure(self, wanted: Sequence[Case], until: str) -> None:
        """Measure what these tests still need.

        Args:
            wanted: the tests.
            until: as `take_turns` takes it; to the end under noise, whose cost is asked, too.

        """
        runs = once(run for case in wanted for run in runs_needed(case))
        rounds = ROUNDS if self.compares(wanted) else 1
        quiet = all(case.noise is None for case in wanted)
        self.take_turns(runs, rounds, wanted, until if quiet else "end")

    def take_turns(
        self,
        runs: Sequence[PlannedRun],
        rounds: int,
        asked: Sequence[Case],
        until: str,
        begins: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Measure runs in this many rounds of mirrored order.

        A run that failed is not measured in further rounds.

        Args:
            runs: each once.
            rounds: into how many windows the scenario's duration is cut.
            asked: the tests whose goals end windows, and leave runs out.
            until: ``decided``: once these goals are; ``figures``: once their rows in a table are
                known, too; ``end``: after all of the duration.
            begins: receives the number of finished windows and of all, before each.

        """
        from pytest_hwqueue.judge.statistics import turns

        self._asked = None if until == "end" else asked
        self._with_figures, self._rounds = until == "figures", rounds
        order = turns(runs, rounds)
        for done, (number, run) in enumerate(order):
            begins(done, len(order))
            if self._asked is None or not self._is_decided(run, self._asked):
                self.measure_window(run, number, 1 / rounds)

    def measure_window(
        self, run: PlannedRun, number: int, share: float = 1.0, first: int = 1
    ) -> None:
        """Measure a window of a run, after what its rates need; not if it has it, or one failed.

        Args:
            run: the run.
            number: of the window.
            share: of the scenario's duration.
            first: number of the run's first window.

        """
        for peak in peak_runs(run).values():
            self.measure_window(peak, first, share, first)
        peaks = self._known_peaks(run)
        if peaks is None:
            return
        stored = self._stored.setdefault(run.key, [])
        if len(stored) <= number - first and all(record.status == "ok" for record, _ in stored):
            stored.append(self._measure(run, peaks, share, number))

    def _decides(
        self, cases: Sequence[Case], run: PlannedRun, record: ColocationRecord, path: Path
    ) -> bool:
        """Return whether all that cases ask of a run is decided, were this its last record."""
        stored = self._stored.setdefault(run.key, [])
        stored.append((record, path))
        try:
            return self._is_decided(run, cases)
        finally:
            stored.pop()

    def _is_decided(self, run: PlannedRun, cases: Sequence[Case]) -> bool:
        """Return whether a run has decided all that is asked of it.

        Of a case's own: whether it misses a goal, or meets all, or hardly may in the time that is
        left. Of a tenant alone whose requests arrive: a bound on their P99, if the time is long
        enough. Of others: the figures that goals are divided by, or else throughput, within 5 %.
        """
        stored = self._stored.get(run.key)
        if not stored or any(record.status != "ok" for record, _ in stored):
            return False
        own = [case for case in cases if own_run(case).key == run.key]
        if not all(map(self.settled, own)) or (
            self._with_figures and not self._has_figures(run, cases)
        ):
            return False

        def estimated(name: str, estimator: Estimator) -> Estimate:
            return over_sessions.absolute(estimator, self.windows(run, name), CONFIDENCE)

        first, *others = run.tenants
        arrives = not own and not others and not is_closed(first.arrival)
        if arrives and math.isinf(estimated(first.name, percentile(0.99)).high):
            longer = self._longer(run)
            worth = worth_at(self.windows(run, first.name), 0.99, CONFIDENCE)
            if longer > 2 or worth * longer >= minimum_samples(0.99):
                return False
        compared = self._compared(run, cases)
        if not (compared or own or arrives):
            compared = [(tenant.name, throughput) for tenant in run.tenants]
        return all(_is_sharp(estimated(*each)) for each in compared)

    def _has_figures(self, run: PlannedRun, cases: Sequence[Case]) -> bool:
        """Whether a table's row of a run is known, or will hardly be in the time that is left.

        Of the most urgent tenants it has the P99, for which windows wait until it has both ends of
        as many samples as suffice; of the others, the throughput.
        """
        urgent = _urgent(run, cases)
        longer = self._longer(run)
        for tenant in run.tenants if urgent else ():
            windows = self.windows(run, tenant.name)
            if tenant.name not in urgent:
                rate = over_sessions.absolute(throughput, windows, CONFIDENCE)
                if rate.interval is None and longer > 1:
                    return False
                continue
            p99 = over_sessions.absolute(percentile(0.99), windows, CONFIDENCE)
            worth = worth_at(windows, 0.99, CONFIDENCE)
            if p99.interval is not None and worth >= sufficient_samples(0.99):
                continue
            least = minimum_samples(0.99)
            if longer > 2 or worth * longer >= least or p99.n < least <= p99.n * longer:
                return False
        return True

    def settled(self, case: Case) -> bool:
        """Whether a test's goals are decided, one missed or all met, or hardly will be."""
        results = self.judge(case)
        sure = self.sure(case, results)
        measured = sum(not goal.traced for goal in case.goals)
        decided = "missed" in sure or (bool(sure) and sure == ["met"] * measured)
        return decided or not self._may_be_decided(case, results)

    def _may_be_decided(self, case: Case, results: Sequence[GoalResult]) -> bool:
        """Whether a test's goals may yet be decided in the time that is left.

        Until half of it is over, they may: figures are wanted of what is undecided, too.
        """
        own = own_run(case)
        longer = self._longer(own)
        if not 1 < longer <= 2:
            return longer > 1
        goals = case.goals
        return may_decide(
            [
                chances(
                    goal, result, self.windows(own, goal.tenant), CONFIDENCE,
                    within_of(own, goal.tenant, goals), longer,
                )
                for goal, result in zip(goals, results, strict=True)
                if not goal.traced
            ]
        )  # fmt: skip

    def _longer(self, run: PlannedRun) -> float:
        """Return the whole time of a run, by that of its records; inf where nobody planned it."""
        if not self._rounds:
            return math.inf
        # Of the time of the tenant that comes last: it grows most.
        late_s = max(tenant.start_s for tenant in run.tenants)
        records = self.records(run)
        seen_s = sum(record.duration_s for record in records) - late_s * len(records)
        return (self.planned_s(run) - late_s * self._rounds) / seen_s if seen_s > 0 else math.inf

    def planned_s(self, run: PlannedRun) -> float:
        """Return the whole time of a run in seconds: as planned, or as long as its windows were."""
        return self._planned_s(self.records(run))

    def _planned_s(self, records: Sequence[ColocationRecord]) -> float:
        window_s = records[0].plan.duration_s
        return window_s * (self._rounds or len(records))

    def sure(self, case: Case, results: Sequence[GoalResult]) -> list[GoalVerdict]:
        """Return the verdicts on a test's goals to which blocks of its requests come, too.

        Those that a traced window judges are not among them. What is of the requests measured alone
        is not met before the last of them.
        """
        own = own_run(case)
        ends_later = self._longer(own) > 1
        goals = case.goals
        confidence = self._confidence(own)
        return [
            each.verdict
            for goal, each in zip(goals, results, strict=True)
            if each.verdict != "undecided"
            and not goal.traced
            and not (goal.of_these_requests and each.verdict == "met" and ends_later)
            and agrees_in_blocks(
                goal, each.verdict == "met", self.windows(own, goal.tenant), confidence,
                within_of(own, goal.tenant, goals),
            )
        ]  # fmt: skip

    def is_sharp(self, run: PlannedRun, cases: Sequence[Case]) -> bool:
        """Whether the figures of a run by which goals of others are divided are known well."""
        return all(
            _is_sharp(over_sessions.absolute(estimator, self.windows(run, name), CONFIDENCE))
            for name, estimator in self._compared(run, cases)
        )

    def _compared(self, run: PlannedRun, cases: Sequence[Case]) -> list[tuple[str, Estimator]]:
        """Return the figures of a run by which goals of other runs are divided, by tenant."""
        found = []
        for case in cases:
            own = own_run(case)
            for goal in own.goals:
                compared = reference_of(case, goal)
                if compared is None or compared[0].key != run.key:
                    continue
                if own.key != run.key or compared[1] != goal.tenant:
                    within_ns = within_of(own, goal.tenant, own.goals)
                    found.append((compared[1], estimator_of(goal, within_ns)))
        return found

    def with_references(self, case: Case) -> list[tuple[ColocationRecord, dict[str, References]]]:
        """Return a test's records in this run, and its tenants' reference latencies.

        By tenant, then by ``solo`` or ``native``: latencies in ns of what was ``ok``.
        """
        own = own_run(case)
        references: dict[str, References] = {}
        if len(own.tenants) > 1:
            native = native_run(case)
            for tenant in own.tenants:
                runs = {SOLO: solo_run(case, tenant)}
                if native.key != own.key:
                    runs[NATIVE] = native
                found = {name: self._latencies_ns(run, tenant.name) for name, run in runs.items()}
                references[tenant.name] = {name: each for name, each in found.items() if each}
        return [(record, references) for record, _ in self._stored.get(own.key, ())]

    def compares(self, wanted: Sequence[Case]) -> bool:
        """Whether these tests compare runs: for a goal, or a noise with the quiet."""
        noisy = any(case.noise is not None for case in wanted)
        return noisy or any(len(runs_needed(case)) > 1 for case in wanted)

    def records(self, run: PlannedRun) -> list[ColocationRecord]:
        """Return the records of a run, one for each round; raises what `window_records` does."""
        return [record for record, _ in self.window_records(run)]

    def window_records(self, run: PlannedRun) -> list[WindowRecord]:
        """Return the records of a run, one for each round, and their files.

        Raises:
            PeakUnknown: if there are none because a rate they need could not be found.
            NotMeasured: if there are none yet.

        """
        if run.key in self._stored:
            return self._stored[run.key]
        for name, peak in peak_runs(run).items():
            for record, _ in self._stored.get(peak.key, ()):
                if self.peak_per_s(peak) is None:
                    raise PeakUnknown(
                        f"tenant {name} arrives at a share of its peak, which could not be "
                        f"measured: {record.reason or 'no request was completed'}"
                    )
        raise NotMeasured(f"{run.name} under {run.scheduler} was not measured")

    def sessions(self, run: PlannedRun) -> list[Session]:
        """Return the session of each of `records`."""
        return [self._session(*each) for each in self.window_records(run)]

    def _session(self, _record: ColocationRecord, _path: Path) -> Session:
        """Return a record's session: all were measured in one, on one device."""
        from pytest_hwqueue.data.figures.of_requests import ONLY_SESSION

        return ONLY_SESSION

    def add_traced(self, run: PlannedRun, record: ColocationRecord, path: Path) -> None:
        """Add the record of a run's traced window."""
        self._traced.setdefault(run.key, []).append((record, path))

    def traced(self, run: PlannedRun) -> list[ColocationRecord]:
        """Return the records of a run's traced windows, which may be none."""
        return [record for record, _ in self._traced.get(run.key, ())]

    def use(self, run: PlannedRun, name: str) -> list[ServedRequests] | str:
        """Return what traced windows of a run show of a tenant, or of the `DEVICE`; or why nothing.

        The run's own records must all be ``ok``.
        """
        stored = self._traced.get(run.key, ())
        if not stored:
            return self.not_traced(run) or "no window of it was traced"
        seen = [
            used(record, name, self._session(record, path))
            for record, path in stored
            if not _unobserved(record)
        ]
        return seen or _unobserved(stored[-1][0])

    def not_traced(self, run: PlannedRun) -> str:
        """Return why a traced window would not show how tenants use the device; empty if it may."""
        record = self.records(run)[0]
        turns = in_time_slices(
            record.placement, record.scheduler, record.device, len(record.tenants)
        )
        return TIME_SLICES if turns else ""

    def windows(self, run: PlannedRun, tenant: str) -> list[ServedRequests]:
        """Return a tenant's requests in each ``ok`` record of a run."""
        # A table asks for the same requests for each of its figures.
        stored, sessions = self.window_records(run), self.sessions(run)
        seen, their_sessions, found = self._served.get((run.key, tenant), ([], [], []))
        if [*map(id, seen)] != [*map(id, stored)] or their_sessions != sessions:
            found = [
                served(record.tenant(tenant), round(record.duration_s * 1e9), session)
                for (record, _), session in zip(stored, sessions, strict=True)
                if record.status == "ok"
            ]
            self._served[run.key, tenant] = [*stored], sessions, found
        return found

    def unusable(self, own: PlannedRun, reference: PlannedRun) -> ColocationRecord | None:
        """Return a record of the reference that is not ``ok``, of sessions with the own run."""
        shared = set(self.sessions(own))
        pairs = zip(self.records(reference), self.sessions(reference), strict=True)
        return next(
            (record for record, each in pairs if each in shared and record.status != "ok"), None
        )

    def measured(
        self, case: Case
    ) -> tuple[PlannedRun, list[ColocationRecord], Mapping[str, float]]:
        """Return a test's own run, its records, and the peaks it was measured with.

        Raises:
            PeakUnknown: as `records` says.

        """
        run = own_run(case)
        records = self.records(run)
        return run, records, self._known_peaks(run) or {}

    def judge(self, case: Case, *, confidence: float | None = None) -> list[GoalResult]:
        """Judge a test's goals by its records and those of its references.

        The test's own records must all be ``ok``. Without a ``confidence``, it is that of the last
        look at them, in the session that asks for most.
        """
        own = own_run(case)
        if confidence is None:
            confidence = self._confidence(own)
        goals = case.goals
        for reason in filter(None, map(_not_felt, self.records(own))):
            return [_undecided(goal, reason) for goal in goals]
        return [self._judged(case, own, goal, goals, confidence) for goal in goals]

    def _confidence(self, own: PlannedRun) -> float:
        """Return that of the last look, in the session that asks for most."""
        last = dict(zip(self.sessions(own), self.records(own), strict=True))
        return 1 - min(record.look_error for record in last.values())

    def _judged(
        self, case: Case, own: PlannedRun, goal: Goal, goals: Sequence[Goal], confidence: float
    ) -> GoalResult:
        if goal.traced:
            use = self.use(own, goal.tenant)
            if isinstance(use, str):
                return _undecided(goal, use)
            # It is looked at once.
            return self._with_end_of_trace(own, goals, evaluate(goal, use))
        windows = self.windows(own, goal.tenant)
        compared = reference_of(case, goal)
        reference = None
        if compared is not None:
            run, name = compared
            try:
                bad = self.unusable(own, run)
            except PeakUnknown as error:
                return _undecided(goal, str(error))
            if bad is not None:
                return _undecided(goal, f"{goal.reference} was {bad.status}: {bad.reason}")
            same = run.key == own.key and name == goal.tenant
            reference = windows if same else self.windows(run, name)
        within_ns = within_of(own, goal.tenant, goals)
        result = evaluate(goal, windows, reference, within_ns, confidence=confidence)
        if any(tenant.requests is not None for tenant in own.tenants):
            # No longer one: it ends with the last request that is counted.
            result = result.model_copy(update={"decided_by_s": None})
            if result.verdict == "undecided" and all(map(served_all, self.records(own))):
                return result.model_copy(update={"ended_by": "requests"})
        return result

    def _with_end_of_trace(
        self, own: PlannedRun, goals: Sequence[Goal], result: GoalResult
    ) -> GoalResult:
        """Return a traced window's result; undecided, it says what kept that window short."""
        if result.verdict != "undecided":
            return result
        asked = [goal for goal in goals if goal.traced]
        measured = [*zip(self.records(own), self.sessions(own), strict=True)]
        ends: dict[EndedBy, ColocationRecord] = {}
        for record, path in self._traced.get(own.key, ()):
            # Each was planned by what its own session had measured.
            session = self._session(record, path)
            records = [each for each, of in measured if of == session]
            if records and not _unobserved(record):
                needed_s = enough_s(own, records, asked)
                ends[traced_ended_by(record, needed_s, self._planned_s(records))] = record
        for ended_by, record in ends.items():
            if ended_by == "trace":
                given_s = record.plan.duration_s
                cut = f"traced for {duration(record.duration_s)} of {duration(given_s)}"
                reason = f"{result.reason}; {cut}: a trace holds no more kernels"
                result = result.model_copy(update={"reason": reason})
        # Of several sessions, what can be mended comes first.
        ended_by = next((each for each in _MENDED_FIRST if each in ends), "")
        return result.model_copy(update={"ended_by": ended_by})

    def _measure(
        self, run: PlannedRun, peaks: Mapping[str, float], share: float, number: int
    ) -> WindowRecord:
        """Measure a window, and an invalid one again with the same arrivals.

        What made it invalid is the generator or the scheduler, never a latency: no result is
        chosen.
        """
        decided = None if self._asked is None else partial(self._decides, self._asked, run)
        for _ in range(ATTEMPTS):
            record, path = self._attempt(run, peaks, share, number, decided)
            if record.status != "invalid":
                break
        return record, path

    def _known_peaks(self, run: PlannedRun) -> dict[str, float] | None:
        """Return the peaks that a run needs, by tenant; None if one failed."""
        peaks = {name: self.peak_per_s(peak) for name, peak in peak_runs(run).items()}
        known = {name: rate for name, rate in peaks.items() if rate is not None}
        return known if len(known) == len(peaks) else None

    def _latencies_ns(self, run: PlannedRun, tenant: str) -> list[int]:
        return [
            latency
            for record, _ in self._stored.get(run.key, ())
            if record.status == "ok"
            for latency in record.tenant(tenant).latency_ns
        ]

    def peak_per_s(self, run: PlannedRun) -> float | None:
        """Return a measured peak in requests per second; None if it failed."""
        record, _ = self._stored[run.key][0]
        throughput = record.tenants[0].throughput if record.status == "ok" else None
        rate = 0.0 if throughput is None else throughput.requests_per_s
        return rate or None


def _urgent(run: PlannedRun, cases: Sequence[Case]) -> set[str]:
    """Return the most urgent tenants of the case in whose table a run has a row, which are in it.

    Without priorities all are; a less urgent tenant alone, or a peak, has no row to decide by.
    """
    for case in cases:
        with_row = [own_run(case), native_run(case)]
        with_row += [solo_run(case, tenant) for tenant in case.tenants]
        if run.key in {each.key for each in with_row}:
            most = max(tenant.priority for tenant in case.tenants)
            return {each.name for each in case.tenants if each.priority == most} & {
                each.name for each in run.tenants
            }
    return set()


def _is_sharp(figure: Estimate) -> bool:
    """Whether an interval reaches from its middle no farther than others are to be divided by."""
    return figure.low > 0 and figure.high - figure.low <= _SHARP * (figure.high + figure.low)


def _not_felt(record: ColocationRecord) -> str:
    """Return why a record's noise was not felt; empty if it was, or there is none."""
    noise = record.noise
    if noise is None or noise.status != "not applied":
        return ""
    return f"noise {noise.noise} was not felt: {noise.reason}"


def _unobserved(record: ColocationRecord) -> str:
    """Return why a traced window does not show how tenants used the device; empty if it does."""
    if record.status != "ok" or record.device_use is None:
        return f"not observable: the traced run was {record.status}: {record.reason}"
    return _not_felt(record) or record.device_use.reason


def _undecided(goal: Goal, reason: str) -> GoalResult:
    return GoalResult(goal=str(goal), verdict="undecided", reason=reason)
