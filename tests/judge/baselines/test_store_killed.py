"""Writers that are killed, interrupted, or several at once lose nothing that was stored."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from pytest_hwqueue.data.records.cell import write_record
from pytest_hwqueue.judge.baselines.store import Store
from tests.conftest import make_record, slow

H200 = "nvidia-h200"

# For each session and number of runs on standard input, a process of its own stores runs of two
# cells and says which are stored. What storing imports at first use is imported once.
WRITER = """
import os, sys, tempfile
from pathlib import Path
from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.judge.baselines.store import Store

root, *records = sys.argv[1:]
records = [read_record(Path(path)) for path in records]
with tempfile.TemporaryDirectory() as folder:
    Store(Path(folder)).add_many("main", records, "before")
for line in sys.stdin:
    session, most = line.split()
    child = os.fork()
    if child == 0:
        try:
            os.write(1, b"%d\\n" % os.getpid())
            for number in range(int(most)):
                when = {"started": f"run {number}"}
                runs = [record.model_copy(update=when) for record in records]
                Store(Path(root)).add_many("main", runs, session)
                os.write(1, b"%d\\n" % number)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


class Writer:
    """A process that stores runs in processes of its own, one session after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.orders, self.said = process.stdin, process.stdout

    def begin(self, session: str, most: int) -> int:
        print(session, most, file=self.orders, flush=True)
        return int(self.said.readline())

    def reported(self) -> list[int]:
        return [int(line) for line in iter(self.said.readline, "ended\n")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


@contextmanager
def writer(root: Path) -> Iterator[Writer]:
    folder = root.parent / "records"
    records = [str(write_record(folder, make_record(cell, n=200))) for cell in ("a", "b")]
    command = [sys.executable, "-c", WRITER, str(root), *records]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        given = Writer(process)
        yield given
        given.orders.close()


def stored(root: Path, session: str) -> list[list[int]]:
    """The numbers of a session's runs in each cell."""
    return [
        [int(run.when.removeprefix("run ")) for run in cell.runs if run.session == session]
        for cell in Store(root).read("main", H200).values()
    ]


# Without a handler, SIGTERM ends a process as SIGKILL does.
@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGINT), slow(signal.SIGTERM)])
def test_ended_writer_leaves_every_run_it_reported(root: Path, number: signal.Signals) -> None:
    moments = random.Random(int(number))
    with writer(root) as writing:
        for repetition in range(20):
            session = f"s{repetition}"
            # Far more runs than it comes to, and an end all the same where SIGINT is ignored.
            process = writing.begin(session, 500)
            # Of one, however slow the machine is, some runs are stored.
            known = set() if repetition else {int(writing.said.readline())}
            time.sleep(moments.uniform(0.0, 0.08))
            os.kill(process, number)
            reported = {*known, *writing.reported()}
            # The next writer neither waits for the dead one's lock nor trips over what it left.
            Store(root).add("main", make_record("a", seed=repetition, n=200), "after")
            assert not list((root / H200 / "main").glob(".*.tmp"))
            runs = [set(each) for each in stored(root, session)]
            # Of the run that was cut off, either cell may have its part.
            assert all(reported <= each <= {*reported, len(reported)} for each in runs)
            assert len(runs) == 2 or not reported
    a, _ = Store(root).read("main", H200).values()
    assert sum(run.session == "after" for run in a.runs) == 20


def test_writers_at_once_lose_no_run(root: Path) -> None:
    with writer(root) as one, writer(root) as two:
        one.begin("one", 15)
        two.begin("two", 15)
        assert one.reported() == two.reported() == [*range(15)]
    assert stored(root, "one") == stored(root, "two") == [[*range(15)]] * 2


def test_storing_again_after_a_kill_completes_it_and_repeats_nothing(root: Path) -> None:
    with writer(root) as writing:
        process = writing.begin("s", 10_000)
        assert [writing.said.readline() for _ in range(3)][-1] == "2\n"
        os.kill(process, signal.SIGKILL)
        writing.reported()
        writing.begin("s", 12)
        assert writing.reported() == [*range(12)]
    for numbers in stored(root, "s"):
        assert len(set(numbers)) == len(numbers)
        assert {*range(12)} <= set(numbers)
