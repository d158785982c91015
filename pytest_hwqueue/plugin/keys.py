"""Keys of what a session keeps in pytest's stashes, and what is asked of a config or a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_hwqueue.data.records.provenance import Provenance
    from pytest_hwqueue.options.options import Settings
    from pytest_hwqueue.parts.processes.starting import ForkServer
    from pytest_hwqueue.plugin.noise import HwqNoise
    from pytest_hwqueue.plugin.regression import Regression
    from pytest_hwqueue.plugin.session import MeasuringSession, RecordSink


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
        compared_devices: folders of the devices' models that these baselines are of; empty where
            they are compared with any device's.

    """

    run: int = 1
    notes: Sequence[str] = ()
    only_traced: bool = False
    planned: Mapping[str, int] = MappingProxyType({})
    compared_devices: Sequence[str] = ()


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
