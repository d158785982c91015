"""Cells that several processes run together: local ranks, torchrun, and how they fail."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pytest_hwqueue.options.suite import plugin_name
from tests.acceptance.inner import plain_environment, records_in

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

ARGUMENTS = (
    "-p", plugin_name(), "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
    "--hwq-device=cpu", "--hwq-streams=2", "--hwq-iterations=10", "--hwq-warmup=2",
    "--hwq-max-time=2", "--hwq-json=session.json",
)  # fmt: skip

# Rank 1 comes to grief in its 4th iteration, as the test's name says.
TESTS = """
import json, os, pathlib, signal, time
import psutil, pytest

def meet():
    # Rank 0 ends only when rank 1 has come to its end, too.
    group = "left-" + os.environ["MASTER_PORT"]
    pathlib.Path(group + "-" + os.environ["RANK"]).touch()
    for _ in range(300):
        if pathlib.Path(group + "-1").exists():
            return
        time.sleep(0.1)
    pathlib.Path("alone").touch()

@pytest.mark.hwq_workload("grad_accum")
@pytest.mark.parametrize("how", {hows})
def test_ranks(hwq, how, monkeypatch, request):
    from pytest_hwqueue.parts.workloads.distributed.grad_accum import GradientAccumulation

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
    # A cell for each test.
    blocks = 2 + ["fine", "killed", "memory", "hung", "again"].index(how)
    assert hwq.run(blocks=blocks).ranks.world_size == 2
    if how == "fine":
        request.config.add_cleanup(meet)
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
"""
CONFTEST = "import os; os.environ.setdefault('SESSION', str(os.getpid()))"


class Inner:
    """Starts sessions whose processes are known by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A lease of its own: these tests need not wait for others that measure the CPU.
        self.environment = plain_environment(
            OMP_NUM_THREADS="1", TMPDIR=str(folder), OF_THIS_TEST=str(folder)
        )
        (folder / "conftest.py").write_text(CONFTEST)

    def start(self, *arguments: str, node: str = ".") -> subprocess.Popen[str]:
        folder = self.folder / node
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, hows: list[str], *arguments: str, launcher: tuple[str, ...] = ()) -> str:
        (self.folder / "test_ranks.py").write_text(TESTS.format(hows=hows))
        session = self.start(*launcher, "pytest", *ARGUMENTS, *arguments, "test_ranks.py")
        return session.communicate(timeout=180)[0]

    def records(self, node: str = ".") -> dict[str, dict[str, Any]]:
        """A session's records by the test's parameter."""
        found = records_in(self.folder / node / "session.json")
        return {record["nodeid"].rpartition("-")[2].rstrip("]"): record for record in found}

    def is_mine(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("OF_THIS_TEST") == str(self.folder)
        except psutil.Error:
            return False


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inner]:
    """Every process that a test has started is gone when the tests end."""
    inner = Inner(tmp_path_factory.mktemp("ranks"))
    yield inner
    left = list(filter(inner.is_mine, psutil.process_iter()))
    assert psutil.wait_procs(left, timeout=10)[1] == []


@pytest.fixture(scope="module")
def local(inner: Inner) -> str:
    """What a session of local ranks said, in which one is killed first."""
    return inner.run(["killed", "fine"], "--hwq-ranks=2", "-v")


