"""Launching calls that several threads make at once, and how much of them the interpreter explains.

A call's latency is seen by the thread that makes it: from before the call to after its return. Each
call gives the interpreter's lock away and takes it again, so that its latency may be Python's and
not the driver's. The control tells: the same threads make calls that take as long as a launch from
one thread alone, and ask nothing of the driver. What these take longer is the interpreter's doing,
or that of cores which are too few. An empty call would not tell: its thread takes the lock again
before any other wakes, so that few calls wait, and those of a driver as short as that never do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.latency import percentile
from pytest_hwqueue.data.metrics.numbers import counted, percent

CONTROL = "control"
"""Tag of the latencies of the control's calls."""
INTERPRETER = "interpreter"
"""Tag of the latencies of launching calls that are no figure of the driver."""
MOST_EXPLAINED = 0.2
"""Share of the P99 of launching calls up to which the interpreter may explain it."""


@dataclass(frozen=True)
class LaunchingWindow:
    """Calls that threads make together, on one clock.

    Attributes:
        begun_ns: when each call began, by thread and in its order.
        returned_ns: when it returned, likewise.

    """

    begun_ns: Sequence[Sequence[int]]
    returned_ns: Sequence[Sequence[int]]

    @property
    def together_ns(self) -> tuple[int, int]:
        """From when the last thread began its first call to when the last call was begun.

        Until then every thread goes on calling. If one made no call, it ends before it begins.
        """
        if not all(self.begun_ns):
            return 0, -1
        return max(each[0] for each in self.begun_ns), max(each[-1] for each in self.begun_ns)

    @property
    def whole_ns(self) -> int:
        """From the first call's begin to the last one's return."""
        begun = min(each[0] for each in self.begun_ns if each)
        return max(each[-1] for each in self.returned_ns if each) - begun

    @property
    def calls(self) -> int:
        """How many there are of all threads."""
        return sum(map(len, self.begun_ns))

    def latencies(self) -> list[int]:
        """Return the latency of each call begun while all threads were calling, in that order.

        One that returns later counts whole: to leave it out would leave out the longest.
        """
        from_ns, until_ns = self.together_ns
        found = [
            (begun, returned - begun)
            for begun, returned in self._spans()
            if from_ns <= begun <= until_ns
        ]
        return [latency for _, latency in sorted(found)]

    def inside_ns(self) -> int:
        """Return the time that threads spent inside calls while all were calling, summed."""
        from_ns, until_ns = self.together_ns
        return sum(
            max(0, min(returned, until_ns) - max(begun, from_ns))
            for begun, returned in self._spans()
        )

    def _spans(self) -> Iterator[tuple[int, int]]:
        for begun, returned in zip(self.begun_ns, self.returned_ns, strict=True):
            yield from zip(begun, returned, strict=True)


class LaunchingCalls(PlainData):
    """How launching calls were timed while a thread for each stream made them."""

    threads: int = Field(description="of the host, each of which launched on a stream of its own")
    windows: int = Field(
        description="in which all threads launched at once; behind each came one of the control"
    )
    launches: int = Field(description="of all threads in a window")
    most_held: int = Field(
        description="launches of a thread after which it waits for its stream, untimed, so that no "
        "launch queue is full, which a call would wait for"
    )
    windows_ns: list[int] = Field(
        description="from the first launching call's begin to the last one's return, of each window"
    )
    inside: float | None = Field(
        description="time mean of the threads inside a launching call while all were launching; "
        "null where they never were"
    )
    clock_ns: int | None = Field(
        description="what reading the clock twice adds to a latency; null where time is virtual"
    )
    alone_ns: int = Field(description="median of launching calls from one thread alone")
    control_ns: int = Field(description="median of the control's calls from one thread alone")
    explained: float | None = Field(
        description="by how much the control's P99 exceeds its calls from one thread alone, as a "
        "share of the P99 of launching calls; null where threads never were calling all at once"
    )
    interpreter: str = Field(
        description="why the latencies are the interpreter's, and no figure of the driver is "
        "given; empty if they are the driver's"
    )

    def rounds_ns(self) -> list[int]:
        """Return how long one launch of every thread took in each window, in the mean."""
        return [max(1, round(each * self.threads / self.launches)) for each in self.windows_ns]

    def __str__(self) -> str:
        said = f"launched by {counted(self.threads, 'thread')} at once"
        return said if self.inside is None else f"{said}, {self.inside:.3g} of them inside a call"


def inside(windows: Sequence[LaunchingWindow]) -> float | None:
    """Return the time mean, over windows, of threads inside a call while all were calling.

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
        control_alone_ns: median of the control's calls from one thread alone.

    Returns:
        None if there are no latencies of one of them.

    """
    if not (launches_ns and control_ns):
        return None
    more_ns = max(0.0, percentile(control_ns, 0.99) - control_alone_ns)
    return more_ns / percentile(launches_ns, 0.99)


def interpreters(share: float | None, *, native: bool, locked: bool) -> str:
    """Return why latencies of launching calls are the interpreter's; empty if the driver's.

    Args:
        share: of their P99 that the control explains; None where threads were never calling at
            once.
        native: whether a launch is one call that gives the interpreter's lock away.
        locked: whether this interpreter has a lock.

    """
    if not native and locked:
        return (
            f"{INTERPRETER}: such a launch runs Python, one thread at a time; --hwq-dispatch=graph "
            "launches by a call that gives the interpreter's lock away, on a GPU"
        )
    instead = "use fewer threads, processes, or a Python without a lock"
    if share is None:
        return f"{INTERPRETER}: its threads never were calling all at once; {instead}"
    if share > MOST_EXPLAINED:
        return (
            f"{INTERPRETER}: {percent(share)} of this P99 is there without the driver, too, more "
            f"than {percent(MOST_EXPLAINED)}; {instead}"
        )
    return ""
