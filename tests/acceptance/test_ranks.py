"""Cells that several processes run together: local ranks, torchrun, and how they fail."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pytest_hwqueue.suite import plugin_name

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

ROOT = Path(__file__).parents[2]
ARGUMENTS = (
    "-p", plugin_name(), "-p", "no:cacheprovider", "--hwq-device=cpu", "--hwq-streams=2",
    "--hwq-iterations=10", "--hwq-warmup=2", "--hwq-max-time=2", "--hwq-json=session.json",
)  # fmt: skip

# Rank 1 comes to grief in its 4th iteration, as the test's name says.
TESTS = """
import os, signal, time
import pytest

@pytest.mark.hwq_workload("grad_accum")
@pytest.mark.parametrize("how", {hows})
def test_ranks(hwq, how, monkeypatch):
    from pytest_hwqueue.workloads.distributed.grad_accum import GradientAccumulation

    plain, done = GradientAccumulation.iterate, []

    def iterate(self, streams):
        done.append(1)
        if len(done) == 4 and os.environ["RANK"] == "1":
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "memory":
                raise RuntimeError("out of memory: tried to allocate 1 EiB")
            if how == "hung":
                time.sleep(1000)
        plain(self, streams)

    monkeypatch.setattr(GradientAccumulation, "iterate", iterate)
    assert hwq.run(blocks=2).ranks.world_size == 2
"""


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every process that a test has started is gone when the test ends."""
    # A lease of its own: these tests need not wait for others that measure the CPU.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)
    mark = uuid.uuid4().hex
    monkeypatch.setenv("OF_THIS_TEST", mark)
    yield
    monkeypatch.delenv("OF_THIS_TEST")
    left = [process for process in psutil.process_iter() if _marked(process) == mark]
    _, left = psutil.wait_procs(left, timeout=10)
    assert left == []


def _marked(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("OF_THIS_TEST") if process.pid != os.getpid() else None
    except psutil.Error:
        return None


def records(path: Path) -> dict[str, dict[str, Any]]:
    """A session's records by the test's parameter."""
    found = json.loads((path / "session.json").read_text())["records"]
    return {record["nodeid"].rpartition("-")[2].rstrip("]"): record for record in found}


def test_local_ranks_measure_together_and_fail_together(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.format(hows=["killed", "memory", "fine"]))
    result = pytester.runpytest_subprocess(*ARGUMENTS, "--hwq-ranks=2", "-v")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["*the worker process ended: rank 1 died by SIGKILL*", "*rank 1: out of memory*"]
    )
    result.stdout.fnmatch_lines(["*2 ranks over gloo*last behind first*"])
    found = records(pytester.path)
    assert {how: record["status"] for how, record in found.items()} == {
        "killed": "failed", "memory": "failed", "fine": "ok",
    }  # fmt: skip
    assert found["killed"]["reason"] == "the worker process ended: rank 1 died by SIGKILL"
    assert found["memory"]["reason"].startswith("rank 1: out of memory: ")
    fine = found["fine"]
    assert fine["cell"].endswith("[cpu-s2-native-eager-2ranks-blocks=2]")
    assert [part["rank"] for part in fine["ranks"]["parts"]] == [0, 1]
    assert len(fine["samples"]["host_ns"]) == fine["iterations"] == 10
    kept = sorted((pytester.path / ".hwqueue").glob("*/ranks/rank-*/*.json"))
    of_ranks = [json.loads(path.read_text())["samples"]["host_ns"] for path in kept]
    assert len(of_ranks) == 2
    assert len(list((pytester.path / ".hwqueue").glob("*/grad_accum*.json"))) == 3
    assert fine["samples"]["host_ns"] == [max(pair) for pair in zip(*of_ranks, strict=True)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def agent(path: Path, node: str, port: int, *arguments: str) -> subprocess.Popen[str]:
    """One of two torchrun agents that meet on this machine, as those of two machines do."""
    folder = path / f"node-{node}"
    folder.mkdir()
    return subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test",
            "--local-addr=127.0.0.1", "-m", "pytest", *ARGUMENTS, *arguments,
        ],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "hows", [["fine"], pytest.param(["fine", "memory"], marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_two_agents_run_one_session(pytester: pytest.Pytester, hows: list[str]) -> None:
    tests = pytester.makepyfile(
        TESTS.format(hows=hows)
        + "\ndef test_mine(hwq):\n    hwq.measure(lambda: sum(range(1000)))\n"
    )
    port = free_port()
    agents = [agent(pytester.path, node, port, str(tests), "-v") for node in ("a", "b")]
    outputs = [each.communicate(timeout=180)[0] for each in agents]
    both = "".join(outputs)
    outcome = "1 failed, 2 passed" if "memory" in hows else "2 passed"
    # One rank speaks, wherever it is; the launcher adds a summary of its own.
    assert both.count(outcome) == 1, both
    assert both.count("2 ranks over gloo") == 2, both
    speaker = next(f for f in pytester.path.glob("node-*") if (f / "session.json").exists())
    found = records(speaker)
    assert found["fine"]["ranks"]["world_size"] == 2
    mine = next(record for record in found.values() if "test_mine" in record["nodeid"])
    assert mine["status"] == "ok"
    assert mine["ranks"]["world_size"] == 2
    if "memory" in hows:
        assert found["memory"]["status"] == "failed"
        assert found["memory"]["reason"].startswith("rank 1: out of memory: ")
    silent = next(f for f in pytester.path.glob("node-*") if f != speaker)
    assert not (silent / "session.json").exists()
    assert outcome in (silent / ".hwqueue" / "rank-1.log").read_text()


@pytest.mark.slow
def test_torchrun_survives_killed_and_hung_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.format(hows=["killed", "hung", "again"]))
    result = pytester.run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "pytest", *ARGUMENTS, "--hwq-timeout=20", timeout=180,
    )  # fmt: skip
    result.stdout.fnmatch_lines(["*2 failed, 1 passed*"])
    assert result.ret == 1
    found = records(pytester.path)
    assert found["killed"]["reason"].startswith("rank 1: the worker process died by SIGKILL")
    assert "not finished within 20 s" in found["hung"]["reason"]
    assert found["again"]["status"] == "ok"


