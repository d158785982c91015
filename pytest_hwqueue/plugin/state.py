"""The state of a session, and the fixtures that tests take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_hwqueue.data.errors import HwqError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_hwqueue.data.records.provenance import Provenance
    from pytest_hwqueue.options.options import Settings
    from pytest_hwqueue.parts.devices.protocol import Device
    from pytest_hwqueue.parts.processes.starting import ForkServer
    from pytest_hwqueue.parts.schedulers.syntax import Scheduler
    from pytest_hwqueue.plugin.measurement import Hwq
    from pytest_hwqueue.plugin.noise import HwqNoise
    from pytest_hwqueue.plugin.regression import Regression
    from pytest_hwqueue.plugin.session import MeasuringSession, RecordSink


@contextmanager
def wrong_usage(place: str = "", *others: type[Exception]) -> Iterator[None]:
    """Let our errors be pytest's of wrong usage, which it prints without a traceback.

    Args:
        place: begins their text, such as an option.
        others: exceptions that mean the same here.

    Raises:
        pytest.UsageError: for those, with their text.

    """
    caught: tuple[type[Exception], ...] = (HwqError, *others)
    try:
        yield
    except caught as error:
        raise pytest.UsageError(f"{place}: {error}" if place else str(error)) from None


# The key in pytest's `workerinput` that says a config is a worker's.
WORKER_KEY = "hwqueue"

# The fixtures that are parameters of a test, in the order in which its id names them.
PARAMETERS = ("hwq_device", "hwq_streams", "hwq_scheduler", "hwq_dispatch")

# The mark of tests of scenario files.
SCENARIO = "scenario"

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
_SECRETS: pytest.StashKey[set[str]] = pytest.StashKey()
SINK: pytest.StashKey[RecordSink] = pytest.StashKey()
# Of a test that asks for the fixture hwq_noise.
NOISE: pytest.StashKey[HwqNoise] = pytest.StashKey()
# Why a test cannot be measured with its parameters.
REFUSED = pytest.StashKey[str]()


def session_secrets(config: pytest.Config) -> set[str]:
    """Return what the session's scenarios have that must not be written or shown, so far."""
    return config.stash.setdefault(_SECRETS, set())


# What --hwq-budget has left out, in words.
LEFT_OUT = pytest.StashKey[list[str]]()

# Scenario files that were found and not asked for.
SCENARIOS_LEFT_OUT: pytest.StashKey[list[Path]] = pytest.StashKey()


class Assignment(NamedTuple):
    """What a session asks of the processes that measure for it.

    Attributes:
        run: number of the run, from 1, where cells are measured in several fresh processes.
        notes: what is said in each record.
        only_traced: whether nothing is wanted but the causes of slow iterations, apart from every
            measured run.
        planned: samples that the baseline's runs of a cell have, by cell id: what its runs are
            measured to.

    """

    run: int = 1
    notes: Sequence[str] = ()
    only_traced: bool = False
    planned: Mapping[str, int] = MappingProxyType({})


ASSIGNMENT = pytest.StashKey[Assignment]()

SESSION: pytest.StashKey[MeasuringSession] = pytest.StashKey()
# Where runs are stored or compared.
REGRESSION: pytest.StashKey[Regression] = pytest.StashKey()

# Determined once by the session, which tells its worker.
PROVENANCE: pytest.StashKey[Provenance] = pytest.StashKey()

# Forks the processes that measure; only where they are started from this process.
FORK_SERVER: pytest.StashKey[ForkServer] = pytest.StashKey()


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker that measures for a session."""
    return WORKER_KEY in getattr(config, "workerinput", {})


def isolates(config: pytest.Config) -> bool:
    """Whether this session hands measuring tests to a worker process."""
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    return config.stash[SETTINGS].isolation == "process" and not debugged and not is_worker(config)


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """Return a test's parameters by name; empty if it has none."""
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


