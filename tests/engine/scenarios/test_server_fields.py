"""The field `server` of a tenant: what it means (refusals.txt has what can be wrong with it)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.engine.scenarios.file import parse_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import SessionPlan, cases, colocation, own_run
from pytest_hwqueue.engine.tenants.servers import ready_url


def spec(server: str, more: str = "") -> Server:
    text = f"name: mine\nduration: 3s\ntenants:\n  - {{name: s, server: {server}}}\n{more}"
    scenario = parse_scenario(text, Path("mine.hwq.yaml"))
    plan = colocation(own_run(cases(scenario)[0]), SessionPlan("cpu", "tiny", Path()), 1.0)
    found = plan.tenants[0].server
    assert found is not None
    return found


def test_a_server_is_started_or_there_and_ready_at_its_own_url() -> None:
    assert spec("{command: 'python -m http.server {port}'}") == Server(
        "http://127.0.0.1:{port}/", command=("python", "-m", "http.server", "{port}"),
        method="GET", status=200, ready=None, ready_s=60, timeout_s=10, stop_s=10,
    )  # fmt: skip
    other = spec("{url: 'http://10.0.0.7:80/x', ready: 'http://h:2/up'}")
    assert (other.command, other.ours, other.url) == ((), False, "http://10.0.0.7:80/x")
    assert ready_url(other) == "http://h:2/up"
    ours = spec("{command: 'serve {port}', url: 'http://127.0.0.1:{port}/v1/x', ready: /health}")
    assert ours.ours
    assert ready_url(replace(ours, url="http://127.0.0.1:7/v1/x")) == "http://127.0.0.1:7/health"
    whole = spec("{command: 'serve {port}', ready: 'http://localhost:{port}/up'}")
    assert ready_url(replace(whole, url="http://127.0.0.1:7/")) == "http://localhost:7/up"


def test_a_server_at_a_unix_socket_has_one_of_its_own_or_that_which_is_named() -> None:
    new = spec("{command: 'serve --uds {socket}', ready: /health}")
    assert (new.socket, new.url) == ("{socket}", "http://localhost/")
    assert ready_url(new) == "http://localhost/health"
    named = spec("{command: 'serve', socket: s.sock, protocol: openai, prompt: Hi}")
    assert (named.socket, named.url) == ("s.sock", "http://localhost/v1/completions")
    there = spec("{socket: /run/s.sock, url: 'http://models/v1'}")
    assert (there.ours, there.socket, there.url) == (False, "/run/s.sock", "http://models/v1")


def test_a_body_is_text_or_json() -> None:
    text = spec("{url: 'http://h/', body: 'as {it} is'}")
    assert (text.method, text.body, text.headers) == ("POST", "as {it} is", {})
    table = spec("{url: 'http://h/', body: {a: [1, 2]}, method: PUT}")
    assert (table.method, table.body) == ("PUT", '{"a": [1, 2]}')
    assert table.headers == {"Content-Type": "application/json"}
    own = spec("{url: 'http://h/', body: [1], headers: {content-type: text/plain}}")
    assert own.headers == {"content-type": "text/plain"}


def test_a_completion_is_a_streamed_request_and_good_within_its_bounds() -> None:
    found = spec(
        "{command: [serve, '{port}'], protocol: openai, model: m, prompt: Hi, max_tokens: 8, "
        "body: {temperature: 0}, tbt_ms: 20}", "goals: [s.goodput > 1/s]",
    )  # fmt: skip
    assert (found.url, found.method) == ("http://127.0.0.1:{port}/v1/completions", "POST")
    assert json.loads(found.body or "") == {
        "stream": True, "model": "m", "max_tokens": 8, "prompt": "Hi", "temperature": 0,
    }  # fmt: skip
    chat = spec("{url: 'http://h:1/v1/chat/completions', protocol: openai, prompt: Hi}")
    assert json.loads(chat.body or "")["messages"] == [{"role": "user", "content": "Hi"}]
