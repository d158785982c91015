"""Latencies of launches that wait for other streams' work, and how many streams were at work.

All streams' work is enqueued behind one gate and released at once, so that a launch is *ready* when
its stream's launch before it is done, and never waits for Python. How many streams had a ready,
unfinished launch is counted from when the device did each launch, not from the latencies: their sum
is the number of streams times the time by definition (Little's law), whatever ran at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.dependence import student_quantile
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.metrics.timeline import Timeline

# With two, Student's t has one degree of freedom, and 20 windows in a row are no independent ones.
_PAIRS = 5

Instrument = Literal["stamps", "events", "activity"]

KEPT_FULL = 0.9
"""Share of a cell's streams that must be in flight for its latency to be one on so many streams."""


@dataclass(frozen=True, slots=True)
class HeldLaunch:
    """A launch of a held window; times in ns from the opening of the gate.

    Attributes:
        stream: index of its stream.
        tag: its tag, if it has one.
        enqueued_ns: when the host enqueued it; below 0 if before the gate opened.
        done_ns: when the device had done it; None if nothing marked that.

    """

    stream: int
    tag: str | None
    enqueued_ns: int
    done_ns: int | None


@dataclass(frozen=True)
class HeldWindow:
    """One release of all streams' work.

    Attributes:
        launches: in the order of enqueueing.
        ended_ns: when each stream that got work had done all of it, by index, from the opening.
        pairs_ns: of launches that were marked twice, the time between their marks.

    """

    launches: tuple[HeldLaunch, ...]
    ended_ns: Mapping[int, int]
    pairs_ns: tuple[int, ...] = ()

    @property
    def contended_ns(self) -> int:
        """How long all streams had work: from the opening until the first has none left."""
        return min(self.ended_ns.values(), default=0)

    def busy_ns(self) -> int:
        """Return the time that streams had a ready, unfinished launch while all had work, summed.

        Of launches that nothing marked, a stream's next mark (or its end) tells: until the last of
        them is enqueued they count for nothing, so that work in doubt is never taken for work.
        """
        until = self.contended_ns
        free_ns: dict[int, int] = {}
        busy = 0
        last = {each.stream: each for each in self.launches}
        for each in self.launches:
            done = self.ended_ns[each.stream] if each is last[each.stream] else each.done_ns
            if done is None:
                continue
            ready = max(each.enqueued_ns, free_ns.get(each.stream, 0))
            free_ns[each.stream] = done
            busy += max(0, min(done, until) - max(0, ready))
        return busy

    def latencies(self, judged: Callable[[str | None], bool]) -> list[int]:
        """Return the latency from ready to done of judged launches, in ns, in enqueueing order.

        One that is ready while all streams have work counts whole, however long it takes: to leave
        out what is not done by then would leave out the longest. The first launch of a stream waits
        some µs for the opening of the gate to get around. It counts only if it is all that the
        stream has while all have work.
        """
        until = self.contended_ns
        before_ns: dict[int, int | None] = {}
        found: list[tuple[int, int]] = []
        counts: Counter[int] = Counter()
        for each in self.launches:
            before = before_ns.get(each.stream, 0)
            before_ns[each.stream] = each.done_ns
            if before is None or each.done_ns is None or not judged(each.tag):
                continue
            ready = max(each.enqueued_ns, before)
            if ready < until or not counts[each.stream]:
                found.append((each.stream, each.done_ns - ready))
                counts[each.stream] += 1
        firsts = {stream for stream, count in counts.items() if count > 1}
        latencies = []
        for stream, latency in found:
            if stream in firsts:
                firsts.remove(stream)
            else:
                latencies.append(latency)
        return latencies


def window_of(timeline: Timeline, opened_ns: int | None = None) -> HeldWindow:
    """Return the window that a pass's kernels show.

    Args:
        timeline: of the pass.
        opened_ns: when it began, for one without a gate.

    Raises:
        ValueError: if neither says when it began.

    """
    opened = timeline.released_ns if opened_ns is None else opened_ns
    if opened is None:
        raise ValueError("the pass had no gate")
    launches: dict[int, HeldLaunch] = {}
    ended: dict[int, int] = {}
    for kernel in timeline.kernels:
        known = launches.get(kernel.launch)
        done = kernel.end_ns - opened
        if known is not None and known.done_ns is not None:
            done = max(done, known.done_ns)
        launches[kernel.launch] = HeldLaunch(
            kernel.stream, kernel.tag, kernel.enqueued_ns - opened, done
        )
        ended[kernel.stream] = max(done, ended.get(kernel.stream, done))
    return HeldWindow(tuple(launches[index] for index in sorted(launches)), ended)


