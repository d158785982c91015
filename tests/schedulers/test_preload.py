"""Preloaded schedulers: a small C library made here, and everything that keeps one from working."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.errors import BadScheduler, NotProven
from pytest_hwqueue.processes.services import ServiceFailed
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import (
    CELL,
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
)

from .processes import fails, has_ended, needs_compiler, program, wait_for

# A tenant: does its work, then gathers its evidence.
_TENANT = """
import ctypes, dataclasses, json, sys
class Stream:
    priority = 0
class Pool:
    streams = [Stream()]
    def device_priorities(self):
        return [0]
if hasattr(ctypes.CDLL(None), "tiny_answer"):
    print("the tenant calls it:", ctypes.CDLL(None).tiny_answer(), flush=True)
from pytest_hwqueue.schedulers.inside_evidence import gather
with open(sys.argv[1], "w") as file:
    json.dump(dataclasses.asdict(gather(Pool())), file)
"""

LOW = TenantRequest("low", priority=3, share=0.5)


def described(folder: Path, **fields: Any) -> Scheduler:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(fields))
    return open_scheduler("preload:tiny", SchedulerPaths(preloads=(folder,)))


def run_tenant(mode: Scheduler, folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """Run a tenant under the mode; return its process id and its evidence, by name."""
    log, answer = folder / "tenant.log", folder / "evidence.json"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _TENANT, str(answer)],
            env={**os.environ, **mode.environment(LOW)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    assert process.wait() == 0, log.read_text()
    return {"low": process.pid}, {"low": InsideEvidence(**json.loads(answer.read_text()))}


@needs_compiler
def test_a_library_that_is_in_charge(tmp_path: Path, library: Path) -> None:
    mode = described(
        tmp_path,
        preload=[str(library)],
        environment={"TINY_PRIORITY": "{priority} of {name} at {share} in {folder}"},
        proof={"maps": r"libtiny\.so$", "output": "^tiny scheduler in charge"},
    )
    assert mode.unavailable("cpu", [LOW]) is None
    with mode.services(tmp_path):
        proof = mode.proof(*run_tenant(mode, tmp_path))
    assert proof.mode == "preload:tiny"
    assert r"mapped 'libtiny\\.so$', written '^tiny scheduler in charge'" in proof.evidence
    log = (tmp_path / "tenant.log").read_text()
    assert f"priority 3 of low at 0.5 in {tmp_path}" in log
    assert "the tenant calls it: 42" in log


@needs_compiler
def test_it_is_found_by_its_bare_name_in_a_library_path(tmp_path: Path, library: Path) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(library, tmp_path / "lib")
    mode = described(
        tmp_path, preload=["libtiny.so"], library_path=["lib"], proof={"maps": "libtiny"}
    )
    mode.proof(*run_tenant(mode, tmp_path))
    missing = described(tmp_path, preload=["libtiny.so"], proof={"maps": "libtiny"})
    with pytest.raises(
        NotProven, match=r"does not have libtiny\.so mapped: the loader did not find"
    ):
        missing.proof(*run_tenant(missing, tmp_path))


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    # The loader only warns, and the tenant works natively.
    mode = described(tmp_path, preload=["./no/libtiny.so"], proof={"output": "the tenant|ld.so"})
    assert mode.unavailable("cpu", [LOW]) is None
    pids, inside = run_tenant(mode, tmp_path)
    with pytest.raises(NotProven) as refused:
        mode.proof(pids, inside)
    text = str(refused.value)
    assert f"tenant low (process {pids['low']}) does not have {tmp_path}/no/libtiny.so" in text
    assert "cannot be read: No such file" in text
    assert "the process wrote: " in text
    assert "cannot be preloaded" in text


@needs_compiler
def test_a_library_of_another_architecture(tmp_path: Path, library: Path) -> None:
    foreign = bytearray(library.read_bytes())
    # The machine in the ELF header: SPARC, on which these tests do not run.
    foreign[18:20] = (2).to_bytes(2, sys.byteorder)
    (tmp_path / "libforeign.so").write_bytes(bytes(foreign))
    mode = described(tmp_path, preload=["./libforeign.so"], proof={"maps": "libforeign"})
    with pytest.raises(NotProven, match=r"another architecture \(ELF machine 2, 64 bits\)"):
        mode.proof(*run_tenant(mode, tmp_path))


@needs_compiler
def test_what_the_description_promises_must_be_seen(tmp_path: Path, library: Path) -> None:
    mode = described(tmp_path, preload=[str(library)], proof={"output": "the server answers"})
    with pytest.raises(
        NotProven, match=r"nothing that matches 'the server answers' \(proof.output"
    ):
        mode.proof(*run_tenant(mode, tmp_path))
    mode = described(tmp_path, environment={"LATER": "1"}, proof={"maps": "libtiny"})
    with pytest.raises(NotProven, match=r"no file mapped that matches 'libtiny' \(proof.maps"):
        mode.proof(*run_tenant(mode, tmp_path))


def test_output_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    mode = described(tmp_path, proof={"output": "x"})
    with pytest.raises(NotProven, match="output goes to no file"):
        mode.proof({"low": 1}, {"low": InsideEvidence([], [0])})


_SERVER = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(print("left by SIGINT", flush=True)))
print("ready to serve", *sys.argv[1:], flush=True)
time.sleep(600)
"""


