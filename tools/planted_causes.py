"""Delays of known cause, planted into requests of the host device: what `tools.causes_confusion` runs.

A plant is a function that delays whoever calls it and returns by how much, in ns, as far as the plant
itself is the reason. Some delay from outside: those say afterwards when.
"""

from __future__ import annotations

import gc
import mmap
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch

from pytest_hwqueue.metrics.delay_evidence import Cause
from pytest_hwqueue.metrics.intervals import Span

DELAY_NS = 12_000_000
_DELAY_S = DELAY_NS / 1e9
_PAGES = 96
_NEIGHBOUR = "hwq-neighbour"
_GARBAGE = 60_000

Plant = Callable[[], int]
Where = Literal["stream", "launching thread", "outside"]


class CannotPlant(Exception):
    """A delay cannot be planted here; the text says why."""


@dataclass(frozen=True)
class Kind:
    """A kind of planted delay.

    Attributes:
        name: for the table.
        where: which thread it delays; ``outside`` plants by another process.
        cause: that it should be given.
        what: a part of what should be named.
        opened: makes the plant, from the number of plants; from outside a function that ends it and
            returns when it delayed.
        at_level: what else should be named at some levels, or None there: it cannot be seen.

    """

    name: str
    where: Where
    cause: Cause
    what: str
    opened: Callable[[int], AbstractContextManager[Plant | Outside]]
    at_level: dict[str, str | None] | None = None

    def expected(self, level: str) -> tuple[Cause | None, str]:
        """Return the cause that is right at a level of tracing, and what it should name."""
        what = (self.at_level or {}).get(level, self.what)
        return (None, "") if what is None else (self.cause, what)


Outside = Callable[[], list[Span]]


@contextmanager
def _simple(plant: Plant) -> Iterator[Plant]:
    yield plant


def _sleep() -> int:
    time.sleep(_DELAY_S)
    return DELAY_NS


def _computes() -> int:
    before_ns = time.thread_time_ns()
    while time.thread_time_ns() - before_ns < DELAY_NS:
        sum(range(1000))
    return time.thread_time_ns() - before_ns


@contextmanager
def _helped(prepare: Callable[[], None], wait: Callable[[], object], end: Callable[[], None]):  # type: ignore[no-untyped-def]
    """Make a plant that waits for what another thread does a while later."""
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def help_out() -> None:
        while asked.get():
            time.sleep(_DELAY_S)
            end()

    helper = threading.Thread(target=help_out, daemon=True)
    helper.start()

    def plant() -> int:
        prepare()
        asked.put(True)
        wait()
        return DELAY_NS

    try:
        yield plant
    finally:
        asked.put(False)
        helper.join()


@contextmanager
def _lock(_: int) -> Iterator[Plant]:
    lock = threading.Lock()

    def wait() -> None:
        with lock:
            pass

    with _helped(lock.acquire, wait, lock.release) as plant:
        yield plant


@contextmanager
def _pipe(wait: Callable[[int], object]) -> Iterator[Plant]:
    reader, writer = os.pipe()

    def waits() -> None:
        wait(reader)
        os.read(reader, 1)

    try:
        with _helped(lambda: None, waits, lambda: os.write(writer, b"x")) as plant:
            yield plant
    finally:
        os.close(reader)
        os.close(writer)


@contextmanager
def _faults(plants: int) -> Iterator[Plant]:
    """Touch pages of a file that the page cache has forgotten."""
    size = (plants + 2) * _PAGES * mmap.PAGESIZE
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(size))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as pages:
            pages.madvise(mmap.MADV_RANDOM)
            at = count(0, _PAGES * mmap.PAGESIZE)

            def plant() -> int:
                before = resource.getrusage(resource.RUSAGE_THREAD)
                began_ns = time.perf_counter_ns()
                first = next(at)
                for offset in range(first, first + _PAGES * mmap.PAGESIZE, mmap.PAGESIZE):
                    _ = pages[offset]
                took_ns = time.perf_counter_ns() - began_ns
                faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before.ru_majflt
                return took_ns if faults >= _PAGES // 2 else 0

            if not plant():
                raise CannotPlant(
                    f"pages of a file in {tempfile.gettempdir()} come without reading a disk"
                )
            yield plant


