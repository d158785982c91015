"""From records of an urgent tenant, of victims, and of both together, to laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from pytest_hwqueue.answers.preempt.file import PreemptFile, PreemptionLaw, Wait
from pytest_hwqueue.answers.preempt.plan import (
    DEEP,
    DEFAULT_WAVES,
    NAME,
    SHALLOW,
    URGENT,
    VICTIM,
    WORKLOAD,
    mode_alone,
)
from pytest_hwqueue.data.errors import INTERRUPTED_BEFORE
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, minimum_samples, percentile
from pytest_hwqueue.data.metrics.numbers import counted, grouped, listed
from pytest_hwqueue.data.metrics.preemption import preemption_verdict
from pytest_hwqueue.data.metrics.straight_line import (
    LEAST_PLACES,
    StraightLine,
    mean_of_runs,
    straight_line,
)
from pytest_hwqueue.data.records.origin import origin_of
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult

_NS_PER_US = 1e3
# Other sessions may have tenants of these names, too.
_OF_A_VICTIM = {"kernel_us", "waves", "depth"}


class _Victim(NamedTuple):
    """Kernels of a victim."""

    length_us: float
    waves: int
    depth: int


class _Mode(NamedTuple):
    placement: TenantPlacement
    scheduler: str


@dataclass(frozen=True)
class _PreemptWindows:
    """Records by what they are of; of windows that were repeated, the last.

    Attributes:
        alone: the urgent tenant's, by scheduler and arrival: alone, it is one process in either
            placement.
        victims: alone, by their kernels.
        beside: both tenants', by mode and by victim and arrival.

    """

    alone: dict[tuple[str, str], list[ColocationRecord]]
    victims: dict[_Victim, list[ColocationRecord]]
    beside: dict[_Mode, dict[tuple[_Victim, str], list[ColocationRecord]]]


class _Waits(NamedTuple):
    """Waits of requests that found none of their own before them, and how many others there are."""

    ns: list[int]
    left_out: int


def preempt_file(records: Sequence[ColocationRecord], *, complete: bool) -> PreemptFile:
    """Return the law of each mode, waves and depth that records are of; others are left alone."""
    windows = _windows(records)
    laws = []
    for mode, victims in windows.beside.items():
        kinds = dict.fromkeys((v.waves, v.depth, arrival) for v, arrival in victims)
        for waves, depth, arrival in kinds:
            those = {
                v: found
                for (v, its), found in sorted(victims.items())
                if (v.waves, v.depth, its) == (waves, depth, arrival)
            }
            laws.append(_law(mode, those, windows, arrival))
    return PreemptFile(
        **origin_of(records),
        scenario=NAME,
        description="P99 of the time that a tiny urgent kernel waits behind a victim's kernels",
        complete=complete,
        laws=laws,
    )


def _windows(records: Iterable[ColocationRecord]) -> _PreemptWindows:
    found = _PreemptWindows({}, {}, {})
    last = {(each.id, each.run): each for each in sorted(records, key=lambda each: each.started)}
    for record in last.values():
        tenants = {each.name: each for each in record.plan.tenants}
        ours = all(each.workload == WORKLOAD for each in tenants.values()) and (
            VICTIM not in tenants or tenants[VICTIM].parameters.keys() >= _OF_A_VICTIM
        )
        if not ours or record.reason == INTERRUPTED_BEFORE:
            continue
        if tenants.keys() == {URGENT}:
            key = (record.scheduler, tenants[URGENT].arrival)
            found.alone.setdefault(key, []).append(record)
        elif tenants.keys() == {VICTIM}:
            found.victims.setdefault(_victim(record), []).append(record)
        elif tenants.keys() == {VICTIM, URGENT}:
            victims = found.beside.setdefault(_Mode(record.placement, record.scheduler), {})
            which = (_victim(record), tenants[URGENT].arrival)
            victims.setdefault(which, []).append(record)
    return found


def _victim(record: ColocationRecord) -> _Victim:
    given = record.plan.tenant(VICTIM).parameters
    return _Victim(float(given["kernel_us"]), int(given["waves"]), int(given["depth"]))


def _law(
    mode: _Mode,
    victims: dict[_Victim, list[ColocationRecord]],
    windows: _PreemptWindows,
    arrival: str,
) -> PreemptionLaw:
    """Return the law of victims that differ in length alone."""
    first = next(iter(victims))
    by_itself = windows.alone.get((mode_alone(mode.scheduler), arrival), [])
    alone = _waits_of(by_itself)
    medians_ns = [percentile(each.ns, 0.5) for each in alone if each.ns]
    alone_ns = fmean(medians_ns) if medians_ns else None
    reasons = _reasons(by_itself, f"{URGENT} alone")
    waits = []
    for victim, records in victims.items():
        reasons += _reasons(records, f"{victim.length_us:g} µs")
        lengths = [windows.victims.get(victim._replace(depth=at), []) for at in (SHALLOW, DEEP)]
        reasons += [line for each in lengths for line in _reasons(each, f"{VICTIM} alone")]
        if alone_ns is not None:
            waits.append(_wait(victim, _length(lengths), _waits_of(records), medians_ns))
    proofs = [each.proof for records in victims.values() for each in records if each.proof]
    law = PreemptionLaw(
        id=_id(mode, first),
        placement=mode.placement,
        scheduler=mode.scheduler,
        waves=first.waves,
        depth=first.depth,
        alone_p50_us=_alone(medians_ns, sum(len(each.ns) for each in alone)),
        alone_p99_us=_alone_p99(alone),
        waits=waits,
        verdict="not measured",
        reason="; ".join(
            f"{listed(dict.fromkeys(whose))}: {reason}"
            for reason, whose in grouped(reasons).items()
        ),
        slope=Estimate(unit="×"),
        intercept_us=Estimate(unit="µs"),
        proof=next((proof.evidence for proof in reversed(proofs)), ""),
        priority=Counter(proof.priority.verdict for proof in proofs if proof.priority),
    )
    return _fitted(law, [each / _NS_PER_US for each in medians_ns])


def _fitted(law: PreemptionLaw, alone_us: Sequence[float]) -> PreemptionLaw:
    """Return a law with its line and verdict, from the lengths that have what these take."""
    points = [
        (wait.kernel_us.value, wait.rounds_p99_us)
        for wait in law.waits
        if wait.kernel_us.value is not None and wait.p99_us.value is not None
    ]
    if len(points) < LEAST_PLACES:
        few = f"{len(points)} of at least {LEAST_PLACES} lengths have figures"
        why = next((each.p99_us.refused for each in law.waits if each.p99_us.refused), "")
        why = why or next((e.kernel_us.refused for e in law.waits if e.kernel_us.refused), "")
        # What went wrong with windows says more than what is missing of it.
        reason = "; ".join(filter(None, [law.reason or why, few]))
        refused = {"refused": few}
        return law.model_copy(
            update={
                "reason": reason,
                "slope": law.slope.model_copy(update=refused),
                "intercept_us": law.intercept_us.model_copy(update=refused),
            }
        )
    lengths_us = [length for length, _ in points]
    line: StraightLine = straight_line(
        lengths_us, [runs for _, runs in points], CONFIDENCE, alone_us
    )
    means = [line.at(at) + off for at, off in zip(lengths_us, line.misfits, strict=True)]
    return law.model_copy(
        update={
            "verdict": preemption_verdict(line, lengths_us, means),
            "slope": line.slope.model_copy(update={"unit": "×"}),
            "intercept_us": line.intercept.model_copy(update={"unit": "µs"}),
            "misfit_us": max(map(abs, line.misfits)),
            "misfit_p": line.misfit_p,
        }
    )


def _id(mode: _Mode, victim: _Victim) -> str:
    threads = f"{mode.placement}-" * (mode.placement == TenantPlacement.THREADS)
    blocks = f", {counted(victim.waves, 'wave')}" if victim.waves else ", one block"
    deep = f", depth {victim.depth}" * (victim.depth > 1)
    return f"{threads}{mode.scheduler}{blocks * (victim.waves != DEFAULT_WAVES)}{deep}"


def _reasons(records: Iterable[ColocationRecord], what: str) -> list[tuple[str, str]]:
    """Say why windows have no waits, and which."""
    said = []
    for each in records:
        if each.status != "ok":
            said.append((f"{each.status}, {each.reason}", what))
        elif URGENT in (tenant.name for tenant in each.tenants) and _unserved(each):
            unserved = counted(_unserved(each), "urgent request")
            said.append((f"{unserved} failed or were never served", what))
    return said


def _unserved(record: ColocationRecord) -> int:
    """Return how many urgent requests have no latency: then none of the window is a percentile."""
    urgent = record.tenant(URGENT)
    return (urgent.failed or 0) + (urgent.unserved or 0)


def _alone(medians_ns: Sequence[float], requests: int) -> Estimate:
    """Return the mean of the rounds' medians, and how many requests they are of."""
    medians_us = [each / _NS_PER_US for each in medians_ns]
    if not medians_us:
        return Estimate(unit="µs", refused=f"{URGENT} alone completed no request")
    found = mean_of_runs(medians_us, CONFIDENCE)
    if found.value is None:
        found = Estimate(value=medians_us[0])
    return found.model_copy(update={"n": requests, "unit": "µs"})


