"""Run-queue delays of threads, of this very process and of files as the kernel writes them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from pytest_hwqueue.tracing.run_delays import RunDelays


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_thread_that_shares_its_core_waits(tmp_path: Path) -> None:
    tid = threading.get_native_id()
    if not Path(f"/proc/self/task/{tid}/schedstat").exists():
        pytest.skip("this kernel keeps no times on the run queue")
    delays = RunDelays([tid, 2**30])
    assert set(delays.threads) == {tid}
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        busy(5)
        os._exit(0)
    try:
        os.sched_setaffinity(0, {core})
        delays.step()
        busy(0.3)
        waited = delays.step()
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(child, 9)
        os.waitpid(child, 0)
        delays.close()
    # Half of the time, if nobody else is there.
    assert 20_000_000 < waited[tid] < 300_000_000
    delays.close()
    assert not delays.threads
