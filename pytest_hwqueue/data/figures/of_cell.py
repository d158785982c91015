"""From samples to metrics, of a cell and of its sweep over streams: plain functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.interference import LatencyRatioResult, latency_ratio
from pytest_hwqueue.data.metrics.latency import LatencySummary, summarise_latency, throughput
from pytest_hwqueue.data.metrics.overlap import Bandwidth, bandwidth, overlap_efficiency
from pytest_hwqueue.data.metrics.scaling import Scaling, ScalingPoint, scaling
from pytest_hwqueue.data.records.cell import LAUNCH_BOUND, Metrics, RunRecord, Samples
from pytest_hwqueue.data.records.declared import ITERATION, PACE, DeclaredFigures, Primary, Traffic

NOTHING_DECLARED = DeclaredFigures()
NOTHING_MISSING: Mapping[str, str] = {}

_BOUND_BY_LAUNCHING = 0.5
_NOT_SYNCHRONISED = "references need synchronised iterations"
_PACED = "no iteration is waited for in this sync mode, which measures a pace"


def summarise(
    samples: Samples,
    work: Mapping[str, float],
    declared: DeclaredFigures = NOTHING_DECLARED,
    primary: Primary = ITERATION,
    missing: Mapping[str, str] = NOTHING_MISSING,
) -> Metrics:
    """Latency or pace, device time, tags, ratios, throughput, overlap and bandwidth of a cell.

    ``latency`` is that of ``primary``; an iteration's is host-observed. Iterations that were not
    waited for have a pace, and no latency. For throughput see `Samples.pace`.

    Args:
        samples: of the cell.
        work: done in an iteration, by its unit.
        declared: what the workload declares of its figures.
        primary: what a sample of the judged latency is of.
        missing: why figures are missing, where that is known already; by name.

    """
    pace = summarise_latency(samples.pace_ns) if primary == PACE else None
    iteration = summarise_latency(samples.host_ns) if pace is None else None
    device_time = summarise_latency(samples.device_ns) if pace is None else None
    results: dict[str, LatencyRatioResult] = {}
    refused: dict[str, str] = {}
    blocks = {
        tag: -(-len(values) // (samples.blocks_of(tag, primary) or len(values)))
        for tag, values in samples.tags_ns.items()
    }
    tags = {tag: summarise_latency(values, blocks[tag]) for tag, values in samples.tags_ns.items()}
    latency: LatencySummary | None = iteration
    if pace is not None:
        refused["latency"] = _PACED
    if primary.per != "iteration":
        latency = tags.pop(primary.name, None)
        if latency is None:
            refused["latency"] = f"no {primary.name} was timed"
    for ratio in declared.ratios:
        values = samples.tags_ns.get(ratio.tag, [])
        reference = samples.references_ns.get(ratio.reference, [])
        if values and reference:
            results[ratio.name] = latency_ratio(
                values, reference, ratio.description, blocks[ratio.tag]
            )
        else:
            absent = f"reference {ratio.reference}" if values else f"tag {ratio.tag}"
            refused[ratio.name] = f"no launch was timed for {absent}"
    hidden = None
    if declared.overlap is not None:
        compute, comms = (
            samples.reference_iterations_ns.get(name, []) for name in declared.overlap
        )
        if compute and comms:
            hidden = overlap_efficiency(compute, comms, samples.device_ns)
        else:
            refused["overlap"] = _NOT_SYNCHRONISED
    return Metrics(
        latency=latency,
        pace=pace,
        iteration=iteration,
        device_time=device_time,
        tags=tags,
        ratios=results,
        throughput=[] if "throughput" in missing else throughputs(samples, work),
        overlap=hidden,
        bandwidth=_bandwidth(samples, declared.traffic, refused),
        refused={**refused, **missing},
    )


def throughputs(samples: Samples, work: Mapping[str, float]) -> list[Estimate]:
    """Return the rate of each kind of work, by `Samples.pace`."""
    iterations, pace_ns = samples.pace()
    return [throughput(each * iterations, pace_ns, f"{unit}/s") for unit, each in work.items()]


def _bandwidth(
    samples: Samples, traffic: Traffic | None, refused: dict[str, str]
) -> Bandwidth | None:
    if traffic is None:
        return None
    if traffic.reference is None:
        alone = samples.device_ns if samples.host_ns else samples.pace_ns
    else:
        alone = samples.reference_iterations_ns.get(traffic.reference, [])
        if not alone:
            refused["bandwidth"] = _NOT_SYNCHRONISED
            return None
    return bandwidth(alone, traffic.array_bytes, traffic.bus_factor)


def bound_by_launching(samples: Samples) -> str | None:
    """Return a note if enqueueing took over half of the time: then the queues were not measured."""
    share = sum(samples.enqueue_ns) / max(1, sum(samples.host_ns or samples.pace_ns))
    if share <= _BOUND_BY_LAUNCHING:
        return None
    return (
        f"{LAUNCH_BOUND} ({share:.0%} of the time); graph dispatch measures the hardware's queues"
    )


def find_sweeps(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group records that differ only in their number of streams and count the same work.

    Args:
        records: of any status; those that were not measured are left out. A cell measured twice in
            a session counts with its first record.

    """
    groups: dict[str, dict[int, RunRecord]] = {}
    for record in records:
        if record.status != "ok" or not record.metrics.throughput or record.samples is None:
            continue
        units = ", ".join(record.work_per_iteration)
        key = f"{record.cell.model_dump_json(exclude={'streams'})} {units}"
        groups.setdefault(key, {}).setdefault(record.cell.streams, record)
    return [[group[n] for n in sorted(group)] for group in groups.values() if len(group) > 1]


def scaling_of(sweep: Sequence[RunRecord]) -> Scaling:
    """Return how the headline throughput of a sweep scales over its streams.

    Raises:
        ValueError: if an iteration took no time.

    """
    headline = next(iter(sweep[0].work_per_iteration))
    paces = [each.pace() for each in _alike(sweep)]
    points = [
        ScalingPoint(record.cell.streams, record.work_per_iteration[headline] * iterations, pace_ns)
        for record, (iterations, pace_ns) in zip(sweep, paces, strict=True)
    ]
    return scaling(points, f"{headline}/s", sweep[0].seed)


def _alike(sweep: Sequence[RunRecord]) -> list[Samples]:
    """Return the samples of a sweep; back to back only if all of them have that."""
    found = [record.samples for record in sweep if record.samples is not None]
    if all(samples.back_to_back for samples in found):
        return found
    return [samples.model_copy(update={"back_to_back": None}) for samples in found]
