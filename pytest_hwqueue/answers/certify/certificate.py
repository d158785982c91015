"""From records of a victim alone and beside a stressor to a certificate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from pytest_hwqueue.answers.certify.file import (
    CertificateFile,
    ResourceResult,
    ShareResult,
    WaitResult,
)
from pytest_hwqueue.answers.certify.plan import (
    NAME,
    P99,
    PRODUCTS,
    STRESSOR,
    VICTIM,
    WORKLOAD,
    PlacedMode,
)
from pytest_hwqueue.data.errors import INTERRUPTED_BEFORE
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.isolation import (
    ClaimVerdict,
    at_most,
    kept_apart,
    mean_ratio,
    slowdown,
)
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, minimum_samples, percentile
from pytest_hwqueue.data.metrics.numbers import grouped, listed
from pytest_hwqueue.data.metrics.straight_line import mean_of_runs
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.origin import origin_of
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.data.resources import Resource
from pytest_hwqueue.engine.tenants.arrivals import is_closed
from pytest_hwqueue.parts.schedulers.declaration import NATIVE
from pytest_hwqueue.parts.schedulers.syntax import parse_scheduler

_NS_PER_US, _NS_PER_MS, _US_PER_MS = 1e3, 1e6, 1e3
_FAILED = "windows failed"
_WIDE = "the interval holds the bound: more --rounds, or a longer --duration"


class _Kind(NamedTuple):
    """What a window is of; no resource for an urgent victim, whose waits are counted."""

    resource: Resource | None
    beside: bool
    scheduler: str


@dataclass(frozen=True)
class CertificateTerms:
    """What is asked of a mode.

    Attributes:
        mode: the one in question.
        resources: that were to be measured.
        claimed: those that it is held to keep apart.
        bound: a victim that is slower by up to this share is kept apart.
        waits_ms: what an urgent kernel is to wait at most; None to ask nothing.

    """

    mode: PlacedMode
    resources: Sequence[Resource]
    claimed: Collection[Resource]
    bound: float
    waits_ms: float | None = None


def certificate_file(
    records: Sequence[ColocationRecord], terms: CertificateTerms, *, complete: bool, device: str
) -> CertificateFile:
    """Return what records show of a mode; those of other commands are left alone.

    Args:
        records: of a session, or of several.
        terms: what is asked.
        complete: whether all was measured.
        device: its label: what its model does not have is not measured.

    """
    windows = _windows(records)
    mode = terms.mode
    under_mode = [
        record
        for kind, found in windows.items()
        for record in found
        if kind.scheduler == (str(mode.spec) if kind.beside else mode.alone)
    ]
    proofs = [record.proof.evidence for record in under_mode if record.proof]
    return CertificateFile(
        **origin_of([record for found in windows.values() for record in found]),
        scenario=NAME,
        description="whether a mode keeps apart what it claims, by resource",
        complete=complete,
        mode=str(mode),
        bound=terms.bound,
        resources=[_of_resource(each, windows, terms, device) for each in terms.resources],
        share=_share(windows, terms, device),
        wait=_wait(windows, terms),
        failures=_failures(record for found in windows.values() for record in found),
        proof=proofs[-1] if proofs else "",
    )


def mode_of(records: Iterable[ColocationRecord]) -> PlacedMode | None:
    """Return which mode a session's records are of; None if they are of no certificate."""
    found = None
    for record in records:
        if _kind(record) is None or len(record.plan.tenants) < 2:
            continue
        if found is None or record.scheduler != NATIVE.name:
            found = PlacedMode(record.placement, parse_scheduler(record.scheduler))
    return found


def resources_of(records: Iterable[ColocationRecord]) -> list[Resource]:
    """Return of which resources records are, in their order."""
    kinds = filter(None, map(_kind, records))
    return [*dict.fromkeys(kind.resource for kind in kinds if kind.resource is not None)]


def claims_of(records: Iterable[ColocationRecord], mode: PlacedMode) -> list[Resource]:
    """Return what a session held a mode to: only that has a stressor under native.

    Of native itself nobody knows it.
    """
    kinds = [] if mode.native else filter(None, map(_kind, records))
    controls = [each for each in kinds if each.beside and each.scheduler == NATIVE.name]
    return [*dict.fromkeys(each.resource for each in controls if each.resource is not None)]


