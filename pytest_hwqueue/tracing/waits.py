"""What threads of this process wait for, by samples from a process of its own; and their names.

A sample is the system call and the wait channel (the kernel's function in which the thread sleeps)
of /proc/PID/task/TID. Times come from perf events where these are to be had, else from the samples.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.metrics.cpu_events import OffCpu, Wait, WaitKind
from pytest_hwqueue.tracing.wait_watcher import SELECT_OF_NOTHING

PERIOD_US = 1000
"""From one sample to the next, apart from what sampling takes."""

_SCRIPT = Path(__file__).with_name("wait_watcher.py")
_STOP_TIMEOUT_S = 20
_IN_NO_CALL = "-1"
_NO = -2  # no such call there
# A wait between two samples is called as one next to it, if that is so near.
_NEAR_NS = 10 * PERIOD_US * 1000

# Numbers of x86-64 and of the generic table (Arm) by call.
_CALLS: Mapping[WaitKind, Mapping[str, tuple[int, int]]] = {
    "sleep": {"nanosleep": (35, 101), "clock_nanosleep": (230, 115), "pause": (34, _NO)},
    "lock": {
        "futex": (202, 98), "futex_waitv": (449, 449), "flock": (73, 32), "fcntl": (72, 25),
        "semop": (65, 193), "semtimedop": (220, 192),
    },
    "I/O": {
        "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68),
        "readv": (19, 65), "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70),
        "sendfile": (40, 71), "splice": (275, 76), "ioctl": (16, 29), "open": (2, _NO),
        "openat": (257, 56), "close": (3, 57), "fsync": (74, 82), "fdatasync": (75, 83),
        "sync": (162, 81), "msync": (26, 227), "sync_file_range": (277, 84),
        "ftruncate": (77, 46), "fallocate": (285, 47), "unlink": (87, _NO), "unlinkat": (263, 35),
        "rename": (82, _NO), "getdents64": (217, 61), "stat": (4, _NO), "newfstatat": (262, 79),
        "poll": (7, _NO), "ppoll": (271, 73), "select": (23, _NO), "pselect6": (270, 72),
        "epoll_wait": (232, _NO), "epoll_pwait": (281, 22), "accept": (43, 202),
        "accept4": (288, 242), "connect": (42, 203), "sendto": (44, 206), "recvfrom": (45, 207),
        "sendmsg": (46, 211), "recvmsg": (47, 212), "io_getevents": (208, 4),
        "io_uring_enter": (426, 426),
    },
    "process": {"wait4": (61, 260), "waitid": (247, 95), "vfork": (58, _NO), "clone": (56, 220)},
    "memory": {"mmap": (9, 222), "munmap": (11, 215), "madvise": (28, 233), "mprotect": (10, 226),
               "brk": (12, 214), "mlock": (149, 228)},
}  # fmt: skip


def numbered(machine: str) -> dict[int, tuple[WaitKind, str]]:
    """Return the kind and name of calls by their number on a machine."""
    column = 0 if machine == "x86_64" else 1
    return {
        numbers[column]: (kind, call)
        for kind, calls in _CALLS.items()
        for call, numbers in calls.items()
        if numbers[column] != _NO
    }


_BY_NUMBER = numbered(platform.machine())
# Where the call cannot be read, the channel may tell the kind; the first part that fits.
_BY_CHANNEL: Sequence[tuple[str, WaitKind]] = (
    ("nanosleep", "sleep"), ("futex", "lock"), ("flock", "lock"), ("userfault", "page fault"),
    ("do_wait", "process"), ("pipe", "I/O"), ("poll", "I/O"), ("select", "I/O"), ("sock", "I/O"),
    ("skb", "I/O"), ("unix_stream", "I/O"), ("io_schedule", "I/O"), ("folio_wait", "I/O"),
    ("jbd2", "I/O"), ("blk_", "I/O"),
)  # fmt: skip
_STOPS = ("do_signal_stop", "ptrace_stop")


class NoWaits(Exception):
    """What threads wait for cannot be seen here; the text says why."""


@dataclass(frozen=True)
class SeenWaits:
    """What threads waited for; ``lost`` of the waits were more than are kept."""

    waits: tuple[Wait, ...]
    per_s: float
    lost: int


class WaitWatcher:
    """Samples what threads of this process wait for, between `start` and `stop`.

    Args:
        tids: the threads.

    Raises:
        NoWaits: if /proc does not tell, or no process can be started to look.

    """

    def __init__(self, tids: Iterable[int]) -> None:
        own = f"/proc/{os.getpid()}/task/{os.getpid()}"
        if not any(os.access(f"{own}/{name}", os.R_OK) for name in ("syscall", "wchan")):
            raise NoWaits(
                "neither /proc/PID/task/TID/syscall nor wchan can be read: a sandbox, or a kernel "
                "without CONFIG_HAVE_ARCH_TRACEHOOK and CONFIG_KALLSYMS"
            )
        command = [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), str(PERIOD_US)]
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, tids)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise NoWaits(f"no process can be started that looks: {error}") from error
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            _, errors = self._process.communicate()
            raise NoWaits(f"the process that looks failed: {_last_line(errors)}")

    def start(self) -> None:
        """Begin to sample."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def stop(self) -> SeenWaits:
        """End sampling; return what was seen.

        Raises:
            NoWaits: if the process that looks has failed meanwhile.

        """
        try:
            output, errors = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.close()
            raise NoWaits(f"the process that looks did not end: {error}") from error
        if self._process.returncode:
            raise NoWaits(f"the process that looks failed: {_last_line(errors)}")
        return read_samples(output.decode())

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def read_samples(text: str) -> SeenWaits:
    """Return what the process that looks has printed."""
    import json

    found = json.loads(text)
    names = [name_wait(*key) for key in found["keys"]]
    waits = []
    for tid, start_ns, end_ns, key in found["runs"]:
        kind, what = names[key]
        waits.append(Wait(tid, start_ns, end_ns, kind, what))
    waits.sort(key=lambda one: one.start_ns)
    return SeenWaits(tuple(waits), found["per_s"], found["lost"])


