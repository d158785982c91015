"""The plugin's state in pytest's config, under typed keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.settings.options import Settings

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.measurement import Sink
    from pytest_hwqueue.plugin.noise_fixture import HwqNoise
    from pytest_hwqueue.processes.starting import ForkServer

# The key in pytest's `workerinput` that says a config is a worker's.
WORKER_KEY = "hwqueue"

# The fixtures that are parameters of a test, in the order in which its id names them.
PARAMETERS = ("hwq_device", "hwq_streams", "hwq_scheduler", "hwq_dispatch")

# The mark of tests of scenario files.
SCENARIO = "scenario"

SETTINGS = pytest.StashKey[Settings]()
SINK: pytest.StashKey[Sink] = pytest.StashKey()
# Of a test that asks for the fixture hwq_noise.
NOISE: pytest.StashKey[HwqNoise] = pytest.StashKey()
# Why a test cannot be measured with its parameters.
REFUSED = pytest.StashKey[str]()

# What --hwq-budget has left out, in words.
LEFT_OUT = pytest.StashKey[list[str]]()

# Scenario files that were found and not asked for.
SCENARIOS_LEFT_OUT = pytest.StashKey[list[Path]]()

# What the worker's session has to say in each record.
NOTES = pytest.StashKey[tuple[str, ...]]()

# Set where nothing is wanted but the causes of slow iterations, apart from every measured run.
ONLY_TRACED = pytest.StashKey[bool]()

# Samples that the baseline's runs of a cell have, by cell id: what its runs are measured to.
PLANNED = pytest.StashKey[dict[str, int]]()

# Number of the run, from 1, where cells are measured in several fresh processes.
RUN = pytest.StashKey[int]()

# Forks the processes that measure; only where they are started from this process.
FORK_SERVER: pytest.StashKey[ForkServer] = pytest.StashKey()

# Likewise the tenants of scenarios, by the device that they share.
TENANT_SERVERS: pytest.StashKey[dict[str, ForkServer]] = pytest.StashKey()


def isolates(config: pytest.Config) -> bool:
    """Whether this session hands measuring tests to a worker process."""
    is_worker = WORKER_KEY in getattr(config, "workerinput", {})
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    return config.stash[SETTINGS].isolation == "process" and not debugged and not is_worker


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
