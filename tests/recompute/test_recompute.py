"""Figures computed again from disk agree to the digit, and what was tampered with is found."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.causes.traced_cell import find_causes
from pytest_hwqueue.causes.traced_pass import TracePlan
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.recompute.records import recompute
from pytest_hwqueue.records.cell import Cell, RunRecord, write_record
from pytest_hwqueue.records.provenance import Provenance
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import Workload, parameters_for

COMMIT = "1" * 40
STREAMS = 4


def measure(folder: Path, device: Device, name: str = "hetero_kernels") -> RunRecord:
    """A cell's record with timelines and causes, as a session writes it."""
    found = workload_class(name)
    values = parameters_for(found, "tiny", {})

    def make(changed: Mapping[str, Any]) -> Workload:
        return found(values.model_copy(update=dict(changed)))  # type: ignore[call-arg]

    cell = Cell(
        name=name, device=device.label, streams=STREAMS, scheduler="native", dispatch="eager",
        sync_mode="per_iteration", size="tiny", parameters=values.model_dump(),
    )  # fmt: skip
    request = CellRequest(
        cell=cell, workload=make({}), make_workload=make, urgency=found.urgency(STREAMS),
        nodeid="file.py::test", family=found.family, mark=found.mark,
        plan=LoopPlan(60, 1, 20_000_000_000, "per_iteration"), seed=0, command="hwq",
        provenance=Provenance("0.1.0", COMMIT, True, ""), trace_folder=None, record_folder=folder,
        find_causes=partial(find_causes, TracePlan(80, 2_000_000_000)),
    )  # fmt: skip
    record, failure = CellRunner(device, open_scheduler("native"), lambda *_: None).run(request)
    assert failure is None, failure
    write_record(folder, record)
    return record


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the record of a cell on a simulated device whose kernels vary."""
    folder = tmp_path_factory.mktemp("cell")
    device = SimulatedDevice("h200")
    device.vary("jitter=0.3", 0, "cell")
    record = measure(folder, cast(Device, device))
    assert record.metrics.ratios
    assert record.metrics.queue_switch is not None
    assert record.causes is not None
    assert record.causes.tails["p95"].shares
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    for path in original.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def record_of(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def hwq(*arguments: object) -> Result:
    return CliRunner().invoke(
        main, ["recompute", *map(str, arguments)], prog_name="hwq", env={"COLUMNS": "300"}
    )


def test_a_record_agrees_with_what_is_on_disk(original: Path) -> None:
    done = hwq(original)
    assert done.exit_code == 0, done.output
    assert "of 1 record agree" in done.output
    assert "not computed again" not in done.output
    (found,) = recompute([original]).records
    assert found.figures > 200
    assert (found.version, found.git_commit) == ("0.1.0", COMMIT)


def test_a_record_of_this_machines_cpu_agrees(tmp_path: Path) -> None:
    record = measure(tmp_path, cast(Device, HostDevice()), "large_gemm_only")
    assert record.causes is not None
    outcome = recompute([tmp_path])
    assert outcome.damaged == []
    assert [found.differences for found in outcome.records] == [[]]
    assert [found.left_out for found in outcome.records] == [[]]


FIGURES = [
    ("latency", "mean"),
    ("latency", "p50"),
    ("latency", "n"),
    ("iteration", "max"),
    ("device_time", "p50"),
    ("ratios", "convoy_ratio", "n"),
    ("throughput", 0, "value"),
    ("timeline", "span_ms"),
    ("timeline", "busy_ms", 3),
    ("timeline", "overlap_efficiency"),
    ("timeline", "in_flight_max"),
    ("ready_to_start", "start_rate_per_s"),
    ("ready_to_start", "overhead", "first", "n"),
    ("queue_switch", "overhead", "difference"),
    ("queue_switch", "overhead", "interval", 1),
    ("queue_switch", "first_start_spread"),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: ".".join(map(str, figure)))
def test_a_figure_off_by_one_unit_in_its_last_place_is_found(
    folder: Path, figure: tuple[str | int, ...]
) -> None:

    changed: list[tuple[Any, Any]] = []

    def tamper(data: Any) -> None:
        at = data["metrics"]
        for part in figure[:-1]:
            at = at[part]
        before = at[figure[-1]]
        after = before + 1 if isinstance(before, int) else math.nextafter(before, math.inf)
        at[figure[-1]] = after
        changed.append((after, before))

    edit(record_of(folder), tamper)
    (found,) = recompute([folder]).records
    (difference,) = found.differences
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in figure)
    assert difference.figure == name.removeprefix(".")
    ((after, before),) = changed
    assert (difference.stored, difference.recomputed) == (str(after), str(before))
    done = hwq(folder)
    assert done.exit_code == 1
    (row,) = (line for line in done.output.splitlines() if difference.figure in line)
    assert row.split() == [found.id, difference.figure, str(after), str(before)]


def test_causes_that_were_tampered_with_are_found(folder: Path) -> None:
    def tamper(data: Any) -> None:
        tail = data["causes"]["tails"]["p95"]
        tail["requests"] += 1
        tail["words"] = "all is well"

    edit(record_of(folder), tamper)
    (found,) = recompute([folder]).records
    assert [each.figure for each in found.differences] == [
        "causes.tails.p95.requests", "causes.tails.p95.words",
    ]  # fmt: skip


def test_a_sample_that_was_tampered_with_is_found(folder: Path) -> None:
    def tamper(data: Any) -> None:
        data["samples"]["host_ns"][7] += 1

    edit(record_of(folder), tamper)
    figures = {each.figure for each in recompute([folder]).records[0].differences}
    assert "iteration.mean" in figures


def test_a_figure_that_was_removed_or_refused_is_found(folder: Path) -> None:
    def tamper(data: Any) -> None:
        data["metrics"]["queue_switch"] = None
        data["causes"] = None

    edit(record_of(folder), tamper)
    done = hwq(folder)
    assert done.exit_code == 1
    assert "queue_switch.unit" in done.output
    assert "causes.level" in done.output


@pytest.mark.parametrize("what", ["missing", "another", "shortened"])
def test_timelines_that_are_damaged_are_named(folder: Path, what: str) -> None:
    (path,) = folder.glob("*.timelines.xz")
    if what == "missing":
        path.unlink()
    elif what == "another":
        path.write_bytes(lzma.compress(b"other"))
    else:
        path.write_bytes(path.read_bytes()[:-1])
    done = hwq(folder)
    assert done.exit_code == 1
    assert path.name in done.output
    assert "1 file damaged" in done.output


def test_a_record_without_timelines_is_listed(folder: Path) -> None:
    def forget(data: Any) -> None:
        for name in ("timelines", "declared", "version", "git_dirty"):
            del data[name]

    edit(record_of(folder), forget)
    done = hwq(folder)
    assert done.exit_code == 0, done.output
    cell = json.loads(record_of(folder).read_text(encoding="utf-8"))["cell_id"]
    lines = done.output.splitlines()
    assert f"not computed again: {cell}: ratios: what its workload declares is not stored" in lines
    assert (
        f"not computed again: {cell}: timeline, ready_to_start, queue_switch, causes: the record "
        "has no timelines"
    ) in lines


def test_a_damaged_record_costs_no_other_and_is_named(folder: Path) -> None:
    (folder / "cut.json").write_text('{"schema_version": 2, "cell_id', encoding="utf-8")
    done = hwq(folder)
    assert done.exit_code == 1
    assert f"{folder / 'cut.json'} is damaged" in done.output
    assert "of 1 record" in done.output


def test_nothing_to_compute_is_an_error(tmp_path: Path) -> None:
    done = hwq(tmp_path)
    assert done.exit_code == 4
    assert "no figure could be computed again" in done.output


def test_other_files_of_a_session_are_no_records(folder: Path) -> None:
    (folder / "session.json").write_text('{"schema": "pytest-hwqueue/session/1"}')
    assert hwq(folder).exit_code == 0
    done = hwq(folder / "session.json")
    assert done.exit_code == 1
    assert "session.json is no record" in done.output


def test_without_a_name_it_is_the_newest_session(folder: Path) -> None:
    session = folder / "20260101T000000-1"
    session.mkdir()
    done = hwq("--dir", folder)
    assert done.exit_code == 4
    assert "has no session" in done.output
    for path in [record_of(folder), *folder.glob("*.xz")]:
        path.rename(session / path.name)
    (session / "session.json").write_text('{"schema": "pytest-hwqueue/session/1"}')
    assert "of 1 record agree" in hwq("--dir", folder).output


def colocation(folder: Path, *, traced: bool) -> Path:
    high = TenantSpec(
        "high", workload="tiny_kernel_stress", parameters={"rounds": 2}, arrival="constant: 500/s",
        priority=1,
    )  # fmt: skip
    low = TenantSpec(
        "low", workload="large_gemm_only", parameters={"mm_dim": 8192}, arrival="poisson: 5/s"
    )
    plan = Colocation(
        "mine", (high, low), "processes", duration_s=1.0, warmup_s=0.0, device="sim:h200"
    )
    provenance = Provenance("0.1.0", COMMIT, False, "")
    record = colocate(
        plan, open_scheduler("native"), lambda *_: None, folder, traced=traced,
        provenance=provenance,
    )  # fmt: skip
    assert record.status == "ok", record.reason
    assert (record.version, record.git_commit, record.git_dirty) == ("0.1.0", COMMIT, False)
    assert record.fingerprint is not None
    assert record.fingerprint.soft["git_commit"] == COMMIT
    return record_of(folder)


def test_a_traced_co_location_agrees_and_its_causes_are_checked(tmp_path: Path) -> None:
    path = colocation(tmp_path, traced=True)
    done = hwq(tmp_path)
    assert done.exit_code == 0, done.output
    assert "not computed again" not in done.output

    def tamper(data: Any) -> None:
        data["tenants"][0]["causes"]["tails"]["p99"]["threshold_ms"] += 1e-6
        data["tenants"][1]["throughput"]["items_per_s"] *= 1.001

    edit(path, tamper)
    (found,) = recompute([path]).records
    assert {each.figure for each in found.differences} == {
        "high.causes.tails.p99.threshold_ms", "low.throughput.items_per_s",
    }  # fmt: skip


def test_the_requests_of_a_co_location_are_checked(tmp_path: Path) -> None:
    path = colocation(tmp_path, traced=False)
    assert hwq(path).exit_code == 0

    def tamper(data: Any) -> None:
        data["tenants"][0]["latency_ns"][3] -= 1
        data["tenants"][0]["completed"] += 1

    edit(path, tamper)
    (found,) = recompute([path]).records
    assert [each.figure for each in found.differences] == ["high.completed", "high.latency_ns[3]"]
