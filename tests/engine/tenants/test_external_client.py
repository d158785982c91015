"""A client of another project sends a tenant's requests: run beside us, and its records read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.data.document.servers import request_lines
from pytest_hwqueue.data.records.plan import ClientCommand, Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from tests.engine.tenants.conftest import server_of_tests
from tests.parts.schedulers.processes import wait_for

pytestmark = pytest.mark.usefixtures("own_leases")
CLIENT = Path(__file__).with_name("client_of_tests.py")
SERVE = Path(__file__).parents[3] / "examples/servers/serve.py"


def run(
    folder: Path, how: str, *, requests: int = 20, duration_s: float = 20.0, lead_s: float = 0.0
) -> ColocationRecord:
    words = ("{python}", "-S", str(CLIENT), "{url}", "{folder}", str(requests), how)
    client = ClientCommand(words, "profile_export.jsonl", "aiperf", lead_s)
    serve = ("{python}", str(SERVE), "--port", "{port}", "--service-ms", "1")
    server = Server(
        "http://127.0.0.1:{port}/v1/completions", serve, ready="/health", protocol="openai",
        client=client,
    )  # fmt: skip
    tenant = Tenant("chat", server=server, arrival="client")
    plan = Colocation(
        "by_client", (tenant,), duration_s=duration_s, warmup_s=0.1, folder=str(folder)
    )
    limits = Limits(ready_s=60, finish_s=60)
    tenants = TenantSet(
        open_scheduler("native"), lambda *_: None, folder, limits=limits, server=server_of_tests()
    )
    record = tenants.once(plan)
    (path,) = folder.glob("*.json")
    assert read_colocation(path) == record
    # Whatever it did, it is gone.
    assert not [each for each in psutil.Process().children(recursive=True) if _is_client(each)]
    return record


def _is_client(process: psutil.Process) -> bool:
    try:
        return str(CLIENT) in process.cmdline()
    except psutil.Error:
        return False


def test_its_requests_are_the_tenants(tmp_path: Path) -> None:
    record = run(tmp_path, "works")
    assert record.status == "ok", record.reason
    (tenant,) = record.tenants
    assert (tenant.issued, tenant.completed, tenant.failed) == (20, 20, 0)
    assert tenant.server is not None
    assert (tenant.server.origin, tenant.server.connections) == ("command", None)
    tokens = tenant.server.tokens
    assert tokens is not None
    assert (tokens.tokens, tokens.counted) == ([4] * 20, "client")
    # Its time is its own: from its first request to the end of its last, whatever the window's.
    assert tenant.requests is not None
    assert 0 < tenant.from_ns == tenant.requests.scheduled_ns[0]
    assert tenant.until_ns == max(tenant.requests.finished_ns)
    assert tenant.latency_ns == [
        end - due
        for due, end in zip(tenant.requests.scheduled_ns, tenant.requests.finished_ns, strict=True)
    ]
    assert all(
        0 < first <= last for first, last in zip(tokens.ttft_ns, tokens.last_ns, strict=True)
    )
    (line,) = request_lines([record])
    assert "v1/completions, at most 1 in flight" in line
    assert "tokens counted by the client" in line


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fails", "the client ended with status 1; its last lines:\nno such model"),
        ("forgets", "profile_export.jsonl is no file of requests that aiperf writes"),
    ],
)
def test_a_client_that_fails_is_the_tenants_failure(tmp_path: Path, how: str, said: str) -> None:
    record = run(tmp_path, how)
    assert record.status == "failed"
    assert said in record.reason


def test_one_that_goes_on_after_the_window_is_ended_and_told_of(tmp_path: Path) -> None:
    record = run(tmp_path, "stays", duration_s=0.5)
    assert record.status == "failed"
    assert "the client had not ended 1 s after the window: give it fewer requests" in record.reason


def test_what_it_sends_before_the_window_does_not_count(tmp_path: Path) -> None:
    record = run(tmp_path, "works", requests=1, duration_s=0.5, lead_s=30.0)
    assert record.status == "failed"
    assert "the client sent none of its 1 requests within the window of 0.5 s" in record.reason


def test_a_secret_that_its_errors_repeat_is_nowhere_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_TESTS", "supersecretvalue1")
    record = run(tmp_path, "tells ${KEY_OF_TESTS}", requests=3)
    assert record.status == "ok", record.reason
    (tenant,) = record.tenants
    (failure,) = tenant.failures
    assert failure.reason.startswith("xxx")
    (path,) = tmp_path.glob("*.json")
    assert "supersec" not in path.read_text(encoding="utf-8")


_OWNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.engine.tenants.test_external_client import run
run(Path(sys.argv[2]), "stays", duration_s=600.0)
"""


@pytest.mark.slow
def test_what_it_wrote_goes_with_a_session_that_is_killed(tmp_path: Path) -> None:
    temporary, root = tmp_path / "temporary", str(Path(__file__).parents[3])
    temporary.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, root, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    # It may hold secrets, which only its orderly end would have removed.
    wait_for(lambda: [*temporary.glob("hwq-*/*/profile_export.jsonl")], "the client's records")
    owner.kill()
    owner.wait()
    wait_for(lambda: not [*temporary.glob("hwq-*")], "the end of temporary folders")
