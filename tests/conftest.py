"""pytester, hypothesis without a clock, sessions as processes, records as measuring leaves them."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_hwqueue.data.figures.of_cell import summarise
from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord, Samples
from pytest_hwqueue.data.records.declared import DeclaredFigures, LatencyRatio
from pytest_hwqueue.data.records.fingerprint import Fingerprint, Value
from pytest_hwqueue.options.suite import plugin_name
from pytest_hwqueue.parts.processes.fork_loop import AHEAD, LATE
from pytest_hwqueue.parts.processes.starting import ForkServer, worker_environment
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, ahead, workload_class
from tests.session_server import SessionServer

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Have hypothesis try the same examples in every run, so that a failure is a change's own.

    How long an example takes says something of the machine, not of the code.
    `--hypothesis-profile=search` draws new ones. Imported here only: pytest-benchmark's commands
    load this file too, and need no hypothesis.

    A shell has its background jobs ignore SIGINT, and so would every process of the tests. A worker
    of xdist has leases of its own: it need not wait while another's tests measure the CPU.
    """
    from hypothesis import settings

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # What is imported and collected stays: looking at it over and over takes a tenth of that time.
    gc.disable()
    settings.register_profile("same", deadline=None, derandomize=True, database=None)
    settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
    settings.load_profile("same")

    if hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="hwq-tests-")
        config.add_cleanup(folder.cleanup)
        # As the system's own: tests act as other users, too.
        os.chmod(folder.name, 0o1777)
        os.environ["TMPDIR"] = tempfile.tempdir = folder.name


# How many modules there were when objects were last kept from the garbage collector.
KEPT = pytest.StashKey[int]()


def _keep_what_there_is(config: pytest.Config) -> None:
    """Keep the garbage collector from all that was imported and collected.

    Measuring collects garbage before each pass, and each pytest session five times at its end: a
    third of a second each time among five thousand tests, and more once torch's compiler is there.
    """
    gc.collect()
    gc.freeze()
    config.stash[KEPT] = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Keep the tests."""
    _keep_what_there_is(session.config)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Keep what a test was the first to import, once its fixtures are gone."""
    if len(sys.modules) > item.config.stash[KEPT] + 50:
        _keep_what_there_is(item.config)


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves a process of its own; the fork server that tests share stays."""
    before = psutil.Process().children(recursive=True)
    yield
    assert [each for each in psutil.Process().children(recursive=True) if each not in before] == []


@pytest.fixture(scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other sessions on this machine do not hold these tests up."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("leases"))
    yield
    tempfile.tempdir = before


@pytest.fixture
def temporary_files_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Have this process, and those that it starts, make temporary files in a folder."""

    def make_them_in(folder: Path) -> None:
        monkeypatch.setenv("TMPDIR", str(folder))
        # Python has looked at the variable before.
        monkeypatch.setattr(tempfile, "tempdir", str(folder))

    return make_them_in


def slow(*values: object, **given: Any) -> Any:
    """A parameter that another one holds most of, behind the mark of that name."""
    return pytest.param(*values, marks=pytest.mark.slow, **given)


def begun(server: ForkServer) -> None:
    """Wait until a server's guardian has started it: tests that count processes find both."""
    assert server._process is not None
    while not psutil.Process(server._process.pid).children():
        time.sleep(0.01)


ROOT = Path(__file__).parents[1]


