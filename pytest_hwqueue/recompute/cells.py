"""The figures of a cell's record, computed again from its samples and its timelines."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.causes.explain import explain
from pytest_hwqueue.causes.kept import kept_cell
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.harness.cell_timeline import KEPT_TIMELINES
from pytest_hwqueue.harness.summary import summarise
from pytest_hwqueue.harness.timeline_pass import probed_switch, refused_on_host
from pytest_hwqueue.metrics.interference import latency_ratio
from pytest_hwqueue.metrics.latency import summarise_latency
from pytest_hwqueue.metrics.switching import QueueSwitch, queue_switch
from pytest_hwqueue.metrics.timeline import TimelineSummary, summarise_timeline
from pytest_hwqueue.recompute.comparison import Recomputed
from pytest_hwqueue.records.cell import Declared, Metrics, RunRecord, Samples
from pytest_hwqueue.records.timelines import Kept
from pytest_hwqueue.tenancy import TENANTS
from pytest_hwqueue.workloads.workload import LatencyRatio, PrimaryLatency, Traffic

_OF_SAMPLES = (
    "latency", "iteration", "device_time", "tags", "ratios", "throughput", "overlap", "bandwidth",
)  # fmt: skip
# What else is needed for these is known to a workload, and older records do not have it.
_DECLARED = ("ratios", "overlap", "bandwidth")
_OF_TIMELINES = ("timeline", "ready_to_start", "queue_switch")


def recompute_cell(record: RunRecord, kept: Kept | None, found: Recomputed) -> None:
    """Compute a record's figures again.

    Args:
        record: of a cell, or of a tenant as one.
        kept: its timelines; None if it has none.
        found: takes what is compared.

    Raises:
        ValueError: if what is stored cannot be computed with: it is damaged.

    """
    if record.samples is not None:
        tenant = record.family == TENANTS
        again = (_tenant if tenant else _cell)(record, record.samples)
        without: tuple[str, ...] = () if record.declared is not None else _DECLARED
        reason = "what its workload declares is not stored"
        if tenant:
            without, reason = ("throughput",), "it is in the co-location's record"
        names = [name for name in _OF_SAMPLES if name not in without]
        _compare(found, record.metrics, again, names)
        missing = [name for name in without if getattr(record.metrics, name)]
        if missing:
            found.left_out.append(f"{', '.join(missing)}: {reason}")
    if kept is None:
        missing = [name for name in _OF_TIMELINES if getattr(record.metrics, name) is not None]
        missing += [] if record.causes is None else ["causes"]
        if missing:
            found.left_out.append(f"{', '.join(missing)}: the record has no timelines")
        return
    _timelines(record, kept, found)
    causes = kept_cell(kept)
    if causes is not None:
        again_found, _ = explain(
            causes.requests, causes.trace, causes.work, causes.not_seen, evidence=causes.evidence
        )
        stored = record.causes and record.causes.model_dump(mode="json")
        found.compare("causes", stored, again_found.model_dump(mode="json"))
    elif record.causes is not None:
        found.left_out.append("causes: what they are found in is not stored")


def _cell(record: RunRecord, samples: Samples) -> Metrics:
    declared = record.declared or Declared()
    traffic = declared.traffic
    return summarise(
        samples,
        record.work_per_iteration,
        [LatencyRatio(**one.model_dump()) for one in declared.ratios],
        declared.overlap,
        None if traffic is None else Traffic(**traffic.model_dump()),
        PrimaryLatency(record.primary.name, record.primary.per, ""),
    )


def _tenant(record: RunRecord, samples: Samples) -> Metrics:
    ratios = {
        name: latency_ratio(samples.host_ns, samples.references_ns.get(name, []), one.description)
        for name, one in record.metrics.ratios.items()
    }
    return Metrics(latency=summarise_latency(samples.host_ns), ratios=ratios)


def _timelines(record: RunRecord, kept: Kept, found: Recomputed) -> None:
    hard = {} if record.fingerprint is None else record.fingerprint.hard
    host = capabilities_of(str(hard.get("device_kind", record.cell.device))).host
    many, one, probe, probe_on_one = (kept.timeline(name) for name in KEPT_TIMELINES)
    again: dict[str, TimelineSummary | QueueSwitch] = {}
    if many is not None and one is not None:
        again["timeline"] = summarise_timeline(many)
        again["ready_to_start"] = refused_on_host(queue_switch(many, one), host=host)
    if probe is not None and probe_on_one is not None:
        again["queue_switch"] = probed_switch(probe, probe_on_one, host=host)
    _compare(found, record.metrics, Metrics(**again), list(again))
    missing = [
        name for name in _OF_TIMELINES if name not in again and getattr(record.metrics, name)
    ]
    if missing:
        found.left_out.append(f"{', '.join(missing)}: not among the record's timelines")


def _compare(found: Recomputed, stored: Metrics, again: Metrics, names: Sequence[str]) -> None:
    ours = stored.model_dump(mode="json", include=set(names))
    theirs = again.model_dump(mode="json", include=set(names))
    for name in names:
        found.compare(name, ours[name], theirs[name])
