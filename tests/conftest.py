"""pytester, hypothesis without a clock, and records as measuring leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from pytest_hwqueue.devices.fingerprint import Fingerprint, Value
from pytest_hwqueue.harness.summary import summarise
from pytest_hwqueue.records.cell import Cell, Metrics, RunRecord, Samples
from pytest_hwqueue.workloads.protocol import LatencyRatio

pytest_plugins = ["pytester"]

# How long an example takes says something of the machine, not of the code. The same examples in
# every run, so that a failure is a change's own; `--hypothesis-profile=search` draws new ones.
settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("same")

MakeRecord = Callable[..., RunRecord]

HARD: dict[str, Value] = {
    "device_kind": "cuda",
    "device_name": "NVIDIA H200",
    "driver_major": 580,
    "mig_slice": "none",
    "environment.CUDA_DEVICE_MAX_CONNECTIONS": "default",
}
SOFT: dict[str, Value] = {
    "torch_version": "2.13.0",
    "driver_version": "580.1",
    "host_name": "first",
    "power_limit_w": 700.0,
}


def make_record(
    cell: str = "hetero_kernels",
    seed: int = 0,
    *,
    n: int = 40,
    scale: float = 1.0,
    hard: dict[str, Value] | None = None,
    soft: dict[str, Value] | None = None,
    parts: dict[str, Any] | None = None,
    **changed: Any,
) -> RunRecord:
    """A record of a cell; ``seed`` makes the run, ``scale`` its latencies."""
    generator = np.random.default_rng(seed)
    latency_ns = np.rint(scale * generator.lognormal(15, 0.03, n)).astype(int).tolist()
    measured = Cell(
        **{
            "name": cell,
            "device": "cuda",
            "streams": 8,
            "scheduler": "native",
            "dispatch": "eager",
            "sync_mode": "per_iteration",
            "size": "full",
            "parameters": {"mm_dim": 4096, "shape": [1, 2]},
            **(parts or {}),
        }
    )
    samples = Samples(
        host_ns=latency_ns,
        device_ns=[value // 2 for value in latency_ns],
        enqueue_ns=[10] * n,
        pace_ns=[],
        tags_ns={"small": [value // 4 for value in latency_ns]},
        references_ns={"small_alone": [value // 5 for value in latency_ns]},
    )
    ratio = LatencyRatio("convoy_ratio", "small", "small_alone", "chain beside products over alone")
    plain: dict[str, Any] = {
        "cell": measured,
        "cell_id": measured.id,
        "nodeid": "file.py::test",
        "status": "ok",
        "started": f"2026-01-01T00:00:{seed % 60:02}.{seed:06}+00:00",
        "duration_s": 1.5,
        "iterations": n,
        "samples": samples,
        "metrics": summarise(samples, {"products": 2.0}, [ratio]) if n else Metrics(),
        "fingerprint": Fingerprint({**HARD, **(hard or {})}, {**SOFT, **(soft or {})}),
        "seed": seed,
        "command": "pytest",
        "git_commit": "0" * 40,
    }
    return RunRecord(**{**plain, **changed})


@pytest.fixture(scope="session", name="make_record")
def _make_record() -> MakeRecord:
    """Makes records; see the function's arguments."""
    return make_record
