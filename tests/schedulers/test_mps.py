"""MPS with a control daemon of the tests' own, which answers as NVIDIA's does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.processes.services import ServiceFailed
from pytest_hwqueue.schedulers import mps_daemons
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import (
    CELL,
    Scheduler,
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

LOW_AND_HIGH = tenant_requests([("low", 0, None), ("high", 1, None)])


@pytest.fixture(autouse=True)
def _no_daemon_of_the_machine(request: pytest.FixtureRequest) -> None:
    if "real_processes" not in request.fixturenames:
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr(mps_daemons, "_daemons", list)


@pytest.fixture
def real_processes() -> None:
    """Let the test see the machine's processes."""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = program(tmp_path / "bin" / "nvidia-cuda-mps-control", _CONTROL)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return path


def inside(*names: str, multiprocessors: int | None = None) -> dict[str, InsideEvidence]:
    return {name: InsideEvidence([], [0], [0], multiprocessors=multiprocessors) for name in names}


def pipes(mode: Scheduler) -> Path:
    return Path(mode.environment(TenantRequest("low"))["CUDA_MPS_PIPE_DIRECTORY"])


def test_the_daemon_lives_in_folders_of_its_own_and_is_told_to_quit(
    tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    mode = open_scheduler("mps")
    assert mode.placements == {"processes"}
    with mode.services(tmp_path / "logs"):
        folder = pipes(mode)
        assert folder.stat().st_mode & 0o077 == 0
        # A socket in it: the kernel takes 107 letters.
        assert len(str(folder / "control_privileged")) < 100
        started = json.loads((folder / "started.json").read_text())
        assert started["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
        assert started["CUDA_MPS_LOG_DIRECTORY"] == str(tmp_path / "logs")
        # By index the daemon would renumber what its clients see.
        assert "CUDA_VISIBLE_DEVICES" not in started
    log = (tmp_path / "logs" / "mps-control.log").read_text()
    assert "[stopping by 'quit\\n' to" in log
    assert log.rstrip().endswith("quit")
    assert has_ended(int(log.split()[2]))
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="while the daemon runs"):
        mode.environment(TenantRequest("low"))


def test_devices_chosen_by_uuid_are_the_daemons_too(
    tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1b, GPU-2c")
    mode = open_scheduler("mps")
    with mode.services(tmp_path):
        started = json.loads((pipes(mode) / "started.json").read_text())
    assert started["CUDA_VISIBLE_DEVICES"] == "GPU-1b, GPU-2c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mps", [{}, {}]),
        ("mps-priority", [{"CUDA_MPS_CLIENT_PRIORITY": "1"}, {"CUDA_MPS_CLIENT_PRIORITY": "0"}]),
        ("mps-partition:low=80%", [{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"}, {}]),
        ("mps-partition:high=12.5%", [{}, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5"}]),
    ],
)
def test_what_tenants_are_started_with(
    tmp_path: Path, control: Path, text: str, expected: list[dict[str, str]]
) -> None:
    mode = open_scheduler(text)
    with mode.services(tmp_path):
        given = [mode.environment(tenant) for tenant in LOW_AND_HIGH]
    for variables, more in zip(given, expected, strict=True):
        folder = variables.pop("CUDA_MPS_PIPE_DIRECTORY")
        assert folder.startswith("/")
        assert variables == more
    assert mode.priorities([tenant.priority for tenant in LOW_AND_HIGH]) == [0, 0]


def test_a_tenants_own_share_counts_unless_the_mode_names_another(
    tmp_path: Path, control: Path
) -> None:
    tenants = tenant_requests([("low", 0, 0.75), ("high", 1, 0.25)])
    mode = open_scheduler("mps-partition:low=50%")
    assert mode.unavailable("sim", tenants) is None
    with mode.services(tmp_path):
        shares = [mode.environment(t)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for t in tenants]
    assert shares == ["50", "25"]
    # Plain MPS gives nobody a share.
    plain = open_scheduler("mps")
    with plain.services(tmp_path):
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in plain.environment(tenants[0])


def test_it_is_proven_by_the_daemons_list_of_clients(tmp_path: Path, control: Path) -> None:
    mode = open_scheduler("mps")
    pids = {"low": 301, "high": 302}
    with mode.services(tmp_path):
        folder = pipes(mode)
        (folder / "get_server_list").write_text("77\n")
        (folder / "get_client_list-77").write_text("301\n302\n")
        mode.check()
        proof = mode.proof(pids, inside("low", "high", multiprocessors=132))
    assert proof.mode == "mps"
    assert proof.evidence == "processes [301, 302] are clients of MPS server [77]"
    assert proof.counts["multiprocessors seen by low"] == 132
    assert proof.effective is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, r"no MPS server has .* \{'low': 301, 'high': 302\}; .* is \[\]"),
        ({"get_server_list": "77", "get_client_list-77": "302"}, r"\{'low': 301\}.* \[302\]"),
        ({"get_server_list": "77"}, "'get_client_list 77' with status 0 and 'Server is not ready'"),
    ],
)
def test_it_is_not_proven_without(
    tmp_path: Path, control: Path, files: dict[str, str], said: str
) -> None:
    mode = open_scheduler("mps")
    with mode.services(tmp_path):
        for name, text in files.items():
            (pipes(mode) / name).write_text(text)
        with pytest.raises(NotProven, match=said):
            mode.proof({"low": 301, "high": 302}, inside("low", "high"))


def test_a_daemon_that_dies_is_noticed(tmp_path: Path, control: Path) -> None:
    mode = open_scheduler("mps")
    with mode.services(tmp_path):
        (pid,) = (int(word) for word in (tmp_path / "mps-control.log").read_text().split()[2:3])
        psutil.Process(pid).kill()
        wait_for(lambda: has_ended(pid), "the daemon")
        wait_for(lambda: fails(mode.check), "the daemon's end to be noticed")
        with pytest.raises(ServiceFailed, match=r"the MPS daemon .* died by SIGKILL"):
            mode.proof({}, {})


def test_a_process_proves_itself_by_its_own_environment(
    tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, in_worker = open_scheduler("mps"), open_scheduler("mps")
    with pytest.raises(NotProven, match="not started under MPS"):
        in_worker.proof({CELL.name: os.getpid()}, inside(CELL.name))
    with started.services(tmp_path):
        for name, value in started.environment(CELL).items():
            monkeypatch.setenv(name, value)
        (pipes(started) / "get_server_list").write_text("77")
        (pipes(started) / "get_client_list-77").write_text(str(os.getpid()))
        proof = in_worker.proof({CELL.name: os.getpid()}, inside(CELL.name))
    assert str(os.getpid()) in proof.evidence


@pytest.mark.parametrize(
    ("text", "kind", "tenants", "said"),
    [
        ("mps", "cpu", LOW_AND_HIGH, "needs an NVIDIA GPU"),
        ("mps", "hip", LOW_AND_HIGH, "needs an NVIDIA GPU; on hip there is no MPS"),
        ("mps-priority", "sim", tenant_requests([("a", 1, None), ("b", 1, None)]),
         "would change nothing: all tenants have priority 1"),
        ("mps-priority", "sim", tenant_requests([("a", 1, None), ("b", 2, None)]),
         r"MPS knows two levels, .* \[1, 2\] are on one"),
        ("mps-partition", "sim", LOW_AND_HIGH, "no tenant has a share; give one"),
        ("mps-partition:lo=80%", "sim", LOW_AND_HIGH, "no tenant is called lo; there are low"),
    ],
)  # fmt: skip
def test_where_it_is_unavailable(
    text: str, kind: str, tenants: list[TenantRequest], said: str
) -> None:
    reason = open_scheduler(text).unavailable(kind, tenants)
    assert reason is not None
    assert re.search(said, reason)


@pytest.mark.parametrize("text", ["mps", "mps-priority", "mps-partition:low=80%"])
def test_a_simulated_device_needs_nothing_installed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert open_scheduler(text).unavailable("sim", LOW_AND_HIGH) is None


def test_it_needs_the_drivers_program(
    tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = open_scheduler("mps")
    assert mode.unavailable("cuda", LOW_AND_HIGH) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = mode.unavailable("cuda", LOW_AND_HIGH)
    assert reason is not None
    assert "nvidia-cuda-mps-control is not on PATH" in reason
    with pytest.raises(ServiceFailed, match="not on PATH"), mode.services(tmp_path):
        pytest.fail("there is nothing to run")


@pytest.fixture
def pretend(real_processes: None) -> Callable[..., subprocess.Popen[bytes]]:
    """Runs a process that calls itself by these arguments."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        sleep = shutil.which("sleep")
        assert sleep is not None
        child = subprocess.Popen(arguments, executable=sleep, env={**os.environ, **environment})
        # Popen returns once the program is being loaded; its arguments are readable a little later.
        wait_for(lambda: psutil.Process(child.pid).cmdline() == list(arguments), "its arguments")
        return child

    return start


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
def test_another_daemon_is_refused_politely(
    tmp_path: Path, control: Path, pretend: Callable[..., subprocess.Popen[bytes]], name: str
) -> None:
    other = pretend(f"/usr/bin/{name}", "600")
    try:
        reasons = [
            open_scheduler("mps").unavailable("cuda", LOW_AND_HIGH),
            open_scheduler("native").unavailable("cuda", LOW_AND_HIGH),
        ]
        for reason in reasons:
            assert reason is not None
            assert f"another MPS daemon runs here ({name}, process {other.pid})" in reason
            assert "echo quit |" in reason
        with (
            pytest.raises(ServiceFailed, match="another MPS daemon"),
            open_scheduler("mps").services(tmp_path),
        ):
            pytest.fail("two daemons")
        assert open_scheduler("native").unavailable("cpu", LOW_AND_HIGH) is None
    finally:
        other.kill()
        other.wait()


def test_a_daemon_elsewhere_is_in_nobodys_way(
    control: Path,
    pretend: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    other = pretend(
        "/usr/bin/nvidia-cuda-mps-control", "600",
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "theirs"), CUDA_VISIBLE_DEVICES="GPU-2, GPU-3",
    )  # fmt: skip
    try:
        for mode in ("native", "mps"):
            assert open_scheduler(mode).unavailable("cuda", LOW_AND_HIGH) is None
        # By index nobody can tell whose device it is.
        for ours in ("1", "GPU-1,GPU-3"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
            reason = open_scheduler("mps").unavailable("cuda", LOW_AND_HIGH)
            assert reason is not None
            assert "two daemons on one GPU" in reason
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "theirs"))
        reason = open_scheduler("native").unavailable("cuda", LOW_AND_HIGH)
        assert reason is not None
        assert "would become its clients" in reason
    finally:
        other.kill()
        other.wait()
