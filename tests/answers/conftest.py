"""Records as the harness makes them and verdicts of the gate, seeded, for all tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from pytest_hwqueue.data.document.document import Document
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.metrics.interference import latency_ratio
from pytest_hwqueue.data.metrics.latency import summarise_latency, throughput
from pytest_hwqueue.data.metrics.overlap import summarise_timeline
from pytest_hwqueue.data.metrics.switching import queue_switch
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord, Samples, WarmUp
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.judge.baselines.runs import FieldDifference
from pytest_hwqueue.judge.baselines.sources import UnmatchedCell
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.suite_gate import SuiteGate, SuiteShift
from pytest_hwqueue.judge.verdict import P95, P99, THROUGHPUT, GateSettings, Quantity, Verdict
from tests.cli.conftest import launched, no_settings

# Fixtures of the command, for the commands' tests here.
__all__ = ["launched", "no_settings"]


def printed(document: Document, width: int) -> str:
    """Return what a terminal of this width shows of a document."""
    return rendered(document.parts, width, False)


def joined(text: str) -> str:
    """Return the text in one line, so that a wrapped sentence can be found."""
    return " ".join(text.split())


def changed(value: Any, path: str, /, **fields: object) -> Any:
    """Return a copy of a record in which fields at a path are others."""
    first, _, rest = path.partition(".")
    if path:
        inner = value[first] if isinstance(value, dict) else getattr(value, first)
        fields = {first: changed(inner, rest, **fields)}
    if isinstance(value, dict):
        return value | fields
    if isinstance(value, BaseModel):
        return value.model_copy(update=fields)
    return replace(value, **fields)


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
        description = "latency of a small chain alongside large products, divided by that alone"
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


def paced(record: RunRecord) -> RunRecord:
    """Return it as if no iteration had been waited for: with a pace, and no latency."""
    assert record.samples is not None
    pace_ns = record.samples.host_ns
    samples = record.samples.model_copy(update={"host_ns": [], "device_ns": [], "pace_ns": pace_ns})
    missing = dict.fromkeys(("latency", "iteration", "device_time"))
    metrics = {**missing, "pace": summarise_latency(pace_ns)}
    cell = record.cell.model_copy(update={"sync_mode": "end_only"})
    return record.model_copy(
        update={
            "cell": cell, "cell_id": cell.id, "primary": PACE, "samples": samples,
            "metrics": record.metrics.model_copy(update=metrics),
            "notes": [*record.notes, "sync mode end_only measures a pace, not a latency"],
        }
    )  # fmt: skip


@pytest.fixture(scope="session")
def one_record() -> RunRecord:
    """Return one record, for tests that hypothesis calls many times."""
    return make(traced=False)


@pytest.fixture
def session_records() -> list[RunRecord]:
    """Return a session with everything in it: a sweep, tags, refusals, failures and notes."""
    sweep = [
        make(streams=streams, n=500, median_ns=430_000 + 60_000 * max(0, streams - 8) ** 1.2)
        for streams in (1, 8, 16, 32)
    ]
    convoy = make(
        "hetero_kernels", median_ns=11_200_000, cell={"dispatch": "eager"},
        work={"small kernels": 40.0, "TFLOP": 0.55},
        tags={"small": 5_500_000.0, "large": 9_800_000.0},
        notes=["bounded by launching from Python (92% of the time)"],
    )  # fmt: skip
    capped = make(
        "large_gemm_only", n=100, traced=False, streams=4, work={"TFLOP": 4.4},
        stopped="time cap of 20 s",
        metrics={"refused": {"timeline": "CUPTI: not permitted by the driver"}},
        warm_up=WarmUp(
            iterations=32, iteration_ns=1_000_000, stable=False, reason="not stable within 5 s"
        ),
    )  # fmt: skip
    failed = make(
        "large_gemm_only", streams=32, status="failed", stage="set-up",
        reason="out of memory: CUDA out of memory. Tried to allocate 256.00 MiB; use a smaller "
        "--hwq-size, fewer streams, or a parameter such as mm_dim",
    )  # fmt: skip
    skipped = make(
        "large_gemm_only", streams=64, status="skipped",
        reason="large_gemm_only takes 1 to 32 streams",
    )  # fmt: skip
    own = make("tests/test_mine.py::test_attention[bf16-1024]", family=None, n=50, work={})
    return [*sweep, convoy, capped, failed, skipped, own]


SETTINGS = GateSettings()


def gate_runs(values: Sequence[float], n: int = 1000, sessions: int = 5) -> list[ProcessRun]:
    """Runs of the gate, spread over sessions."""
    return [ProcessRun(value, n, f"s{index % sessions}") for index, value in enumerate(values)]


def verdict_of(  # one argument for each thing a test wants to differ
    rise: float = 0.0,
    *,
    quantity: Quantity = P99,
    level: float = 5_610_000,
    sd: float = 0.02,
    baseline_runs: int = 10,
    n: int = 1000,
    cells: int = 12,
    seed: int = 0,
) -> Verdict:
    """Return the gate's own verdict on seeded runs, of which the new ones are raised."""
    generator = np.random.default_rng(seed)
    old = level * np.exp(sd * generator.standard_normal(baseline_runs))
    new = level * (1 + rise) * np.exp(sd * generator.standard_normal(SETTINGS.last_look))
    # The other cells get no new runs: they have their share of the rate and nothing else.
    others = {f"other {i}": gate_runs([level] * 5) for i in range(cells - 1)}
    old_runs = gate_runs([float(value) for value in old], n)
    gate = SuiteGate(SETTINGS, {"cell": old_runs, **others}, {"cell": quantity})
    for value in new:
        gate.add("cell", ProcessRun(float(value), n, "new"))
    return gate.verdicts()["cell"]