def _alone_p99(rounds: Sequence[_Waits]) -> Estimate:
    """Return how far each round's P99 is from its own median, on average."""
    needed = minimum_samples(0.99)
    values = [
        (percentile(each.ns, 0.99) - percentile(each.ns, 0.5)) / _NS_PER_US
        for each in rounds
        if len(each.ns) >= needed
    ]
    return mean_of_runs(values, CONFIDENCE).model_copy(update={"unit": "µs"})


def _wait(
    victim: _Victim, kernel_us: Estimate, rounds: Sequence[_Waits], alone_ns: Sequence[float]
) -> Wait:
    p50, _ = _over_rounds(rounds, 0.5, alone_ns)
    p99, values = _over_rounds(rounds, 0.99, alone_ns)
    return Wait(
        asked_us=victim.length_us,
        kernel_us=kernel_us,
        p50_us=p50,
        p99_us=p99,
        rounds_p99_us=values,
        requests=sum(len(each.ns) for each in rounds),
        left_out=sum(each.left_out for each in rounds),
    )


def _over_rounds(
    rounds: Sequence[_Waits], quantile: float, alone_ns: Sequence[float]
) -> tuple[Estimate, list[float]]:
    """Return the mean over rounds of a percentile of the wait in µs, and each round's.

    A wait is what is more than the mean of ``alone_ns``, the medians of the rounds alone.
    """
    needed = minimum_samples(quantile)
    zero_ns = fmean(alone_ns) if alone_ns else 0.0
    values = [
        (percentile(each.ns, quantile) - zero_ns) / _NS_PER_US
        for each in rounds
        if len(each.ns) >= needed
    ]
    zeros = [each / _NS_PER_US for each in alone_ns]
    found = mean_of_runs(values, CONFIDENCE, zeros).model_copy(update={"unit": "µs"})
    short = [len(each.ns) for each in rounds if len(each.ns) < needed]
    if found.value is None and short:
        reason = f"{min(short)} of at least {needed} requests of a round found none before them"
        found = found.model_copy(update={"refused": reason})
    return found, values


