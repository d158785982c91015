"""Secrets of a server, from a scenario file and the environment: sent, and nowhere else."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from yarl import URL

from pytest_hwqueue.engine.scenarios.planned_runs import Case
from pytest_hwqueue.engine.scenarios.runs import ScenarioRuns

from .test_scenarios import HOST, Run, _own_leases, hwq, run

__all__ = ["_own_leases", "run"]

TOKEN = "env-t0k'n/of us&<co>"
SECRETS = {
    "variable": TOKEN, "header": "l1teral-header", "user and password": "somebody:p4ssw0rd",
    "password": "p4ssw0rd", "parameter": "qu3ry-token", "argument": "arg-s3cret",
    "answer": "s3cret-of-its-own",
}  # fmt: skip

# Repeats whatever it gets, in its answers and its output, and answers each second one with 500.
SERVER = """
import html
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number = 0

    def do_GET(self):
        time.sleep(0.01)
        Handler.number += 1
        bad = Handler.number % 2 == 0 or "never" in sys.argv
        text = f"refused {self.headers['X-Mine']} {self.headers['Authorization']} at {self.path} "
        text += "password: s3cret-of-its-own"
        if bad:
            print(text, self.headers, repr(self.headers.items()), sys.argv, flush=True)
            print(html.escape(text), json.dumps(text), flush=True)
        self.send_response(500 if bad else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format, *args):
        print(format % args, flush=True)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SCENARIO = """
name: {name}
duration: 600ms
warmup: 100ms
tenants:
  - name: headers
    server:
      command: ["{{python}}", server.py, "{{port}}", "{when}", --token, arg-s3cret, "${{TOKEN}}"]
      headers: {{Authorization: "Bearer ${{TOKEN}}", X-Mine: l1teral-header}}
  - name: urls
    server:
      command: ["{{python}}", server.py, "{{port}}", "{when}"]
      url: "http://somebody:p4ssw0rd@127.0.0.1:{{port}}/v1?token=qu3ry-token&sig=${{TOKEN}}"
      headers: {{X-Mine: l1teral-header}}
goals: [headers.p50 < 1 us, urls.p50 < 1 us]
"""


def forms(secret: str) -> set[bytes]:
    """A secret as itself, as in URLs, pages and JSON, and as a header of user and password."""
    encoded = {
        quote(secret),
        quote(secret, safe=""),
        URL(f"http://h/?{quote(secret)}").raw_query_string,
    }
    quoted = {html.escape(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    basic = base64.b64encode(secret.encode()).decode()
    return {each.encode() for each in {secret, basic, *encoded, *quoted}}


def test_no_file_and_no_output_of_a_session_has_a_secret(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", TOKEN)
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    (scenarios / "server.py").write_text(SERVER)
    for name, when in (("sometimes", "sometimes"), ("broken", "never")):
        text = SCENARIO.format(name=name, when=when)
        (scenarios / f"{name}.hwq.yaml").write_text(text)
    session = run(
        scenarios, *HOST, "--junitxml=session-1/junit.xml", "-l", "-rA", "--hwq-causes=never",
        "-o", "junit_family=xunit2", "--hwq-markdown=session-1/report.md",
    )  # fmt: skip
    assert session.status == pytest.ExitCode.TESTS_FAILED, session.output
    status, output = hwq("report", "session-1", "-o", "session-1/report.html")
    assert status == 0, output

    # All of it went where it belongs, and came back.
    of = {record.plan.name: record for record in session.records}
    assert "first request to http" in of["broken"].reason
    assert "status 500, not 200: refused <redacted>" in of["broken"].reason
    headers, urls = (of["sometimes"].tenant(name) for name in ("headers", "urls"))
    for tenant in (headers, urls):
        assert tenant.completed
        assert any("refused <redacted>" in each.reason for each in tenant.failures)
    assert urls.server is not None
    assert "//<redacted>@127.0.0.1:" in urls.server.url
    assert urls.server.url.endswith("/v1?token=<redacted>&sig=${TOKEN}")
    stored = of["sometimes"].plan.tenants[0].server
    assert stored is not None
    assert stored.headers["Authorization"] == "Bearer ${TOKEN}"
    assert stored.command[-3:] == ("--token", "<redacted>", "${TOKEN}")
    assert len([*tmp_path.glob("session-1/**/server-*.log")]) == 2 * len(session.records)

    texts = {"the output": session.output.encode()}
    for file in tmp_path.rglob("*"):
        if file.is_file() and scenarios not in file.parents:
            content = file.read_bytes()
            packed = content.startswith(b"\x1f\x8b")
            texts[str(file)] = gzip.decompress(content) if packed else content
    kinds = {Path(name).suffix for name in texts}
    assert kinds.issuperset({".log", ".json", ".xml", ".html"})
    found = [
        f"{place}: the {what} ({form!r})"
        for place, text in texts.items()
        for what, secret in SECRETS.items()
        # What is secret without being known to be is left out by its name, and an output is kept.
        if not (what == "answer" and place.endswith(".log"))
        for form in forms(secret)
        if form in text
    ]
    assert found == []


def test_a_variable_that_is_not_set_is_refused_before_anything_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.hwq.yaml"
    file.write_text(SCENARIO.format(name="mine", when="never"))
    said = f"{file}: tenant headers: server.command: the environment variable TOKEN "
    for value, how in ((None, "is not set"), ("", "is empty")):
        monkeypatch.delenv("TOKEN", raising=False)
        if value is not None:
            monkeypatch.setenv("TOKEN", value)
        session = run(file, *HOST)
        assert session.status == pytest.ExitCode.USAGE_ERROR
        assert f"{said}{how}" in session.output
        assert session.records == []
        status, output = hwq("which", file, "--device=cpu")
        assert (status, f"{said}{how}" in re.sub(r"\s+", " ", output)) == (4, True), output


def test_a_traceback_with_variables_has_no_secret(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ScenarioRuns, wanted: Sequence[Case], *_: object) -> None:
        plans = [tenant.server for case in wanted for tenant in case.tenants]
        raise ZeroDivisionError(f"{len(plans)} plans")

    monkeypatch.setattr(ScenarioRuns, "measure", broken)
    monkeypatch.setenv("TOKEN", TOKEN)
    file = tmp_path / "mine.hwq.yaml"
    file.write_text(SCENARIO.format(name="mine", when="never"))
    session = run(file, *HOST, "-l", "--junitxml=junit.xml")
    for text in (session.output, (tmp_path / "junit.xml").read_text(encoding="utf-8")):
        assert "ZeroDivisionError: 2 plans" in text
        assert "wanted     = [" in text
        assert not any(secret in text for secret in SECRETS.values())
