"""Where the benchmark suite is, and how the ``hwq`` command calls pytest on it.

The suite runs independently of the project it is started in: no ini file is read, no conftest.py
above the suite is loaded, and ``PYTEST_ADDOPTS`` does not reach it, so another project's
``addopts`` or ``filterwarnings = error`` can neither break a measurement nor change one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import FrameType

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.shipped import PACKAGE, shipped
from pytest_hwqueue.parts.processes.reaper import die_with_parent
from pytest_hwqueue.parts.processes.starting import ForkServer, worker_environment
from pytest_hwqueue.parts.schedulers.syntax import parse_schedulers
from pytest_hwqueue.parts.workloads.registry import ahead

_PLUGIN = "pytest_hwqueue.plugin"
_PYTEST = ["-m", "pytest"]
# The same, but without a traceback if Ctrl-C comes before pytest catches it: until here it waits.
_WITHOUT_TRACEBACK = """
import os, runpy, signal
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
"""
# Of a pytest session that `hwq` may have been started from: pytest-benchmark would switch itself
# off on the second, and the first holds options meant for that session's own tests.
_FOREIGN = ("PYTEST_ADDOPTS", "PYTEST_XDIST_")


def suite_path(package: Path = PACKAGE) -> Path:
    """Return the folder of benchmarks: inside an installed package, next to it in a clone.

    Args:
        package: the folder of the package ``pytest_hwqueue``.

    Raises:
        HwqError: if it is in neither place; the text names both.

    """
    found = shipped("benchmarks", "benchmarks", package)
    if found is None:
        raise HwqError(
            f"the benchmark suite is missing: there is neither {package / 'benchmarks'} (an "
            f"installation) nor {package.parent / 'benchmarks'} next to a pyproject.toml (a "
            "clone); install pytest-hwqueue again"
        )
    return found


def plugin_name() -> str:
    """Return the argument for ``pytest -p`` that loads the plugin, installed or not.

    By its entry point's name the plugin is loaded once, even if plugins are not autoloaded; by its
    module's name along with an entry point it would be registered twice, which pytest refuses.
    """
    for entry_point in metadata.entry_points(group="pytest11"):
        if entry_point.value == _PLUGIN:
            return entry_point.name
    return _PLUGIN


def pytest_command(options: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Return the command that measures the suite with the plugin's ``options``.

    Args:
        options: such as ``--hwq-workload=hetero_kernels``.
        extra: arguments for pytest itself; they come last and so take precedence.

    Raises:
        HwqError: if there is no suite.

    """
    suite = suite_path()
    return [
        sys.executable, *_PYTEST, str(suite),
        "-p", plugin_name(),
        "-c", os.devnull,
        f"--rootdir={suite.parent}",
        f"--confcutdir={suite}",
        "--import-mode=importlib",
        # Why something was not measured is an answer too.
        "-rs",
        # Its folder would be made inside the installed package.
        "-p", "no:cacheprovider",
        # Its files and tables are there when one of its options asks for them.
        *(() if _asks_for_benchmark(extra) else ("-p", "no:benchmark")),
        *options, *extra,
    ]  # fmt: skip


def _asks_for_benchmark(extra: Sequence[str]) -> bool:
    return any(argument.startswith("--benchmark") for argument in extra)


def pytest_environment(
    environment: Mapping[str, str] | None = None, *, plugins: bool = True
) -> dict[str, str]:
    """Return the environment for `pytest_command`.

    Args:
        environment: what it is based on; by default this process's.
        plugins: whether pytest loads other plugins too. Load them only for their arguments: each
            costs time in every measuring process.

    """
    given = os.environ if environment is None else environment
    kept = {name: value for name, value in given.items() if not name.startswith(_FOREIGN)}
    if not plugins:
        kept["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # `python -m` would put the current folder first, where a queue.py may lie (since Python 3.11).
    kept.setdefault("PYTHONSAFEPATH", "1")
    if plugin_name() == _PLUGIN:
        parts = [str(PACKAGE.parent), kept.get("PYTHONPATH", "")]
        kept["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    return kept


def run_pytest(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; return its exit status, 128 + N if signal N ended it.

    One that SIGINT ended raises KeyboardInterrupt.

    Only the command receives Ctrl-C or a request to terminate, and it ends in its own way. If it is
    pytest and measures in processes, the server that forks them is started first, unless this
    process was given one: it imports torch while pytest starts and collects.
    """
    if command[1:3] != _PYTEST:
        return _run(command, environment, ())
    started = [command[0], "-c", _WITHOUT_TRACEBACK, *command[3:]]
    if not {"--hwq-isolation=none", "--collect-only"}.isdisjoint(command):
        return _run(started, environment, ())
    modes = "".join(_last(command, "--hwq-scheduler="))
    if modes and all(each.declaration.needs_environment for each in parse_schedulers(modes)):
        # Its workers are processes of their own.
        return _run(started, environment, ())
    server = ForkServer.handed_over()
    if server is None or not server.fits(worker_environment(environment)):
        names, marks, device = (
            _values(command, f"--hwq-{option}=") for option in ("workload", "priority", "device")
        )
        server = ForkServer(worker_environment(environment), ahead(names, marks, *device[:1]))
    try:
        with server.handing_over() as (variable, descriptors):
            return _run(started, {**environment, **variable}, descriptors)
    finally:
        server.close()


def _values(command: Sequence[str], option: str) -> list[str]:
    """Return the comma-separated values of an option's last occurrence."""
    return [part for text in _last(command, option) for part in text.split(",")]


def _last(command: Sequence[str], option: str) -> list[str]:
    """Return an option's last occurrence, or nothing."""
    return [each.removeprefix(option) for each in command if each.startswith(option)][-1:]


def _run(command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
    def before() -> None:
        # Killed, this process can ask nobody to end; the command would measure on.
        die_with_parent()
        if _WITHOUT_TRACEBACK in command:
            # Python's own beginning has a traceback for it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    running: list[subprocess.Popen[bytes]] = []
    with _signals_left_to(running):
        process = subprocess.Popen(
            command,
            env=dict(environment),
            pass_fds=descriptors,
            preexec_fn=before,  # noqa: PLW1509 - this process has no threads
        )
        running.append(process)
        status = process.wait()
    if status == -signal.SIGINT:
        # pytest catches it only once it has started; what it means is the same.
        raise KeyboardInterrupt
    return status if status >= 0 else 128 - status


@contextmanager
def _signals_left_to(running: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    def interrupted(number: int, frame: FrameType | None) -> None:
        # The terminal has sent it to the whole group, so the command has it already. A function
        # and not SIG_IGN, which the command would inherit.
        return None

    def terminated(number: int, frame: FrameType | None) -> None:
        # Whoever sends this one sends it to this process only.
        for process in running:
            process.send_signal(number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, interrupted),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminated),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