def _kind(record: ColocationRecord) -> _Kind | None:
    """Return what a record is of; None if it is of another command."""
    tenants = {each.name: each for each in record.plan.tenants}
    ours = tenants.keys() in ({VICTIM}, {VICTIM, STRESSOR}) and all(
        each.workload == WORKLOAD for each in tenants.values()
    )
    if not ours:
        return None
    victim = tenants[VICTIM]
    resource = victim.parameters.get("resource") if is_closed(victim.arrival) else None
    return _Kind(resource, len(tenants) > 1, record.scheduler)


def _windows(records: Iterable[ColocationRecord]) -> dict[_Kind, list[ColocationRecord]]:
    """Sort records by what they are of; of windows that were repeated, the last."""
    found: dict[_Kind, list[ColocationRecord]] = {}
    last = {(each.id, each.run): each for each in sorted(records, key=lambda each: each.started)}
    for record in last.values():
        kind = _kind(record)
        if kind is not None and record.reason != INTERRUPTED_BEFORE:
            found.setdefault(kind, []).append(record)
    return found


def _means_ns(records: Iterable[ColocationRecord]) -> dict[int, float]:
    """Return the mean time of the victim's iteration in each round that has one.

    The mean and not the median: where processes take turns, most iterations meet nobody, and some
    wait for a whole time slice.
    """
    return {
        record.run: fmean(record.tenant(VICTIM).latency_ns)
        for record in records
        if record.status == "ok" and not _lacks(record)
    }


def _lacks(record: ColocationRecord) -> str:
    """Return why a window that went well has no figure."""
    for tenant in record.tenants:
        if tenant.failed:
            return f"{tenant.name} failed in an iteration"
        if tenant.unserved:
            return f"{tenant.name} did not begin some of its requests in time"
        if not tenant.latency_ns:
            return f"{tenant.name} completed no iteration: a longer --duration"
    return ""