def test_local_ranks_listen_on_loopback_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, os
        import psutil
        import pytest

        @pytest.mark.hwq_workload("grad_accum")
        def test_ranks(hwq):
            assert hwq.run(blocks=2).ranks.world_size == 2
            # The session, and all that it has started.
            session = psutil.Process(int(os.environ["SESSION"]))
            addresses = [
                connection.laddr.ip
                for process in (session, *session.children(recursive=True))
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            with open("addresses.json", "w") as file:
                json.dump(addresses, file)
        """,
        conftest="import os; os.environ.setdefault('SESSION', str(os.getpid()))",
    )
    result = pytester.runpytest_subprocess(*ARGUMENTS, "--hwq-ranks=2")
    result.assert_outcomes(passed=1)
    addresses = json.loads((pytester.path / "addresses.json").read_text())
    assert addresses
    assert set(addresses) == {"127.0.0.1"}


@pytest.mark.slow
def test_a_hung_rank_ends_with_every_ranks_stacks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.format(hows=["hung", "again"]))
    result = pytester.runpytest_subprocess(*ARGUMENTS, "--hwq-ranks=2", "--hwq-timeout=15")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not finished within 15 s*", "rank 0:", "rank 1:", "*in iterate"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--hwq-isolation=none"], "--hwq-ranks=2 need separate processes*"),
        (["--hwq-device=sim:h200"], "a simulated device has one rank, not 2"),
    ],
)
def test_what_ranks_cannot_be_is_refused(
    pytester: pytest.Pytester, run_in_process: RunInProcess, options: list[str], reason: str
) -> None:
    pytester.makepyfile(TESTS.format(hows=["fine"]))
    ranks = ("--hwq-isolation=process", "--hwq-ranks=2")
    result = run_in_process(*ARGUMENTS, *ranks, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*nothing to measure: {reason}"])


def test_what_torchruns_ranks_cannot_do_is_refused(
    run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    for option, text in (("--hwq-compare=main", "leave out torchrun"), ("-n2", "leave out xdist")):
        result = run_in_process(*ARGUMENTS, "--hwq-isolation=process", option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*cannot be followed here:*{text}*"])


@pytest.mark.slow
def test_one_rank_on_a_simulated_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.hwq_workload("grad_accum")
        def test_one(hwq):
            assert hwq.run().ranks.backend == "fake"
        """
    )
    options = ("--hwq-device=sim:h200", "--hwq-size=tiny", "-v")
    result = pytester.runpytest_subprocess(*ARGUMENTS, *options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*one rank, over fake*"])