def test_local_ranks_measure_together_and_fail_together(inner: Inner, local: str) -> None:
    assert "1 failed, 1 passed" in local
    assert "the worker process ended: rank 1 died by SIGKILL" in local
    assert "2 ranks over gloo · last behind first" in local
    assert "began within" in local
    assert "no clock in common" not in local
    found = inner.records()
    statuses = {how: record["status"] for how, record in found.items()}
    assert statuses == {"killed": "failed", "fine": "ok"}
    assert found["killed"]["reason"] == "the worker process ended: rank 1 died by SIGKILL"
    fine = found["fine"]
    assert fine["cell"].endswith("[cpu-s2-native-eager-2ranks-blocks=2]")
    assert [part["rank"] for part in fine["ranks"]["parts"]] == [0, 1]
    assert fine["iterations"] == 10
    kept = inner.folder.glob(".hwqueue/*/ranks/rank-*/*.json")
    samples = [json.loads(path.read_text())["samples"] for path in kept]
    # From when the last rank has begun, to when the last one ends.
    begun = [list(each) for each in zip(*(each["begun_ns"] for each in samples), strict=True)]
    lasted = [list(each) for each in zip(*(each["host_ns"] for each in samples), strict=True)]
    assert fine["samples"]["host_ns"] == [
        max(start + ns for start, ns in zip(starts, times, strict=True)) - max(starts)
        for starts, times in zip(begun, lasted, strict=True)
    ]
    assert (len(samples), len(lasted)) == (2, 10)
    # None begins before the time that both agreed on.
    assert len(fine["samples"]["begun_ns"]) == 10
    assert min(fine["samples"]["begun_ns"]) >= 0
    assert fine["ranks"]["apart"]["n"] == 10
    assert len(list(inner.folder.glob(".hwqueue/*/grad_accum*.json"))) == 2


def test_local_ranks_listen_on_loopback_alone(inner: Inner, local: str) -> None:
    assert set(json.loads((inner.folder / "addresses.json").read_text())) == {"127.0.0.1"}


def test_ranks_may_wait_for_each_other_as_they_end(inner: Inner, local: str) -> None:
    assert len(list(inner.folder.glob("left-*"))) == 2
    assert not (inner.folder / "alone").exists()


@pytest.mark.slow
def test_two_agents_run_one_session(inner: Inner) -> None:
    """The agents meet on this machine, as those of two machines do."""
    mine = "\ndef test_mine(hwq):\n    hwq.measure(lambda: sum(range(1000)))\n"
    tests = inner.folder / "test_agents.py"
    tests.write_text(TESTS.format(hows=["fine", "memory"]) + mine)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = [
        inner.start(
            "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test", "--local-addr=127.0.0.1",
            "-m", "pytest", *ARGUMENTS, str(tests), "-v", node=node,
        )
        for node in ("node-a", "node-b")
    ]  # fmt: skip
    both = "".join([each.communicate(timeout=180)[0] for each in agents])
    # One rank speaks, wherever it is; the launcher adds a summary of its own.
    assert both.count("1 failed, 2 passed") == 1, both
    assert both.count("2 ranks over gloo") == 2, both
    (speaker,) = (path.parent.name for path in inner.folder.glob("node-*/session.json"))
    found = inner.records(speaker)
    worlds = [(each["status"], (each["ranks"] or {}).get("world_size")) for each in found.values()]
    assert worlds.count(("ok", 2)) == 2
    assert found["memory"]["status"] == "failed"
    assert found["memory"]["reason"].startswith("rank 1: out of memory: ")
    (silent,) = {"node-a", "node-b"} - {speaker}
    assert "1 failed, 2 passed" in (inner.folder / silent / ".hwqueue/rank-1.log").read_text()


@pytest.mark.slow
def test_torchrun_survives_killed_and_hung_workers(inner: Inner) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    said = inner.run(["killed", "hung", "again"], "--hwq-timeout=20", launcher=launcher)
    assert "2 failed, 1 passed" in said
    found = inner.records()
    assert found["killed"]["reason"].startswith("rank 1: the worker process died by SIGKILL")
    assert "not finished within 20 s" in found["hung"]["reason"]
    assert found["again"]["status"] == "ok"


@pytest.mark.slow
def test_a_hung_rank_ends_with_every_ranks_stacks(inner: Inner) -> None:
    said = inner.run(["memory", "hung", "again"], "--hwq-ranks=2", "--hwq-timeout=15")
    assert "2 failed, 1 passed" in said
    assert inner.records()["memory"]["reason"].startswith("rank 1: out of memory: ")
    stacks = said.partition("not finished within 15 s")[2]
    assert "\nrank 0:" in stacks
    assert "in iterate" in stacks.partition("\nrank 1:")[2]


