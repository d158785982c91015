"""Services: started, watched, stopped in their own way, whatever happens to who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.processes import services
from pytest_hwqueue.processes.services import (
    Contending,
    Service,
    ServiceFailed,
    Stop,
    run_service,
    service_environment,
)

from ..schedulers.processes import has_ended, program, wait_for

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

_OWNER = """
import sys, time
from pathlib import Path
import signal
from pytest_hwqueue.processes.services import Stop, run_service, service_environment
command, folder = sys.argv[1], Path(sys.argv[2])
stop = Stop(signal.SIGINT)
with run_service("s", [command, str(folder / "left")], folder / "log", stop, {}) as service:
    service.wait_until(lambda: "at your service" in service.log.read_text(), "was not ready")
    (folder / "pid.new").write_text(str(service.pid))
    (folder / "pid.new").rename(folder / "pid")
    time.sleep(600)
"""


@pytest.fixture
def polite(tmp_path: Path) -> Path:
    return program(tmp_path / "polite", _POLITE)


@pytest.fixture
def leaving(tmp_path: Path) -> Path:
    return program(
        tmp_path / "leaving",
        """
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("at your service", child.pid, flush=True)
        time.sleep(600)
        """,
    )


def ready(service: Service) -> bool:
    return "at your service" in service.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_stopped_by_its_signal(tmp_path: Path, polite: Path, number: signal.Signals) -> None:
    left, log = tmp_path / "left", tmp_path / "logs" / "service.log"
    with run_service("s", [str(polite), str(left)], log, Stop(number), {}) as service:
        service.wait_until(lambda: ready(service), "was not ready")
        service.check()
        assert not has_ended(service.pid)
    assert has_ended(service.pid)
    assert left.read_text() == number.name
    assert f"[stopping by {number.name}]" in log.read_text()


def test_it_is_stopped_by_a_command_with_a_line_of_text(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    service_program = program(
        tmp_path / "waits",
        """
        import pathlib, sys, time
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.01)
        print("told to", pathlib.Path(sys.argv[1]).read_text(), flush=True)
        """,
    )
    control = program(
        tmp_path / "control",
        """
        import pathlib, sys
        new = pathlib.Path(sys.argv[1] + ".new")
        new.write_text(sys.stdin.read().strip())
        new.rename(sys.argv[1])
        """,
    )
    stop = Stop(signal.SIGTERM, [str(control), str(flag)], "quit\n")
    log = tmp_path / "log"
    with run_service("s", [str(service_program), str(flag)], log, stop, {}) as service:
        assert not has_ended(service.pid)
    assert "told to quit" in log.read_text()
    assert has_ended(service.pid)


def test_one_that_does_not_stop_is_killed_with_all_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_PATIENCE_S", 0.5)
    stubborn = program(
        tmp_path / "stubborn",
        """
        import os, signal, sys, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child = os.fork()
        if child:
            print("at your service", child, flush=True)
        time.sleep(600)
        """,
    )
    log = tmp_path / "log"
    with run_service("s", [str(stubborn)], log, Stop(signal.SIGINT), {}) as service:
        service.wait_until(lambda: ready(service), "was not ready")
        child = int(log.read_text().split()[-1])
    assert has_ended(service.pid)
    wait_for(lambda: has_ended(child), "the service's child")
    assert "did not end within 0.5 s: killed" in log.read_text()


def test_what_it_started_in_a_session_of_its_own_ends_with_it(
    tmp_path: Path, leaving: Path
) -> None:
    log = tmp_path / "log"
    with run_service("s", [str(leaving)], log, Stop(signal.SIGINT), {}) as service:
        service.wait_until(lambda: ready(service), "was not ready")
        child = int(log.read_text().split()[-1])
        os.kill(service.pid, signal.SIGKILL)
        wait_for(lambda: has_ended(child), "the service's child")


@pytest.mark.parametrize("contending", [False, True], ids=["apart", "contending"])
@pytest.mark.parametrize("above", [0, 1], ids=["guardian", "above the guardian"])
def test_what_it_started_in_a_session_of_its_own_ends_with_a_killed_guardian(
    tmp_path: Path, leaving: Path, above: int, *, contending: bool
) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    contends = Contending(folder=folder) if contending else None
    stop = Stop(signal.SIGINT, patience_s=0.5)
    with run_service("s", [str(leaving)], log, stop, {}, contends) as service:
        service.wait_until(lambda: ready(service), "was not ready")
        child = psutil.Process(int(log.read_text().split()[-1]))
        process = psutil.Process(service.pid)
        parents = process.parents()[:2]
        assert parents[0].pid == service.guardian_pid
        parents[above].kill()
        with pytest.raises(ServiceFailed):
            service.check(20)
        assert psutil.wait_procs([child, process, *parents], timeout=20)[1] == []
    assert not folder.exists()


def test_one_that_ends_is_noticed_with_its_last_lines(tmp_path: Path, polite: Path) -> None:
    command = [str(polite), str(tmp_path / "left")]
    with run_service("the server", command, tmp_path / "log", Stop(signal.SIGINT), {}) as service:
        service.wait_until(lambda: ready(service), "was not ready")
        os.kill(service.pid, signal.SIGKILL)
        with pytest.raises(ServiceFailed, match=r"the server .* died by SIGKILL") as failed:
            service.wait_until(lambda: False, "never")
    assert "at your service" in str(failed.value)


def test_one_that_is_never_ready(
    tmp_path: Path, polite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_READY_S", 0.05)
    command = [str(polite), str(tmp_path / "left")]
    with (
        run_service("s", command, tmp_path / "log", Stop(signal.SIGINT), {}) as service,
        pytest.raises(ServiceFailed, match="runs, but did not answer within"),
    ):
        service.wait_until(lambda: False, "did not answer")
    assert has_ended(service.pid)


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    with (
        pytest.raises(ServiceFailed, match=r"the server could not be started: .*No such file"),
        run_service(
            "the server", [str(tmp_path / "no")], tmp_path / "log", Stop(signal.SIGINT), {}
        ),
    ):
        pytest.fail("nothing runs")


def start_owner(tmp_path: Path, polite: Path) -> tuple[subprocess.Popen[bytes], int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(polite), str(tmp_path)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    wait_for((tmp_path / "pid").exists, "the service to start")
    return owner, int((tmp_path / "pid").read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it(
    tmp_path: Path, polite: Path, number: signal.Signals
) -> None:
    owner, pid = start_owner(tmp_path, polite)
    owner.send_signal(number)
    owner.wait()
    wait_for(lambda: has_ended(pid), "the service")
    assert (tmp_path / "left").read_text() == "SIGINT"


def test_ctrl_c_reaches_it_through_its_owner_alone(tmp_path: Path, polite: Path) -> None:
    owner, pid = start_owner(tmp_path, polite)
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.wait() != 0
    assert has_ended(pid)
    assert (tmp_path / "left").read_text() == "SIGINT"
    assert "[stopping by SIGINT]" in (tmp_path / "log").read_text()


def test_it_ends_with_its_guardian_too(tmp_path: Path, polite: Path) -> None:
    owner, pid = start_owner(tmp_path, polite)
    guardian = psutil.Process(pid).ppid()
    assert guardian != owner.pid
    os.kill(guardian, signal.SIGKILL)
    wait_for(lambda: has_ended(pid), "the service")
    assert (tmp_path / "left").read_text() == "SIGINT"
    owner.kill()
    owner.wait()


def test_services_get_no_schedulers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XSCHED_SCHEDULER", "CUXTRA_CUDA_LIB", "CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HWQ_KEPT", "1")
    monkeypatch.setenv("HWQ_DROPPED", "1")
    environment = service_environment({"CUDA_MPS_PIPE_DIRECTORY": "ours"}, "HWQ_DROPPED")
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "ours"
    assert environment["HWQ_KEPT"] == "1"
    for name in ("XSCHED_SCHEDULER", "CUXTRA_CUDA_LIB", "LD_PRELOAD", "HWQ_DROPPED"):
        assert name not in environment
