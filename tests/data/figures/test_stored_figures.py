"""The figures of every record in this repository follow from its samples, to the digit."""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.figures.of_cell import NOTHING_DECLARED, summarise
from pytest_hwqueue.data.records.cell import RunRecord, read_record
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, read_colocation
from pytest_hwqueue.data.records.timelines import read_kept
from pytest_hwqueue.engine.causes.explain import Trace, rows_of, with_causes
from pytest_hwqueue.engine.tenants.open_loop import Load, lateness
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.judge.baselines.cell_file import read_cell
from pytest_hwqueue.judge.baselines.sources import read_session_file

ROOT = Path(__file__).parents[3]
if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has only the reference baselines", allow_module_level=True)
# Of these commands results are kept, and no records.
_RESULTS = ("certify", "preempt")
FILES = [
    path for path in sorted((ROOT / "baselines").rglob("*.json*"))
    if path.name != "which.json" and path.parent.name not in _RESULTS
]  # fmt: skip
H200 = ROOT / "baselines" / "nvidia-h200"
CELL = next((H200 / "noise/causes").glob("llm_decode*.json"))
TRACED = next((H200 / "co-location/high_load-causes/traced").glob("*native*.json"))
OF_SAMPLES = {"latency", "iteration", "device_time", "tags", "throughput"}
OF_REQUESTS = {"issued", "completed", "failed", "latency_ns", "throughput", "lateness", "causes"}


def figures(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a record; of a refusal only that it is one, as its words may change."""
    if isinstance(value, dict):
        if "high" in value and value["high"] is None:
            # Not all that are stored were measured when a lower end alone was kept.
            value = value | {"low": None}
        for key, each in value.items():
            yield from figures(bool(each) if key == "refused" else each, f"{name}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from figures(each, f"{name}[{index}]")
    else:
        yield name, value


Differing = dict[str, tuple[Any, Any]]


def differing(stored: Any, again: Any) -> Differing:
    ours, theirs = dict(figures(stored)), dict(figures(again))
    both = {name: (ours.get(name, "-"), theirs.get(name, "-")) for name in {**ours, **theirs}}
    return {name: pair for name, pair in both.items() if not alike(name, *pair)}


def alike(name: str, a: Any, b: Any) -> bool:
    of_a_fit = re.search(r"throughput.*\.(low|high|drift)$", name)
    if of_a_fit and isinstance(a, float) and isinstance(b, float):
        # The last digit of a fit each machine's processor rounds its own way.
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def of_cell(record: RunRecord) -> Differing:
    assert record.samples is not None
    # Those of before have none of ratios, overlap or bandwidth.
    declared = record.declared or NOTHING_DECLARED
    again = summarise(
        record.samples, record.work_per_iteration, declared, record.primary, record.metrics.refused
    )
    return differing(*(one.model_dump(include=OF_SAMPLES) for one in (record.metrics, again)))


def of_tenant(tenant: TenantResult, planned: Tenant, duration_ns: int) -> TenantResult:
    times, rates = tenant.requests, tenant.throughput
    assert times is not None
    assert rates is not None
    load = Load(
        times.scheduled_ns, times.started_ns, times.finished_ns, failed=tenant.failures,
        unserved=tenant.unserved or 0, concurrency=planned.concurrency,
    )  # fmt: skip
    work = WorkDone("", rates.items_per_request, rates.unit)
    return delivered(planned, load, duration_ns, work, lateness=tenant.lateness and lateness(load))


def of_colocation(record: ColocationRecord, folder: Path) -> Differing:
    planned = {each.name: each for each in record.plan.tenants}
    duration_ns = round(record.duration_s * 1e9)
    stored = [tenant for tenant in record.tenants if tenant.requests is not None]
    again = [of_tenant(tenant, planned[tenant.name], duration_ns) for tenant in stored]
    if record.timelines is not None:
        kept = read_kept(folder, record.timelines)
        about = kept.about["causes of tenants"]
        traces = {}
        for name, each in about["traces"].items():
            trace = Trace.model_validate(each)
            work = rows_of(kept.work(f"tenant {name}", trace.owner))
            traces[name] = trace.model_copy(update={"work": work})
        again = with_causes(again, traces, **about["arguments"])
    parts = [[one.model_dump(include=OF_REQUESTS) for one in side] for side in (stored, again)]
    return differing(*parts)


def of_file(path: Path) -> Differing:
    if path.suffix == ".jsonl":
        # It refuses a run whose figures are not those of its samples.
        assert read_cell(path).runs
        return {}
    if path.name == "session.json":
        # It has the intervals of the version that measured.
        found = [each for record in read_session_file(path)[1] for each in of_cell(record).items()]
        return {name: pair for name, pair in found if not re.search("low|high|refused", name)}
    if '"plan"' in path.read_text(encoding="utf-8"):
        return of_colocation(read_colocation(path), path.parent)
    return of_cell(read_record(path))


@pytest.mark.parametrize(
    "path",
    [
        # Traced ones take up to five seconds each. Of tenants that run at once one stays; that
        # one of tenants that take turns has its samples' figures, those changed below show.
        pytest.param(
            path,
            marks=[pytest.mark.slow]
            * (path.parent.name == "traced" and "mps-priority" not in path.name),
        )
        for path in FILES
    ],
    ids=lambda path: str(path.relative_to(ROOT / "baselines")),
)
def test_stored_figures_follow_from_the_samples(path: Path) -> None:
    assert of_file(path) == {}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (CELL, ["metrics latency mean", "metrics throughput 0 value", "metrics device_time max"]),
        (TRACED, ["tenants 0 causes tails p99 threshold_ms"]),
    ],
)  # fmt: skip
def test_figures_off_by_their_last_digit_are_found(
    path: Path, parts: list[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(path.parent, tmp_path / "copy")
    data = json.loads(path.read_text(encoding="utf-8"))
    changed = set()
    for each in parts:
        *above, last = (int(part) if part.isdigit() else part for part in each.split())
        at = functools.reduce(operator.getitem, above, data)
        before = at[last]
        at[last] = before + 1 if isinstance(before, int) else math.nextafter(before, math.inf)
        changed.add((at[last], before))
    (folder / path.name).write_text(json.dumps(data), encoding="utf-8")
    # The latency of a cell may stand in it twice.
    assert set(of_file(folder / path.name).values()) == changed
