"""Checks whether a test can be measured with its parameters; the first reason counts.

Tests that measure cells and those of scenario files have a list of checks each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.noise.names import NONE, noise_file
from pytest_hwqueue.plugin.candidate import Candidate, candidate_of
from pytest_hwqueue.plugin.cells import chosen_devices, only_device
from pytest_hwqueue.plugin.noise import refusal_of_noise, why_noise_is_impossible
from pytest_hwqueue.plugin.ranks import refusal_of_ranks
from pytest_hwqueue.plugin.state import SETTINGS
from pytest_hwqueue.plugin.worker.services import refusal_of_scheduler, refusal_of_services
from pytest_hwqueue.ranks.launched import launched_rank
from pytest_hwqueue.servers.spec import missing_client
from pytest_hwqueue.workloads.tenants.shapes import MISSING_TRANSFORMERS

if TYPE_CHECKING:
    from pytest_hwqueue.scenarios.file import Scenario, Tenant
    from pytest_hwqueue.scenarios.planned_runs import Case
    from pytest_hwqueue.settings.options import Settings

Test = TypeVar("Test")


def _device(test: Candidate) -> str | None:
    try:
        chosen_devices(test.settings.device)
    except BadOption as error:
        return str(error)
    return None


def _streams(test: Candidate) -> str | None:
    if test.workload is None or test.streams is None:
        return None
    return test.workload.streams_refusal(test.streams)


def _simulated_noise(test: Candidate) -> str | None:
    if not test.settings.sim_noise or not test.device or test.capabilities.simulated:
        return None
    return f"--hwq-sim-noise needs a simulated device, not {test.kind}"


def _graphs(test: Candidate) -> str | None:
    if test.dispatch != "graph" or test.capabilities.graphs:
        return None
    return "graph dispatch needs an accelerator: the CPU has no graphs (--hwq-dispatch=graph)"


# Each returns a reason, or None. Those of schedulers are last, since they look at the machine.
CHECKS: tuple[Callable[[Candidate], str | None], ...] = (
    _device,
    _streams,
    _simulated_noise,
    _graphs,
    refusal_of_noise,
    refusal_of_ranks,
    refusal_of_services,
    refusal_of_scheduler,
)


@dataclass(frozen=True)
class ScenarioCandidate:
    """A test of a scenario file.

    Attributes:
        config: of its session.
        scenario: the file's.
        case: which test of it this is.
        folder: of the file.

    """

    config: pytest.Config
    scenario: Scenario
    case: Case
    folder: Path

    @property
    def settings(self) -> Settings:
        """The session's."""
        return self.config.stash[SETTINGS]

    @property
    def kind(self) -> str:
        """The device's kind."""
        return only_device(self.settings.device).kind

    @property
    def tenants(self) -> Sequence[Tenant]:
        """The tenants of its case."""
        return self.scenario.tenants_of(self.case.variant)


def _only_device(test: ScenarioCandidate) -> str | None:
    try:
        only_device(test.settings.device)
    except BadOption as error:
        return str(error)
    return None


def _noise_of_scenario(test: ScenarioCandidate) -> str | None:
    from pytest_hwqueue.noise.neighbours import open_noise
    from pytest_hwqueue.plugin.noise import noise_places

    name = test.case.noise
    if name == NONE:
        return None
    if reason := why_noise_is_impossible(name, test.kind, launched_rank(os.environ) is not None):
        return reason
    if hasattr(test.config, "workerinput"):
        return f"noise {name} disturbs the other processes of xdist: leave out -n"
    return open_noise(noise_file(name, test.folder), noise_places(test.config)).unavailable()


def _faults_of_tenants(test: ScenarioCandidate) -> str | None:
    if not test.settings.fault:
        return None
    if capabilities_of(test.kind).simulated:
        return "--hwq-fault: cannot be planted in simulated tenants; give a real --hwq-device"
    first = test.scenario.tenants[0]
    if first.server is not None:
        return f"--hwq-fault: cannot be planted in tenant {first.name}, a server"
    return None


def _weights(test: ScenarioCandidate) -> str | None:
    from pytest_hwqueue.scenarios.planned_runs import missing_weights

    return missing_weights(test.tenants, weights_folder(test.config))


def _models(test: ScenarioCandidate) -> str | None:
    if find_spec("transformers") is None and any(tenant.model for tenant in test.tenants):
        return MISSING_TRANSFORMERS
    return None


def _servers(test: ScenarioCandidate) -> str | None:
    names = [tenant.name for tenant in test.tenants if tenant.server is not None]
    if not names:
        return None
    if capabilities_of(test.kind).simulated:
        return f"tenant {names[0]} is a server, which needs a real device, such as cpu or cuda"
    return missing_client()


SCENARIO_CHECKS: tuple[Callable[[ScenarioCandidate], str | None], ...] = (
    _only_device,
    _noise_of_scenario,
    _faults_of_tenants,
    _weights,
    _models,
    _servers,
)


def weights_folder(config: pytest.Config) -> Path | None:
    """Return the folder of models' weights (--hwq-weights), relative to pytest's invocation."""
    folder = config.stash[SETTINGS].weights
    return None if folder is None else config.invocation_params.dir / folder


def refusal(item: pytest.Item) -> str | None:
    """Return why a test cannot be measured with its parameters, or None.

    Raises:
        pytest.UsageError: if its scheduler mode or noise does not exist.

    """
    return _first(CHECKS, candidate_of(item))


def refusal_of_scenario(test: ScenarioCandidate) -> str | None:
    """Return why a test of a scenario file cannot be measured here, or None."""
    return _first(SCENARIO_CHECKS, test)


def _first(checks: Iterable[Callable[[Test], str | None]], test: Test) -> str | None:
    return next((reason for check in checks if (reason := check(test)) is not None), None)
