"""Delays of known cause for requests of the host device, which `confusion` plants.

A plant is a function that delays whoever calls it and returns by how much, in ns, as far as the
plant itself is the reason. Some delay from outside: those say afterwards when.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch

from pytest_hwqueue.data.metrics.attribution import Cause
from pytest_hwqueue.data.metrics.timeline import Span

DELAY_NS = 40_000_000
_DELAY_S = DELAY_NS / 1e9
# Short enough that most requests beside it are above P95.
_BURST_S = 0.01
_NEIGHBOUR = "hwq-neighbour"
_GARBAGE = 60_000

Plant = Callable[[], int]
Where = Literal["stream", "launching thread", "outside"]


class CannotPlant(Exception):
    """A delay cannot be planted here; the text says why."""


@dataclass(frozen=True)
class Outside:
    """Another process that delays this one.

    Attributes:
        begin: has it begin.
        end: waits for its end, and returns when it delayed.
        takes_ns: how long it takes, at least.

    """

    begin: Callable[[], None]
    end: Callable[[], list[Span]]
    takes_ns: int


@dataclass(frozen=True)
class Kind:
    """A kind of planted delay.

    Attributes:
        name: for the table.
        where: which thread it delays; ``outside`` plants by another process.
        cause: that it should be given.
        what: a part of what should be named.
        opened: makes the plant, from the number of plants.
        at_level: what else it should be given at some levels; None there if it cannot be seen.
        mostly: the least share of a request's delay that the plant has to be for it to count.

    """

    name: str
    where: Where
    cause: Cause
    what: str
    opened: Callable[[int], AbstractContextManager[Plant | Outside]]
    at_level: Mapping[str, tuple[Cause, str] | None] | None = None
    mostly: float = 0.5

    def expected(self, level: str) -> tuple[Cause | None, str]:
        """Return the cause that is right at a level of tracing, and what it should name."""
        return (self.at_level or {}).get(level, (self.cause, self.what)) or (None, "")


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
def _helped(
    prepare: Callable[[], object], wait: Callable[[], object], end: Callable[[], object]
) -> Iterator[Plant]:
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
def _pipe(_: int) -> Iterator[Plant]:
    reader, writer = os.pipe()
    with (
        open(reader, "rb", 0) as read,
        open(writer, "wb", 0) as write,
        _helped(int, lambda: read.read(1), lambda: write.write(b"x")) as plant,
    ):
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
def _compiles(plants: int) -> Iterator[Plant]:
    import torch._dynamo

    values = torch.ones(8)
    numbers = count()

    def plant() -> int:
        before_ns = time.thread_time_ns()
        # New code each time: the same function is compiled once.
        source = f"def step(x):\n    return x.sin() + {next(numbers)}.5\n"
        names: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        exec(source, names)
        torch.compile(names["step"], backend="eager", dynamic=False)(values)
        return time.thread_time_ns() - before_ns

    # Functions of the same name count together, and after eight none is compiled any more.
    with torch._dynamo.config.patch(recompile_limit=plants + 8):
        plant()
        yield plant
    torch._dynamo.reset()


_STOPPER = """
import json, os, random, signal, sys, time
pid, plants, delay_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draw, spans = random.Random(5), []
sys.stdin.readline()
for _ in range(plants):
    time.sleep(draw.uniform(0.06, 0.1))
    begin = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(delay_s)
    spans.append((begin, time.monotonic_ns()))
    os.kill(pid, signal.SIGCONT)
print(json.dumps(spans))
"""
# It is on the core between two readings of the clock that are near to each other.
_BURNER = """
import json, os, random, sys, time
cpu, plants, delay_s, name = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
os.sched_setaffinity(0, {cpu})
open("/proc/self/comm", "w").write(name)
draw, spans = random.Random(3), []
sys.stdin.readline()
for _ in range(plants):
    time.sleep(draw.uniform(0.18, 0.22))
    begin = before = time.monotonic_ns()
    spent = time.thread_time() + delay_s
    while time.thread_time() < spent:
        now = time.monotonic_ns()
        if now - before > 100_000:
            spans.append((begin, before))
            begin = now
        before = now
    spans.append((begin, before))
print(json.dumps(spans))
"""


@contextmanager
def _by_process(script: str, takes_s: float, *arguments: object) -> Iterator[Outside]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    pipe = process.stdin

    def begin() -> None:
        pipe.write("\n")

    def end() -> list[Span]:
        output, _ = process.communicate(timeout=120)
        return [(begin_ns, end_ns) for begin_ns, end_ns in json.loads(output)]

    try:
        yield Outside(begin, end, round(takes_s * 1e9))
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
        with _by_process(_BURNER, plants * 0.22, cpu, plants, _BURST_S, _NEIGHBOUR) as end:
            yield end
    finally:
        os.sched_setaffinity(0, allowed)


_UNTOLD: Mapping[str, tuple[Cause, str] | None] = {"rusage": None}
_UNNAMED: tuple[Cause, str] = ("descheduled", "not visible")
KINDS: Sequence[Kind] = (
    Kind("own work", "stream", "own work", "planted", lambda _: _simple(_computes)),
    Kind("sleep", "stream", "blocked", "waited", lambda _: _simple(_sleep), _UNTOLD),
    Kind(
        "sleep, who launches", "launching thread", "blocked", "waited",
        lambda _: _simple(_sleep), _UNTOLD,
    ),
    Kind("lock", "stream", "blocked", "waited", _lock, _UNTOLD),
    Kind("I/O", "stream", "blocked", "waited", _pipe, _UNTOLD),
    Kind("garbage collection", "stream", "garbage collection", "generation 2", _garbage),
    Kind(
        "compilation, who launches", "launching thread", "compilation", "torch.compile", _compiles
    ),
    Kind(
        "stopped by a signal", "outside", "descheduled", "stopped by a signal",
        lambda plants: _by_process(_STOPPER, plants * 0.1, os.getpid(), plants, _DELAY_S),
        {"switches": ("blocked", "waited"), "rusage": None},
    ),
    Kind(
        "neighbour on the core", "outside", "descheduled", _NEIGHBOUR, _neighbour,
        {"switches": _UNNAMED, "rusage": _UNNAMED},
        # A thread's own switches tell who had its core first and last. Where a third process was
        # there too, either may be the third.
        mostly=0.9,
    ),
)  # fmt: skip
