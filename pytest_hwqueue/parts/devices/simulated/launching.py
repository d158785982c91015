"""Threads of the modelled host that launch at once, and the locks that they take in turn.

A launching call takes the driver's lock, as long as the profile says that the call lasts; to return
it takes the interpreter's, which its thread holds until its next call. Either goes to whoever has
waited longest. So each call of n threads waits for those of the others, and the truth is known:
with h for the driver's lock and p for the interpreter's, a call takes max(n h, n p, h + p) - p once
all threads have made one. Nothing of this is measured: by default the model has no interpreter, and
its driver one lock for all of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_hwqueue.data.metrics.launching import LaunchingWindow


@dataclass(frozen=True)
class ModelledCall:
    """A call of a host's thread, and how long it takes without a lock and with the driver's."""

    unlocked_ns: int
    driver_ns: int

    def __call__(self) -> None:
        """Do nothing: what it takes is modelled."""


class MadeCall(NamedTuple):
    """One call of a window, in ns of the virtual clock.

    Attributes:
        thread: that made it.
        begun_ns: when it began.
        launched_ns: when the driver was done with it.
        returned_ns: when its thread had the interpreter's lock again.

    """

    thread: int
    begun_ns: int
    launched_ns: int
    returned_ns: int


def made_calls(
    call: ModelledCall, threads: int, calls: int, interpreter_ns: int, now_ns: int
) -> list[MadeCall]:
    """Return the calls that threads make from now on, in the order in which they are launched.

    Args:
        call: that all make.
        threads: how many there are.
        calls: of all threads together.
        interpreter_ns: for how long a thread holds the interpreter's lock between two calls.
        now_ns: when all threads are awake.

    """
    # Whoever waited longest comes first at either lock, and calls are alike: threads keep their
    # order.
    begun_ns = [now_ns + (thread + 1) * interpreter_ns for thread in range(threads)]
    driver_free_ns, interpreter_free_ns = now_ns, begun_ns[-1]
    made = []
    for number in range(calls):
        thread = number % threads
        begun = begun_ns[thread]
        launched = max(driver_free_ns, begun + call.unlocked_ns) + call.driver_ns
        if call.driver_ns:
            driver_free_ns = launched
        returned = max(launched, interpreter_free_ns)
        interpreter_free_ns = begun_ns[thread] = returned + interpreter_ns
        made.append(MadeCall(thread, begun, launched, returned))
    return made


def window_of_calls(made: Sequence[MadeCall], threads: int) -> LaunchingWindow:
    """Return the window that calls make."""
    by_thread: list[list[MadeCall]] = [[] for _ in range(threads)]
    for each in made:
        by_thread[each.thread].append(each)
    return LaunchingWindow(
        [[call.begun_ns for call in calls] for calls in by_thread],
        [[call.returned_ns for call in calls] for calls in by_thread],
    )
