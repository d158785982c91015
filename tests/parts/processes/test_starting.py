"""Processes that measure: forked ones are fresh processes, as those started anew are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.parts.processes.scratch import SCRATCH
from pytest_hwqueue.parts.processes.starting import (
    ForkServer,
    Main,
    start_process,
    worker_environment,
)
from tests.conftest import slow
from tests.parts.schedulers.processes import wait_for

if TYPE_CHECKING:
    from tests.conftest import Sessions

REPORT = """
import atexit, json, os, signal, sys, threading, time
from pytest_hwqueue.parts.processes.scratch import scratch_folder

def main():
    os.setpgrp()
    import random
    found = {
        "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "argv": sys.argv[1:],
        "threads": threading.active_count(), "environment": dict(os.environ),
        "folder": os.getcwd(), "path": sys.path, "interrupt": str(signal.getsignal(signal.SIGINT)),
        "random": [random.random()],
    }
    if "torch" in sys.modules:
        import numpy, torch
        assert not torch.cuda.is_initialized()
        found["random"] += [numpy.random.random(), torch.rand(1).item()]
    import subprocess
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    left = scratch_folder()
    open(left.name + "/left", "w").close()
    found["left"] = left.name
    os.write(int(sys.argv[-1]), json.dumps(found).encode())
    print("written to the log")
    atexit.register(print, "and as it ended")
    threading.Thread(target=lambda: (time.sleep(0.2), print("by a thread"))).start()
    how = os.read(int(sys.argv[-2]), 100).decode()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
"""

STRIPPED = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    (tmp_path / "reports_itself.py").write_text(REPORT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return cast("Main", "reports_itself")


@pytest.fixture
def environment() -> dict[str, str]:
    return worker_environment(os.environ)


class Started:
    """A process that has told what it is, and waits for how it is to end."""

    def __init__(
        self, server: ForkServer | None, main: Main, environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        read_there, self._write = os.pipe()
        read_here, write_there = os.pipe()
        descriptors = (read_there, write_there)
        self.process = start_process(server, main, environment, log, descriptors)
        for each in descriptors:
            os.close(each)
        with open(read_here, "rb") as file:
            text = b""
            while not text.endswith(b"}"):
                text += os.read(file.fileno(), 1 << 16)
        self.told: dict[str, Any] = json.loads(text)

    def end(self, how: str) -> int:
        assert self.process.poll() is None
        os.write(self._write, how.encode())
        os.close(self._write)
        status = self.process.wait(60)
        assert self.process.poll() == self.process.wait() == status
        return status


def test_forked_processes_are_fresh_and_others_are_started_anew(
    main: Main, environment: dict[str, str], tmp_path: Path
) -> None:
    server = ForkServer(environment)
    # Variables that are read late may differ.
    late = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "CUDA_MPS_PIPE_DIRECTORY", "GITHUB_ACTIONS",
            "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip
    other = {**environment, **dict.fromkeys(late, "x")}
    other.pop("PYTEST_VERSION", None)
    threads = int(environment.get("OMP_NUM_THREADS", 0)) + 1
    changed = {**environment, "OMP_NUM_THREADS": str(threads)}
    assert [server.fits(each) for each in (environment, other, changed)] == [True, True, False]
    first, second, anew = started = [
        Started(server, main, each, tmp_path / f"{number}.log")
        for number, each in enumerate((environment, other, changed))
    ]
    assert first.told["parent"] == second.told["parent"] != anew.told["parent"]
    for each, own in zip(started, (environment, other, changed), strict=True):
        scratch = Path(each.told["left"]).parent
        assert each.told["environment"] == {**own, SCRATCH: str(scratch)}
        assert scratch.parent == Path(tempfile.gettempdir())
        assert each.told["group"] == each.told["pid"]
        assert len(each.told["argv"]) == 2 or each is anew
        # What does not depend on who started it is as in a process started anew.
        for field in ("folder", "path", "interrupt", "threads"):
            assert each.told[field] == anew.told[field], field
    assert [each.process.pid for each in (first, second)] == [
        each.told["pid"] for each in (first, second)
    ]
    assert len({each.told["pid"] for each in started}) == 3
    # Neither repeats the other's random numbers, whose generators nobody has seeded.
    assert len(first.told["random"]) == 3
    assert len({*first.told["random"], *second.told["random"]}) == 6
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(0.01)
    assert [each.end(how) for each, how in zip(started, ("0", "7", "0"), strict=True)] == [0, 7, 0]
    killed = Started(server, main, environment, tmp_path / "killed.log")
    assert killed.end("kill") == -signal.SIGKILL
    # Threads that are no daemons are waited for, and then what is registered for the end runs.
    for each in started:
        assert each.log.read_text() == "written to the log\nby a thread\nand as it ended\n"
    # It could remove nothing itself.
    left = Path(killed.told["left"])
    assert left.exists()
    server.close()
    assert not left.parent.exists()


@pytest.mark.parametrize(("forked", "above"), [
    pytest.param(True, 0, id="parent-forked"), pytest.param(False, 1, id="grandparent-anew"),
    slow(True, 1, id="grandparent-forked"), slow(False, 0, id="parent-anew"),
])  # fmt: skip
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
    assert not Path(started.told["left"]).parent.exists()
    # How its processes end nobody can tell any more.
    assert started.process.wait(20) == -signal.SIGKILL
    if server is not None:
        # A server that was killed is done without.
        anew = Started(server, main, environment, tmp_path / "anew.log")
        assert anew.end("0") == 0
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
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            print("HEAVY", sorted({"torch", "numpy", "scipy"} & sys.modules.keys()))
        """
    )
    pytester.makepyfile("def test_own(hwq): hwq.measure(lambda: None)")
    few = ("--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=20")
    done = sessions.anew(pytester.path, "-s", *few)
    assert "1 passed" in done.stdout
    assert "HEAVY []" in done.stdout.splitlines()


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *STRIPPED,
                "PYTEST_XDIST_WORKER",
                "PYTEST_XDIST_X",
                "LD_LIBRARY_PATH",
                "PYTEST_PLUGINS",
            ]
        )
        | st.text(st.characters(categories=["Lu"], include_characters="_")),
        st.text(),
    )
)
def test_workers_inherit_all_but_what_is_the_sessions(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert worker_environment(environment) == {
        name: value
        for name, value in before.items()
        if name not in STRIPPED and not name.startswith("PYTEST_XDIST_")
    }
    assert environment == before


_OWNER = """
import os, sys, time
from pathlib import Path
from pytest_hwqueue.parts.processes.starting import ForkServer, start_process
environment, folder = dict(os.environ), Path(sys.argv[1])
server = ForkServer(environment) if sys.argv[2] == "forked" else None
ends = [*os.pipe(), *os.pipe()]
start_process(server, "reports_itself", environment, folder / "log", (ends[0], ends[3]))
print(os.read(ends[2], 1 << 16).decode(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["forked", slow("anew")])
@pytest.mark.usefixtures("main")
def test_a_killed_session_leaves_no_temporary_folder(
    environment: dict[str, str], tmp_path: Path, how: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), how],
        env={**environment, "TMPDIR": str(temporary), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    told = json.loads(owner.stdout.readline())
    assert Path(told["left"]).parent.parent == temporary
    owner.kill()
    owner.communicate()
    wait_for(lambda: not list(temporary.iterdir()), "the end of all that is temporary")