def name_wait(call: str, channel: str, state: str) -> tuple[WaitKind, str]:
    """Return the kind of a wait, and its name for people.

    Args:
        call: number of the system call; -1 in none, empty if it could not be read.
        channel: the kernel's function; empty if it could not be read.
        state: the thread's, where one of the others is missing.

    """
    if channel in _STOPS or state in ("T", "t"):
        return "stopped", "stopped by a signal"
    at = f", at {channel}" if channel else ""
    if call == SELECT_OF_NOTHING:
        return "sleep", f"sleep (select{at})"
    if call == _IN_NO_CALL:
        return "page fault", f"page fault{f' (at {channel})' if channel else ''}"
    if call.isdecimal():
        kind, name = _BY_NUMBER.get(int(call), ("other", f"call {call}"))
        return kind, f"{kind} ({name}{at})" if kind != "other" else f"{name}{at}"
    for part, kind in _BY_CHANNEL:
        if part in channel:
            return kind, f"{kind} (at {channel})"
    return "other", f"a wait at {channel}" if channel else "a wait that /proc does not name"


def named_waits(off_cpu: Iterable[OffCpu], samples: Iterable[Wait], unnamed: str) -> list[Wait]:
    """Return the waits of threads with the times of their switches and the names of the samples.

    A wait without a sample of its own is called as the sample nearest to it in time, within 10 ms,
    and ``unnamed`` if there is none. Stops name none: switches tell them from waits themselves.
    """
    by_thread: dict[int, list[Wait]] = {}
    for sample in samples:
        if sample.kind != "stopped":
            by_thread.setdefault(sample.tid, []).append(sample)
    starts = {tid: [one.start_ns for one in of] for tid, of in by_thread.items()}
    found = []
    for away in off_cpu:
        end_ns = away.end_ns if away.runnable_ns is None else away.runnable_ns
        if away.reason in ("preempted", "stopped") or end_ns <= away.start_ns:
            continue
        of = by_thread.get(away.tid, ())
        at = bisect_left(starts.get(away.tid, ()), end_ns)
        named = _nearest(of[max(0, at - 2) : at + 1], away.start_ns, end_ns)
        kind: WaitKind = "other" if named is None else named.kind
        what = unnamed if named is None else named.what
        found.append(Wait(away.tid, away.start_ns, end_ns, kind, what))
    return found


def _nearest(samples: Collection[Wait], start_ns: int, end_ns: int) -> Wait | None:
    """Return what overlaps a span most, else what is next to it; None if nothing is near."""

    def overlap(one: Wait) -> int:
        # Below 0: how far away it is.
        return min(end_ns, one.end_ns) - max(start_ns, one.start_ns)

    nearest = max(samples, key=overlap, default=None)
    return None if nearest is None or overlap(nearest) < -_NEAR_NS else nearest


def _last_line(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
