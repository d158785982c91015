"""Merges the ranks' records into the cell's: an iteration ends when its last rank does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytest_hwqueue.metrics.dependence import proportion_interval
from pytest_hwqueue.metrics.latency import CONFIDENCE, summarise_latency
from pytest_hwqueue.records.cell import (
    Metrics,
    RankPart,
    RanksSummary,
    RunRecord,
    Samples,
)

_SERIES = ("host_ns", "device_ns", "enqueue_ns", "pace_ns")


class CannotMerge(ValueError):
    """The ranks' records do not belong together; the text says how they differ."""


def merge(
    records: Sequence[RunRecord], summarise: Callable[[Samples], Metrics], backend: str
) -> RunRecord:
    """Return the cell's record from those of all ranks, in the order of the ranks.

    Each iteration's time is that of its slowest rank. Measurements of a single device (timeline,
    queue switch, a workload's separate measurements) are rank 0's.

    Args:
        records: one per rank, all with samples.
        summarise: makes the metrics of merged samples.
        backend: torch.distributed's name for the backend of the collectives.

    Raises:
        CannotMerge: if the ranks did not measure the same iterations.

    """
    parts = [record.samples for record in records]
    if any(part is None for part in parts):
        raise CannotMerge("a rank measured nothing")
    of_rank = [part for part in parts if part is not None]
    refused: dict[str, str] = {}
    samples = _slowest(of_rank, refused)
    first = records[0]
    metrics = summarise(samples)
    metrics.refused.update({**first.metrics.refused, **metrics.refused, **refused})
    metrics = metrics.model_copy(
        update={
            "memory_bytes": _most([record.metrics.memory_bytes for record in records]),
            "timeline": first.metrics.timeline,
            "ready_to_start": first.metrics.ready_to_start,
            "queue_switch": first.metrics.queue_switch,
            "apart": first.metrics.apart,
        }
    )
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    return first.model_copy(
        update={
            "samples": samples,
            "metrics": metrics,
            "ranks": _summary(records, of_rank, backend),
            "notes": [*notes, "timeline, queue switch and counters of the CPU: those of rank 0"],
        }
    )


def _slowest(parts: Sequence[Samples], refused: dict[str, str]) -> Samples:
    """Take the longest time of all ranks for each iteration, tagged launch and reference."""
    series = {}
    for name in _SERIES:
        values = [getattr(part, name) for part in parts]
        lengths = [len(each) for each in values]
        if len(set(lengths)) > 1:
            raise CannotMerge(f"the ranks took {_counts(lengths)} samples of {name}")
        series[name] = _longest(values)
    named: dict[str, dict[str, list[int]]] = {}
    for name in ("tags_ns", "references_ns", "reference_iterations_ns"):
        named[name] = {}
        for key in getattr(parts[0], name):
            values = [getattr(part, name).get(key, []) for part in parts]
            lengths = [len(each) for each in values]
            if len(set(lengths)) > 1:
                refused[key] = f"the ranks timed {_counts(lengths)} launches of it"
                continue
            named[name][key] = _longest(values)
    return Samples(
        **series,
        **named,
        tags_timed_by=parts[0].tags_timed_by,
        tag_iterations=parts[0].tag_iterations,
    )


def _summary(records: Sequence[RunRecord], parts: Sequence[Samples], backend: str) -> RanksSummary:
    times = np.array([part.host_ns or part.device_ns for part in parts], dtype=np.int64)
    slowest = np.bincount(times.argmax(axis=0), minlength=len(parts))
    iterations = times.shape[1]
    most = int(slowest.argmax())
    # The rank was chosen as the greatest of all: each could have been (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(parts)
    low, _ = proportion_interval(int(slowest[most]), iterations, confidence)
    skew_ns = times.max(axis=0) - times.min(axis=0)
    return RanksSummary(
        world_size=len(parts),
        backend=backend,
        skew=summarise_latency(skew_ns.tolist()),
        straggler=most if low > 1 / len(parts) else None,
        parts=[
            RankPart(
                rank=rank,
                host=_soft(record, "host_name"),
                device=_hard(record, "device_name"),
                p50_ns=int(np.median(times[rank])),
                slowest_share=float(slowest[rank] / iterations),
            )
            for rank, record in enumerate(records)
        ],
    )


def _longest(values: Sequence[Sequence[int]]) -> list[int]:
    longest: list[int] = np.array(values, dtype=np.int64).max(axis=0).tolist()
    return longest


def _most(values: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for each in values for name in each)
    return {name: max(each[name] for each in values if name in each) for name in names}


def _counts(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))


def _soft(record: RunRecord, name: str) -> str:
    return "" if record.fingerprint is None else str(record.fingerprint.soft.get(name, ""))


def _hard(record: RunRecord, name: str) -> str:
    return "" if record.fingerprint is None else str(record.fingerprint.hard.get(name, ""))
