"""Whole sessions ended at random moments: nothing torn, nothing left, what was measured is kept."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.answers.fleet.check import read_check
from pytest_hwqueue.answers.fleet.collected import checked_gpus
from pytest_hwqueue.answers.which.capacity_file import CapacityFile
from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.data.records.tenants import read_colocation
from pytest_hwqueue.judge.baselines.sources import read_session_file
from pytest_hwqueue.judge.baselines.store import Store
from tests.conftest import slow

ROOT = Path(__file__).parents[2]
MARK = "TORTURE_SESSION"
CELLS = 3
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(hwq, number):
    hwq.measure(lambda: sum(range(1000)))
"""
SCENARIO = """
name: two
duration: 1s
ci_duration: 1s
schedulers: {threads: [native, stream-priority]}
tenants:
  - {name: high, workload: large_gemm_only, arrival: "constant: 20/s", priority: 1}
goals: [high.p99 < 1 ms]
"""
OWN = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "test_users.py",
       "--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20", "--hwq-warmup=2",
       "--hwq-baselines=baselines", "--hwq-runs=2")  # fmt: skip
HWQ = ("-m", "pytest_hwqueue")
COMMANDS = {
    "save": (*OWN, "--hwq-save=norm"),
    "compare": (*OWN, "--hwq-compare=norm"),
    "which": (*HWQ, "which", "two.hwq.yaml", "--device=sim:h200", "--size=tiny"),
    "sweep": (*HWQ, "sweep", "large_gemm_only", "--device=sim:h200", "--size=tiny",
              "--streams=1,2,3", "--iterations=20"),
    "capacity": (*HWQ, "capacity", "two.hwq.yaml", "--tenant=high", "--device=sim:h200",
                 "--size=tiny", "--window=500ms", "--windows=2", "--precision=20%",
                 "--rates=100:40000", "--requests=500"),
    "fleet": (*HWQ, "fleet", "check", "--device=sim:h200", "--count=2", "--size=tiny",
              "--repeats=4", "--out=.hwqueue/fleet"),
}  # fmt: skip
# How many records the long ones have at their end; the others have `CELLS`, or less.
LONG = {"capacity": 15, "fleet": 32}
NO_RECORDS = ("session.json", "which.json", "capacity.json", "check.json")
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with tests, a scenario, and a baseline to compare with."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_users.py").write_text(TESTS, encoding="utf-8")
    (folder / "two.hwq.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "tmp").mkdir()
    with started(folder, "save", "baseline") as session:
        assert session.wait() == 0
    shutil.rmtree(folder / ".hwqueue")
    return folder


def started(folder: Path, command: str, mark: str) -> subprocess.Popen[str]:
    """Start a session with a fork server of its own; all its processes carry the mark."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HWQ_", "PYTEST_", "GITHUB_"))}  # fmt: skip
    kept.update({MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")})
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *COMMANDS[command]], cwd=folder, env=kept, text=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def marked(mark: str) -> list[psutil.Process]:
    """All processes of a session, whatever their parents are now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def record_files(folder: Path) -> set[Path]:
    """What a session has measured so far."""
    found = set((folder / ".hwqueue").rglob("*.json"))
    return {file for file in found if file.name not in NO_RECORDS}


def end_at_a_random_moment(
    folder: Path,
    session: subprocess.Popen[str],
    number: signal.Signals,
    moments: random.Random,
    cells: int,
) -> set[Path]:
    """Send a signal once some cells are measured, and a little later; return what there was."""
    begin = time.monotonic()
    wanted, later_s = moments.randint(0, cells - 1), moments.uniform(0, 1.5)
    while len(record_files(folder)) < wanted and session.poll() is None:
        assert time.monotonic() < begin + 300
        time.sleep(0.01)
    time.sleep(later_s)
    measured = record_files(folder)
    if session.poll() is None:
        # As a terminal's Ctrl-C does, or whoever ends one process.
        (os.killpg if number == signal.SIGINT else os.kill)(session.pid, number)
    return measured


def check_files(folder: Path, number: signal.Signals) -> None:
    """Nothing is torn; only what is killed leaves a temporary file, which nobody reads."""
    for file in record_files(folder):
        read = read_colocation if file.name.startswith("two") else read_record
        read(file)
    for file in folder.rglob("*.json"):
        json.loads(file.read_text(encoding="utf-8"))
        if file.name == "session.json":
            read_session_file(file)
        elif file.name == "check.json":
            read_check(file)
    for device in (folder / "baselines").iterdir():
        for name in (each.name for each in device.iterdir() if each.is_dir()):
            assert Store(folder / "baselines").read(name, device.name)
    left = [*(folder / ".hwqueue").rglob("*.tmp"), *(folder / "baselines").rglob("*.tmp")]
    # A check that is interrupted ends its sessions, and with them workers that write.
    left = [file for file in left if "fleet" not in file.relative_to(folder).parts]
    assert not left or number == signal.SIGKILL
    here = [each.name for each in (folder / "tmp").iterdir()]
    # torch's own cache stays; of the session's folders, only a killed one can leave any.
    left_over = [name for name in here if not name.startswith("torchinductor_")]
    assert not left_over or number != signal.SIGINT, left_over


def torture(project: Path, folder: Path, command: str, number: signal.Signals, seed: str) -> None:
    """End one session, and look at what it leaves."""
    shutil.copytree(project, folder)
    if command == "save":
        shutil.rmtree(folder / "baselines")
        (folder / "baselines").mkdir()
    mark = uuid.uuid4().hex
    with started(folder, command, mark) as session:
        try:
            cells, moments = LONG.get(command, CELLS), random.Random(seed)
            measured = end_at_a_random_moment(folder, session, number, moments, cells)
            status = session.wait(60)
        finally:
            session.kill()
    output = (folder / "output").read_text(encoding="utf-8")
    print(f"{command} {number.name} {seed}: status {status}, {len(measured)} records", output)
    # If a signal ended its session, hwq says which as a shell does.
    of_hwq = (128 + number,) if COMMANDS[command][:2] == HWQ else ()
    assert status in (0, 1, 2, -number, *of_hwq), output
    assert "INTERNALERROR" not in output
    # Before there is a record, pytest may be at its own imports.
    # Nor is Python's own beginning the package's, or the garbage that pytest collects at its end.
    begun = not output.startswith("Fatal Python error: init_import_site")
    if number == signal.SIGINT and (measured or COMMANDS[command][:2] == HWQ) and begun:
        said, _, after = output.partition(" passed in ")
        assert "Traceback" not in said
        assert "pytest_hwqueue/" not in after
    _, alive = psutil.wait_procs(marked(mark), timeout=120)
    # A fork server that is still importing ends once it has.
    assert alive == []
    assert measured <= record_files(folder)
    # pytest has no handler for SIGTERM: it ends at once, and its worker is killed while it writes.
    at_once = number == signal.SIGTERM and status in (-number, 128 + number)
    check_files(folder, signal.SIGKILL if at_once else number)


# One that is killed and one that is interrupted; which and sweep end the same way.
@pytest.mark.parametrize("command", ["save", "compare", slow("which"), slow("sweep")])
def test_ended_once(project: Path, tmp_path: Path, command: str) -> None:
    number = SIGNALS[list(COMMANDS).index(command) % len(SIGNALS)]
    torture(project, tmp_path / "user", command, number, f"{command}-once")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_ended_at_many_moments(
    project: Path, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    for repetition in range(5):
        torture(project, tmp_path / f"user-{repetition}", command, number, f"many-{repetition}")


@pytest.mark.slow
def test_a_killed_save_is_completed_by_the_next(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    torture(project, folder, "save", signal.SIGKILL, "completed")
    with started(folder, "save", "again") as session:
        assert session.wait() == 0
    (device,) = (folder / "baselines").iterdir()
    assert len(Store(folder / "baselines").read("norm", device.name)) == CELLS


def run(folder: Path, command: str) -> tuple[int, str]:
    """Run a session to its end; return its status and what it said."""
    with started(folder, command, "again") as session:
        status = session.wait()
    return status, (folder / "output").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_search_is_continued_to_the_same_end(project: Path, tmp_path: Path) -> None:
    ends = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        if name == "killed":
            torture(project, folder, "capacity", signal.SIGKILL, "continued")
        else:
            shutil.copytree(project, folder)
        before = {file: file.read_bytes() for file in record_files(folder)}
        status, output = run(folder, "capacity")
        assert status == 0, output
        assert all(file.read_bytes() == whole for file, whole in before.items())
        (file,) = folder.glob(".hwqueue/*/capacity.json")
        found = CapacityFile.model_validate_json(file.read_bytes())
        ends.append([(case.id, case.capacity_per_s) for case in found.cases])
    assert before
    assert ends[0] == ends[1]


# How far below its session each is; there is one of each.
BELOW = {"reaper": 1, "fork server": 2, "worker": 3}


def kill_below(session: subprocess.Popen[str], depth: int) -> None:
    """Kill the first process of a session that is so far below it."""
    process = psutil.Process(session.pid)
    for _ in range(depth):
        process = process.children()[0]
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("first", BELOW)
def test_killed_before_its_session(project: Path, tmp_path: Path, first: str) -> None:
    """One test fails at most; the others are measured, and the session ends in order."""
    folder, mark = tmp_path / "user", uuid.uuid4().hex
    shutil.copytree(project, folder)
    # Long enough to be killed in the second.
    text = TESTS.replace("range(1000)", "range(1000)) or __import__('time').sleep(0.05")
    (folder / "test_users.py").write_text(text, encoding="utf-8")
    with started(folder, "compare", mark) as session:
        while not record_files(folder):
            assert session.poll() is None
            time.sleep(0.01)
        kill_below(session, BELOW[first])
        status = session.wait(120)
    output = (folder / "output").read_text(encoding="utf-8")
    assert (status, "INTERNALERROR" in output, "Traceback" in output) == (1, False, False), output
    assert "1 failed, 2 passed" in output
    assert psutil.wait_procs(marked(mark), timeout=120)[1] == []
    check_files(folder, signal.SIGKILL)


@pytest.mark.slow
def test_the_session_of_one_gpu_is_killed(project: Path, tmp_path: Path) -> None:
    """It is called unreachable with the reason; the other is measured, and so is the next check."""
    folder, mark = tmp_path / "user", uuid.uuid4().hex
    shutil.copytree(project, folder)
    with started(folder, "fleet", mark) as session:
        while not record_files(folder):
            assert session.poll() is None
            time.sleep(0.01)
        kill_below(session, 1)
        assert session.wait(300) == 1
    assert psutil.wait_procs(marked(mark), timeout=120)[1] == []
    check_files(folder, signal.SIGKILL)
    checks = [read_check(file) for file in sorted(folder.rglob("check.json"))]
    assert [check.status for check in checks] == ["unreachable", "measured"]
    assert "ended with status -9" in checks[0].reason
    # What is there is not measured over; elsewhere it is.
    status, output = run(folder, "fleet")
    assert (status, "is not empty; name another" in output) == (4, True)
    (folder / ".hwqueue").rename(folder / "first")
    assert run(folder, "fleet")[0] == 0
    assert len(checked_gpus(folder / ".hwqueue" / "fleet")) == 2