def _pair(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Return both sides of the rounds that have both."""
    rounds = [each for each in one if each in other]
    return [one[each] for each in rounds], [other[each] for each in rounds]


def _of_resource(
    resource: Resource,
    windows: Mapping[_Kind, Sequence[ColocationRecord]],
    terms: CertificateTerms,
    device: str,
) -> ResourceResult:
    mode = terms.mode
    alone = windows.get(_Kind(resource, False, mode.alone), [])
    beside = windows.get(_Kind(resource, True, str(mode.spec)), [])
    native = [windows.get(_Kind(resource, each, NATIVE.name), []) for each in (False, True)]
    claimed = resource in terms.claimed
    means = _means_ns(alone), _means_ns(beside)
    slower = slowdown(*_pair(*means), CONFIDENCE)
    if mode.native:
        native_slower = slower if claimed else Estimate(refused="the mode is native itself")
    elif claimed:
        native_slower = slowdown(*_pair(*map(_means_ns, native)), CONFIDENCE)
    else:
        native_slower = Estimate(refused="the mode is not held to it")
    of_claim = [*alone, *beside, *(each for side in native if claimed for each in side)]
    reason = _FAILED if _failures(of_claim) else ""
    verdict: ClaimVerdict | str
    if slower.value is None:
        verdict = "not decided" if claimed else "not measured"
        reason = reason or slower.refused
        if resource not in capabilities_of(device).contended:
            reason = _unfit(device)
    elif not claimed:
        verdict = "not claimed"
    else:
        verdict = _unless_failed(kept_apart(slower, native_slower, terms.bound), reason)
        if verdict == "not decided" and not reason:
            reason = _undecided(slower, native_slower, terms.bound)
    return ResourceResult.model_validate(
        {
            "resource": resource, "claimed": claimed, "verdict": verdict, "reason": reason,
            "alone_ms": _mean_ms(means[0]), "beside_ms": _mean_ms(means[1]), "slower": slower,
            "native_slower": native_slower,
        }
    )  # fmt: skip


def _unless_failed(verdict: ClaimVerdict, failed: str) -> ClaimVerdict:
    """Show nothing by the rounds that are left: a victim may be slowest where it fails."""
    return "not decided" if failed and verdict == "shown" else verdict


def _unfit(device: str) -> str:
    can = capabilities_of(device)
    if can.simulated:
        return "the simulator does not model it"
    return "the CPU has none" if can.host else f"{device} has none"


def _undecided(slower: Estimate, native_slower: Estimate, bound: float) -> str:
    """Return what a claim needs that is not decided though it was measured."""
    if at_most(slower, bound) == "not decided":
        return _WIDE
    if native_slower.value is None:
        return f"native: {native_slower.refused}"
    return "the stressor is not shown to slow the victim under native either"


def _share(
    windows: Mapping[_Kind, Sequence[ColocationRecord]], terms: CertificateTerms, device: str
) -> ShareResult | None:
    share, mode = terms.mode.claims.share, terms.mode
    if share is None or PRODUCTS not in terms.resources:
        return None
    given = windows.get(_Kind(PRODUCTS, False, mode.alone), [])
    native = windows.get(_Kind(PRODUCTS, False, NATIVE.name), [])
    found = mean_ratio(*_pair(_means_ns(native), _means_ns(given)), CONFIDENCE)
    failed = _FAILED if _failures([*given, *native]) else ""
    # What native has: under MPS a client with a share sees no more than that.
    count = _multiprocessors(native, device)
    if not count:
        reason = failed or "how many multiprocessors the device has is not known"
        return ShareResult(
            claimed=None, bound=None, verdict="not decided", reason=reason, share=found
        )
    claimed = share(mode.spec.parameters[VICTIM], count)
    bound = claimed * (1 + terms.bound)
    verdict, reason = _unless_failed(at_most(found, bound), failed), ""
    if verdict == "not decided":
        reason = failed or found.refused or _WIDE
    return ShareResult(claimed=claimed, bound=bound, verdict=verdict, reason=reason, share=found)


def _wait(
    windows: Mapping[_Kind, Sequence[ColocationRecord]], terms: CertificateTerms
) -> WaitResult | None:
    if terms.waits_ms is None:
        return None
    alone = windows.get(_Kind(None, False, terms.mode.alone), [])
    beside = windows.get(_Kind(None, True, str(terms.mode.spec)), [])
    medians_us = [percentile(each, 0.5) / _NS_PER_US for each in _latencies_ns(alone)]
    waits_us, alone_us = [], Estimate(unit="µs", refused=f"{VICTIM} alone served no request")
    if medians_us:
        alone_us = Estimate(value=fmean(medians_us), n=len(medians_us), unit="µs")
        waits_us = [
            percentile(each, P99) / _NS_PER_US - fmean(medians_us)
            for each in _latencies_ns(beside)
            if len(each) >= minimum_samples(P99)
        ]
    # What is taken for no wait differs from round to round, too.
    found = mean_of_runs(waits_us, CONFIDENCE, medians_us).model_copy(update={"unit": "µs"})
    failed = _FAILED if _failures([*alone, *beside]) else ""
    verdict, reason = _unless_failed(at_most(found, terms.waits_ms * _US_PER_MS), failed), ""
    if verdict == "not decided":
        reason = failed or alone_us.refused or found.refused or _WIDE
    return WaitResult(
        bound_ms=terms.waits_ms, verdict=verdict, reason=reason, alone_p50_us=alone_us, p99_us=found
    )


def _latencies_ns(records: Iterable[ColocationRecord]) -> list[list[int]]:
    """Return the victim's latencies in each round that has figures."""
    return [
        record.tenant(VICTIM).latency_ns
        for record in records
        if record.status == "ok" and not _lacks(record)
    ]


def _multiprocessors(native: Sequence[ColocationRecord], device: str) -> int:
    """Return how many multiprocessors a device has; 0 if nobody knows."""
    if capabilities_of(device).simulated:
        from pytest_hwqueue.parts.devices.simulated.profile import load_profile

        profile = load_profile(device.partition(":")[2])
        return profile.multiprocessing.multiprocessors.value
    counts = [
        each.fingerprint.hard.get("multiprocessor_count", 0) for each in native if each.fingerprint
    ]
    return next((each for each in counts if isinstance(each, int)), 0)


def _mean_ms(means_ns: Mapping[int, float]) -> Estimate:
    values = [each / _NS_PER_MS for each in means_ns.values()]
    return mean_of_runs(values, CONFIDENCE).model_copy(update={"unit": "ms"})


def _failures(records: Iterable[ColocationRecord]) -> list[str]:
    """Return why windows have no figure, and which."""
    said = [
        (f"{record.status}, {record.reason}" if record.status != "ok" else _lacks(record), record)
        for record in records
    ]
    return [
        f"{listed(dict.fromkeys(map(_said, whose)))}: {reason}"
        for reason, whose in grouped((reason, record) for reason, record in said if reason).items()
    ]


def _said(record: ColocationRecord) -> str:
    """Say which window a record is of."""
    kind = _kind(record)
    assert kind is not None
    return (
        f"{kind.resource or 'waits'} {'beside' if kind.beside else 'alone'} under {kind.scheduler}"
    )