def test_its_services_run_beside_the_tenants(tmp_path: Path) -> None:
    program(tmp_path / "server", _SERVER)
    service = {"command": ["./server", "at", "{folder}"], "stop": "INT", "ready": "^ready to serve"}
    mode = described(tmp_path, services=[service, service], proof={"output": "x"})
    logs = [tmp_path / "logs" / f"tiny-{number}.log" for number in range(2)]
    with mode.services(tmp_path / "logs"):
        mode.check()
        assert all("ready to serve at" in log.read_text() for log in logs)
    assert all("left by SIGINT" in log.read_text() for log in logs)


def test_a_service_that_dies_is_noticed(tmp_path: Path) -> None:
    program(tmp_path / "server", "import os\nprint('pid', os.getpid(), flush=True)\n" + _SERVER)
    mode = described(
        tmp_path, services=[{"command": ["./server"], "ready": "ready"}], proof={"output": "x"}
    )
    with mode.services(tmp_path):
        pid = int((tmp_path / "tiny-0.log").read_text().split()[1])
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_ended(pid), "the service")
        wait_for(lambda: fails(mode.check), "its end to be noticed")
        with pytest.raises(ServiceFailed, match=r"server .* died by SIGKILL"):
            mode.proof({}, {})


def test_a_service_that_cannot_start_stops_those_before_it(tmp_path: Path) -> None:
    program(tmp_path / "server", _SERVER)
    services = [{"command": ["./server"], "stop": "INT", "ready": "ready"}, {"command": ["./no"]}]
    mode = described(tmp_path, services=services, proof={"output": "x"})
    with pytest.raises(ServiceFailed, match="no could not be started"), mode.services(tmp_path):
        pytest.fail("one of them does not exist")
    assert "left by SIGINT" in (tmp_path / "tiny-0.log").read_text()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "proof: Field required"),
        ({"proof": {}}, "proof: Value error, give maps or output"),
        ({"proof": {"maps": "("}}, "proof.maps: Value error, is no regular expression"),
        ({"proof": {"maps": "x"}, "prelaod": []}, "prelaod: Extra inputs"),
        ({"proof": {"maps": "x"}, "environment": {"LD_PRELOAD": "x"}}, "use the field preload"),
        ({"proof": {"maps": "x"}, "services": [{"command": []}]}, "services.0.command: List"),
        ({"proof": {"maps": "x"}, "services": [{"command": ["x"], "stop": "NOW"}]},
         "services.0.stop: Input should be"),
    ],
)  # fmt: skip
def test_a_description_is_checked_by_field(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadScheduler) as refused:
        described(tmp_path, **fields)
    assert str(tmp_path / "tiny.yaml") in str(refused.value)
    assert said in str(refused.value)


def test_a_description_is_found_by_name_or_path(tmp_path: Path) -> None:
    described(tmp_path, proof={"maps": "x"})
    assert open_scheduler(f"preload:{tmp_path}/tiny.yaml").mode == f"preload:{tmp_path}/tiny.yaml"
    with pytest.raises(BadScheduler, match=r"no tini.yaml in .*; there are tiny; or give"):
        open_scheduler("preload:tini", SchedulerPaths(preloads=(tmp_path,)))
    with pytest.raises(BadScheduler, match=r"\(none\); there are no descriptions"):
        open_scheduler("preload:tiny")
    with pytest.raises(BadScheduler, match=r"absent\.yaml cannot be read"):
        open_scheduler("preload:absent.yaml")
    (tmp_path / "bad.yaml").write_text("proof: [")
    with pytest.raises(BadScheduler, match=r"bad.yaml cannot be read"):
        open_scheduler("preload:bad", SchedulerPaths(preloads=(tmp_path,)))


def test_where_it_is_unavailable(tmp_path: Path) -> None:
    proof = {"maps": "x"}
    assert "simulated" in (described(tmp_path, proof=proof).unavailable("sim", [LOW]) or "")
    mode = described(tmp_path, proof=proof, environment={"SHARE": "{share}"})
    assert mode.unavailable("cpu", [LOW]) is None
    assert "cell has no share" in (mode.unavailable("cpu", [LOW, CELL]) or "")
    mode = described(tmp_path, proof=proof, preload=["./a b.so"])
    assert "blanks and colons" in (mode.unavailable("cpu", [LOW]) or "")


def test_threads_share_an_environment(tmp_path: Path) -> None:
    proof = {"maps": "x"}
    alike = described(tmp_path, proof=proof, environment={"HOME_OF_IT": "{folder}"})
    assert alike.placements == {"processes", "threads"}
    apart = described(tmp_path, proof=proof, environment={"PRIORITY": "{priority}"})
    assert apart.placements == {"processes"}