class MarkCost(PlainData):
    """What the mark behind a launch adds to its latency, as whole windows tell.

    Windows with a mark behind each launch are held against the next one without.
    """

    added_ns: float = Field(description="mean over pairs of windows")
    low_ns: float = Field(description="lower end of its interval, Student's t over pairs, 95 %")
    high_ns: float = Field(description="upper end")
    launch_ns: float = Field(description="a launch's mean latency without marks")

    def nearest_ns(self, added_ns: float) -> float:
        """Return what lies in the interval and is nearest to ``added_ns``, which is above 0.

        An interval below 0 says what windows differ by and nothing of marks, which take time.
        """
        if self.high_ns <= 0:
            return added_ns
        return min(max(added_ns, self.low_ns), self.high_ns)


class Contention(PlainData):
    """How a cell's judged latency was taken while its streams were at work together."""

    in_flight: float = Field(
        description="time mean of the streams that had a ready, unfinished launch while all had "
        "work"
    )
    streams: int
    windows: int = Field(description="releases of all streams' work from behind a gate")
    launches: int = Field(description="of a stream in a window, at least")
    held: bool = Field(
        description="whether all work was enqueued before it was released; if not, launching it "
        "was measured"
    )
    timed_by: Instrument = Field(
        description="stamps: a kernel of one thread behind each launch stores the device's clock; "
        "events: one behind each launch; activity: the kernels' own times"
    )
    instrument_ns: int | None = Field(
        None, description="what a stamp adds to a launch, which is taken off its latency"
    )
    mark_cost: MarkCost | None = Field(
        None,
        description="what stamps or events add, by whole windows with and without; null where a "
        "stream's only launch has its mark in both, or fewer than 5 windows without were taken",
    )
    launches_per_s: float = Field(
        description="rate of judged launches, of windows without stamps or events but for one at "
        "each stream's end"
    )

    @property
    def enough(self) -> bool:
        """Whether so many streams were in flight that the latency is one on all of them."""
        return kept_full(self.in_flight, self.streams)

    def __str__(self) -> str:
        return in_flight_words(self.in_flight, self.streams)


def kept_full(in_flight: float, streams: int) -> bool:
    """Whether a latency taken with so many streams in flight is one on all of a cell's."""
    return in_flight >= KEPT_FULL * streams


def in_flight_words(in_flight: float, streams: int) -> str:
    """Return such as ``in flight 31.2 of 32 streams``."""
    return f"in flight {in_flight:.3g} of {counted(streams, 'stream')}"


def in_flight(windows: Sequence[HeldWindow]) -> float:
    """Return the time mean, over windows, of streams with a ready, unfinished launch.

    Raises:
        ValueError: if no window lasted.

    """
    total = sum(window.contended_ns for window in windows)
    if total <= 0:
        raise ValueError("no stream had work after the gate opened")
    return sum(window.busy_ns() for window in windows) / total


def launch_rate(windows: Sequence[HeldWindow], judged: Callable[[str | None], bool]) -> float:
    """Return judged launches per second: of all windows, until their last stream has none left.

    Raises:
        ValueError: if there is no judged launch.

    """
    launches = total_ns = 0
    for window in windows:
        streams = [each.stream for each in window.launches if judged(each.tag)]
        launches += len(streams)
        total_ns += max((window.ended_ns[stream] for stream in streams), default=0)
    if not launches or total_ns <= 0:
        raise ValueError("no judged launch was enqueued")
    return launches * 1e9 / total_ns


def mark_cost(
    pairs: Sequence[tuple[HeldWindow, HeldWindow]], judged: Callable[[str | None], bool]
) -> MarkCost | None:
    """Return what the marks behind launches add, or None where nothing can tell.

    From the opening until a stream's end it always has a launch under way, so a launch's mean
    latency needs no mark between them.

    Args:
        pairs: of windows, with marks behind all launches and without; nothing can tell from fewer
            than 5, or where each stream has one launch, which has its mark in either window.
        judged: of their launches: only streams that have some count.

    """
    if len(pairs) < _PAIRS:
        return None
    added_ns, launch_ns = [], []
    for marked, bare in pairs:
        streams = {each.stream for each in bare.launches if judged(each.tag)}
        launches = sum(each.stream in streams for each in bare.launches)
        if launches <= len(streams):
            return None
        with_marks, without = (
            sum(window.ended_ns[stream] for stream in streams) for window in (marked, bare)
        )
        # Each stream's last launch has its mark in both.
        added = (with_marks - without) / (launches - len(streams))
        added_ns.append(added)
        launch_ns.append((without - added * len(streams)) / launches)
    mean_ns = fmean(added_ns)
    error_ns = stdev(added_ns) / math.sqrt(len(pairs))
    half_ns = student_quantile(0.975, len(pairs) - 1) * error_ns
    return MarkCost(
        added_ns=mean_ns,
        low_ns=mean_ns - half_ns,
        high_ns=mean_ns + half_ns,
        launch_ns=max(1.0, fmean(launch_ns)),
    )
