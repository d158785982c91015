"""Forks pytest sessions from a process that has imported what each of them begins with.

A session's own start is nine tenths of a second of imports, and tests start some two hundred. What
a session imports as users start it is the matter of tests that start one anew.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, NoReturn

from _pytest.assertion import install_importhook
from _pytest.config import get_config

_AHEAD = (
    "pytest_benchmark.plugin",
    "pytest_hwqueue.answers.session.glance",
    "pytest_hwqueue.answers.session.outcome",
    "pytest_hwqueue.answers.session.tables",
    "pytest_hwqueue.plugin.budget",
    "pytest_hwqueue.plugin.measuring",
    "pytest_hwqueue.plugin.pytest_internals",
    "pytest_hwqueue.plugin.regression",
    "pytest_hwqueue.plugin.scenario_session",
    "pytest_hwqueue.plugin.selection",
    "pytest_hwqueue.plugin.worker.isolation",
    "xdist.plugin",
)
_LARGEST_REQUEST = 1 << 20


class _Request(NamedTuple):
    command: Sequence[str]
    folder: str
    variables: Mapping[str, str]


class SessionServer:
    """A process that forks sessions, one at a time."""

    def __init__(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
        """Start it.

        Args:
            environment: of it and its sessions.
            descriptors: stay open in them.

        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(theirs):
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *descriptors),
            )  # fmt: skip
        self.pid = self._process.pid

    def run(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run ``pytest`` in a folder as ``python -m`` would, with more variables.

        Args:
            command: ``pytest`` and its arguments.
            folder: the session's.
            variables: added to the environment.

        """
        request = json.dumps(_Request(command, str(folder), variables))
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            passed = [output.fileno(), errors.fileno()]
            try:
                socket.send_fds(self._socket, [request.encode()], passed)
                status = int(self._socket.recv(100))
            except BaseException:
                # The next one would read this one's status.
                self._socket.close()
                raise
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(command, status, *texts)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()


def main() -> None:
    """Fork on request, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As in a session, asserts are rewritten; it would warn of a plugin in which they are not.
    hook = install_importhook(get_config())
    hook.mark_rewrite("pytest_benchmark", "pytest_hwqueue", "xdist")
    for module in _AHEAD:
        importlib.import_module(module)
    sys.modules["pytest_hwqueue.plugin.pytest_internals"].import_builtin_plugins()
    sys.meta_path.remove(hook)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[-1]))
    while True:
        text, passed, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 2)
        if not text:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _begin(_Request(*json.loads(text)), *passed)
        for each in passed:
            os.close(each)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        requests.send(str(status).encode())


def _begin(request: _Request, output: int, errors: int) -> NoReturn:
    """Run the command as if in a newly started process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    random.seed()
    os.environ.update(request.variables)
    os.chdir(request.folder)
    module, *arguments = request.command
    sys.argv[1:] = arguments
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