@contextmanager
def _garbage(_: int) -> Iterator[Plant]:
    # What there is already is not looked at: else this takes 0.1 s and more.
    gc.collect()
    gc.freeze()
    kept = [[index] for index in range(_GARBAGE)]

    def plant() -> int:
        took_ns = 0
        while took_ns < DELAY_NS:
            before_ns = time.thread_time_ns()
            gc.collect()
            took_ns += time.thread_time_ns() - before_ns
        return took_ns

    try:
        yield plant
    finally:
        kept.clear()
        gc.unfreeze()


@contextmanager
def _compiles(_: int) -> Iterator[Plant]:
    import torch._dynamo

    values = torch.ones(8)
    numbers = count()

    def plant() -> int:
        before_ns = time.thread_time_ns()
        # New code each time: the same function is compiled once, and then refused.
        source = f"def step(x):\n    return x.sin() + {next(numbers)}.5\n"
        names: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        exec(source, names)
        torch.compile(names["step"], backend="eager", dynamic=False)(values)
        return time.thread_time_ns() - before_ns

    plant()
    try:
        yield plant
    finally:
        torch._dynamo.reset()


_STOPPER = """
import os, random, signal, sys, time
pid, plants, delay_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draw, spans = random.Random(5), []
time.sleep(0.05)
for _ in range(plants):
    time.sleep(draw.uniform(0.02, 0.04))
    begin = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(delay_s)
    spans.append((begin, time.monotonic_ns()))
    os.kill(pid, signal.SIGCONT)
print(spans)
"""
# It is on the core between two readings of the clock that are near to each other.
_BURNER = """
import os, random, sys, time
cpu, plants, delay_s, name = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
os.sched_setaffinity(0, {cpu})
open("/proc/self/comm", "w").write(name)
draw, spans = random.Random(3), []
time.sleep(0.05)
for _ in range(plants):
    time.sleep(draw.uniform(0.05, 0.09))
    begin = before = time.monotonic_ns()
    spent = time.thread_time() + delay_s
    while time.thread_time() < spent:
        now = time.monotonic_ns()
        if now - before > 100_000:
            spans.append((begin, before))
            begin = now
        before = now
    spans.append((begin, before))
print(spans)
"""


@contextmanager
def _by_process(script: str, *arguments: object) -> Iterator[Outside]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end() -> list[Span]:
        output, _ = process.communicate(timeout=120)
        numbers = [
            int(word.strip("[](), ")) for word in output.split(",") if word.strip("[](),\n ")
        ]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    try:
        yield end
    finally:
        process.kill()
        process.wait()
        # Whoever was to be continued.
        os.kill(os.getpid(), signal.SIGCONT)


@contextmanager
def _neighbour(plants: int) -> Iterator[Outside]:
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    os.sched_setaffinity(0, {cpu})
    try:
        with _by_process(_BURNER, cpu, plants, _DELAY_S, _NEIGHBOUR) as end:
            yield end
    finally:
        os.sched_setaffinity(0, allowed)


_UNNAMED = "not visible"
KINDS: Sequence[Kind] = (
    Kind("own work", "stream", "own work", "planted", lambda _: _simple(_computes)),
    Kind("sleep", "stream", "blocked", "sleep (clock_nanosleep", lambda _: _simple(_sleep)),
    Kind(
        "sleep, who launches", "launching thread", "blocked", "sleep (clock_nanosleep",
        lambda _: _simple(_sleep),
    ),
    Kind("lock", "stream", "blocked", "lock (futex", _lock),
    Kind("I/O: read", "stream", "blocked", "I/O (read", lambda _: _pipe(lambda _: None)),
    Kind(
        "I/O: wait for it", "stream", "blocked", "I/O (pselect6",
        lambda _: _pipe(lambda reader: select.select([reader], [], [])),
    ),
    Kind("page fault", "stream", "blocked", "page fault", _faults),
    Kind("garbage collection", "stream", "garbage collection", "generation 2", _garbage),
    Kind(
        "compilation, who launches", "launching thread", "compilation", "torch.compile", _compiles
    ),
    Kind(
        "stopped by a signal", "outside", "descheduled", "stopped by a signal",
        lambda plants: _by_process(_STOPPER, os.getpid(), plants, _DELAY_S),
    ),
    Kind(
        "neighbour on the core", "outside", "descheduled", _NEIGHBOUR, _neighbour,
        {"perf-self": _UNNAMED, "rusage": _UNNAMED, "none": None},
    ),
)  # fmt: skip
