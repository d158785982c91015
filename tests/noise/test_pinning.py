"""Pinning and priority, set, read back and undone, on real processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.noise import pinning
from pytest_hwqueue.noise.pinning import RemedyRefused, chosen_cores, pinned

needs_right = pytest.mark.skipif(
    pinning.unavailable() is not None, reason=f"needs the remedy: {pinning.unavailable()}"
)

# Three threads, and one more for each line that it is given.
_THREADED = """
import sys, threading
wait = threading.Event()
for number in range(2):
    threading.Thread(target=wait.wait, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    threading.Thread(target=wait.wait, daemon=True).start()
    print("another", flush=True)
"""

# Nothing that is run after this has CAP_SYS_NICE (23), root or not: PR_CAPBSET_DROP is 24.
_WITHOUT_RIGHT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 23)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""

_TRIES = """
import os
from pytest_hwqueue.noise import pinning
before = os.sched_getaffinity(0)
print(pinning.unavailable())
try:
    with pinning.pinned(os.getpid()):
        print("pinned")
except pinning.RemedyRefused as refused:
    print(refused)
print(os.sched_getaffinity(0) == before, os.getpriority(os.PRIO_PROCESS, 0))
"""


class Threaded:
    """A process with threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def add_thread(self) -> None:
        assert self._process.stdin is not None
        print("more", file=self._process.stdin, flush=True)
        assert self.read() == "another"

    def threads(self) -> list[psutil.Process]:
        return [psutil.Process(thread.id) for thread in psutil.Process(self.pid).threads()]

    def settings(self) -> set[tuple[tuple[int, ...], int]]:
        return {(tuple(each.cpu_affinity()), each.nice()) for each in self.threads()}


@contextmanager
def threaded() -> Iterator[Threaded]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        started = Threaded(process)
        assert started.read() == "ready"
        try:
            yield started
        finally:
            process.kill()


@given(st.sets(st.integers(0, 500), min_size=2))
def test_the_chosen_cores_restrict(allowed: set[int]) -> None:
    cores = chosen_cores(allowed)
    assert set(cores) < allowed
    assert 1 <= len(cores) <= 4
    assert 2 * len(cores) <= len(allowed)


@pytest.mark.parametrize(
    ("allowed", "cores"),
    [({0, 1}, [1]), ({3, 5, 9}, [9]), (set(range(16)), [12, 13, 14, 15])],
)
def test_cores_are_taken_from_the_end(allowed: set[int], cores: list[int]) -> None:
    assert chosen_cores(allowed) == cores


@needs_right
def test_all_threads_are_set_and_put_back() -> None:
    with threaded() as process:
        (before,) = process.settings()
        with pinned(process.pid) as remedy:
            record = remedy.record
            assert process.settings() == {(tuple(record.cores), record.nice)}
            assert (record.cores_before, record.nice_before) == (list(before[0]), before[1])
            assert set(record.cores) < set(record.cores_before)
            assert record.nice == record.nice_before - 10
            assert record.threads == 3
            process.add_thread()
            assert remedy.undone() is None
        assert len(process.threads()) == 4
        assert process.settings() == {before}


@needs_right
def test_it_is_put_back_after_a_failure() -> None:
    with threaded() as process:
        (before,) = process.settings()
        with pytest.raises(ValueError, match="of the measurement"), pinned(process.pid):
            raise ValueError("of the measurement")
        assert process.settings() == {before}


@needs_right
def test_a_thread_that_is_set_otherwise_meanwhile_is_found() -> None:
    with threaded() as process, pinned(process.pid) as remedy:
        thread = process.threads()[-1]
        thread.cpu_affinity(remedy.record.cores_before)
        reason = remedy.undone()
        assert reason is not None
        assert f"thread {thread.pid} has cores {remedy.record.cores_before}" in reason


@needs_right
def test_a_process_that_ends_meanwhile_is_no_failure() -> None:
    with threaded() as process, pinned(process.pid) as remedy:
        psutil.Process(process.pid).kill()
        psutil.Process(process.pid).wait()
        assert remedy.undone() is None
    with pytest.raises(RemedyRefused, match=f"process {process.pid} has ended"):
        pinned(process.pid).__enter__()


def test_one_core_is_refused() -> None:
    reasons: list[str | None] = []

    def on_one_core() -> None:
        # Of this thread alone.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        reasons.append(pinning.unavailable())

    thread = threading.Thread(target=on_one_core)
    thread.start()
    thread.join()
    assert reasons == ["there is only one core to run on, so pinning would restrict nothing"]


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 30,
    reason="needs two cores, and no limit that allows everybody a higher priority",
)
def test_without_the_right_it_is_refused_and_nothing_stays_changed() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHT, _TRIES], text=True, stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    unavailable, refused, left = said.stdout.splitlines()
    assert unavailable == refused
    assert "nice -10 is refused: it takes root, CAP_SYS_NICE or a limit" in unavailable
    assert "ulimit -e 30" in unavailable
    assert left == "True 0"
