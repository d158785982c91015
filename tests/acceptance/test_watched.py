"""What watches the thread that measures is stopped, or its figures say so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PYTEST, slow

if TYPE_CHECKING:
    from tests.conftest import Sessions

FAST = ("--hwq-iterations=10", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=cpu",
        "--hwq-json=s.json")  # fmt: skip
NOTE = "watched while it was measured, which its figures contain: "

# Also in a process that the step's library would start.
STEP = """
import subprocess, sys, threading
seen = []
def step():
    if not seen:
        seen.append(repr((sys.gettrace(), threading.gettrace())))
def test_mine(hwq):
    hwq.measure(step, streams=1)
    child = subprocess.check_output([sys.executable, "-c", "import sys; print(sys.gettrace())"])
    open("seen", "w").write(seen[0] + child.decode())
"""
COVERAGE = "[run]\nparallel = true\npatch = subprocess\nsource = .\n"


def records(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "s.json").read_text())["records"]
    return found


def watched(record: dict[str, Any]) -> list[str]:
    return [note for note in record["notes"] if note.startswith(NOTE)]


@pytest.mark.parametrize(
    ("how", "own_server"),
    [
        ("subprocess", False), ("conftest", True),
        *(slow(how, anew) for how in ("fork", "variable") for anew in (True, False)),
        slow("subprocess", True), slow("conftest", False),
    ],
)  # fmt: skip
def test_coverage_is_stopped(
    how: str, own_server: bool, sessions: Sessions, tmp_path: Path
) -> None:
    pytest.importorskip("coverage")
    (tmp_path / "test_mine.py").write_text(STEP)
    settings = tmp_path / ".coveragerc"
    settings.write_text(COVERAGE.replace("subprocess", f"subprocess{', fork' * (how == 'fork')}"))
    variables = {"COVERAGE_PROCESS_START": str(settings)}
    if how == "conftest":
        variables = {}
        (tmp_path / "conftest.py").write_text(
            "import coverage, os\nos.environ['COVERAGE_PROCESS_START'] = '.coveragerc'\n"
            "coverage.process_startup()\n"
        )
    if own_server:
        # It is under coverage itself, as it starts.
        done = subprocess.run(
            [*PYTEST, *FAST], cwd=tmp_path, env={**sessions.environment, **variables}, check=False
        )
        assert done.returncode == pytest.ExitCode.OK
    else:
        # The server of these tests has another environment, so the worker is started anew.
        sessions.result(tmp_path, *FAST, **variables).assert_outcomes(passed=1)
    assert (tmp_path / "seen").read_text() == "(None, None)None\n"
    (record,) = records(tmp_path)
    assert record["fingerprint"]["hard"]["tracers"] == "none"
    assert watched(record) == []


TRACED = """
import gc, sys, threading
import pytest

@pytest.mark.parametrize("how", ["plain", "thread", "collector", "left", "after"])
def test_mine(hwq, how):
    if how == "thread":
        # The step runs on its stream's thread, and this one is not traced.
        threading.setprofile(lambda *_: None)
    if how == "collector":
        gc.callbacks.append(print_nothing)
    if how == "left":
        sys.setprofile(lambda *_: None)
    hwq.measure(lambda: None, streams=1)

def print_nothing(*_):
    pass
"""


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_what_cannot_be_stopped_is_said(isolation: str, sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "test_traced.py").write_text(TRACED)
    result = sessions.result(tmp_path, *FAST, f"--hwq-isolation={isolation}")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*watched while it was measured*"])
    found = [record["fingerprint"]["hard"]["tracers"] for record in records(tmp_path)]
    thread, collector = "threading.setprofile: test_traced", "gc.callbacks: test_traced"
    own = "sys.setprofile: test_traced"
    if isolation == "process":
        # Who leaves one behind costs the next test a fresh process.
        assert found == ["none", f"{thread}, {own}", collector, own, "none"]
    else:
        both = f"{thread}, {collector}"
        assert found == [
            "none", f"{thread}, {own}", f"{both}, {own}", f"{own}, {both}", f"{own}, {both}"
        ]  # fmt: skip
    for record, text in zip(records(tmp_path), found, strict=True):
        assert watched(record) == ([] if text == "none" else [NOTE + text])


def test_dumps_of_stacks_are_not_written_while_a_worker_measures(
    sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import sys, time\ndef test_mine(hwq):\n"
        "    hwq.measure(lambda: time.sleep(0.01), streams=1)\n"
        "    time.sleep(0.5)\n"
    )
    sessions.result(tmp_path, *FAST, "-o", "faulthandler_timeout=0.2").assert_outcomes(passed=1)
    (log,) = tmp_path.glob(".hwqueue/2*/worker-*.log")
    assert "Timeout" not in log.read_text()


def test_options_of_the_environment_reach_the_processes_that_measure(
    sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(hwq):\n    hwq.measure(lambda: None, streams=1)\n"
    )
    result = sessions.result(
        tmp_path, "--hwq-device=cpu", "--hwq-json=s.json", PYTEST_ADDOPTS="--hwq-iterations=11 -q"
    )
    result.assert_outcomes(passed=1)
    assert [record["iterations"] for record in records(tmp_path)] == [11]


SCENARIO = """
name: NAME
duration: 1s
schedulers: {PLACEMENT: [native]}
tenants:
  - {name: own, function: "my_NAME:make_step", arrival: "constant: 20/s"}
  - {name: other, function: "my_NAME:make_step", arrival: "constant: 20/s"}
"""
TENANT = """
import gc, sys
def make_step(*, device, streams, seed):
    LEFT
    return lambda: open("seen", "a").write(f"{sys.gettrace()} ")
"""


@pytest.mark.parametrize("placement", [slow("processes"), "threads"])
def test_tenants_are_not_traced_either(placement: str, sessions: Sessions, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    (tmp_path / ".coveragerc").write_text(COVERAGE)
    coverage = {"COVERAGE_PROCESS_START": str(tmp_path / ".coveragerc")}
    left = "gc.callbacks.append(lambda *_: 0)"
    (tmp_path / "my_watched.py").write_text(TENANT.replace("LEFT", left))
    text = SCENARIO.replace("PLACEMENT", placement).replace("NAME", "watched")
    (tmp_path / "watched.hwq.yaml").write_text(text)
    # On a busy machine a window may be invalid; what watched it is known all the same.
    sessions.run(tmp_path, "watched.hwq.yaml", *FAST, "--hwq-dir=d", **coverage)
    assert {*(tmp_path / "seen").read_text().split()} == {"None"}
    files = [file for file in (tmp_path / "d").rglob("watched*.json") if file.name[7] in "._"]
    assert files
    for record in (json.loads(file.read_text()) for file in files):
        # What each tenant has left, and of coverage nothing.
        tracers = record["fingerprint"]["hard"]["tracers"]
        assert {*tracers.split(", ")} == {"gc.callbacks: my_watched"}
        assert watched(record) == [NOTE + tracers]
