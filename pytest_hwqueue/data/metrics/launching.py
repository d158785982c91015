"""Launching calls that several launchers make at once, and what explains them but the driver.

A launcher is a thread, or a process with one. A call's latency is seen by the thread that makes it:
from before the call to after its return. Each call gives the interpreter's lock away and takes it
again, so that threads' latencies may be Python's and not the driver's. The control tells: the same
launchers make calls that take as long as a launch from one alone, and ask nothing of the driver.
What these take longer is the interpreter's doing, or that of cores which are too few. An empty call
would not tell: its thread has the lock again before any other wakes, so that few calls wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.latency import percentile
from pytest_hwqueue.data.metrics.numbers import counted, percent

CONTROL = "control"
"""Tag of the latencies of the control's calls."""
INTERPRETER, CORES = "interpreter", "cores"
"""Tags of the latencies of launching calls that are no figure of the driver, by whose they are."""
MOST_EXPLAINED = 0.2
"""Share of the P99 of launching calls up to which something else may explain it."""

LaunchedBy = Literal["threads", "processes"]


@dataclass(frozen=True)
class LaunchingWindow:
    """Calls that launchers make together, on one clock.

    Attributes:
        begun_ns: when each call began, by launcher and in its order.
        returned_ns: when it returned, likewise.

    """

    begun_ns: Sequence[Sequence[int]]
    returned_ns: Sequence[Sequence[int]]

    @property
    def together_ns(self) -> tuple[int, int]:
        """From when the last one began its first call to when the first one returned from its last.

        If one made no call, or had returned from its last before another began, it ends before it
        begins.
        """
        if not all(self.begun_ns):
            return 0, -1
        return max(each[0] for each in self.begun_ns), min(each[-1] for each in self.returned_ns)

    @property
    def whole_ns(self) -> int:
        """From the first call's begin to the last one's return."""
        begun = min(each[0] for each in self.begun_ns if each)
        return max(each[-1] for each in self.returned_ns if each) - begun

    @property
    def calls(self) -> int:
        """How many there are of all launchers."""
        return sum(map(len, self.begun_ns))

    def latencies(self) -> list[int]:
        """Return the latency of each call begun while all were calling, in that order.

        One that returns later counts whole: to leave it out would leave out the longest.
        """
        from_ns, until_ns = self.together_ns
        found = [
            (begun, returned - begun)
            for begun, returned in self._spans()
            if from_ns <= begun < until_ns
        ]
        return [latency for _, latency in sorted(found)]

    def inside_ns(self) -> int:
        """Return the time that launchers spent inside calls while all were calling, summed."""
        from_ns, until_ns = self.together_ns
        return sum(
            max(0, min(returned, until_ns) - max(begun, from_ns))
            for begun, returned in self._spans()
        )

    def _spans(self) -> Iterator[tuple[int, int]]:
        for begun, returned in zip(self.begun_ns, self.returned_ns, strict=True):
            yield from zip(begun, returned, strict=True)


class LaunchingCalls(PlainData):
    """How launching calls were timed while a launcher for each stream made them."""

    launchers: int = Field(description="each of which launched on a stream of its own")
    by: LaunchedBy = Field(description="what a launcher is: a thread, or a process with one")
    windows: int = Field(
        description="in which all launched at once; behind each came one of the control"
    )
    launches: int = Field(description="of all launchers in a window")
    most_held: int = Field(
        description="launches after which a launcher waits for its stream, untimed, so that no "
        "launch queue is full, which a call would wait for"
    )
    windows_ns: list[int] = Field(
        description="from the first launching call's begin to the last one's return, of each window"
    )
    inside: float | None = Field(
        description="time mean of the launchers inside a call while all were launching; "
        "null where they never were"
    )
    clock_ns: int | None = Field(
        description="what reading the clock twice adds to a latency; null where time is virtual"
    )
    alone_ns: int = Field(description="median of launching calls from one launcher alone")
    control_ns: int = Field(description="median of the control's calls from one launcher alone")
    explained: float | None = Field(
        description="by how much the control's P99 exceeds its calls from one launcher alone, as a "
        "share of the P99 of launching calls; null where launchers never were calling all at once"
    )
    refused: str = Field(
        description="whose the latencies are, and why no figure of the driver is given; empty if "
        "they are the driver's"
    )

    def rounds_ns(self) -> list[int]:
        """Return how long one launch of every launcher took in each window, in the mean."""
        return [max(1, round(each * self.launchers / self.launches)) for each in self.windows_ns]

    def tag(self, primary: str) -> str:
        """Return the tag of the latencies: ``primary``, or whose they are if not the driver's."""
        return self.refused.partition(":")[0] or primary

    @property
    def rate_has_waits(self) -> bool:
        """Whether the launches per second have threads' waits for their streams in them.

        A window's launches are shared: where they are as many as all threads may make without a
        wait, some thread makes more. A process waits only behind its last launch, and a model's
        threads (whose clock takes no time to read) never.
        """
        waits = self.by == "threads" and self.clock_ns is not None
        return waits and not self.refused and self.launches >= self.most_held * self.launchers

    def __str__(self) -> str:
        who = counted(self.launchers, "thread")
        if self.by == "processes":
            who = f"{self.launchers} process{'es' if self.launchers > 1 else ''}"
        said = f"launched by {who} at once"
        if self.inside is not None:
            said += f", {self.inside:.3g} of them inside a call"
        if self.rate_has_waits:
            said += "; the rate has their waits for their streams in it"
        return said


def inside(windows: Sequence[LaunchingWindow]) -> float | None:
    """Return the time mean, over windows, of launchers inside a call while all were calling.

    None if they never were.
    """
    spans = [window.together_ns for window in windows]
    total_ns = sum(max(0, until_ns - from_ns) for from_ns, until_ns in spans)
    if not total_ns:
        return None
    return sum(window.inside_ns() for window in windows) / total_ns


def explained(
    launches_ns: Sequence[int], control_ns: Sequence[int], control_alone_ns: int
) -> float | None:
    """Return the share of the P99 of launching calls that the control explains.

    Args:
        launches_ns: latencies of launching calls.
        control_ns: of the control's calls.
        control_alone_ns: median of the control's calls from one launcher alone.

    Returns:
        None if there are no latencies of one of them.

    """
    if not (launches_ns and control_ns):
        return None
    more_ns = max(0.0, percentile(control_ns, 0.99) - control_alone_ns)
    return more_ns / percentile(launches_ns, 0.99)


def not_the_drivers(share: float | None, by: LaunchedBy, *, native: bool, locked: bool) -> str:
    """Return whose the latencies of launching calls are, and why; empty if the driver's.

    Args:
        share: of their P99 that the control explains; None where launchers were never calling all
            at once.
        by: what a launcher is.
        native: whether a launch is one call that gives the interpreter's lock away.
        locked: whether an interpreter has a lock.

    """
    if by == "processes":
        whose, instead = CORES, "use fewer processes, or a machine with a core for each"
    else:
        without = ", or a Python without a lock" if locked else ""
        whose, instead = INTERPRETER, f"use fewer threads, or processes{without}"
        if not native and locked:
            return (
                f"{whose}: such a launch runs Python, one thread at a time; --hwq-dispatch=graph "
                "launches by a call that gives the interpreter's lock away, on a GPU"
            )
    if share is None:
        return f"{whose}: the {by} never were calling all at once; {instead}"
    if share > MOST_EXPLAINED:
        return (
            f"{whose}: {percent(share)} of this P99 is there without the driver, too, more than "
            f"{percent(MOST_EXPLAINED)}; {instead}"
        )
    return ""
