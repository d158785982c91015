"""Services: started, watched, stopped in their own way, whatever happens to who started them."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.parts.processes.guardian import Contending, Order, Stop
from pytest_hwqueue.parts.processes.services import (
    Service,
    ServiceFailed,
    run_service,
    service_environment,
)
from tests.conftest import slow
from tests.parts.schedulers.processes import has_ended, program, wait_for

# Says by which signal it was asked to end, in a file of its own.
_POLITE = """
import signal, sys, time
def leave(number, frame):
    open(sys.argv[1], "w").write(signal.Signals(number).name)
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, leave)
print("at your service", flush=True)
time.sleep(600)
"""

# Leaves a process in a session of its own; with an argument it does not end if asked to.
_LEAVING = """
import signal, subprocess, sys, time
if sys.argv[1:]:
    signal.signal(signal.SIGINT, lambda *_: None)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("at your service", child.pid, flush=True)
while True:
    time.sleep(600)
"""

_OWNER = """
import signal, sys, time
from pathlib import Path
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.services import run_service, service_environment
command, folder = sys.argv[1], Path(sys.argv[2])
stop = Stop(signal.SIGINT)
order = Order([command, str(folder / "left")], {}, stop, None)
with run_service("s", folder / "log", order) as service:
    service.wait_until(lambda: "at your service" in service.log.read_text(), "was not ready")
    (folder / "pid.new").write_text(str(service.pid))
    (folder / "pid.new").rename(folder / "pid")
    time.sleep(600)
"""


def wait_until_ready(service: Service) -> None:
    service.wait_until(lambda: "at your service" in service.log.read_text(), "was not ready")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_stopped_by_its_signal(tmp_path: Path, number: signal.Signals) -> None:
    left, log = tmp_path / "left", tmp_path / "logs" / "service.log"
    polite = program(tmp_path / "polite", _POLITE)
    with run_service("s", log, Order([str(polite), str(left)], {}, Stop(number), None)) as service:
        wait_until_ready(service)
        service.check()
        assert not has_ended(service.pid)
    assert has_ended(service.pid)
    assert left.read_text() == number.name
    assert f"[stopping by {number.name}]" in log.read_text()


def test_one_that_does_not_stop_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    log, stop = tmp_path / "log", Stop(signal.SIGINT, patience_s=0.3)
    leaving = program(tmp_path / "leaving", _LEAVING)
    with run_service("s", log, Order([str(leaving), "stay"], {}, stop, None)) as service:
        wait_until_ready(service)
        child = int(log.read_text().split()[-1])
    assert has_ended(service.pid)
    assert has_ended(child)
    assert "did not end within 0.3 s: killed" in log.read_text()


@pytest.mark.parametrize(("killed", "contending"), [
    ("service", True), ("guardian", False), ("above the guardian", True),
    slow("service", False), slow("guardian", True), slow("above the guardian", False),
])  # fmt: skip
def test_what_it_has_started_ends_whichever_of_its_processes_is_killed(
    tmp_path: Path, killed: str, *, contending: bool
) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    leaving = program(tmp_path / "leaving", _LEAVING)
    contends = Contending() if contending else None
    # It ends by its kill alone, and leaves no time to what it has started.
    stop = Stop(signal.SIGINT, patience_s=0.3)
    with run_service(
        "the server", log, Order([str(leaving), "stay"], {}, stop, contends, folder=folder)
    ) as service:
        wait_until_ready(service)
        # What is in it may be for its user's eyes alone.
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
        child = psutil.Process(int(log.read_text().split()[-1]))
        process = psutil.Process(service.pid)
        all_three = [process, *process.parents()[:2]]
        assert all_three[1].pid == service.guardian_pid
        all_three[["service", "guardian", "above the guardian"].index(killed)].kill()
        with pytest.raises(ServiceFailed, match=r"(?s)the server .* while .*at your service"):
            service.check(20)
        assert psutil.wait_procs([child, *all_three], timeout=20)[1] == []
    assert not folder.exists()


_DEATHS: dict[str, Callable[[subprocess.Popen[bytes], int], None]] = {
    "the owner is killed": lambda owner, pid: owner.kill(),
    "the owner is asked to end": lambda owner, pid: owner.terminate(),
    "Ctrl-C reaches the owner's group": lambda owner, pid: os.killpg(owner.pid, signal.SIGINT),
    "the guardian is killed": lambda owner, pid: psutil.Process(pid).parents()[0].kill(),
}


@pytest.mark.parametrize("death", _DEATHS)
def test_it_is_asked_to_end_whatever_happens_to_who_started_it(tmp_path: Path, death: str) -> None:
    polite = program(tmp_path / "polite", _POLITE)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(polite), str(tmp_path)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    wait_for((tmp_path / "pid").exists, "the service to start")
    pid = int((tmp_path / "pid").read_text())
    _DEATHS[death](owner, pid)
    wait_for(lambda: has_ended(pid), "the service to end")
    # It was its own signal that has reached it, once.
    assert (tmp_path / "left").read_text() == "SIGINT"
    if "guardian" in death:
        owner.kill()
    else:
        assert "[stopping by SIGINT]" in (tmp_path / "log").read_text()
    assert owner.wait() != 0


def test_services_get_no_schedulers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = ("XSCHED_SCHEDULER", "CUXTRA_CUDA_LIB", "LD_PRELOAD", "HWQ_DROPPED")
    for name in (*dropped, "CUDA_MPS_PIPE_DIRECTORY", "HWQ_KEPT"):
        monkeypatch.setenv(name, "x")
    environment = service_environment({"CUDA_MPS_PIPE_DIRECTORY": "ours"}, "HWQ_DROPPED")
    assert (environment["CUDA_MPS_PIPE_DIRECTORY"], environment["HWQ_KEPT"]) == ("ours", "x")
    assert not environment.keys() & {*dropped}
