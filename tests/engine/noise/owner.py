"""A process that runs a noise until something ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from pytest_hwqueue.engine.noise import neighbours
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces
from tests.parts.schedulers.processes import has_ended, wait_for

_OWNER = """
import os, sys, time
from pathlib import Path
from pytest_hwqueue.engine.noise import neighbours
from pytest_hwqueue.engine.noise.running import running
name, folder, size, logs, settled = sys.argv[1:]
neighbours.DISK_BYTES = int(size)
noise = neighbours.open_noise(name, neighbours.NoisePlaces(Path(folder)))
with running(noise, os.getpid(), Path(logs), 60, settle_s=0.1):
    Path(settled).touch()
    time.sleep(600)
"""


@contextmanager
def owning(name: str, places: NoisePlaces, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with a session of its own that runs a noise, which has settled."""
    settled = folder / "settled"
    arguments = [name, places.folder, neighbours.DISK_BYTES, folder / "logs", settled]
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, *map(str, arguments)],
        start_new_session=True, stderr=subprocess.DEVNULL,
    ) as owner:  # fmt: skip
        try:
            wait_for(lambda: settled.exists() or owner.poll() is not None, "it to settle")
            assert owner.poll() is None
            yield owner
        finally:
            owner.kill()


def end_owner(owner: subprocess.Popen[bytes], how: str) -> int:
    """End it and wait until all that it had started is gone; return how many that were."""
    everyone = psutil.Process(owner.pid).children(recursive=True)
    if how == "Ctrl-C":
        # As a terminal does it: to the group in front, which the neighbours are not in.
        os.killpg(owner.pid, signal.SIGINT)
    elif how == "SIGTERM to all":
        # As a service manager does it.
        for process in (psutil.Process(owner.pid), *everyone):
            with suppress(psutil.NoSuchProcess):
                process.terminate()
    else:
        owner.send_signal(signal.Signals[how])
    assert owner.wait() != 0
    wait_for(lambda: all(has_ended(each.pid) for each in everyone), "what it had started")
    return len(everyone)
