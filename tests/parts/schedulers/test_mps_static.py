"""Static partitions of MPS, with a control daemon of the tests' own.

Its questions, answers and table are those of NVIDIA's MPS documentation, "Using Static SM
Partitioning".
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.plan import Tenant
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

from .processes import has_ended, program

# Knows its devices from a file beside it: of each, how many chunks, and multiprocessors a chunk.
_CONTROL = """
import json, os, pathlib, sys, time
machine = json.loads(pathlib.Path(__file__).with_name("machine.json").read_text())
if sys.argv[1:] == ["-v"]:
    print(machine["version"])
    sys.exit()
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f", "-S"]:
    (pipes / "control").touch()
    print("control daemon", os.getpid(), flush=True)
    while not (pipes / "quit").exists():
        time.sleep(0.01)
    (pipes / "control").unlink()
    print("quit", flush=True)
elif sys.argv[1:]:
    sys.exit(f"unknown option {sys.argv[1:]}")
elif not (pipes / "control").exists():
    print("Cannot find MPS control daemon process")
    sys.exit(1)
else:
    command, *arguments = sys.stdin.read().split()
    made = [json.loads(file.read_text()) for file in sorted(pipes.glob("partition-*"))]
    if command == "quit":
        (pipes / "quit").touch()
    elif command == "lspart":
        print("GPU Partition free used free used clients")
        print("chunk chunk SM SM")
        for device, (chunks, size) in machine["devices"].items():
            used = sum(each["chunks"] for each in made if each["device"] == device)
            print(device, "-", chunks - used, used, (chunks - used) * size, used * size, "-")
        for each in made:
            chunks = each["chunks"] + machine["more"]
            size = machine["devices"][each["device"]][1]
            print(each["device"], each["name"], "-", chunks, "-", chunks * size, "-")
    elif command == "sm_partition":
        _, device, chunks = arguments
        if sum(each["chunks"] for each in made) + int(chunks) > machine["devices"][device][0]:
            print(f"Failed to fulfill the requested SM partition of {chunks} chunks, "
                  "error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        else:
            name = f"D{len(made)}/x4AAAA"
            made = {"device": device, "name": name, "chunks": int(chunks)}
            (pipes / f"partition-{name[1]}").write_text(json.dumps(made))
            print(machine["created"].format(f"{device}-cdf7-e667/{name}"))
    elif (pipes / command).exists():
        print((pipes / command).read_text())
"""

VERSION = "Binary version: 13010"
H200 = {"GPU-74d43ed3": (16, 8)}
PIPES, PARTITION = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_SM_PARTITION"
LOW_AND_HIGH = tenant_requests([Tenant("low", "resnet18"), Tenant("high", "resnet18", priority=1)])


@dataclass
class Machine:
    """The machine that the control program runs on.

    Attributes:
        file: where the program reads it.

    """

    file: Path

    def has(
        self,
        devices: dict[str, tuple[int, int]] | None = None,
        version: str = VERSION,
        created: str = "{}",
        more: int = 0,
    ) -> None:
        """Set what the program finds.

        Args:
            devices: chunks of each, and multiprocessors of a chunk.
            version: what it says of itself.
            created: how it answers a new partition.
            more: chunks that partitions have beyond what was asked for.

        """
        found = {"devices": devices or H200, "version": version, "created": created, "more": more}
        self.file.write_text(json.dumps(found))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    path = program(tmp_path / "bin" / "nvidia-cuda-mps-control", _CONTROL)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    machine = Machine(path.with_name("machine.json"))
    machine.has()
    return machine


def opened(mode: str) -> Scheduler:
    return open_scheduler(mode, SchedulerPaths(programs=lambda _: []))


def connect(pipes: str, *clients: int) -> None:
    """Make processes clients of the daemon's one server, as far as it tells."""
    (Path(pipes) / "get_server_list").write_text("77")
    (Path(pipes) / "get_client_list").write_text("\n".join(map(str, clients)))


def inside(**multiprocessors: int | None) -> dict[str, InsideEvidence]:
    return {name: InsideEvidence([], [0], [0], multiprocessors=seen)
            for name, seen in multiprocessors.items()}  # fmt: skip


@pytest.mark.parametrize("created", ["{}", "Partition {} created"])
def test_each_tenant_has_a_partition_that_the_daemon_lists(
    tmp_path: Path, machine: Machine, created: str
) -> None:
    machine.has(created=created)
    mode, logs = opened("mps-static:high=4,low=12"), tmp_path / "logs"
    pids = {"low": 301, "high": 302}
    with mode.services(logs):
        low, high = (mode.environment(tenant) for tenant in LOW_AND_HIGH)
        assert set(low) == {PIPES, PARTITION}
        # The variable's value is the daemon's, whole.
        assert low[PARTITION] == "GPU-74d43ed3-cdf7-e667/D1/x4AAAA"
        assert high[PARTITION] == "GPU-74d43ed3-cdf7-e667/D0/x4AAAA"
        connect(low[PIPES], *pids.values())
        proof = mode.proof(pids, inside(low=96, high=32))
        assert proof.evidence == (
            "processes [301, 302] are clients of MPS server [77]; their static partitions: low: "
            "12 chunks, 96 multiprocessors (96 seen); high: 4 chunks, 32 multiprocessors (32 seen)"
        )
        assert proof.counts["multiprocessors seen by high"] == 32
        # Of a server nothing is seen from inside.
        assert "32 multiprocessors (not told" in mode.proof(pids, inside(low=96)).evidence
        with pytest.raises(NotProven, match=r"low sees 128 multiprocessors, and its .* has 96"):
            mode.proof(pids, inside(low=128, high=32))
        machine.has(more=1)
        with pytest.raises(NotProven, match="the partition of low has 13 chunks, not 12"):
            mode.proof(pids, inside(low=104, high=40))
    log = (logs / "mps-control.log").read_text()
    assert log.rstrip().endswith("quit")
    assert has_ended(int(log.split()[2]))
    # The next daemon has partitions of its own.
    with mode.services(logs):
        assert mode.environment(TenantRequest("low"))[PARTITION] == low[PARTITION]


def test_a_single_test_proves_its_partition_by_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, in_worker = (opened("mps-static:cell=4") for _ in range(2))
    with started.services(tmp_path):
        environment = started.environment(CELL)
        connect(environment[PIPES], 301)
        monkeypatch.setenv(PIPES, environment[PIPES])
        with pytest.raises(NotProven, match=r"does not list the partition '' of cell once"):
            in_worker.proof({CELL.name: 301}, inside(cell=132))
        monkeypatch.setenv(PARTITION, environment[PARTITION])
        proof = in_worker.proof({CELL.name: 301}, inside(cell=32))
        with pytest.raises(NotProven, match="cell sees 132 multiprocessors"):
            in_worker.proof({CELL.name: 301}, inside(cell=132))
    assert "cell: 4 chunks, 32 multiprocessors (32 seen)" in proof.evidence


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("Binary version: 13010", None),
        ("Binary version: 13020", None),
        ("Binary version: 13000", "says 'Binary version: 13000': update the driver"),
        ("version 580.159", "says 'version 580.159': update"),
        ("usage: [-d] [-f]", "came with CUDA 13.1 (version 13010 of nvidia-cuda-mps-control)"),
    ],
)
def test_an_old_control_program_is_refused_before_anything_starts(
    tmp_path: Path, machine: Machine, version: str, said: str | None
) -> None:
    machine.has(version=version)
    mode = opened("mps-static:high=4,low=12")
    found = mode.unavailable("cuda", LOW_AND_HIGH)
    if said is None:
        assert found is None
        return
    assert said in (found or "")
    with pytest.raises(ServiceFailed, match="mps-static"), mode.services(tmp_path / "logs"):
        pytest.fail("there is nothing to run")
    assert not (tmp_path / "logs").exists()
    # The other modes ask nobody for a version.
    assert opened("mps").unavailable("cuda", LOW_AND_HIGH) is None


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        # One too few for both.
        ({"GPU-74d43ed3": (15, 8)}, "no partition of 12 chunks for low: .* with 'Failed to .* 12 "
         "chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION'; it has 11 free chunks of GPU-"),
        ({**H200, "GPU-1b": (16, 8)}, r"several devices \(GPU-1b, GPU-74d43ed3\), .* by UUID in "),
    ],
)  # fmt: skip
def test_a_daemon_that_refuses_is_told_to_quit(
    tmp_path: Path, machine: Machine, devices: dict[str, tuple[int, int]], said: str
) -> None:
    machine.has(devices)
    mode = opened("mps-static:high=4,low=12")
    with pytest.raises(ServiceFailed, match=said), mode.services(tmp_path):
        pytest.fail("no tenant can be started")
    log = (tmp_path / "mps-control.log").read_text()
    assert has_ended(int(log.split()[2]))
    with pytest.raises(RuntimeError, match="while the daemon runs"):
        mode.environment(LOW_AND_HIGH[0])


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("mps-static", "no partition for low, high, and .* mps-static:low=4,high=4"),
        ("mps-static:high=2", "no partition for low, .* mps-static:low=4,high=2"),
        ("mps-static:hi=2,low=4", "no tenant is called hi; there are low, high"),
    ],
)
def test_every_tenant_needs_a_partition(mode: str, said: str) -> None:
    assert re.search(said, opened(mode).unavailable("cuda", LOW_AND_HIGH) or "")
