"""A server is asked with the prompts of a file: each answer is as long as its line asks for."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.engine.scenarios.file import parse_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import SessionPlan, cases, colocation, own_run
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.prompts import drawn, read_prompts
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from tests.engine.tenants.conftest import server_of_tests

pytestmark = pytest.mark.usefixtures("own_leases")
SERVE = Path(__file__).parents[3] / "examples/servers/serve.py"


def plan(folder: Path, server: str, arrival: str) -> Colocation:
    command = f"'{{python}} {SERVE} --port {{port}} --service-ms 0'"
    fields = f"command: {command}, ready: /health, protocol: openai, {server}"
    text = (
        "name: prompted\nduration: 1s\nwarmup: 100ms\ntenants:\n"
        f"  - {{name: chat, server: {{{fields}}}, arrival: '{arrival}', concurrency: 4}}\n"
    )
    scenario = parse_scenario(text, folder / "prompted.hwq.yaml")
    return colocation(own_run(cases(scenario)[0]), SessionPlan("cpu", "tiny", folder), 1.0)


def run(folder: Path, planned: Colocation) -> ColocationRecord:
    limits = Limits(ready_s=60, finish_s=60)
    return TenantSet(
        open_scheduler("native"), lambda *_: None, folder, limits=limits, server=server_of_tests()
    ).once(planned)


def tokens_of(record: ColocationRecord) -> list[int]:
    (tenant,) = record.tenants
    # The machine may be late; that is another matter.
    assert record.status in ("ok", "invalid"), record.reason
    assert tenant.server is not None
    assert tenant.server.tokens is not None
    return tenant.server.tokens.tokens


def test_drawn_by_the_seed_and_limited(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"p{n}", "max_tokens": n} for n in range(1, 9)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    planned = plan(tmp_path, "prompts: prompts.jsonl, max_tokens: 6", "constant: 20/s")
    record = run(tmp_path, planned)
    draws = drawn(read_prompts(file.name, tmp_path)[1], planned.tenant_seed("chat"), in_order=False)
    assert tokens_of(record) == [min(6, each.max_tokens or 0) for each in islice(draws, 20)]
    (server,) = record.plan.servers.values()
    assert server.prompts is not None
    assert (server.prompts.file, server.prompts.requests) == ("prompts.jsonl", 8)


def test_a_trace_is_asked_in_its_order_at_its_times(tmp_path: Path) -> None:
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    lines = [
        {"timestamp": 100 * number, "input_length": 700, "output_length": length, "hash_ids": [1]}
        for number, length in enumerate(lengths)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    record = run(tmp_path, plan(tmp_path, "prompts: trace.jsonl", "trace: trace.jsonl"))
    assert tokens_of(record) == lengths
    (tenant,) = record.tenants
    assert tenant.requests is not None
    assert tenant.requests.scheduled_ns == [100_000_000 * n for n in range(8)]


def test_a_file_that_changed_since_is_not_another_cells(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n')
    planned = plan(tmp_path, "prompts: prompts.jsonl", "constant: 20/s")
    file.write_text('{"prompt": "b"}\n')
    record = run(tmp_path, planned)
    assert record.status == "failed"
    assert "prompts.jsonl has changed since the scenario was read: run it again" in record.reason
