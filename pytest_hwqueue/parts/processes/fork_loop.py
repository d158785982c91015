"""The fork server's process: imports what every measuring process needs, then forks on request.

It opens no device, reads no pytest options and starts no thread. A forked process runs the
requested main function as a newly started process would, with its own arguments, signals and
output.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any, NoReturn

from pytest_hwqueue.parts.processes.reaper import Reaper, end_children, keep
from pytest_hwqueue.parts.processes.scratch import SCRATCH, new_scratch

# Each is imported by a worker before it measures. Nothing here runs or configures pytest.
AHEAD = (
    "torch",
    "scipy.special",
    "pytest_hwqueue.plugin",
    "pytest_hwqueue.plugin.fixtures",
    "pytest_hwqueue.plugin.selection",
    "pytest_hwqueue.plugin.measurement",
    "pytest_hwqueue.plugin.worker.process",
    "pytest_hwqueue.engine.causes.traced_cell",
    "pytest_hwqueue.engine.cell.runner",
    "pytest_hwqueue.engine.cell.ranks",
    "pytest_hwqueue.data.records.cell",
    "pytest_hwqueue.parts.devices.host",
    "pytest_hwqueue.parts.devices.telemetry",
    "pytest_hwqueue.parts.schedulers.native",
    "pytest_hwqueue.parts.workloads.own_function",
    "pytest_hwqueue.parts.workloads.workload",
    "pytest_hwqueue.engine.tenants.tenant",
)
_LARGEST_REQUEST = 1 << 20
# Variables that no library reads as it is loaded, so that they may change after: pytest's, those of
# GitHub Actions, the terminal's width, an MPS client's, which CUDA reads as the first device is
# opened, and the folder that torch's compiler, once imported, adds to a session's environment.
_OF_MPS = "CUDA_MPS_"
LATE = ("PYTEST_", "GITHUB_", "COLUMNS", "TORCHINDUCTOR_CACHE_DIR", _OF_MPS)


def main() -> None:
    """Fork on request until the session closes its end.

    A request is JSON with ``main``, the module whose ``main()`` runs, ``path``, its ``sys.path``,
    and ``environment``, those of its variables that are `LATE`. Four descriptors come with it: two
    that become ``main()``'s last arguments, a file for its output, and a pipe as `Reaper.follow`
    describes it.

    The arguments are a socket of type SOCK_SEQPACKET, and in JSON what else to import: functions,
    as ``module:function``, with their arguments.
    """
    descriptor, ahead = int(sys.argv[-2]), json.loads(sys.argv[-1])
    folder = new_scratch()

    def clear_away() -> None:
        end_children()
        shutil.rmtree(folder, ignore_errors=True)

    parent = keep(clear_away)
    # The terminal's Ctrl-C is for the session, which ends what it has started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    for module in AHEAD:
        importlib.import_module(module)
    for place, name in ahead:
        module, _, function = place.partition(":")
        getattr(importlib.import_module(module), function)(name)
    # What is imported stays: collections in forked processes need not look at it, nor copy it.
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    reaper = Reaper(parent, descriptor, folder)
    # Only now: while it imports, this process may end without clearing away.
    os.mkdir(folder, 0o700)
    while True:
        if descriptor not in reaper.turn():
            continue
        text, passed, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
        if not text:
            reaper.end()
            # Nothing of this process is worth an orderly end.
            os._exit(0)
        *descriptors, log, status = passed
        pid = _fork()
        if pid == 0:
            break
        reaper.follow(pid, status)
        for each in (*descriptors, log):
            os.close(each)
    reaper.forget()
    os.close(status)
    requests.close()
    request = json.loads(text)
    request["environment"][SCRATCH] = str(folder)
    _begin(request, log, descriptors)


def _begin(request: dict[str, Any], log: int, descriptors: list[int]) -> NoReturn:
    """Run the main function as if in a newly started process."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    gc.enable()
    # As a process started anew has them, and no two forked ones alike.
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    sys.path[:] = request["path"]
    sys.argv[1:] = map(str, descriptors)
    for name in [name for name in os.environ if name.startswith(LATE)]:
        del os.environ[name]
    os.environ.update(request["environment"])
    try:
        importlib.import_module(request["main"]).main()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _leave(ended.code or 0)
    _leave(0)


def _leave(status: int) -> NoReturn:
    """Exit as multiprocessing's processes do: taking all that was imported apart takes 0.25 s."""
    # Waits for threads that are no daemons.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # A test may have closed its own.
        with suppress(ValueError, OSError):
            stream.flush()
    if any(name.startswith(_OF_MPS) for name in os.environ):
        # Takes the context apart, too: a client that leaves it may disturb the others.
        sys.exit(status)
    os._exit(status)


def _fork() -> int:
    with warnings.catch_warnings():
        # The threads that Python warns of are OpenBLAS's, which ends them around a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
