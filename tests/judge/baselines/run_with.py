"""A stored run with another P99, and samples that have it; a record with other samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pytest_hwqueue.data.metrics.contention import Contention
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.samples import encode_samples
from pytest_hwqueue.judge.baselines.runs import StoredRun

_SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p95_ns": 0.95, "p99_ns": 0.99, "p999_ns": 0.999}


def with_p99(run: StoredRun, p99_ns: int) -> StoredRun:
    """Return a run none of whose latencies is above ``p99_ns``, and whose slowest 1 % are it."""
    ordered = np.sort(np.rint(run.samples_ns()))
    ordered[int(0.99 * (run.n - 1)) :] = p99_ns
    latency_ns = np.minimum(ordered, p99_ns)
    figures = {name: round(float(np.quantile(latency_ns, q))) for name, q in _SHARES.items()}
    samples = encode_samples(latency_ns)
    return replace(run, samples=samples, max_ns=int(latency_ns.max()), **figures)  # type: ignore[arg-type]


def contention(in_flight: float = 8.0) -> Contention:
    """Return how launches were timed with so many of 8 streams at work."""
    return Contention(
        in_flight=in_flight, streams=8, windows=50, launches=5, held=True, timed_by="stamps",
        instrument_ns=1664, launches_per_s=1e5,
    )  # fmt: skip


def with_samples(record: RunRecord, **series: Any) -> RunRecord:
    """Return a record with other series of samples."""
    assert record.samples is not None
    return record.model_copy(update={"samples": record.samples.model_copy(update=series)})
