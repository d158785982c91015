"""MPS with a control daemon of the tests' own, which answers as NVIDIA's does."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.processes.process_table import RunningProgram
from pytest_hwqueue.parts.processes.services import ServiceFailed
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    CELL,
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
    tenant_requests,
)

from .processes import fails, has_ended, program, wait_for

# -f serves until told to quit; without arguments it passes one line on to the daemon.
_CONTROL = """
import json, os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    (pipes / "started.json").write_text(json.dumps(dict(os.environ)))
    (pipes / "control").touch()
    print("control daemon", os.getpid(), flush=True)
    while not (pipes / "quit").exists():
        time.sleep(0.01)
    (pipes / "control").unlink()
    print("quit", flush=True)
elif not (pipes / "control").exists():
    print("Cannot find MPS control daemon process")
    sys.exit(1)
else:
    command, *arguments = sys.stdin.read().split()
    file = pipes / "-".join([command, *arguments])
    if command == "quit":
        file.touch()
    elif file.exists():
        print(file.read_text())
    elif command == "get_client_list":
        print("Server is not ready")
"""

LOW_AND_HIGH = tenant_requests([Tenant("low", "resnet18"), Tenant("high", "resnet18", priority=1)])
WITH_SHARES = tenant_requests(
    [
        Tenant("low", "resnet18", share=0.75),
        Tenant("high", "resnet18", priority=1, share=0.25),
    ]
)
PIPES, VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "bin" / "nvidia-cuda-mps-control", _CONTROL)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


def opened(mode: str, *running: RunningProgram) -> Scheduler:
    """Open a mode on a machine where these daemons run."""

    def programs(names: Collection[str]) -> list[RunningProgram]:
        return [each for each in running if each.name in names]

    return open_scheduler(mode, SchedulerPaths(programs=programs))


def inside(*names: str) -> dict[str, InsideEvidence]:
    return {name: InsideEvidence([], [0], [0], multiprocessors=132) for name in names}


def pipes(mode: Scheduler) -> Path:
    return Path(mode.environment(TenantRequest("low"))[PIPES])


def why_not(mode: str, *running: RunningProgram, kind: str = "cuda") -> str:
    return opened(mode, *running).unavailable(kind, LOW_AND_HIGH) or "available"


def test_the_daemon_lives_in_folders_of_its_own_proves_its_clients_and_is_told_to_quit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIPES, "/tmp/nvidia-mps")
    monkeypatch.setenv(VISIBLE, "1")
    mode, logs = opened("mps"), tmp_path / "logs"
    pids = {"low": 301, "high": 302}
    assert mode.placements == {"processes"}
    with mode.services(logs):
        folder = pipes(mode)
        assert folder.stat().st_mode & 0o077 == 0
        # A socket in it: the kernel takes 107 letters.
        assert len(str(folder / "control_privileged")) < 100
        started = json.loads((folder / "started.json").read_text())
        assert started[PIPES] == str(folder)
        assert started["CUDA_MPS_LOG_DIRECTORY"] == str(logs)
        # By index the daemon would renumber what its clients see.
        assert VISIBLE not in started
        for files, said in (
            ({}, r"no MPS server has .* \{'low': 301, 'high': 302\}; .* is \[\]"),
            ({"get_server_list": "77"}, "'get_client_list 77' with status 0 and 'Server is not"),
            ({"get_client_list-77": "302"}, r"\{'low': 301\}.* \[302\]"),
        ):
            for name, text in files.items():
                (folder / name).write_text(text)
            with pytest.raises(NotProven, match=said):
                mode.proof(pids, inside(*pids))
        (folder / "get_client_list-77").write_text("301\n302\n")
        mode.check()
        proof = mode.proof(pids, inside(*pids))
    assert (proof.mode, proof.effective) == ("mps", None)
    assert proof.evidence == "processes [301, 302] are clients of MPS server [77]"
    assert proof.counts["multiprocessors seen by low"] == 132
    log = (logs / "mps-control.log").read_text()
    assert "[stopping by 'quit\\n' to" in log
    assert log.rstrip().endswith("quit")
    assert has_ended(int(log.split()[2]))
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="while the daemon runs"):
        mode.environment(TenantRequest("low"))


@pytest.mark.parametrize(
    ("text", "tenants", "expected"),
    [
        ("mps", WITH_SHARES, [{}, {}]),
        ("mps-priority", LOW_AND_HIGH, [{"CLIENT_PRIORITY": "1"}, {"CLIENT_PRIORITY": "0"}]),
        ("mps-partition:high=12.5%", LOW_AND_HIGH, [{}, {"ACTIVE_THREAD_PERCENTAGE": "12.5"}]),
        # A tenant's own share counts unless the mode names another.
        ("mps-partition:low=50%", WITH_SHARES,
         [{"ACTIVE_THREAD_PERCENTAGE": "50"}, {"ACTIVE_THREAD_PERCENTAGE": "25"}]),
    ],
)  # fmt: skip
def test_what_tenants_are_started_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    tenants: list[TenantRequest],
    expected: list[dict[str, str]],
) -> None:
    monkeypatch.setenv(VISIBLE, "GPU-1b, GPU-2c")
    mode = opened(text)
    with mode.services(tmp_path):
        folder = pipes(mode)
        given = [mode.environment(tenant) for tenant in tenants]
        # Devices chosen by UUID are the daemon's too.
        assert json.loads((folder / "started.json").read_text())[VISIBLE] == "GPU-1b, GPU-2c"
    assert given == [
        {PIPES: str(folder), **{f"CUDA_MPS_{name}": value for name, value in more.items()}}
        for more in expected
    ]
    assert mode.priorities([tenant.priority for tenant in tenants]) == [0, 0]
    # A simulated device needs nothing installed.
    monkeypatch.setenv("PATH", "")
    assert mode.unavailable("sim", tenants) is None


def test_a_daemon_that_dies_is_noticed(tmp_path: Path) -> None:
    mode = opened("mps")
    with mode.services(tmp_path):
        psutil.Process(int((tmp_path / "mps-control.log").read_text().split()[2])).kill()
        wait_for(lambda: fails(mode.check), "the daemon's end to be noticed")
        with pytest.raises(ServiceFailed, match=r"the MPS daemon .* died by SIGKILL"):
            mode.proof({}, {})


def test_a_process_proves_itself_by_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, in_worker = opened("mps"), opened("mps")
    with pytest.raises(NotProven, match="not started under MPS"):
        in_worker.proof({CELL.name: os.getpid()}, inside(CELL.name))
    with started.services(tmp_path):
        monkeypatch.setenv(PIPES, started.environment(CELL)[PIPES])
        (pipes(started) / "get_server_list").write_text("77")
        (pipes(started) / "get_client_list-77").write_text(str(os.getpid()))
        proof = in_worker.proof({CELL.name: os.getpid()}, inside(CELL.name))
    assert str(os.getpid()) in proof.evidence


def test_it_needs_the_drivers_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvidia-cuda-mps-control is not on PATH" in why_not("mps")
    mode = opened("mps")
    with pytest.raises(ServiceFailed, match="not on PATH"), mode.services(tmp_path):
        pytest.fail("there is nothing to run")


@pytest.mark.parametrize(
    "other",
    [
        RunningProgram("nvidia-cuda-mps-control", 4711, ("-d",), None),
        RunningProgram("nvidia-cuda-mps-server", 4711, (), None),
    ],
)
def test_another_daemon_is_refused_politely(tmp_path: Path, other: RunningProgram) -> None:
    for mode in ("mps", "native"):
        assert f"another MPS daemon runs here ({other.name}, process 4711)" in why_not(mode, other)
        assert "echo quit |" in why_not(mode, other)
    with (
        pytest.raises(ServiceFailed, match="another MPS daemon"),
        opened("mps", other).services(tmp_path),
    ):
        pytest.fail("two daemons")
    assert why_not("native", other, kind="cpu") == "available"


def test_one_that_asks_the_daemon_is_none() -> None:
    asking = RunningProgram("nvidia-cuda-mps-control", 4711, (), None)
    assert (why_not("native", asking), why_not("mps", asking)) == ("available", "available")


def test_a_daemon_elsewhere_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = str(tmp_path / "theirs")
    theirs = RunningProgram(
        "nvidia-cuda-mps-control", 4711, ("-d",), {PIPES: pipes, VISIBLE: "GPU-2, GPU-3"}
    )
    monkeypatch.setenv(VISIBLE, "GPU-1")
    assert (why_not("native", theirs), why_not("mps", theirs)) == ("available", "available")
    # By index nobody can tell whose device it is.
    for ours in ("1", "GPU-1,GPU-3"):
        monkeypatch.setenv(VISIBLE, ours)
        assert "two daemons on one GPU" in why_not("mps", theirs)
    monkeypatch.setenv(PIPES, pipes)
    assert "would become its clients" in why_not("native", theirs)
