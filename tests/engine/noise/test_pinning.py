"""Pinning and priority, set, read back and undone, on real processes."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.engine.noise import pinning
from pytest_hwqueue.engine.noise.pinning import (
    chosen_cores,
    isolated_cores,
    isolation,
    listed_cores,
    pinned,
    read_hyperthreads,
)

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
from pytest_hwqueue.engine.noise import pinning
before = os.sched_getaffinity(0)
print(pinning.unavailable())
try:
    with pinning.pinned(os.getpid()):
        print("pinned")
except pinning.NotProven as refused:
    print(refused)
print(os.sched_getaffinity(0) == before, os.getpriority(os.PRIO_PROCESS, 0))
"""


class Threaded:
    """A process with threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid, self._process = process.pid, process

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def add_thread(self) -> None:
        assert self._process.stdin is not None
        print("more", file=self._process.stdin, flush=True)
        assert self.read() == "another"

    def end(self) -> None:
        psutil.Process(self.pid).kill()
        psutil.Process(self.pid).wait()

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
def test_the_chosen_cores_restrict_and_are_taken_from_the_end(allowed: set[int]) -> None:
    cores = chosen_cores(allowed)
    assert cores == sorted(allowed)[-len(cores) :]
    assert len(cores) == min(4, len(allowed) // 2)


@given(st.sets(st.integers(0, 500)), st.randoms())
def test_cores_are_read_as_the_kernel_lists_them(cores: set[int], rng: random.Random) -> None:
    parts, left = [], sorted(cores)
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1 and rng.random() < 0.7:
            last = left.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    assert listed_cores(f"{','.join(parts)}\n") == cores


def test_hyperthreads_are_read_where_the_kernel_tells(tmp_path: Path) -> None:
    for core, text in ((0, "0,8\n"), (1, "")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    assert read_hyperthreads({0, 1, 2}, tmp_path) == {0: {0, 8}}


def grouped(*groups: set[int]) -> dict[int, set[int]]:
    """Hyperthreads as they are read, from the physical cores."""
    return {core: group for group in groups for core in group}


@st.composite
def processors(draw: st.DrawFn) -> tuple[set[int], dict[int, set[int]]]:
    """The cores of a machine with 1, 2 or 4 hyperthreads each, numbered in either way."""
    threads, physical = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 16))
    cores = range(threads * physical)
    split = draw(st.booleans())
    groups = [
        set(cores[place::physical]) if split else set(cores[place * threads :][:threads])
        for place in range(physical)
    ]
    allowed = draw(st.sets(st.sampled_from(cores), min_size=1))
    return allowed, grouped(*(group for group in groups if draw(st.integers(0, 9))))


@given(processors())
def test_both_sides_have_cores_and_share_no_physical_one(
    processor: tuple[set[int], dict[int, set[int]]],
) -> None:
    allowed, hyperthreads = processor
    try:
        found = isolated_cores(allowed, allowed, hyperthreads)
    except NotProven:
        last = max(allowed)
        assert len(allowed) == 1 or allowed <= hyperthreads[last]
        return
    measured, neighbours = set(found.measured), set(found.neighbours)
    assert measured
    assert neighbours
    assert not any(hyperthreads.get(core, {core}) & neighbours for core in measured)
    # Nothing more is taken from neighbours, and what is known of a core is said.
    assert set(found.kept_free) == measured.union(*(hyperthreads.get(one, ()) for one in measured))
    assert neighbours == allowed - set(found.kept_free)
    assert set(found.unknown) == measured - hyperthreads.keys()
    # As many of those of pinning alone as leave neighbours any.
    pinned_to = chosen_cores(allowed)
    assert found.measured == pinned_to[-len(measured) :]
    more = pinned_to[-len(measured) - 1 :]
    taken = set(more).union(*(hyperthreads.get(core, ()) for core in more))
    assert more == found.measured or not allowed - taken


def test_a_process_that_may_use_one_core_or_has_ended_is_refused() -> None:
    with pytest.raises(NotProven, match=r"core 1 and its hyperthreads \(0, 1\).*more of them"):
        isolated_cores({0, 1}, {0, 1}, grouped({0, 1}))
    reasons: list[str | None] = []

    def on_one_core() -> None:
        # Of this thread alone.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        reasons.append(pinning.unavailable())

    thread = threading.Thread(target=on_one_core)
    thread.start()
    thread.join()
    assert reasons == ["there is only one core to run on, so pinning would restrict nothing"]
    with threaded() as process:
        psutil.Process(process.pid).cpu_affinity([min(os.sched_getaffinity(0))])
        with pytest.raises(NotProven, match="only one core"):
            isolation([os.getpid(), process.pid])
        process.end()
    with pytest.raises(NotProven, match="has ended"):
        isolation([process.pid])
    with pytest.raises(NotProven, match=f"has ended: .*{process.pid}"):
        pinned(process.pid).__enter__()


@needs_right
@pytest.mark.parametrize("isolated", [
    False,
    pytest.param(True, marks=pytest.mark.skipif(
        pinning.unavailable(isolated=True) is not None,
        reason=f"needs isolation: {pinning.unavailable(isolated=True)}",
    )),
])  # fmt: skip
def test_all_threads_are_set_and_put_back_even_after_a_failure(isolated: bool) -> None:
    with threaded() as process:
        (before,) = process.settings()
        found = isolation([process.pid]) if isolated else None
        with suppress(ZeroDivisionError), pinned(process.pid, found) as remedy:
            record = remedy.record
            assert process.settings() == {(tuple(record.cores), record.nice)}
            assert (record.cores_before, record.nice_before) == (list(before[0]), before[1])
            assert set(record.cores) < set(record.cores_before)
            assert (record.nice, record.threads) == (record.nice_before - 10, 3)
            assert record.kept_free == (found.kept_free if found else [])
            assert record.hyperthreads_unknown == (found.unknown if found else [])
            assert found is None or record.cores == found.measured
            process.add_thread()
            assert remedy.undone() is None
            raise ZeroDivisionError("of the measurement")
        assert len(process.threads()) == 4
        assert process.settings() == {before}


@needs_right
def test_a_thread_that_is_set_otherwise_is_found_and_an_end_is_no_failure() -> None:
    with threaded() as process, pinned(process.pid) as remedy:
        thread = process.threads()[-1]
        thread.cpu_affinity(remedy.record.cores_before)
        expected = f"thread {thread.pid} has cores {remedy.record.cores_before}"
        assert expected in (remedy.undone() or "")
        process.end()
        assert remedy.undone() is None


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
