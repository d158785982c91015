"""The plan that a record keeps: the one that was run, but for what is of one machine alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    read_colocation,
    write_colocation,
)
from pytest_hwqueue.engine.tenants.servers import for_records

PLAN = Colocation(
    "mix",
    (
        Tenant("high", "resnet18", parameters={"image_size": 64}, batch=1, deadline_ms=9.0),
        Tenant("chat", server=Server("http://h/?key=hidden", ("serve", "--token", "hidden"))),
    ),
    goals=("high.p99 < 9 ms",),
    asked_ms={"high": 9.0},
    folder="/home/me/scenarios",
)


def written(folder: Path) -> Path:
    record = ColocationRecord(
        id=PLAN.id, plan=for_records(PLAN), status="ok", device="cpu", scheduler="native", seed=0,
        placement=TenantPlacement.PROCESSES, duration_s=60.0, elapsed_s=70.0, started="",
        command="", simulated=False,
    )  # fmt: skip
    path = folder / "mix.json"
    write_colocation(path, record)
    return path


def test_a_record_keeps_the_plan_itself(tmp_path: Path) -> None:
    path = written(tmp_path)
    plan = read_colocation(path).plan
    assert plan == Colocation(
        "mix",
        (
            Tenant("high", "resnet18", parameters={"image_size": 64}, batch=1),
            Tenant("chat", server=for_records(PLAN).servers["chat"]),
        ),
        goals=("high.p99 < 9 ms",),
        asked_ms={"high": 9.0},
    )
    text = path.read_text(encoding="utf-8")
    for kept_out in ("hidden", "folder", "deadline_ms", "/home/me"):
        assert kept_out not in text


def test_its_keys_are_those_of_every_stored_record(tmp_path: Path) -> None:
    stored = json.loads(written(tmp_path).read_text(encoding="utf-8").splitlines()[0])["plan"]
    assert [*stored] == [
        "name", "tenants", "placement", "duration_s", "warmup_s", "seed", "device", "scheduler",
        "goals", "asked_ms", "noise", "work_seed",
    ]  # fmt: skip
    assert stored["placement"] == "processes"
    assert [*stored["tenants"][0]] == [
        "name", "model", "workload", "function", "parameters", "size", "batch", "arrival",
        "priority", "share", "streams", "concurrency", "weights", "faults", "server", "start_s",
        "requests", "trace_sha256",
    ]  # fmt: skip


def test_a_placement_is_the_word_that_files_and_texts_have() -> None:
    threads = TenantPlacement("threads")
    assert (f"{threads}-native", str(threads)) == ("threads-native", "threads")
    assert (
        replace(PLAN, tenants=PLAN.tenants[:1], placement=threads).id == "mix[cpu-threads-native]"
    )


@pytest.mark.parametrize(
    "changed", [{"placement": "beside"}, {"tenants": []}, {"duration_s": 0}, {"bystander": 1}]
)
def test_a_plan_that_nobody_could_have_run_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = written(tmp_path)
    record = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    del record["schema_version"]
    record["plan"] |= changed
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(RecordError, match="plan"):
        read_colocation(path)
