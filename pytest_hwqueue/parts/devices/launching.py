"""Threads of the host that launch at once, each on a stream of its own, and time each call.

What a thread does between two calls is short, and done under the interpreter's lock: it stores two
readings of the clock in arrays made before. The calls themselves give the lock away, as a replay of
torch's graph does (wrap_pybind_function_no_gil in torch/csrc/cuda/Graph.cpp).
"""

from __future__ import annotations

import ctypes
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count, pairwise
from statistics import median
from typing import NamedTuple

from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.parts.devices.protocol import Call

_READINGS = 1000
_clock_ns = time.perf_counter_ns

# ISO C has it in every libc. ctypes gives the lock away around calls of a CDLL.
_strspn = ctypes.CDLL(None).strspn
_strspn.argtypes, _strspn.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_size_t
# Of the strings whose calls are timed to know what a character takes; the longer one is so often as
# long, and the first level of cache still holds it.
_CHARACTERS = 4_096
_MANY = 4


class BusyCall:
    """A call of C that keeps a core busy, without the interpreter's lock and any other.

    It is a function of Python around one of C, as a replay is, and reads a string that the first
    level of cache holds.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self._text = b"a" * characters

    def __call__(self) -> None:
        """Call it."""
        _strspn(self._text, b"a")

    @classmethod
    def lasting(cls, duration_ns: int) -> BusyCall:
        """Return one that takes about so long."""
        few_ns, many_ns = (_time_of(cls(count)) for count in (_CHARACTERS, _MANY * _CHARACTERS))
        each_ns = max(1, many_ns - few_ns) / ((_MANY - 1) * _CHARACTERS)
        # What a call takes besides, which a short one mostly is.
        call_ns = few_ns - each_ns * _CHARACTERS
        return cls(max(1, round((duration_ns - call_ns) / each_ns)))


def _time_of(call: Call) -> int:
    times = []
    for _ in range(_READINGS):
        begun = _clock_ns()
        call()
        times.append(_clock_ns() - begun)
    return round(median(times))


def clock_reading_ns() -> int:
    """Return what two readings of the clock add to what lies between them, in ns: the median."""
    readings = [_clock_ns() for _ in range(_READINGS)]
    return round(median(after - before for before, after in pairwise(readings)))


class ThreadsStream(NamedTuple):
    """The stream on which a thread launches.

    Attributes:
        entered: makes the context in which it is current in the calling thread.
        wait: blocks the calling thread until the stream is idle, without the interpreter's lock.

    """

    entered: Callable[[], AbstractContextManager[object]]
    wait: Callable[[], object]


class LaunchingThreads:
    """One thread for each stream, from the first window until `close`."""

    def __init__(self, streams: Sequence[ThreadsStream]) -> None:
        """Start a thread for each stream."""
        self._threads = [_LaunchingThread(index, each) for index, each in enumerate(streams)]
        try:
            for thread in self._threads:
                thread.begin()
        except BaseException:
            self.close()
            raise

    def window(self, calls: Sequence[Call], launches: int, most_held: int) -> LaunchingWindow:
        """Have threads make their calls at once until so many are made; return once they are.

        Threads begin when all are awake, and share the number: those that would end early, and
        leave the others to themselves, make more.

        Args:
            calls: one for each of the first threads.
            launches: of all of them together.
            most_held: calls of a thread after which it waits for its stream.

        Raises:
            BaseException: what a call has raised, the first thread's; or what has interrupted this
                one, such as Ctrl-C. Then the threads have ended.

        """
        threads = self._threads[: len(calls)]
        turn = _Turn(len(threads), launches, most_held)
        for thread, call in zip(threads, calls, strict=True):
            thread.prepare(turn, call)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.finish()
        except BaseException:
            # Some may wait for others that were never started.
            turn.abandoned = True
            self.close()
            raise
        errors = [error for thread in threads if (error := thread.taken_error()) is not None]
        if errors:
            raise errors[0]
        begun_ns, returned_ns = zip(*(thread.times() for thread in threads), strict=True)
        return LaunchingWindow(begun_ns, returned_ns)

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.close()


class _Turn:
    """What the threads of one window share."""

    def __init__(self, threads: int, launches: int, most_held: int) -> None:
        self.threads, self.launches, self.most_held = threads, launches, most_held
        # Both by one operation of the interpreter, so that no other lock is taken.
        self.awake: list[int] = []
        self.abandoned = False
        self.numbers = count()


class _LaunchingThread:
    def __init__(self, index: int, stream: ThreadsStream) -> None:
        self._index, self._stream = index, stream
        self._task: tuple[_Turn, Call] | None = None
        self._begun_ns, self._returned_ns, self._made = array("q"), array("q"), 0
        self._error: BaseException | None = None
        self._ended = False
        # Bare locks, each released by the other side: the lightest way to wait.
        self._start, self._done = threading.Lock(), threading.Lock()
        self._start.acquire()
        self._done.acquire()
        self._thread = threading.Thread(target=self._work, name=f"hwq-launch-{index}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def prepare(self, turn: _Turn, call: Call) -> None:
        self._task = turn, call
        if len(self._begun_ns) != turn.launches:
            self._begun_ns = array("q", bytes(8 * turn.launches))
            self._returned_ns = array("q", bytes(8 * turn.launches))

    def start(self) -> None:
        self._start.release()

    def finish(self) -> None:
        self._done.acquire()

    def taken_error(self) -> BaseException | None:
        error, self._error = self._error, None
        return error

    def times(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._begun_ns[: self._made], self._returned_ns[: self._made]

    def close(self) -> None:
        """End the thread, wherever it was interrupted; again, too."""
        self._ended = True
        # Free: the thread was started, and sees that it is to end before it launches.
        if self._start.locked():
            self._start.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            with self._stream.entered():
                self._serve(self._launch)
        except BaseException as error:  # of the context: every window raises it
            if not self._ended:
                self._serve(partial(self._refuse, error))

    def _serve(self, launch: Callable[[_Turn, Call], None]) -> None:
        while True:
            self._start.acquire()
            if self._ended:
                return
            assert self._task is not None
            try:
                launch(*self._task)
            except BaseException as error:  # handed to the host's thread
                self._error = error
            self._done.release()

    def _refuse(self, error: BaseException, turn: _Turn, call: Call) -> None:
        self._made = 0
        turn.awake.append(self._index)
        raise error

    def _launch(self, turn: _Turn, call: Call) -> None:
        begun_ns, returned_ns, clock_ns = self._begun_ns, self._returned_ns, _clock_ns
        numbers, most, awake, threads = turn.numbers, turn.launches, turn.awake, turn.threads
        wait, most_held = self._stream.wait, turn.most_held
        self._made = made = 0
        awake.append(self._index)
        while len(awake) < threads:
            if turn.abandoned:
                return
            # Gives the lock away, so that the others wake.
            time.sleep(0)
        while next(numbers) < most:
            begun = clock_ns()
            call()
            returned_ns[made] = clock_ns()
            begun_ns[made] = begun
            made += 1
            if not made % most_held:
                wait()
        self._made = made