# A session as a process. Both plugins that it leaves out have no part in it, and take half a second
# of each and of each worker.
PYTEST = (
    sys.executable, "-m", "pytest", "-p", plugin_name(), "-p", "no:hypothesispytest", "-p",
    "no:anyio",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: tests wait for windows and for processes."""
    return len(os.sched_getaffinity(0)) + 1


class Sessions:
    """Runs pytest sessions as processes; they and their workers are forked from two servers.

    A session of a user's starts a server of its own, unless ``hwq`` has started one for it. Here
    all sessions of a test process are given one, as ``hwq`` does it, so torch is imported once.
    Another one has imported what sessions begin with; a session with variables that libraries read
    as they are loaded is started anew.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        self._descriptors: tuple[int, ...] = ()
        self._server: SessionServer | None = None
        self.environment = dict(environment)

    def lend(self, variable: Mapping[str, str], descriptors: tuple[int, ...]) -> None:
        """Give the workers' server to sessions from now on."""
        self._given, self._descriptors = dict(variable), descriptors

    @property
    def descriptor(self) -> int:
        """The socket of the workers' server."""
        (descriptor,) = self._descriptors
        return descriptor

    def run(
        self, folder: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest with the plugin in a folder."""
        if not all(name.startswith(LATE) for name in variables):
            return self.anew(folder, *arguments, **variables)
        if self._server is None:
            self._server = SessionServer(self.environment, self._descriptors)
        # A session takes the workers' server only from its own parent.
        given = {
            name: text.replace(str(os.getpid()), str(self._server.pid), 1)
            for name, text in self._given.items()
        }
        return self._server.run([*PYTEST[2:], *map(str, arguments)], folder, variables | given)

    def anew(
        self, folder: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it likewise as a process that has imported nothing yet."""
        return subprocess.run(
            [*PYTEST, *arguments], cwd=folder,
            env={**self.environment, **variables, **self._given}, pass_fds=self._descriptors,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def close(self) -> None:
        """End the sessions' server."""
        if self._server is not None:
            self._server.close()

    def result(self, folder: Path, *arguments: str, **variables: str) -> pytest.RunResult:
        """Run pytest likewise; return what pytester would."""
        done = self.run(folder, *arguments, **variables)
        output, errors = done.stdout.splitlines(), done.stderr.splitlines()
        return pytest.RunResult(done.returncode, output, errors, 0.0)


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Runs pytest sessions in which none of this session's own settings count."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HWQ_", "GITHUB_", "PYTEST_"))
    }
    environment["PYTHONPATH"] = str(ROOT)
    # Leases of their own: they need not wait for sessions of other tests that measure the CPU.
    environment["TMPDIR"] = str(tmp_path_factory.mktemp("leases"))
    # Workers of sessions in this process are forked from it, too.
    server = ForkServer(worker_environment(environment), ahead(marks=("P0",), device="sim:h200"))
    begun(server)
    given = Sessions(environment)
    with server.handing_over() as (variable, descriptors):
        given.lend(variable, descriptors)
        yield given
        given.close()
    server.close()


RunInProcess = Callable[..., pytest.RunResult]


class Lent(ForkServer):
    """Forks from the server that all sessions share, for a test's process; never ends it."""

    def __init__(
        self, descriptor: int, environment: Mapping[str, str], ignored: Sequence[str] = ()
    ) -> None:
        """Take part in a server.

        Args:
            descriptor: of the server's socket.
            environment: what a process's must be like, to be forked.
            ignored: variables of it in which the two may differ.

        """
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._process = None
        self._ignored = (*LATE, *ignored)
        self._plain = self._kept(environment)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment can be forked."""
        return self._kept(environment) == self._plain

    def _kept(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {
            name: each for name, each in environment.items() if not name.startswith(self._ignored)
        }

    def close(self) -> None:
        """Leave it to the others."""


def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


# Of these each test of pytester's has its own.
_OF_PYTESTER = ("HOME", "USERPROFILE", "TOX_ENV_DIR")


@pytest.fixture(scope="session")
def _workers_server(sessions: Sessions) -> Iterator[Lent]:
    """What forks workers of sessions in this process, in whatever home these are."""
    server = Lent(sessions.descriptor, worker_environment(os.environ), _OF_PYTESTER)
    yield server
    ForkServer.close(server)


@pytest.fixture(scope="session")
def tenants_descriptor() -> Iterator[int]:
    """Socket of what forks all tenants on the CPU, so torch is imported once for them.

    The sessions' server has torch's compiler, too, with which each fork takes a fifth of a second
    more.
    """
    wanted = ahead(["large_gemm_only", "tiny_kernel_stress"])
    server = ForkServer(worker_environment(os.environ), wanted)
    begun(server)
    with server.handing_over() as (_, (descriptor,)):
        yield descriptor
    server.close()


@pytest.fixture(scope="session")
def _tenants_server(tenants_descriptor: int) -> Iterator[Lent]:
    """What forks the tenants of scenarios."""
    from pytest_hwqueue.engine.tenants.identified import tenant_environment

    with pytest.MonkeyPatch.context() as monkeypatch:
        _plain(monkeypatch)
        server = Lent(tenants_descriptor, tenant_environment("cpu"))
    yield server
    ForkServer.close(server)


@pytest.fixture
def lent_server(_tenants_server: Lent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tenants of scenarios on the CPU forked from one server."""
    _plain(monkeypatch)
    name = "pytest_hwqueue.engine.scenarios.measurer.tenant_server"
    monkeypatch.setattr(name, lambda *_: _tenants_server)


@pytest.fixture(scope="session")
def _imported() -> None:
    """Import what pytester would forget after a test, and what cannot be imported twice."""
    # Opening a simulated device imports torch's compiler, and a chart vl-convert, if it is there.
    for module in (*AHEAD, "torch._dynamo", "vl_convert"):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    for name in WORKLOADS:
        workload_class(name)


@pytest.fixture
def run_in_process(
    _imported: None,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> RunInProcess:
    """Run pytester's tests in this process, where torch is loaded already, without isolation.

    A session that is given isolation has its workers forked from a server that all share.
    """
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)

    def lent() -> Lent:
        server: Lent = request.getfixturevalue("_workers_server")
        return server

    monkeypatch.setattr(ForkServer, "handed_over", lent)

    def run(*arguments: str) -> pytest.RunResult:
        plain = ("-p", plugin_name(), "-p", "no:faulthandler", "--hwq-isolation=none")
        return pytester.runpytest_inprocess(*plain, *arguments)

    return run


MakeRecord = Callable[..., RunRecord]

HARD: dict[str, Value] = {
    "device_kind": "cuda",
    "device_name": "NVIDIA H200",
    "driver_major": 580,
    "mig_slice": "none",
    "environment.CUDA_DEVICE_MAX_CONNECTIONS": "default",
}
SOFT: dict[str, Value] = {
    "torch_version": "2.13.0",
    "driver_version": "580.1",
    "host_name": "first",
    "power_limit_w": 700.0,
}


def make_record(
    cell: str = "hetero_kernels",
    seed: int = 0,
    *,
    n: int = 40,
    scale: float = 1.0,
    hard: dict[str, Value] | None = None,
    soft: dict[str, Value] | None = None,
    parts: dict[str, Any] | None = None,
    **changed: Any,
) -> RunRecord:
    """A record of a cell; ``seed`` makes the run, ``scale`` its latencies."""
    generator = np.random.default_rng(seed)
    latency_ns = np.rint(scale * generator.lognormal(15, 0.03, n)).astype(int).tolist()
    measured = Cell(
        **{
            "name": cell,
            "device": "cuda",
            "streams": 8,
            "scheduler": "native",
            "dispatch": "eager",
            "sync_mode": "per_iteration",
            "size": "full",
            "parameters": {"mm_dim": 4096, "shape": [1, 2]},
            **(parts or {}),
        }
    )
    samples = Samples(
        host_ns=latency_ns,
        device_ns=[value // 2 for value in latency_ns],
        enqueue_ns=[10] * n,
        pace_ns=[],
        tags_ns={"small": [value // 4 for value in latency_ns]},
        references_ns={"small_alone": [value // 5 for value in latency_ns]},
    )
    ratio = LatencyRatio("convoy_ratio", "small", "small_alone", "chain beside products over alone")
    declared = DeclaredFigures.model_validate({"ratios": [ratio]}, from_attributes=True)
    plain: dict[str, Any] = {
        "cell": measured,
        "cell_id": measured.id,
        "nodeid": "file.py::test",
        "status": "ok",
        "started": f"2026-01-01T00:00:{seed % 60:02}.{seed:06}+00:00",
        "duration_s": 1.5,
        "iterations": n,
        "samples": samples,
        "metrics": summarise(samples, {"products": 2.0}, declared) if n else Metrics(),
        "fingerprint": Fingerprint({**HARD, **(hard or {})}, {**SOFT, **(soft or {})}),
        "seed": seed,
        "command": "pytest",
        "git_commit": "0" * 40,
    }
    return RunRecord(**{**plain, **changed})


@pytest.fixture(scope="session", name="make_record")
def _make_record() -> MakeRecord:
    """Makes records; see the function's arguments."""
    return make_record


@pytest.fixture(autouse=True)
def _precision_is_put_back() -> Iterator[None]:
    """Workloads that a test sets up by hand set it for the process, which other tests share."""
    yield
    numerics = sys.modules.get("pytest_hwqueue.parts.workloads.numerics")
    if numerics is not None:
        numerics.restore_precision()


@contextmanager
def _smaller_files(most_bytes: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this, half-way through a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def smaller_files() -> Callable[[int], AbstractContextManager[None]]:
    """Limits how large files may grow in a ``with`` statement, as a full disk does."""
    return _smaller_files