def judgement_of(verdicts: Sequence[CellVerdict], **fields: Any) -> Judgement:
    """Return a judgement of these verdicts against nvidia-h200/main."""
    given: dict[str, Any] = {
        "baseline": "nvidia-h200/main", "verdicts": tuple(verdicts), "missing": (),
        "shift": SuiteShift(1.004, len(verdicts), None, False), "compared": 12,
        "settings": SETTINGS, "spreads": {},
    }  # fmt: skip
    return Judgement(**given | fields)


def cell_id(number: int) -> str:
    """Return the id of a cell that differs from others in its streams."""
    return f"tiny_kernel_stress[cuda-s{number}-native-graph]"


@pytest.fixture
def judgement() -> Judgement:
    """Return one with every state in it, each from the gate itself."""
    small = replace(P95, name="small.p95", label="P95 of small")
    convoy = replace(P99, name="convoy_ratio.p99", label="convoy_ratio at P99", unit="")
    torch = FieldDifference("torch_version", "soft", ("2.10",), ("2.11",))
    other = "the baseline's runs were made under other conditions: driver_major is 570 in one and "
    hetero = "hetero_kernels[cuda-s8-native-eager]"
    own = "tests/test_mine.py::test_attention[bf16|1024-cuda-s1-native-eager]"
    verdicts = [
        CellVerdict(cell_id(1), "p99", verdict_of(seed=1)),
        CellVerdict(cell_id(8), "p99", verdict_of(0.2, seed=2), (torch,)),
        CellVerdict(cell_id(16), "p99", verdict_of(sd=0.05, seed=9)),
        CellVerdict(cell_id(32), "p99", verdict_of(0.5, baseline_runs=2, seed=4)),
        CellVerdict(cell_id(64), "p99", verdict_of(-0.2, seed=5)),
        CellVerdict(
            hetero, "throughput", verdict_of(-0.2, quantity=THROUGHPUT, level=4.17e6, seed=6)
        ),
        CellVerdict(hetero, "small.p99", verdict_of(quantity=small, n=100, seed=7)),
        CellVerdict(
            hetero, "convoy_ratio", verdict_of(quantity=convoy, level=8.4, sd=0.01, seed=8)
        ),
        *(
            CellVerdict(f"{name}[cuda-s4-native-graph]", "p99",
                Verdict("incomparable", "other-conditions", f"{other}580 in the other", P99,
                        new=tuple(gate_runs([1e6, 1e6]))))
            for name in ("gemm", "softmax")
        ),
        CellVerdict(own, "p99",
            Verdict("no-baseline", "no-baseline", f"{own} is not in nvidia-h200/main", P99)),
    ]  # fmt: skip
    missing = (
        UnmatchedCell("resnet[cuda-s1-native-graph]", "not measured"),
        UnmatchedCell("resnet[cuda-s2-native-graph]", "not measured"),
        UnmatchedCell("resnet[cuda-s4-native-graph]", "failed: out of memory"),
    )
    return judgement_of(verdicts, missing=missing)


@pytest.fixture
def run_records() -> list[RunRecord]:
    """Return two cells measured in five and four runs; one run of the second failed."""
    records = []
    for run in range(1, 6):
        slower = 1 + 0.02 * ((run * 3) % 5)
        records.append(make(median_ns=1e6 * slower, seed=run, run=run, traced=False))
        if run == 3:
            why = "ended after 300 s"
            died = make("large_gemm_only", status="timeout", stage="measure", reason=why, run=run)
            records.append(died)
        elif run < 5:
            notes = [f"{run} of 1000 samples taken while throttled"] if run == 4 else []
            more: dict[str, Any] = {"seed": run + 10, "run": run, "notes": notes}
            records.append(make("large_gemm_only", median_ns=9e6 * slower, traced=False, **more))
    return records
