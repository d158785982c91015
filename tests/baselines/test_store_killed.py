"""Writers that are killed, interrupted, or several at once lose nothing that was stored."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.records.cell import RunRecord, write_record

MakeRecord = Callable[..., RunRecord]
Start = Callable[[str, int], subprocess.Popen[str]]
H200 = "nvidia-h200"

# Stores runs of two cells and says which are stored, for as long as it is let.
WRITER = """
import os, sys
from pathlib import Path
from pytest_hwqueue.records.cell import read_record
from pytest_hwqueue.baselines.store import Store

root, most, *records = sys.argv[1:]
records = [read_record(Path(path)) for path in records]
store = Store(Path(root))

def write(session):
    for number in range(int(most)):
        runs = [record.model_copy(update={"started": f"run {number}"}) for record in records]
        store.add_many("main", runs, session)
        os.write(1, b"%d\\n" % number)

"""
# One writer in this process; or a process of its own for each session named on standard input,
# which saves importing everything again.
ALONE = """
write(os.environ["SESSION"])
"""
FORKING = """
# What storing imports at first use is imported once, and not by each process that is killed.
import tempfile
with tempfile.TemporaryDirectory() as folder:
    Store(Path(folder)).add_many("main", records, "before")
for session in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            os.write(1, b"%d\\n" % os.getpid())
            write(session.strip())
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


def write_records(tmp_path: Path, make_record: MakeRecord) -> list[str]:
    folder = tmp_path / "records"
    return [str(write_record(folder, make_record(cell, n=200))) for cell in ("a", "b")]


@pytest.fixture
def start(root: Path, tmp_path: Path, make_record: MakeRecord) -> Start:
    records = write_records(tmp_path, make_record)

    def start(session: str, most: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", WRITER + ALONE, str(root), str(most), *records],
            env={**os.environ, "SESSION": session},
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )

    return start


def stored(root: Path, session: str) -> list[set[int]]:
    """The numbers of a session's runs in each cell."""
    return [
        {int(run.when.removeprefix("run ")) for run in cell.runs if run.session == session}
        for cell in Store(root).read("main", H200).cells.values()
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ended_writer_leaves_every_run_it_reported(
    root: Path, tmp_path: Path, make_record: MakeRecord, number: signal.Signals
) -> None:
    moments = random.Random(int(number))
    records = write_records(tmp_path, make_record)
    # Far more runs than it comes to, and an end all the same where SIGINT is ignored from above.
    command = [sys.executable, "-c", WRITER + FORKING, str(root), "500", *records]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for repetition in range(20):
            session = f"s{repetition}"
            print(session, file=parent.stdin, flush=True)
            process = int(parent.stdout.readline())
            time.sleep(moments.uniform(0.0, 0.08))
            os.kill(process, number)
            reported = {int(line) for line in iter(parent.stdout.readline, "ended\n")}
            # The next writer neither waits for the dead one's lock nor trips over what it left.
            Store(root).add("main", make_record("a", seed=repetition, n=200), "after")
            assert not list((root / H200 / "main").glob(".*.tmp"))
            runs = stored(root, session)
            # Of the run that was cut off, either cell may have its part.
            assert all(reported <= each <= {*reported, len(reported)} for each in runs)
            assert len(runs) == 2 or not reported
        parent.stdin.close()
    a, _ = Store(root).read("main", H200).cells.values()
    assert sum(run.session == "after" for run in a.runs) == 20


def test_writers_at_once_lose_no_run(root: Path, start: Start) -> None:
    writers = {session: start(session, 15) for session in ("one", "two")}
    for writer in writers.values():
        _, errors = writer.communicate()
        assert (writer.returncode, errors) == (0, "")
    for session in writers:
        assert stored(root, session) == [set(range(15))] * 2


def test_storing_again_after_a_kill_completes_it_and_repeats_nothing(
    root: Path, start: Start
) -> None:
    with start("s", 10_000) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(3)]
        writer.kill()
    assert lines[-1] == "2\n"
    again = start("s", 12)
    _, errors = again.communicate()
    assert (again.returncode, errors) == (0, "")
    for cell in Store(root).read("main", H200).cells.values():
        numbers = [run.when for run in cell.runs]
        assert len(set(numbers)) == len(numbers)
        assert {f"run {number}" for number in range(12)} <= set(numbers)
