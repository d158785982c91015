"""The field `server` of a tenant: what it means, and everything that can be wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_hwqueue.errors import BadScenario
from pytest_hwqueue.scenarios.file import Scenario, parse_scenario, read_scenario
from pytest_hwqueue.scenarios.planned_runs import cases, colocation, own_run
from pytest_hwqueue.servers.spec import ServerSpec

EXAMPLES = Path(__file__).parents[2] / "examples" / "servers"


def read(server: str, more: str = "", tenant: str = "") -> Scenario:
    text = f"name: mine\nduration: 3s\ntenants:\n  - {{name: s, server: {server}{tenant}}}\n{more}"
    return parse_scenario(text, Path("mine.hwq.yaml"))


def spec(server: str) -> ServerSpec:
    scenario = read(server)
    plan = colocation(
        own_run(scenario, cases(scenario)[0]), {}, duration_s=1, warmup_s=1, seed=0, device="cpu",
        size="tiny", folder=Path(),
    )  # fmt: skip
    found = plan.tenants[0].server
    assert found is not None
    return found


def problems(server: str, more: str = "", tenant: str = "") -> list[str]:
    with pytest.raises(BadScenario) as refused:
        read(server, more, tenant)
    return [f"{each.field}: {each.reason}" for each in refused.value.problems]


def test_what_is_left_out_has_its_default() -> None:
    found = spec("{command: 'python -m http.server {port}'}")
    assert found.command == ("python", "-m", "http.server", "{port}")
    assert found.url == "http://127.0.0.1:{port}/"
    assert (found.method, found.body, found.status, found.ready) == ("GET", None, 200, None)
    assert (found.ready_s, found.timeout_s, found.stop_s, found.ours) == (60, 10, 10, True)
    other = spec("{url: 'http://10.0.0.7:80/x'}")
    assert (other.command, other.ours, other.url) == ((), False, "http://10.0.0.7:80/x")


def test_a_body_is_text_or_json() -> None:
    text = spec("{url: 'http://h/', body: 'as {it} is'}")
    assert (text.method, text.body, text.headers) == ("POST", "as {it} is", {})
    table = spec("{url: 'http://h/', body: {a: [1, 2]}, method: PUT}")
    assert (table.method, table.body) == ("PUT", '{"a": [1, 2]}')
    assert table.headers == {"Content-Type": "application/json"}
    own = spec("{url: 'http://h/', body: [1], headers: {content-type: text/plain}}")
    assert own.headers == {"content-type": "text/plain"}


def test_a_completion_is_a_streamed_request() -> None:
    found = spec(
        "{command: [serve, '{port}'], protocol: openai, model: m, prompt: Hi, max_tokens: 8, "
        "body: {temperature: 0}}"
    )
    assert found.url == "http://127.0.0.1:{port}/v1/completions"
    assert found.method == "POST"
    assert found.body is not None
    assert json.loads(found.body) == {
        "stream": True, "model": "m", "max_tokens": 8, "prompt": "Hi", "temperature": 0,
    }  # fmt: skip
    chat = spec("{url: 'http://h:1/v1/chat/completions', protocol: openai, prompt: Hi}")
    assert chat.body is not None
    assert json.loads(chat.body)["messages"] == [{"role": "user", "content": "Hi"}]


def test_the_url_for_readiness_starts_from_that_of_requests() -> None:
    found = spec("{command: 'serve {port}', url: 'http://127.0.0.1:{port}/v1/x', ready: /health}")
    assert found.ready_url("http://127.0.0.1:7/v1/x") == "http://127.0.0.1:7/health"
    other = spec("{url: 'http://h:1/x', ready: 'http://h:2/up'}")
    assert other.ready_url(other.url) == "http://h:2/up"


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("{}", "tenants[0].server: give a command that starts the server, the url of one"),
        ("{command: serve}", "tenants[0].server: the command does not take the port: put {port}"),
        ("{command: 'serve \"{port}'}", "cannot be split into arguments: No closing quotation"),
        ("{command: '  '}", "the command is empty"),
        ("{url: 'http://h:{port}/'}", "{port} is the port that a command gets, and there is no"),
        ("{url: 'ftp://h/'}", "url: 'ftp://h/' is not valid"),
        ("{url: 'http://h:99999/'}", "is not valid; give one such as http://127.0.0.1:8000/"),
        ("{url: 'http:///x'}", "is not valid"),
        ("{url: 'http://h/', prompt: Hi}", "prompt is for protocol: openai"),
        ("{url: 'http://h/', ttft_ms: 3}", "ttft_ms is for protocol: openai"),
        ("{url: 'http://h/', protocol: openai}", "openai: give a prompt, or the request's fields"),
        ("{url: 'http://h/', protocol: openai, body: x}", "body: for openai, give a table"),
        ("{url: 'http://h/', protocol: grpc}", "tenants[0].server.protocol: input should be 'http"),
        ("{url: 'http://h/', timeout: 3}", "tenants[0].server.timeout: 3 is not text; give a dur"),
        ("{url: 'http://h/', status: 99}", "tenants[0].server.status"),
        ("{url: 'http://h/', port: 8}", "tenants[0].server.port: unknown field; "),
    ],
)
def test_everything_wrong_names_its_field(server: str, expected: str) -> None:
    assert any(expected in each for each in problems(server)), problems(server)


@pytest.mark.parametrize(
    ("tenant", "more", "expected"),
    [
        (", model: resnet18", "", "tenants[0]: give one of model, workload, function, server"),
        (", streams: 2", "", "tenants[0].streams: is not of a server"),
        ("", "placement: threads", "tenants[0].server: a server is a process"),
        ("", "schedulers: {processes: [native], threads: [native]}", "a server is a process"),
        ("", "goals: [s.ttft_p99 < 1 ms]", "goals[0]: ttft_p99 is of a tenant whose server has"),
        ("", "goals: [s.goodput > 1]", "goals[0]"),
    ],
)
def test_what_does_not_fit_a_server_is_refused(tenant: str, more: str, expected: str) -> None:
    found = problems("{url: 'http://h/'}", more, tenant)
    assert any(expected in each for each in found), found


def test_goodput_needs_a_bound() -> None:
    server = "{url: 'http://h/', protocol: openai, prompt: Hi"
    goal = "goals: [s.goodput > 1/s]"
    assert problems(f"{server}}}", goal) == [
        "goals[0]: good within which times? give the server ttft_ms, tbt_ms, or both"
    ]
    assert read(f"{server}, tbt_ms: 20}}", goal).goals


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.hwq.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(file: Path) -> None:
    assert read_scenario(file).tenants[0].server is not None


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (EXAMPLES.parents[1] / "docs" / "servers.md").read_text(encoding="utf-8")
    found = parse_scenario(text.split("```yaml\n")[1].split("```")[0], Path("doc.hwq.yaml"))
    assert found.name == "own_server"
