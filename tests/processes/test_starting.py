"""Processes that measure: forked ones are fresh processes, as those started anew are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from pytest_hwqueue import suite
from pytest_hwqueue.processes.starting import (
    ForkServer,
    Main,
    Process,
    start_process,
    worker_environment,
)

REPORT = """
import json, os, signal, sys, threading

def main():
    os.setpgrp()
    import random
    import numpy, torch
    found = {
        "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "argv": sys.argv[1:],
        "threads": threading.active_count(), "cuda": torch.cuda.is_initialized(),
        "random": random.random(), "numpy": numpy.random.random(), "torch": torch.rand(1).item(),
        "environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path,
        "interrupt": str(signal.getsignal(signal.SIGINT)),
    }
    import subprocess
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.write(int(sys.argv[-1]), json.dumps(found).encode())
    print("written to the log")
    how = os.read(int(sys.argv[-2]), 100).decode()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return worker_environment(os.environ)


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[ForkServer]:
    started = ForkServer(environment)
    yield started
    started.close()


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    (tmp_path / "reports_itself.py").write_text(REPORT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return cast("Main", "reports_itself")


def server_pid(server: ForkServer) -> int:
    assert server._process is not None
    (own,) = psutil.Process(server._process.pid).children()
    return own.pid


class Started:
    """A process that has told what it is, and waits for how it is to end."""

    def __init__(
        self, server: ForkServer | None, main: Main, environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        read_there, self._write = os.pipe()
        self._read, write_there = os.pipe()
        self.descriptors = (read_there, write_there)
        self.process: Process = start_process(server, main, environment, log, self.descriptors)
        for each in self.descriptors:
            os.close(each)
        text = b""
        while not text.endswith(b"}"):
            text += os.read(self._read, 1 << 16)
        self.told: dict[str, Any] = json.loads(text)

    def end(self, how: str) -> int:
        assert self.process.poll() is None
        os.write(self._write, how.encode())
        self.close()
        return self.process.wait(60)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)


def test_forked_processes_are_fresh(
    server: ForkServer, main: Main, environment: dict[str, str], tmp_path: Path
) -> None:
    first, second = (Started(server, main, environment, tmp_path / f"{n}.log") for n in (1, 2))
    anew = Started(None, main, environment, tmp_path / "anew.log")
    for each in (first, second):
        assert each.told["parent"] == server_pid(server)
        assert each.told["pid"] == each.told["group"] == each.process.pid
        assert not each.told["cuda"]
        assert len(each.told["argv"]) == 2
        # What does not depend on who started it is as in a process started anew.
        for field in ("environment", "folder", "path", "interrupt", "threads"):
            assert each.told[field] == anew.told[field], field
    assert anew.told["parent"] != server_pid(server)
    assert len({each.told["pid"] for each in (first, second, anew)}) == 3
    # Neither repeats the other's random numbers, whose generators nobody has seeded.
    for generator in ("random", "numpy", "torch"):
        assert first.told[generator] != second.told[generator]
    assert [each.end("0") for each in (first, second, anew)] == [0, 0, 0]
    assert all("written to the log" in each.log.read_text() for each in (first, second, anew))


@pytest.mark.parametrize(("how", "status"), [("7", 7), ("kill", -signal.SIGKILL)])
def test_how_a_forked_process_ended(
    server: ForkServer, main: Main, environment: dict[str, str], tmp_path: Path, how: str,
    status: int,
) -> None:  # fmt: skip
    started = Started(server, main, environment, tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(0.01)
    assert started.end(how) == status
    assert started.process.poll() == started.process.wait() == status


def test_another_environment_is_started_anew(
    server: ForkServer, main: Main, environment: dict[str, str], tmp_path: Path
) -> None:
    changed = {**environment, "OMP_NUM_THREADS": "1"}
    assert server.fits(environment)
    assert not server.fits(changed)
    started = Started(server, main, changed, tmp_path / "log")
    assert started.told["parent"] != server_pid(server)
    assert started.told["environment"]["OMP_NUM_THREADS"] == "1"
    assert started.end("0") == 0


def test_variables_of_pytest_may_differ(
    server: ForkServer, main: Main, environment: dict[str, str], tmp_path: Path
) -> None:
    changed = {**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    changed.pop("PYTEST_VERSION", None)
    started = Started(server, main, changed, tmp_path / "log")
    assert started.told["parent"] == server_pid(server)
    assert started.told["environment"] == changed
    assert started.end("0") == 0


def test_a_server_that_was_killed_is_done_without(
    main: Main, environment: dict[str, str], tmp_path: Path
) -> None:
    server = ForkServer(environment)
    forked = Started(server, main, environment, tmp_path / "forked.log")
    killed = server_pid(server)
    assert forked.told["parent"] == killed
    os.kill(killed, signal.SIGKILL)
    # How its processes end nobody can tell any more.
    assert forked.process.wait(60) == -signal.SIGKILL
    anew = Started(server, main, environment, tmp_path / "anew.log")
    assert anew.told["parent"] != killed
    assert anew.end("0") == 0
    forked.close()
    server.close()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "anew"])
@pytest.mark.parametrize("above", [0, 1], ids=["parent", "grandparent"])
def test_what_a_process_left_in_other_sessions_ends_with_its_killed_parents(
    main: Main, environment: dict[str, str], tmp_path: Path, *, forked: bool, above: int
) -> None:
    server = ForkServer(environment) if forked else None
    started = Started(server, main, environment, tmp_path / "log")
    (apart,) = psutil.Process(started.process.pid).children()
    assert os.getsid(apart.pid) == apart.pid
    parents = psutil.Process(started.process.pid).parents()[:2]
    parents[above].kill()
    assert psutil.wait_procs([apart, *parents], timeout=20)[1] == []
    assert started.process.wait(20) == -signal.SIGKILL
    started.close()
    if server is not None:
        server.close()


def test_a_server_handed_over_is_found_by_the_child_alone(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ForkServer(environment)
    with server.handing_over() as (variables, descriptors):
        assert all(os.fstat(each) for each in descriptors)
        (name,) = variables
        monkeypatch.setenv(name, variables[name])
        # It was started by this process, which is not its own parent.
        assert ForkServer.handed_over() is None
        assert name not in os.environ
    server.close()


def test_a_session_that_measures_imports_nothing_heavy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            if not hasattr(config, "workerinput"):
                names = {name.partition(".")[0] for name in sys.modules}
                print("HEAVY", sorted(names & {"torch", "numpy", "scipy"}))
        """
    )
    pytester.makepyfile(
        """
        import os, sys

        def test_own(hwq):
            assert "torch" in sys.modules
            hwq.measure(lambda: None)
            print("PARENT", os.getppid())
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(suite.__file__).parents[1]))
    result = pytester.runpytest_subprocess(
        "-p",
        suite.plugin_name(),
        "-s",
        "--hwq-device=cpu",
        "--hwq-streams=1",
        "--hwq-iterations=20",
        "--hwq-runs=2",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["HEAVY []"])