def is_scenario(item: pytest.Item) -> bool:
    """Whether a test comes from a scenario file."""
    return item.get_closest_marker(SCENARIO) is not None


def item_key(item: pytest.Item) -> str:
    """Return a name for a test that is the same in the session and in its worker.

    For a file outside the root folder, pytest makes node ids relative to its arguments; a worker is
    given files, while the session may have been given folders or packages.
    """
    return f"{item.path}::{item.nodeid.partition('::')[2]}"


def _parameter(request: pytest.FixtureRequest) -> Any:
    """Return what a test was parametrized with; fail one that pytest could not parametrize."""
    if not hasattr(request, "param"):
        pytest.fail(
            f"{request.fixturename} was asked for at run time (request.getfixturevalue, a step of "
            "pytest-bdd, a fixture of a unittest.TestCase). Tests that measure are parametrized by "
            "device, streams, scheduler and dispatch when they are collected: name hwq among the "
            'arguments of the test, or mark it with @pytest.mark.usefixtures("hwq"); write a '
            "TestCase, which pytest parametrizes in no way, as a plain class",
            pytrace=False,
        )
    return request.param


# In the order in which they stand in a test's id.


@pytest.fixture
def hwq_device(request: pytest.FixtureRequest) -> Device:
    """The device to measure (--hwq-device), opened; ``device="cuda"`` in torch means this GPU."""
    from pytest_hwqueue.parts.devices.kinds import open_device
    from pytest_hwqueue.plugin.ranks import local_device

    stash = request.config.stash
    name = _parameter(request)
    device = open_device(local_device(name), name)
    if device.model is not None:
        settings = stash[SETTINGS]
        of = f"{request.node.nodeid}/{stash.get(ASSIGNMENT, Assignment()).run}"
        device.model.vary(settings.sim_noise, settings.seed, of)
    if device.torch_device.type == "cuda":
        import torch

        torch.cuda.set_device(device.torch_device)
    return device


@pytest.fixture
def hwq_streams(request: pytest.FixtureRequest) -> int:
    """How many concurrent streams to use (--hwq-streams)."""
    count: int = _parameter(request)
    return count


@pytest.fixture
def hwq_scheduler(request: pytest.FixtureRequest) -> Scheduler:
    """The scheduler mode to measure under (--hwq-scheduler)."""
    from pytest_hwqueue.parts.schedulers.syntax import open_scheduler

    config = request.config
    paths = config.stash[SETTINGS].scheduler_paths(config.invocation_params.dir)
    return open_scheduler(_parameter(request), paths)


@pytest.fixture
def hwq_dispatch(request: pytest.FixtureRequest) -> str:
    """How work reaches the queues: ``eager`` or ``graph`` (--hwq-dispatch)."""
    mode: str = _parameter(request)
    return mode


@pytest.fixture
def hwq_beside(request: pytest.FixtureRequest) -> str:
    """The noise (--hwq-noise) during the test's cells; ``none`` in the quiet turn."""
    from pytest_hwqueue.data.noise_names import NONE

    noise: str = getattr(request, "param", NONE)
    return noise


@pytest.fixture
def hwq_noise(request: pytest.FixtureRequest) -> HwqNoise:
    """Runs background load on the CPU during a block: ``with hwq_noise("cpu"):``."""
    from pytest_hwqueue.plugin.noise import HwqNoise

    found = HwqNoise(request, request.config.stash[SETTINGS])
    request.node.stash[NOISE] = found
    return found


@pytest.fixture
def hwq(
    request: pytest.FixtureRequest,
    hwq_device: Device,
    hwq_streams: int,
    hwq_scheduler: Scheduler,
    hwq_dispatch: str,
    hwq_beside: str,
) -> Hwq:
    """Measure a workload of the suite (``hwq.run``) or your own code (``hwq.measure``)."""
    from pytest_hwqueue.plugin.measurement import Hwq

    return Hwq(request, hwq_device, hwq_streams, hwq_scheduler, hwq_dispatch, hwq_beside)