OF_A_RANK = """
import os, time

def test_cell(hwq):
    hwq.measure(lambda: sum(range(100)), streams=1)
    assert os.environ["RANK"] == "0" or "{how}" != "fails", "only on rank 0"

def test_plain():
    if os.environ["RANK"] == "1" and "{how}" == "hangs":
        time.sleep(100)
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "fails",
            "hwqueue: rank 1 failed: test_one.py::test_cell[cpu-s2-native-eager-2ranks] (call)",
        ),
        pytest.param(
            "hangs", "hwqueue: rank 1 has not ended 15 s after rank 0", marks=pytest.mark.slow
        ),
    ],
)
def test_what_one_rank_comes_to_is_the_sessions_outcome(inner: Inner, how: str, told: str) -> None:
    (inner.folder / "test_one.py").write_text(OF_A_RANK.format(how=how))
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    session = inner.start(*launcher, "pytest", *ARGUMENTS, "--hwq-timeout=15", "test_one.py")
    said = session.communicate(timeout=180)[0]
    assert session.returncode == 1, said
    assert "2 passed" in said
    assert told in said
    if how == "hangs":
        assert "in test_plain" in said
    else:
        assert "only on rank 0" in (inner.folder / ".hwqueue/rank-1.log").read_text()


def test_ranks_of_tests_that_measure_nothing_are_left_alone(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no rank 0 to meet, options that only sessions of ranks refuse, and a bad number."""
    pytester.makepyfile("def test_mine(): assert False")
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    for size in ("2", "many"):
        monkeypatch.setenv("WORLD_SIZE", size)
        result = run_in_process("--hwq-json=s.json", "--hwq-budget=1h", "--junitxml=mine.xml")
        result.assert_outcomes(failed=1)
        assert 'failures="1"' in (pytester.path / "mine.xml").read_text()
        (pytester.path / "mine.xml").unlink()


@pytest.mark.parametrize(
    ("world", "option", "reason"),
    [
        ("", "--hwq-isolation=none", "nothing to measure: --hwq-ranks=2 need separate processes"),
        ("", "--hwq-device=sim:h200", "nothing to measure: a simulated device has one rank, not 2"),
        ("2", "--hwq-compare=main", "cannot be followed here:*leave out torchrun"),
        ("2", "-n2", "cannot be followed here:*leave out xdist"),
        ("2", "--hwq-budget=1h", "cannot be followed here:*leave one out"),
        ("many", "-v", "environment variable WORLD_SIZE: 'many' is not valid"),
    ],
)
def test_what_ranks_cannot_be_is_refused(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch,
    world: str, option: str, reason: str,
) -> None:  # fmt: skip
    pytester.makepyfile(TESTS.format(hows=["fine"]))
    launched = {"RANK": "0", "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items() if world else ():
        monkeypatch.setenv(name, value)
    ranks = () if world else ("--hwq-ranks=2",)
    result = run_in_process(*ARGUMENTS[2:], "--hwq-isolation=process", *ranks, option)
    if option == "-n2" or world == "many":
        # It is told where tests are collected; of xdist's processes none can end the session.
        assert "Traceback" not in result.stdout.str()
        assert result.ret != pytest.ExitCode.OK
        result.stdout.fnmatch_lines([f"*{reason}*"])
        return
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{reason}*"])


def test_one_rank_on_a_simulated_device(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.hwq_workload('grad_accum')\n"
        "def test_one(hwq):\n"
        "    assert hwq.run().ranks.backend == 'fake'\n"
    )
    result = run_in_process(*ARGUMENTS[2:], "--hwq-device=sim:h200", "--hwq-size=tiny", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*one rank, over fake*"])
