"""Records as the harness makes them, from seeded samples, for every test of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_hwqueue.baselines.record import Cell, Metrics, RunRecord, Samples, WarmUp
from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.metrics.interference import latency_ratio
from pytest_hwqueue.metrics.latency import summarise_latency
from pytest_hwqueue.metrics.switching import queue_switch
from pytest_hwqueue.metrics.throughput import throughput
from pytest_hwqueue.metrics.timeline import Kernel, Timeline, summarise_timeline

MakeRecord = Callable[..., RunRecord]


def times_ns(median_ns: float, n: int, seed: int) -> list[int]:
    """Latencies around a median with a tail, as queues have it."""
    generator = np.random.default_rng(seed)
    tail = generator.exponential(median_ns / 20, n)
    return [round(float(value)) for value in median_ns * 0.97 + tail]


def timeline(streams: int, kernels: int, delay_ns: int, seed: int) -> Timeline:
    """Kernels of 50 µs held behind a gate, each starting some time after it is ready."""
    generator = np.random.default_rng(seed)
    found = []
    for stream in range(streams):
        ready = 1_000_000
        for index in range(kernels):
            start = ready + delay_ns + int(generator.integers(0, 400))
            end = start + 50_000
            found.append(Kernel(stream, index * streams + stream, "probe", None, 10, start, end))
            ready = end
    return Timeline(tuple(found), streams, 1_000_000)


def make(  # one argument for each thing a test wants to differ
    name: str = "tiny_kernel_stress",
    *,
    streams: int = 8,
    n: int = 1000,
    median_ns: float = 1_234_567,
    family: str | None = "latency_sensitive",
    work: dict[str, float] | None = None,
    tags: dict[str, float] | None = None,
    traced: bool = True,
    cell: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    seed: int = 1,
    **fields: Any,
) -> RunRecord:
    """Return a record whose numbers come from its samples, unless ``fields`` say otherwise."""
    settings = {
        "name": name, "device": "cuda", "streams": streams, "scheduler": "native",
        "dispatch": "graph", "sync_mode": "per_iteration", "size": "full",
    } | (cell or {})  # fmt: skip
    described = Cell(**settings)
    base: dict[str, Any] = {
        "cell": described, "cell_id": described.id, "nodeid": f"benchmarks/test_suite.py::{name}",
        "family": family, "mark": "P0", "status": "ok", "started": "2026-01-01T00:00:00+00:00",
        "duration_s": 1.5, "seed": 0, "command": "pytest benchmarks",
        "fingerprint": Fingerprint(hard={"device_name": "NVIDIA H200"}, soft={}),
    }  # fmt: skip
    if fields.get("status", "ok") != "ok":
        return RunRecord(**base | fields)
    work = {"kernels": 400.0 * streams} if work is None else work
    host = times_ns(median_ns, n, seed)
    tagged = {tag: times_ns(value, n, seed + 1) for tag, value in (tags or {}).items()}
    found: dict[str, Any] = {
        "latency": summarise_latency(host),
        "device_time": summarise_latency(host),
        "tags": {tag: summarise_latency(values) for tag, values in tagged.items()},
        "throughput": [throughput(amount, host, f"{unit}/s") for unit, amount in work.items()],
        "memory_bytes": {"peak_allocated": 1_288_490_189, "allocated": 1_000},
    }
    if "small" in tagged:
        alone = times_ns((tags or {})["small"] / 8.4, n, seed + 2)
        description = "latency of a small chain beside large products over that of the chain alone"
        found["ratios"] = {"convoy_ratio": latency_ratio(tagged["small"], alone, description)}
    if traced:
        many, one = timeline(streams, 20, 3000, seed), timeline(1, 20 * streams, 1000, seed)
        found |= {
            "timeline": summarise_timeline(many),
            "ready_to_start": queue_switch(many, one),
            "queue_switch": queue_switch(many, one),
        }
    base |= {
        "iterations": n, "stopped": f"{n} iterations", "work_per_iteration": work,
        "samples": Samples(
            host_ns=host, device_ns=host, enqueue_ns=host, pace_ns=[], tags_ns=tagged
        ),
        "warm_up": WarmUp(
            iterations=10, iteration_ns=host[0], stable=True, reason="two windows agree within 5 %"
        ),
        "metrics": Metrics(**found | (metrics or {})),
    }  # fmt: skip
    return RunRecord(**base | fields)


@pytest.fixture
def make_record() -> MakeRecord:
    """Return the factory of records; see ``make``."""
    return make


@pytest.fixture
def session_records() -> list[RunRecord]:
    """Return a session with everything in it: a sweep, tags, refusals, failures and notes."""
    sweep = [
        make(streams=streams, n=500, median_ns=430_000 + 60_000 * max(0, streams - 8) ** 1.2)
        for streams in (1, 8, 16, 32)
    ]
    convoy = make(
        "hetero_kernels",
        work={"small kernels": 40.0, "TFLOP": 0.55},
        tags={"small": 5_500_000.0, "large": 9_800_000.0},
        median_ns=11_200_000,
        cell={"dispatch": "eager"},
        notes=["bounded by launching from Python (92% of the time)"],
    )
    capped = make(
        "large_gemm_only",
        n=100,
        traced=False,
        streams=4,
        work={"TFLOP": 4.4},
        stopped="time cap of 20 s",
        metrics={"refused": {"timeline": "CUPTI: not permitted by the driver"}},
        warm_up=WarmUp(
            iterations=32, iteration_ns=1_000_000, stable=False, reason="not stable within 5 s"
        ),
    )
    failed = make(
        "large_gemm_only",
        streams=32,
        status="failed",
        stage="set-up",
        reason="out of memory: CUDA out of memory. Tried to allocate 256.00 MiB; use a smaller "
        "--hwq-size, fewer streams, or a parameter such as mm_dim",
    )
    skipped = make(
        "large_gemm_only",
        streams=64,
        status="skipped",
        reason="large_gemm_only takes 1 to 32 streams",
    )
    own = make("tests/test_mine.py::test_attention[bf16-1024]", family=None, n=50, work={})
    return [*sweep, convoy, capped, failed, skipped, own]
