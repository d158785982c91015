"""The pass that times launches while all streams are at work.

A measured iteration is launched stream by stream and waited for: at its begin and its end some
streams are idle, and work that is shorter than its launch never meets another's. Here the work of
several iterations is held behind a gate until all of it is enqueued, then released at once
(`StreamPool.held_window`), and a launch's latency runs from the end of the one before it on its
stream to its own. Some windows run without marks behind launches: what a mark costs is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Literal

from pytest_hwqueue.data.errors import InvalidMeasurement
from pytest_hwqueue.data.metrics.contention import (
    Contention,
    HeldWindow,
    Instrument,
    MarkCost,
    in_flight,
    launch_rate,
    mark_cost,
)
from pytest_hwqueue.data.metrics.timeline import split_tag
from pytest_hwqueue.engine.cell.closed_loop import (
    ONE_RANK,
    RankSynchronisation,
    garbage_collection_held,
)
from pytest_hwqueue.engine.cell.program import (
    Enqueue,
    Program,
    TapedIteration,
    eager,
    marked_graphs,
)
from pytest_hwqueue.engine.cell.sample_plan import FEW, SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.held import MOST_MARKS, NotHeld
from pytest_hwqueue.parts.devices.protocol import Device, Marks, StreamPool
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency

# Of each stream in a window, at least. Five keep 32 streams of 48 eager launches within what 8
# connections hold (some 1,020 each on an H200).
_LAUNCHES = 5
# One window in four is followed by one without stamps, whose time says what they cost. Where that
# is not known (one launch a stream), or nothing is taken off (events), the rate needs fewer.
_ONE_IN, _ONE_IN_FOR_RATE = 4, 10
# Of many windows, so many in all.
_COMPARED = 10


@dataclass(frozen=True)
class JudgedLaunches:
    """Which launches of an iteration are judged.

    Attributes:
        taped: what the iteration enqueues.
        primary: the latency of its judged launches.
        any_tag: whether all tagged launches count, as those of a reference do.

    """

    taped: TapedIteration
    primary: PrimaryLatency
    any_tag: bool = False

    def __call__(self, tag: str | None) -> bool:
        """Whether launches of a tag are judged."""
        return tag is not None and (self.any_tag or split_tag(tag)[0] == self.primary.name)

    def by_stream(self) -> Counter[int]:
        """Return how many launches of an iteration are judged, by stream.

        Raises:
            InvalidMeasurement: if none is.

        """
        found = Counter(stream for stream, tag in self.taped.launches if self(tag))
        if not found:
            raise InvalidMeasurement(
                f"no launch of an iteration is tagged {self.primary.name}, which is judged"
            )
        return found

    def iterations(self, others: Collection[str]) -> int:
        """Return in how many iterations each of the other tags has samples enough for a P99."""
        known = Counter(split_tag(tag)[0] for tag in self.taped.tags)
        return max((ceil(FEW / known[tag]) for tag in others if known[tag]), default=1)


@dataclass(frozen=True)
class ContendedProgram:
    """An iteration without events, whose judged launches are launches of their own.

    Attributes:
        programs: by the number of marks behind each judged launch.
        judged: of its launches.

    """

    programs: Mapping[int, Program]
    judged: JudgedLaunches


def contended_program(
    device: Device, pool: StreamPool, enqueue: Enqueue, judged: JudgedLaunches, *, replayed: bool
) -> ContendedProgram:
    """Return an iteration for `contended_pass`.

    Args:
        device: to measure.
        pool: its streams.
        enqueue: one iteration, which has run before if it is to be captured.
        judged: of its launches.
        replayed: whether it is captured in graphs.

    """
    if not replayed:
        program = eager(device, enqueue, False)
        return ContendedProgram(dict.fromkeys(_EACH, program), judged)
    streams = frozenset(judged.by_stream())
    numbers = _EACH if _timed_by(device, judged) == "stamps" else (0,)
    programs = {
        each: marked_graphs(pool, enqueue, Marks(streams, "stamps", each)) for each in numbers
    }
    return ContendedProgram({each: programs.get(each, programs[0]) for each in _EACH}, judged)


_EACH = (0, 1, 2)


def _timed_by(device: Device, judged: JudgedLaunches) -> Instrument:
    if device.capabilities.host or device.capabilities.virtual_time:
        # Every launch's own times are known there.
        return "activity"
    return judged.primary.marks or "stamps"


@dataclass(frozen=True)
class ContendedPlan:
    """How much is measured.

    Attributes:
        samples: of the judged latency, if there is time.
        stop: when it ends, in windows.
        rank_sync: of the processes that do the same.
        flush: empties the device's cache before each window, whose streams then have one iteration.

    """

    samples: SamplePlan
    stop: StopRule
    rank_sync: RankSynchronisation = ONE_RANK
    flush: Callable[[], object] | None = None


@dataclass(frozen=True)
class ContendedResult:
    """What a contended pass found.

    Attributes:
        latencies_ns: window after window.
        contention: how they were taken.
        needed_windows: that the plan's samples take; time may have left fewer.

    """

    latencies_ns: list[int]
    contention: Contention
    needed_windows: int


def contended_pass(
    device: Device,
    pool: StreamPool,
    program: ContendedProgram,
    plan: ContendedPlan,
    pause: Callable[[int], object] = lambda windows: None,
) -> ContendedResult:
    """Time the judged launches of an iteration while all streams that it uses have work.

    Args:
        device: to measure.
        pool: its streams.
        program: one iteration.
        plan: how much is measured.
        pause: called between windows, with the number taken.

    Raises:
        DeviceError: if the device's clock cannot be read.
        InvalidMeasurement: if no launch is judged.

    """
    windows, judged = _Windows(device, pool, program, plan.flush), program.judged
    rank_sync, clock_ns = plan.rank_sync, device.clock_ns
    with garbage_collection_held():
        windows.begin(rank_sync)
        began_ns = clock_ns()
        first = windows.take(1)
        window_ns = max(1, clock_ns() - began_ns)
        needed = plan.samples.windows(
            max(1, len(first.latencies(judged))),
            window_ns,
            modelled=device.capabilities.virtual_time,
        )
        planned = rank_sync.agreed(min(needed, plan.stop.fitting(window_ns)))
        stopping = plan.stop.begin(device)
        for number in range(planned):
            rank_sync.barrier()
            windows.add(number % max(windows.one_in, -(-planned // _COMPARED)) == 0)
            if rank_sync.agreed(stopping.simulated_too_long()):
                break
            pause(number + 1)
    return windows.results(needed)


class _Windows:
    """The windows of one pass: with a mark behind each judged launch, without, and with two."""

    def __init__(
        self,
        device: Device,
        pool: StreamPool,
        program: ContendedProgram,
        flush: Callable[[], object] | None,
    ) -> None:
        self._pool, self._programs, self._judged = pool, program.programs, program.judged
        by_stream = program.judged.by_stream()
        least = min(by_stream.values())
        self._flush = flush
        # What the first iteration brings into the cache the second finds there.
        one = program.judged.primary.bounded or flush is not None
        launches = Counter(stream for stream, _ in program.judged.taped.launches)
        # Twice as many marks are needed to learn what one takes.
        fitting = MOST_MARKS // (2 * max(launches[stream] for stream in by_stream) + 1)
        self._iterations = 1 if one else max(1, min(ceil(_LAUNCHES / least), fitting))
        self._launches = self._iterations * least
        self._streams = frozenset(by_stream)
        self._hold, self._alone = True, True
        self._timed_by = _timed_by(device, program.judged)
        self._marked: list[HeldWindow] = []
        # Without marks, each behind the marked one before it.
        self._compared: list[tuple[HeldWindow, HeldWindow]] = []
        self._paired: list[HeldWindow] = []

    @property
    def one_in(self) -> int:
        """How many windows there are for one without marks, if they are few."""
        costs = self._timed_by == "stamps" and self._launches > 1
        return _ONE_IN if costs else _ONE_IN_FOR_RATE

    def begin(self, rank_sync: RankSynchronisation) -> None:
        """Take a window that is no sample, and find out whether all work can be held.

        Of several ranks each must: they enqueue the same windows.
        """
        self._alone = rank_sync.ranks.size == 1
        try:
            self.take(1)
        except NotHeld:
            if not self._alone:
                raise
            self._hold = False
            self.take(1)

    def take(self, each: int) -> HeldWindow:
        """Take a window with so many marks behind each launch of the judged streams."""
        by: Literal["stamps", "events"] = "events" if self._timed_by == "events" else "stamps"
        program, streams = self._programs[each], self._pool.streams

        def enqueue() -> None:
            for _ in range(self._iterations):
                program.enqueue(streams)

        marks = Marks(self._streams, by, each)

        def window() -> HeldWindow:
            if self._flush is not None:
                self._flush()
            return self._pool.held_window(enqueue, marks, hold=self._hold)

        try:
            return window()
        except NotHeld:
            if not self._alone:
                raise
            # This process may only have been stopped for a while.
            return window()

    def add(self, compare: bool) -> None:
        """Add a window, and with ``compare`` others that tell what marks cost, right behind it."""
        self._marked.append(self.take(1))
        if compare and self._timed_by != "activity":
            self._compared.append((self._marked[-1], self.take(0)))
            if self._timed_by == "stamps":
                self._paired.append(self.take(2))

    def results(self, needed: int) -> ContendedResult:
        """Return the latencies, and how they were taken."""
        latencies = [ns for window in self._marked for ns in window.latencies(self._judged)]
        unmarked = [bare for _, bare in self._compared]
        cost = mark_cost(self._compared, self._judged)
        stamp_ns = self._stamp_ns(cost)
        return ContendedResult(
            [max(1, ns - (stamp_ns or 0)) for ns in latencies],
            Contention(
                in_flight=in_flight(self._marked),
                streams=len(self._pool.streams),
                windows=len(self._marked),
                launches=self._launches,
                held=self._hold,
                timed_by=self._timed_by,
                instrument_ns=stamp_ns,
                mark_cost=cost,
                launches_per_s=launch_rate(unmarked or self._marked, self._judged),
            ),
            needed,
        )

    def _stamp_ns(self, cost: MarkCost | None) -> int | None:
        """Return what a stamp adds to a launch; None if nothing is stamped.

        Of two stamps in a row the second takes that long, unless it overlaps with other work, or
        launching it is what takes long: whole windows tell where their interval leaves it out.
        """
        pairs = [ns for window in self._paired for ns in window.pairs_ns]
        if not pairs:
            return None
        # Most pairs follow each other at once; where a stamp waits for other work, so does what it
        # is behind, and the mean would take that off.
        apart_ns = median(pairs)
        return round(apart_ns if cost is None else cost.nearest_ns(apart_ns))
