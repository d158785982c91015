"""Records of runs whose truth is known, the table of them, and a scenario to measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.which.file import WhichCase, WhichFile
from pytest_hwqueue.answers.which.runs import all_runs
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestFailure,
    TenantResult,
    write_colocation,
)
from pytest_hwqueue.engine.scenarios.file import Scenario, read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, SessionPlan, cases, colocation
from pytest_hwqueue.engine.tenants.open_loop import Load
from pytest_hwqueue.engine.tenants.servers import for_records
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.options.options import OPTIONS


def interrupt(
    monkeypatch: pytest.MonkeyPatch, owner: type[object], method: str, call: int
) -> Callable[[], int]:
    """Interrupt the ``call``-th call of a method, once, as Ctrl-C does; return who counts them."""
    original: Callable[..., Any] = getattr(owner, method)
    counted = itertools.count(1)
    done = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal done
        if next(counted) == call:
            raise KeyboardInterrupt
        found = original(*arguments)
        done += 1
        return found

    monkeypatch.setattr(owner, method, interrupted)
    return lambda: done


SCENARIO = """\
name: mix
description: an urgent one and a greedy one
duration: 60s
ci_duration: 1s
warmup: 100ms
schedulers:
  processes: [native, mps, mps-priority, "xsched:level=1,threshold=1"]
  threads: [stream-priority]
tenants:
  - {name: high, model: resnet18, batch: 1, arrival: "constant: 20/s", priority: 1}
  - {name: low, model: resnet50, batch: 8, arrival: closed}
goals:
  - high.latency_p99_ms < 10
  - high.attainment >= 99%
  - low.throughput >= 80% of native
"""
MS = 1_000_000
WINDOW_S = 60
# Latency of high in ms, and requests per second of low, in each run.
TRUTH = {
    ("mix.solo_high", "processes", "native"): (2, 0),
    ("mix.solo_low", "processes", "native"): (0, 125),
    ("mix", "processes", "native"): (20, 100),
    ("mix", "processes", "mps"): (4, 96),
    ("mix", "processes", "mps-priority"): (3, 90),
    ("mix", "processes", "xsched:level=1,threshold=1"): (3, 50),
    ("mix", "threads", "native"): (30, 100),
    ("mix", "threads", "stream-priority"): (5, 80),
}
Place = tuple[str, str, str]
"""A run's name, placement and scheduler."""
NATIVE: Place = ("mix", "processes", "native")
MPS: Place = ("mix", "processes", "mps")
MPS_PRIORITY: Place = ("mix", "processes", "mps-priority")
XSCHED: Place = ("mix", "processes", "xsched:level=1,threshold=1")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(name="file")
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "mix.hwq.yaml"
    path.write_text(SCENARIO)
    return path


def hwq(*arguments: str | Path, columns: int = 250) -> Result:
    env = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, ["which", *map(str, arguments)], prog_name="hwq", env=env)


def requests(
    name: str,
    scheduled_ns: Sequence[int],
    finished_ns: Sequence[int],
    failed: Sequence[RequestFailure] = (),
) -> TenantResult:
    """Return a tenant whose requests were to start and ended then."""
    due = [*scheduled_ns]
    load = Load(due, due, [*finished_ns], failed=[*failed])
    items = 8.0 if name == "low" else 1.0
    return delivered(
        Tenant(name, "resnet18"), load, WINDOW_S * 10**9, WorkDone("", items, "images")
    )


def served(
    name: str, latency_ms: int, per_s: int, seconds: float = WINDOW_S, reasons: Sequence[str] = ()
) -> TenantResult:
    """A tenant whose every request took so long, or that served so many per second."""
    rate = per_s or 20
    step = 10**9 // rate
    scheduled = [index * step for index in range(round(rate * seconds))]
    finished = [at + (latency_ms * MS or step) for at in scheduled]
    failed = [RequestFailure(index=at, reason=reason) for at, reason in enumerate(reasons)]
    return requests(name, scheduled, finished, failed)


def record(run: PlannedRun, number: int = 1, **changed: Any) -> ColocationRecord:
    latency_ms, per_s = TRUTH[run.name, run.placement, run.scheduler]
    plan = colocation(run, SessionPlan("cuda", "full", Path(), 1.0), WINDOW_S, number)
    tenants = [
        served(tenant.name, *((latency_ms, 0) if tenant.name == "high" else (0, per_s)))
        for tenant in run.tenants
    ]
    fields: dict[str, Any] = {
        "id": plan.id, "run": number, "plan": for_records(plan), "status": "ok", "device": "cuda",
        "scheduler": run.scheduler, "tenants": tenants, "seed": number - 1,
        "placement": run.placement, "duration_s": WINDOW_S, "elapsed_s": 70.0,
        "started": f"2026-01-01T00:0{number}:00.000+00:00", "command": "hwq which mix.hwq.yaml",
        "git_commit": "0" * 40, "simulated": False,
        "fingerprint": Fingerprint({"device_name": "NVIDIA H200", "driver_major": 580}, {}),
        "proof": Proof(
            mode=run.scheduler, evidence=f"{run.scheduler} was seen", device_priorities=(0,),
            effective=True if "xsched" in run.scheduler else None, counts={"samples": 5},
        ),
    }  # fmt: skip
    return ColocationRecord(**{**fields, **changed})


def store(folder: Path, *records: ColocationRecord) -> None:
    folder.mkdir(exist_ok=True)
    for each in records:
        write_colocation(record_path(folder, each.id), each)


def all_records(scenario: Scenario, number: int = 1) -> dict[tuple[str, str, str], Any]:
    runs = all_runs(cases(scenario))
    return {(run.name, run.placement, run.scheduler): record(run, number) for run in runs}


@pytest.fixture(name="folder")
def measured_folder(tmp_path: Path, file: Path) -> Path:
    """Records of all runs of the scenario, in two rounds."""
    folder = tmp_path / "records"
    for number in (1, 2):
        store(folder, *all_records(read_scenario(file), number).values())
    return folder


def told(file: Path, folder: Path, *more: str | Path) -> tuple[WhichFile, str]:
    """The table as JSON and as printed."""
    path = folder.parent / "which.json"
    result = hwq(file, "--from", folder, "--json", path, "-v", *more)
    assert result.exit_code == 0, result.output
    return WhichFile.model_validate_json(path.read_bytes()), result.stdout


def told_of(
    file: Path, changes: Mapping[Place, Mapping[str, Any] | None], *more: str | Path
) -> tuple[WhichFile, str]:
    """The table of one round of all runs, of which some are changed, or missing."""
    records = all_records(read_scenario(file))
    for place, update in changes.items():
        whole = records.pop(place)
        if update is not None:
            records[place] = whole.model_copy(update=update)
    store(file.parent / "records", *records.values())
    return told(file, file.parent / "records", *more)


def case(found: WhichFile, name: str) -> WhichCase:
    (only,) = (each for each in found.cases if each.id == name)
    return only