def _waits_of(records: Iterable[ColocationRecord]) -> list[_Waits]:
    """Return the urgent requests of each ``ok`` record that served all, as latencies in ns."""
    return [
        _first_come(each.tenant(URGENT))
        for each in records
        if each.status == "ok" and not _unserved(each)
    ]


def _first_come(result: TenantResult) -> _Waits:
    """Return latencies of requests that arrived while none of their own was under way.

    Whoever finds one waits for it, too, and then for the victim's next kernel. What a request of a
    Poisson process finds is no matter of how long it takes itself, so that leaving these out
    chooses no outcome.
    """
    log = result.requests
    assert log is not None
    kept: list[int] = []
    left_out, free_ns = 0, 0
    for due, end in zip(log.scheduled_ns, log.finished_ns, strict=True):
        if due < free_ns:
            left_out += 1
        else:
            kept.append(end - due)
        free_ns = max(free_ns, end)
    return _Waits(kept, left_out)


def _length(by_depth: Sequence[Sequence[ColocationRecord]]) -> Estimate:
    """Return a kernel's length in µs, from a victim's requests of few kernels and of many."""
    medians_ns = []
    for depth, records in zip((SHALLOW, DEEP), by_depth, strict=True):
        latency_ns = [
            each for record in records if record.status == "ok"
            for each in record.tenant(VICTIM).latency_ns
        ]  # fmt: skip
        if not latency_ns:
            refused = f"{VICTIM} alone completed no request of {counted(depth, 'kernel')}"
            return Estimate(unit="µs", refused=refused)
        medians_ns.append(percentile(latency_ns, 0.5))
    shallow_ns, deep_ns = medians_ns
    length_us = (deep_ns - shallow_ns) / (DEEP - SHALLOW) / _NS_PER_US
    if length_us <= 0:
        refused = f"{DEEP} kernels took no longer than {SHALLOW}: their length is not theirs"
        return Estimate(unit="µs", refused=refused)
    return Estimate(value=length_us, n=len(latency_ns), unit="µs")
