"""A real server, uvicorn with starlette: its own log beside our figures."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from pytest_hwqueue.data.records.plan import Server
from tests.engine.tenants.streaming import TOKENS
from tests.engine.tenants.test_server_tenants import log_of, measured, run

pytestmark = pytest.mark.usefixtures("own_leases")
CONNECTIONS = 16


def uvicorn(*at: str) -> tuple[str, ...]:
    folder = str(Path(__file__).parent)
    return (
        "{python}", "-m", "uvicorn", "--app-dir", folder, *at, "--no-access-log",
        "--timeout-keep-alive", "60",
    )  # fmt: skip


def streaming(host: str = "127.0.0.1", scheme: str = "http", *more: str) -> Server:
    at = f"[{host}]" if ":" in host else host
    return Server(
        url=f"{scheme}://{at}:{{port}}/v1/chat/completions",
        command=(*uvicorn("--host", host, "--port", "{port}"), *more, "streaming:app"),
        protocol="openai", method="POST", body='{"model": "m", "stream": true}',
    )  # fmt: skip


def test_figures_are_those_of_the_servers_own_log(tmp_path: Path) -> None:
    record = run(tmp_path, streaming(), arrival="closed", concurrency=CONNECTIONS, duration_s=1.0)
    tenant = measured(record)
    assert tenant.server is not None
    tokens = tenant.server.tokens
    assert tokens is not None
    found = re.findall(r"^answered (.*)$", log_of(tmp_path), re.MULTILINE)
    answered: list[dict[str, Any]] = [json.loads(line) for line in found]
    issued = tenant.issued
    assert issued is not None
    # What came before the window warmed up.
    own = answered[-issued:]
    assert (tenant.completed, tenant.failed, len(own)) == (issued, 0, issued)
    assert tokens.tokens == [TOKENS] * issued
    assert tokens.counted == "usage"
    # All connections were open before the window, and none was opened anew.
    assert len({each["peer"] for each in answered}) == tenant.server.connections == CONNECTIONS
    assert tenant.server.connected == 0
    # A token is seen after it was sent, and before the next: this machine's own clock dates both.
    assert tenant.requests is not None
    sent = [(log["sent"][0] - log["received"]) for log in own]
    assert statistics.median(tokens.ttft_ns) >= statistics.median(sent)
    answers = [each for each in tokens.answer_ns if each is not None]
    assert len(answers) == issued
    assert all(
        first < answer <= last
        for first, answer, last in zip(tokens.ttft_ns, answers, tokens.last_ns, strict=True)
    )


@pytest.mark.parametrize("way", ["tls", "ipv6", "unix"])
def test_other_ways_to_the_same_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server = streaming("::1")
    if way == "unix":
        server = replace(
            server, url="http://localhost/v1/chat/completions", socket="{socket}",
            command=(*uvicorn("--uds", "{socket}"), "streaming:app"),
        )  # fmt: skip
    if way == "tls":
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        files = {name: tmp_path / f"{name}.pem" for name in ("authority", "key", "chain")}
        authority.cert_pem.write_to_path(str(files["authority"]))
        certificate.private_key_pem.write_to_path(str(files["key"]))
        certificate.cert_chain_pems[0].write_to_path(str(files["chain"]))
        monkeypatch.setenv("SSL_CERT_FILE", str(files["authority"]))
        more = ("--ssl-keyfile", str(files["key"]), "--ssl-certfile", str(files["chain"]))
        server = streaming("127.0.0.1", "https", *more)
    folder = tmp_path / "records"
    folder.mkdir()
    record = run(folder, server, arrival="closed", concurrency=4, duration_s=0.5)
    tenant = measured(record)
    assert (tenant.completed, tenant.failed) == (tenant.issued, 0)
    assert tenant.server is not None
    assert (tenant.server.connections, tenant.server.connected) == (4, 0)
