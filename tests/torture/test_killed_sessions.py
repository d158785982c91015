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

from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.records.cell import read_record
from pytest_hwqueue.records.tenants import read_colocation

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
  - {name: high, workload: large_gemm_only, streams: 2, arrival: "constant: 20/s", priority: 1}
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
}  # fmt: skip
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
    found = set((folder / ".hwqueue").glob("*/*.json"))
    return {file for file in found if file.name not in ("session.json", "which.json")}


def end_at_a_random_moment(
    folder: Path, session: subprocess.Popen[str], number: signal.Signals, moments: random.Random
) -> set[Path]:
    """Send a signal once some cells are measured, and a little later; return what there was."""
    begin = time.monotonic()
    wanted, later_s = moments.randint(0, CELLS - 1), moments.uniform(0, 1.5)
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
    for device in (folder / "baselines").iterdir():
        for name in (each.name for each in device.iterdir() if each.is_dir()):
            assert Store(folder / "baselines").read(name, device.name).cells
    left = [*(folder / ".hwqueue").rglob("*.tmp"), *(folder / "baselines").rglob("*.tmp")]
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
            measured = end_at_a_random_moment(folder, session, number, random.Random(seed))
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
    if number == signal.SIGINT and (measured or command in ("which", "sweep")):
        assert "Traceback" not in output
    _, alive = psutil.wait_procs(marked(mark), timeout=120)
    # A fork server that is still importing ends once it has.
    assert alive == []
    assert measured <= record_files(folder)
    check_files(folder, number)


@pytest.mark.parametrize("command", COMMANDS)
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
    assert len(Store(folder / "baselines").read("norm", device.name).cells) == CELLS
