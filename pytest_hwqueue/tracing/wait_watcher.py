"""Samples what threads of another process wait for, from /proc; run as a script, by its path.

Usage: wait_watcher.py PID PERIOD_US TID...

A process of its own, so that looking costs the watched one neither its interpreter's lock nor,
where there is a spare core, its CPU. Nothing of the package is imported. It prints ``ready``,
samples from the first line on stdin until stdin ends, and prints what it saw as a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import select
import sys
import time
from contextlib import suppress

_MOST_RUNS = 400_000
# Samples further apart than this many periods say nothing of the time between them, unless the
# thread has not run since.
_MOST_APART = 2.5

# What a thread waits for: system call, wait channel, state.
Key = tuple[str, str, str]

# Numbers of select and pselect6 on x86-64 and Arm. Of no descriptors they only sleep, as
# time.sleep does in Python 3.10.
_SELECTS = ("23", "270") if platform.machine() == "x86_64" else ("72",)
SELECT_OF_NOTHING = "select of nothing"


class _Thread:
    """The files of one thread, and its current run of equal samples."""

    def __init__(self, folder: str) -> None:
        names = ("syscall", "wchan", "stat", "schedstat")
        self.files = {name: _open(f"{folder}/{name}") for name in names}
        self.key: Key | None = None
        self.start_ns = 0
        self._turns = ""

    def look(self) -> tuple[Key | None, bool]:
        """Return what the thread waits for, and whether that is still the same wait as before.

        It waits for nothing while it runs, could run, or has ended. It is the same wait, however
        long ago the last look was, if it has not had a CPU since.
        """
        before, self._turns = self._turns, self._read("schedstat").rpartition(" ")[2]
        key = self._key()
        same = key is not None and key == self.key and self._turns != ""
        return key, same and self._turns == before

    def _key(self) -> Key | None:
        call, *arguments = self._read("syscall").split() or [""]
        if call == "running":
            return None
        if call in _SELECTS and arguments[:1] == ["0x0"]:
            call = SELECT_OF_NOTHING
        channel = self._read("wchan").strip()
        if channel == "0":
            # It runs, or the kernel names no channel.
            channel = ""
        state = ""
        if not call or not channel:
            state = self._read("stat").rpartition(")")[2][1:2]
            if state not in "SDTtI" or not state:
                return None
        return call, channel, state

    def _read(self, name: str) -> str:
        file = self.files[name]
        if file is None:
            return ""
        try:
            return os.pread(file, 512, 0).decode(errors="replace")
        except OSError:
            # The thread has ended, or looking is not allowed: the other files may still say it.
            return ""


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def main() -> None:
    """Sample until stdin ends."""
    pid, period_ns, tids = int(sys.argv[1]), int(sys.argv[2]) * 1000, sys.argv[3:]
    # Not on the watched one's core alone, to which it may be pinned.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    # Whoever it takes a CPU from shall see its name.
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("hwq-watcher")
    # It looks for some 20 µs each time: late it would see nothing where CPUs are scarce.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    threads = {int(tid): _Thread(f"/proc/{pid}/task/{tid}") for tid in tids}
    print("ready", flush=True)
    sys.stdin.readline()
    runs: list[tuple[int, int, int, int]] = []
    keys: dict[Key, int] = {}
    lost = samples = 0
    begin_ns = before_ns = time.monotonic_ns()
    while True:
        now_ns = time.monotonic_ns()
        apart = now_ns - before_ns > _MOST_APART * period_ns
        until_ns = before_ns + period_ns // 2 if apart else (before_ns + now_ns) // 2
        from_ns = now_ns - period_ns // 2 if apart else until_ns
        for tid, thread in threads.items():
            key, same = thread.look()
            if same or (key == thread.key and not apart):
                continue
            if thread.key is not None:
                number = keys.setdefault(thread.key, len(keys))
                if len(runs) < _MOST_RUNS:
                    runs.append((tid, thread.start_ns, until_ns, number))
                else:
                    lost += 1
            thread.key, thread.start_ns = key, from_ns
        samples += 1
        before_ns = now_ns
        if select.select([0], [], [], period_ns / 1e9)[0]:
            break
    end_ns = time.monotonic_ns()
    runs += [
        (tid, thread.start_ns, end_ns, keys.setdefault(thread.key, len(keys)))
        for tid, thread in threads.items()
        if thread.key is not None
    ]
    elapsed_s = (end_ns - begin_ns) / 1e9
    print(json.dumps({"per_s": samples / elapsed_s, "lost": lost,
                      "keys": list(keys), "runs": runs}))  # fmt: skip


if __name__ == "__main__":
    main()
