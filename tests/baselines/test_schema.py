"""The published schemas are those of the code, and say what a record and a session look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import VERSION

import pytest_hwqueue
from pytest_hwqueue.baselines import cell_file
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.devices.fingerprint import fingerprint
from pytest_hwqueue.devices.telemetry import (
    HostSample,
    OtherProcess,
    Telemetry,
    TelemetrySample,
    ThrottledSpan,
)
from pytest_hwqueue.metrics.cpu_events import InterruptTime, OffCpu, launch_pairs
from pytest_hwqueue.metrics.interference import latency_ratio
from pytest_hwqueue.metrics.latency import share_of, summarise_latency, throughput
from pytest_hwqueue.metrics.scaling import ScalingPoint, scaling
from pytest_hwqueue.metrics.switching import queue_switch
from pytest_hwqueue.metrics.timeline import Kernel, Timeline, summarise_timeline
from pytest_hwqueue.records.cell import (
    Cell,
    Declared,
    DeclaredRatio,
    DeclaredTraffic,
    Primary,
    RankPart,
    RanksSummary,
    RunRecord,
    Samples,
    SchedulerProof,
    SessionFile,
    SessionInfo,
    SweepScaling,
    WarmUp,
    json_schema,
    now,
    session_text,
)
from pytest_hwqueue.records.noise import (
    Causes,
    Done,
    Machine,
    Named,
    NeighbourRecord,
    NoiseRound,
    Placement,
    RefusedLevel,
    RemedyRecord,
    TailCauses,
)
from pytest_hwqueue.records.stored import SessionFiles
from pytest_hwqueue.records.timelines import TimelineFile
from pytest_hwqueue.tracing.cpu_counters import CpuCounters, PerThousand, ThreadCounts

SCHEMAS = Path(pytest_hwqueue.__file__).parent / "schemas"
Json = dict[str, Any]

UPDATE = """\
{name} is not the schema of the code. Where the change is meant (and schema_version with it, if
older files can no longer be read), run in the root of the repository:
python -c 'import json; from pathlib import Path
from pytest_hwqueue.baselines import cell_file
from pytest_hwqueue.records import cell as record, stored
for name, schema in (("record", record.json_schema()),
                     ("session", record.SessionFile.model_json_schema()),
                     ("session_files", stored.SessionFiles.model_json_schema()),
                     ("baseline", cell_file.json_schema())):
    path = Path("pytest_hwqueue/schemas") / f"{{name}}.schema.json"
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\\n", encoding="utf-8")'
"""


def published(name: str) -> Json:
    schema: Json = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema


@pytest.mark.skipif(
    tuple(map(int, VERSION.split(".")[:2])) < (2, 14),
    reason="pydantic before 2.14 writes some fields of a schema another way",
)
@pytest.mark.parametrize("name", ["record", "session", "session_files", "baseline"])
def test_published_schema_is_that_of_the_code(name: str) -> None:
    current = {
        "record": json_schema,
        "session": SessionFile.model_json_schema,
        "session_files": SessionFiles.model_json_schema,
        "baseline": cell_file.json_schema,
    }[name]()
    if published(name) != current:
        pytest.fail(UPDATE.format(name=f"{name}.schema.json"), pytrace=False)


@pytest.mark.parametrize("name", ["record", "session", "session_files", "baseline"])
def test_published_schema_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(published(name))


def timeline(streams: int) -> Timeline:
    kernels = [
        Kernel(number % streams, number, "k", "tag", 0, 10 * number, 10 * number + 5)
        for number in range(40)
    ]
    return Timeline(tuple(kernels), streams, 0)


PLACE = Placement(
    session=1, autogroup="/autogroup-1 nice 0", cgroup="/", cpu_weight=None, nice=0, cores=[0]
)


RATES = PerThousand(
    voluntary=1.0, involuntary=1.0, run_delay_us=None, system_softirqs={"TIMER": 1.0},
    system_interrupts={"LOC Local timer interrupts": 1.0},
)  # fmt: skip


def full_record() -> RunRecord:
    """A record with something in every field."""
    cell = Cell(
        name="hetero_kernels",
        device="cpu",
        streams=2,
        scheduler="native",
        dispatch="eager",
        sync_mode="per_iteration",
        size="tiny",
        parameters={"mm_dim": 256, "pattern": "alternating"},
        variant="mm_dim=256",
    )
    latency_ns = list(range(1_000, 2_000))
    latency = summarise_latency(latency_ns)
    switch = queue_switch(timeline(2), timeline(1))
    samples = Samples(
        host_ns=latency_ns,
        device_ns=latency_ns,
        enqueue_ns=latency_ns,
        pace_ns=[],
        tags_ns={"small": latency_ns},
        references_ns={"small_alone": latency_ns},
    )
    telemetry = Telemetry(
        source="several",
        samples=(
            TelemetrySample(1, 1980.0, 3201.0, 40.0, 300.5, ("power_cap",), (
                OtherProcess(1, None, None), OtherProcess(2, "python", 3),
            ), {"power_cap": 5}),
            HostSample(2, 2500.0, 0.5, None),
        ),
        missing={"steal_s": "no such field"},
        throttled=(ThrottledSpan(0, 5, ("power_cap",)),),
        read_before=(0, 1000),
    )  # fmt: skip
    metrics = {
        "latency": latency,
        "iteration": latency,
        "device_time": latency,
        "tags": {"small": latency},
        "ratios": {"convoy_ratio": latency_ratio(latency_ns, latency_ns, "d")},
        "throughput": [throughput(20, latency_ns, "small kernels/s")],
        "memory_bytes": {"process_peak": 1},
        "timeline": summarise_timeline(timeline(2)),
        "ready_to_start": switch,
        "queue_switch": switch,
        "refused": {"tags": "no"},
    }
    return RunRecord.model_validate(
        {
            "cell": cell,
            "cell_id": cell.id,
            "nodeid": "file.py::test",
            "family": "latency_sensitive",
            "mark": "P0",
            "status": "ok",
            "started": now(),
            "duration_s": 1.5,
            "iterations": 1000,
            "primary": Primary(name="small", per="launch"),
            "launch_bound": True,
            "stopped": "1000 iterations",
            "work_per_iteration": {"small kernels": 20.0},
            "failed_requests": 1,
            "failed_for": {"ValueError": 1},
            "warm_up": WarmUp(iterations=10, iteration_ns=1, stable=True, reason="two windows"),
            "samples": samples,
            "metrics": metrics,
            "scheduler_proof": SchedulerProof(mode="native", evidence="e", device_priorities=[0]),
            "telemetry": telemetry,
            "fingerprint": fingerprint("cpu"),
            "noise": NoiseRound(
                noise="cpu",
                status="not applied",
                reason="why",
                started=now(),
                duration_s=1.0,
                autogroup_enabled=True,
                measured=PLACE,
                measured_on_cpu_s=1.0,
                measured_run_delay_s=0.5,
                core_speed_per_s=4e7,
                remedy=RemedyRecord(
                    cores_before=[0, 1],
                    cores=[0],
                    nice_before=0,
                    nice=-5,
                    threads=3,
                    kept_free=[0, 8],
                    hyperthreads_unknown=[1],
                ),
                neighbours=[
                    NeighbourRecord(
                        name="cpu",
                        commands=[["burn"]],
                        version="1",
                        notes=["n"],
                        placement=PLACE,
                        done=Done(
                            on_cpu_s=1.0,
                            waiting_s=1.0,
                            handed_over_bytes=1,
                            disk_written_bytes=None,
                        ),
                    )
                ],
                machine=Machine(
                    pressure_share={"cpu": 0.1},
                    softirqs={"TIMER": 1},
                    interrupts={"LOC": 1},
                    steal_s=None,
                    missing={"steal_s": "no such field"},
                ),
            ),
            "counters": CpuCounters(
                duration_s=1.0,
                iterations=3,
                launches=6,
                kernels=12,
                threads=[
                    ThreadCounts(
                        thread=1,
                        name="enqueuing",
                        voluntary=1,
                        involuntary=1,
                        on_cpu_s=1.0,
                        run_delay_s=None,
                    )
                ],
                idle_threads=1,
                ended_threads=1,
                voluntary=1,
                involuntary=1,
                on_cpu_s=1.0,
                run_delay_s=None,
                system_softirqs={"TIMER": 1},
                system_interrupts={"LOC Local timer interrupts": 1},
                per_1000_launches=RATES,
                per_1000_kernels=RATES,
                missing={"run_delay_s": "why"},
            ),
            "causes": Causes(
                level="perf",
                refused_levels=[RefusedLevel(level="perf", errno=13, reason="no right")],
                requests=400,
                lost=1,
                clock_offset_ns=1,
                clock_uncertainty_ns=1,
                tails={
                    "p99": TailCauses(
                        threshold_ms=1.0,
                        median_ms=1.0,
                        requests=4,
                        shares={"descheduled": share_of(1, 4), "unexplained": share_of(3, 4)},
                        named={"descheduled": [Named(what="gave way to stress-ng", requests=1)]},
                        not_seen={"interrupted": "why"},
                        words="25 % descheduled: gave way to stress-ng; 75 % unexplained",
                    )
                },
                refused={"p95": "why"},
                limits=["why"],
                launch_pairs=launch_pairs({1: [0, 3, 7]}, [OffCpu(1, 0, 0, 1, 2, "preempted")]),
                interrupts=[InterruptTime("softirq", "TIMER", 1, 1, 0.5)],
            ),
            "ranks": RanksSummary(
                world_size=1,
                backend="gloo",
                skew=latency,
                straggler=0,
                parts=[RankPart(rank=0, host="h", device="d", p50_ns=1, slowest_share=1.0)],
            ),
            "notes": ["a note"],
            "seed": 0,
            "command": "pytest",
            "version": "0.1.0",
            "git_commit": "0" * 40,
            "git_dirty": True,
            "timelines": TimelineFile(
                file="cell.timelines.xz", sha256="0" * 64, size_bytes=400, kernels=40
            ),
            "declared": Declared(
                ratios=[
                    DeclaredRatio(name="r", tag="t", reference="alone", description="over alone")
                ],
                overlap=("compute", "comms"),
                traffic=DeclaredTraffic(array_bytes=1, bus_factor=1.0, reference=None),
            ),
            "run": 2,
            "faults": ["slower:10"],
        }
    )


def bare_record() -> RunRecord:
    """A record of a cell that came to nothing."""
    bare = full_record().model_dump(
        include={"cell", "cell_id", "nodeid", "started", "duration_s", "seed", "command"}
    )
    return RunRecord.model_validate({**bare, "status": "failed", "reason": "Boom"})


def as_json(record: RunRecord) -> Json:
    data: Json = json.loads(record.model_dump_json())
    return data


@pytest.fixture
def validator() -> Draft202012Validator:
    return Draft202012Validator(published("record"))


def test_full_record_fills_every_field() -> None:
    assert all(value not in (None, "", [], {}) for name, value in full_record() if name not in (
        "reason", "stage",
    ))  # fmt: skip


def test_records_are_valid(validator: Draft202012Validator) -> None:
    for record in (full_record(), bare_record()):
        assert list(validator.iter_errors(as_json(record))) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("status",), "great"),
        (("schema_version",), 3),
        (("cell", "streams"), "eight"),
        (("surprise",), 1),
        (("samples", "host_ns"), ["a"]),
        (("metrics", "latency", "p99"), "5 ms"),
        (("metrics", "latency", "intervals", "p99"), [1.0]),
        (("metrics", "surprise"), 0),
    ],
)
def test_what_is_no_record_is_not_valid(
    validator: Draft202012Validator, place: tuple[str, ...], value: object
) -> None:
    data = as_json(full_record())
    inner = data
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    assert not validator.is_valid(data)


@pytest.mark.parametrize("name", ["cell", "cell_id", "nodeid", "status", "started", "seed"])
def test_record_without_a_required_field_is_not_valid(
    validator: Draft202012Validator, name: str
) -> None:
    data = as_json(full_record())
    del data[name]
    assert not validator.is_valid(data)


def test_session_is_valid_and_anything_else_is_not() -> None:
    validator = Draft202012Validator(published("session"))
    info = SessionInfo(id="s", started=now(), command="pytest", version="0", settings={"seed": 0})
    records = [full_record(), bare_record()]
    points = [ScalingPoint(streams, 10.0 * streams, [1000] * 60) for streams in (1, 2)]
    scaled = SweepScaling(cells=["a", "b"], scaling=scaling(points, "kernels/s"))
    session: Json = json.loads(session_text(info, records, [scaled]))
    assert list(validator.iter_errors(session)) == []
    assert not validator.is_valid({**session, "schema": "pytest-hwqueue/session/2"})
    assert not validator.is_valid({**session, "records": {}})
    assert not validator.is_valid({"records": []})
    assert not validator.is_valid(as_json(full_record()))


def test_lines_of_a_baseline_are_valid_and_anything_else_is_not(tmp_path: Path) -> None:
    validator = Draft202012Validator(published("baseline"))
    path = Store(tmp_path).add("main", full_record().model_copy(update={"faults": []}), "s")
    header, run, trailer = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    for line in (header, run, trailer):
        assert list(validator.iter_errors(line)) == []
    assert all(value not in (None, [], {}) for name, value in run.items() if name != "soft")
    assert not validator.is_valid({**header, "schema": "pytest-hwqueue/baseline/2"})
    assert not validator.is_valid({**header, "schema": None})
    assert not validator.is_valid({key: header[key] for key in header if key != "schema"})
    assert not validator.is_valid({**run, "p99_ns": -1})
    assert not validator.is_valid({**run, "surprise": 0})
    assert not validator.is_valid({**trailer, "lines": "one"})
    assert not validator.is_valid(as_json(full_record()))
