"""Servers as tenants, as users run them: the examples, and what is refused beforehand."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.main import main

from .test_scenarios import HOST, Run, _own_leases, run

__all__ = ["_own_leases", "run"]

EXAMPLES = Path(__file__).parents[2] / "examples" / "servers"


def example(folder: Path, name: str, **replaced: str) -> Path:
    """Copy the examples, with texts replaced in the one that is named; return that."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    file = folder / name
    text = file.read_text(encoding="utf-8")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("name", "tenant", "goal", "said"),
    [
        # A goal that is missed: the server is not traced for its causes.
        ("completions", "chat", {"goodput > 5/s": "p50 < 1 us"},
         ("goodput", "skipped: tenant chat is a server, which is not traced")),
        # Its parts stand in tests/engine/tenants/test_server_tenants.py.
        pytest.param(
            "http", "high", {}, ("connections opened, ", "of requests connected, at most"),
            marks=pytest.mark.slow,
        ),
        pytest.param("prompts", "chat", {}, ("first token P50",), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_examples_run_on_any_machine(
    run: Run, tmp_path: Path, name: str, tenant: str, goal: dict[str, str], said: tuple[str, ...]
) -> None:
    file = example(tmp_path, f"{name}.hwq.yaml", **goal)
    session = run(file, *HOST, "--hwq-max-time=1", *([] if goal else ["--hwq-causes=never"]))
    *late, record = sorted(session.records, key=lambda each: each.started)
    assert session.status == pytest.ExitCode.TESTS_FAILED or not goal
    # A busy machine makes the generator late, and a short window decides no goal.
    if record.status == "invalid":
        assert "generator was late" in record.reason
        return
    assert {each.status for each in late} <= {"invalid"}
    assert record.status == "ok", record.reason
    assert record.tenant(tenant).completed
    for text in (f"{tenant}: ", " requests to http://127.0.0.1:", *said):
        assert text in session.output
    assert record.proof is not None
    assert f"server of {tenant}: seen in processes" in record.proof.evidence
    logs = list((tmp_path / "session-1").glob(f"*/scenarios/*/server-{tenant}.log"))
    assert len(logs) == len(session.records)
    for log in logs:
        assert "[stopping by SIGTERM]" in log.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("accelerate", "fastapi", "openai", "uvicorn")),
    reason="needs transformers[serving]",
)
def test_a_language_models_own_server_beside_a_vision_model(run: Run, tmp_path: Path) -> None:
    file = example(
        tmp_path,
        "qwen3.hwq.yaml",
        **{
            "--device cuda --layers 8 --hidden 1024": "--device cpu --layers 2 --hidden 128",
            "schedulers: [native, mps, mps-priority]": "schedulers: [native]",
            "ci_duration: 5s": "ci_duration: 20s",
            "batch: 256": "batch: 1",
            # A CPU takes seconds for what takes milliseconds on a GPU.
            "poisson: 3/s": "constant: 0.3/s",
            "ready_timeout": "timeout: 60s\n      ready_timeout",
            "ttft_ms: 200": "ttft_ms: 60000",
            "tbt_ms: 50": "tbt_ms: 60000",
        },
    )
    session = run(file, *HOST, "--hwq-causes=never")
    *_, record = sorted(session.records, key=lambda each: each.started)
    # A busy machine makes the generator late.
    assert record.status == "ok" or "generator was late" in record.reason, record.reason
    chat = record.tenant("chat")
    assert chat.completed
    assert chat.server is not None
    tokens = chat.server.tokens
    assert tokens is not None
    assert set(tokens.tokens) == {8}
    latencies = zip(tokens.ttft_ns, chat.latency_ns, strict=True)
    assert all(0 < first_ns < whole_ns for first_ns, whole_ns in latencies)
    assert record.tenant("low").completed


def test_what_cannot_be_measured_is_skipped_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = example(tmp_path, "http.hwq.yaml")
    for arguments, reason in (
        (("--hwq-device=sim:h200",), "tenant high is a server, which needs a real device"),
        ((*HOST, "--hwq-fault=slower:50"), "--hwq-fault: cannot be planted in tenant high"),
    ):
        session = run(file, *arguments)
        assert session.status == pytest.ExitCode.USAGE_ERROR
        assert reason in session.output
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.USAGE_ERROR
    assert "pip install 'pytest-hwqueue[server]'" in session.output
    assert session.records == []


def test_the_command_checks_their_files(tmp_path: Path) -> None:
    good = example(tmp_path, "http.hwq.yaml")
    checked = CliRunner().invoke(main, ["scenario", "check", str(good)])
    assert checked.exit_code == 0
    assert checked.output.startswith(f"{good}: native\n")
    wrong = example(tmp_path, "http.hwq.yaml", **{"--port {port}": ""})
    checked = CliRunner().invoke(main, ["scenario", "check", str(wrong)])
    assert checked.exit_code == 1
    assert "tenants[0].server: the command does not take the port" in checked.output
