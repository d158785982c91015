"""Why a test cannot be measured here: a list of checks for cells, one for scenarios."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.data.noise_names import NONE, noise_file
from pytest_hwqueue.data.records.kinds import Capabilities, capabilities_of, kind_of
from pytest_hwqueue.engine.noise.neighbours import open_noise
from pytest_hwqueue.engine.tenants.servers import missing_client
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.devices.kinds import (
    chosen_devices,
    only_device,
    resolve_size,
    visible_accelerators,
)
from pytest_hwqueue.parts.processes.launched import LaunchedRank, launched_rank
from pytest_hwqueue.parts.schedulers.declaration import NATIVE
from pytest_hwqueue.parts.schedulers.syntax import (
    SchedulerPaths,
    needs_environment,
    open_scheduler,
    unavailable_for_cell,
    unavailable_for_process,
    unopened,
)
from pytest_hwqueue.parts.workloads.registry import Declaration, workload_class
from pytest_hwqueue.parts.workloads.tenants.shapes import missing_package
from pytest_hwqueue.plugin import keys
from pytest_hwqueue.plugin.noise import noise_places, why_noise_is_impossible
from pytest_hwqueue.plugin.ranks import ranks_needed, workload_of
from pytest_hwqueue.plugin.reading import is_given, wrong_usage

if TYPE_CHECKING:
    from pytest_hwqueue.engine.scenarios.file import Scenario
    from pytest_hwqueue.plugin.scenario_items import ScenarioItem


@dataclass(frozen=True)
class Candidate:
    """A test with its parameters.

    Attributes:
        config: of its session.
        workload: the suite's workload that it runs; None for the user's own test.
        device: label; empty if the test takes no device.
        streams: how many; None if the test takes none.
        scheduler: the mode.
        dispatch: how work reaches the queues; empty if the test does not take it.
        noise: the background noise.
        ranks: how many processes to start for it.
        launched: this process's rank, if a launcher started several.
        isolated: whether this session measures it in a worker process.
        in_worker: whether this is that worker process; its session has checked everything outside.

    """

    config: pytest.Config
    workload: Declaration | None
    device: str
    streams: int | None
    scheduler: str
    dispatch: str
    noise: str
    ranks: int
    launched: LaunchedRank | None
    isolated: bool
    in_worker: bool

    @property
    def settings(self) -> Settings:
        """The session's."""
        return self.config.stash[keys.SETTINGS]

    @property
    def kind(self) -> str:
        """The device's kind; empty if the test takes none."""
        return kind_of(self.device)

    @property
    def capabilities(self) -> Capabilities:
        """What its device can do."""
        return capabilities_of(self.device)

    @property
    def ranked(self) -> bool:
        """Whether the test runs on several ranks, whoever starts them."""
        return self.ranks > 1 or self.launched is not None

    @property
    def needs_services(self) -> bool:
        """Whether its scheduler mode needs a process started for it."""
        return needs_environment(self.scheduler)


def candidate_of(item: pytest.Item) -> Candidate:
    """Read a test's item.

    Raises:
        pytest.UsageError: if its workload does not exist.

    """
    config, parameters = item.config, keys.parameters_of(item)
    return Candidate(
        config=config,
        workload=workload_of(item),
        device=str(parameters.get("hwq_device", "")),
        streams=parameters.get("hwq_streams"),
        scheduler=str(parameters.get("hwq_scheduler", NATIVE.name)),
        dispatch=str(parameters.get("hwq_dispatch", "")),
        noise=parameters.get("hwq_beside", NONE),
        ranks=ranks_needed(item),
        launched=launched_rank(os.environ),
        isolated=keys.isolates(config),
        in_worker=keys.is_worker(config),
    )


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


def _cold_cache(test: Candidate) -> str | None:
    if test.settings.cache == "hot" or not test.device or test.capabilities.cold_cache:
        return None
    if test.capabilities.simulated:
        return "--hwq-cache=cold: the simulated device has no model of a cache"
    return f"--hwq-cache=cold needs a GPU, whose cache can be emptied, not {test.kind}"


def _graphs(test: Candidate) -> str | None:
    if test.dispatch != "graph" or test.capabilities.graphs:
        return None
    return "graph dispatch needs an accelerator: the CPU has no graphs (--hwq-dispatch=graph)"


def _noise(test: Candidate) -> str | None:
    """Return why a test cannot have its background noise here, or None.

    Raises:
        pytest.UsageError: if there is no such noise.

    """
    if test.noise == NONE:
        return None
    reason = why_noise_is_impossible(test.noise, test.device, launched=False)
    if reason is None and test.launched is not None:
        elsewhere = test.launched.size - test.launched.local_size
        if elsewhere:
            reason = (
                f"noise {test.noise} runs on one host, and {elsewhere} of {test.launched.size} "
                "ranks are on others: start all of them on one"
            )
    if reason is not None or test.in_worker:
        return reason
    with wrong_usage("--hwq-noise"):
        return open_noise(test.noise, noise_places(test.config)).unavailable()


def _ranks(test: Candidate) -> str | None:
    """Return why a test cannot run on its ranks, or None."""
    launched = test.launched
    size = test.ranks if launched is None else launched.size
    if size == 1:
        return None
    how = f"--hwq-ranks={size}" if launched is None else f"{size} ranks"
    if not test.isolated and not test.in_worker:
        return f"{how} need separate processes: leave out --hwq-isolation=none, --pdb, --trace"
    if not test.capabilities.several_ranks:
        return f"a simulated device has one rank, not {size}"
    if test.device and not test.capabilities.host:
        count = visible_accelerators()[1]
        local = size if launched is None else launched.local_size
        if test.device != test.kind:
            return (
                f"{how} take one device each, from the first: --hwq-device={test.kind}, not "
                f"{test.device}"
            )
        # A launcher may let each rank see its own accelerator only.
        if local > count and (launched is None or count != 1):
            return f"{how} need as many accelerators, and {count} are visible"
    return None


def _services(test: Candidate) -> str | None:
    """Return why a test cannot have the services and the process that its mode needs, or None.

    A mode that cannot be opened fails its own cells, when their turn comes; others run.

    Raises:
        pytest.UsageError: if none of the session's modes can be opened.

    """
    if not test.needs_services:
        return None
    if test.ranked:
        return f"{test.scheduler} serves a process alone: give --hwq-ranks=1, and no torchrun"
    if test.in_worker:
        # The session has judged before it started what runs around this process.
        return None
    if not test.isolated:
        return f"{test.scheduler} needs a process started for it: leave out --hwq-isolation=none"
    paths = test.settings.scheduler_paths(test.config.invocation_params.dir)
    if test.scheduler in (bad := _unopened((*test.settings.scheduler, test.scheduler), paths)):
        if set(test.settings.scheduler) <= bad.keys():
            raise pytest.UsageError(f"--hwq-scheduler: {bad[test.scheduler]}")
        return None
    return _unavailable(test.scheduler, paths, test.kind)


def _scheduler(test: Candidate) -> str | None:
    """Return why an environment-free mode cannot schedule a workload's streams, or None."""
    if test.needs_services or test.workload is None or test.streams is None:
        return None
    if test.scheduler == NATIVE.name:
        return None
    # What its streams deserve is for the class to say; an instance is needed only for values.
    urgency = workload_class(test.workload.name).urgency(test.streams)
    return unavailable_for_cell(open_scheduler(test.scheduler), test.kind, urgency)


@cache
def _unopened(modes: tuple[str, ...], paths: SchedulerPaths) -> dict[str, str]:
    return unopened(modes, paths)


@cache
def _unavailable(text: str, paths: SchedulerPaths, kind: str) -> str | None:
    return unavailable_for_process(open_scheduler(text, paths), kind)


# Each returns a reason, or None. Those of schedulers are last, since they look at the machine.
CHECKS: tuple[Callable[[Candidate], str | None], ...] = (
    _device,
    _streams,
    _simulated_noise,
    _cold_cache,
    _graphs,
    _noise,
    _ranks,
    _services,
    _scheduler,
)


def _only_device(test: ScenarioItem) -> str | None:
    try:
        only_device(test.config.stash[keys.SETTINGS].device)
    except BadOption as error:
        return str(error)
    return None


def _kind(test: ScenarioItem) -> str:
    return only_device(test.config.stash[keys.SETTINGS].device).kind


def _noise_of_scenario(test: ScenarioItem) -> str | None:
    name = test.case.noise
    if name is None:
        return None
    if reason := why_noise_is_impossible(name, _kind(test), launched_rank(os.environ) is not None):
        return reason
    if hasattr(test.config, "workerinput"):
        return f"noise {name} disturbs the other processes of xdist: leave out -n"
    return open_noise(noise_file(name, test.path.parent), noise_places(test.config)).unavailable()


def _faults_of_tenants(test: ScenarioItem) -> str | None:
    if not test.config.stash[keys.SETTINGS].fault:
        return None
    if capabilities_of(_kind(test)).simulated:
        return "--hwq-fault: cannot be planted in simulated tenants; give a real --hwq-device"
    first = test.case.scenario.tenants[0]
    if first.server is not None:
        return f"--hwq-fault: cannot be planted in tenant {first.name}, a server"
    return None


def _cache_of_tenants(test: ScenarioItem) -> str | None:
    if test.config.stash[keys.SETTINGS].cache == "hot":
        return None
    return "--hwq-cache=cold: tenants' requests follow no iteration, between which to empty a cache"


def _weights(test: ScenarioItem) -> str | None:
    from pytest_hwqueue.engine.scenarios.planned_runs import missing_weights

    return missing_weights(test.case.tenants, weights_folder(test.config))


def _models(test: ScenarioItem) -> str | None:
    return missing_package(tenant.model for tenant in test.case.tenants)


def _servers(test: ScenarioItem) -> str | None:
    names = [tenant.name for tenant in test.case.tenants if tenant.server is not None]
    if not names:
        return None
    if capabilities_of(_kind(test)).simulated:
        return f"tenant {names[0]} is a server, which needs a real device, such as cpu or cuda"
    return missing_client()


def _variables(test: ScenarioItem) -> str | None:
    from pytest_hwqueue.engine.scenarios.planned_runs import unset_variable

    return unset_variable(test.case.tenants, test.path)


def _starts(test: ScenarioItem) -> str | None:
    from pytest_hwqueue.engine.scenarios.planned_runs import cases, late_start, runs_needed
    from pytest_hwqueue.engine.scenarios.runs import ROUNDS

    among = cases(test.case.scenario)
    compares = any(each.noise is not None or len(runs_needed(each)) > 1 for each in among)
    window_s = scenario_seconds(test.config, test.case.scenario) / (ROUNDS if compares else 1)
    return late_start(test.case, window_s)


SCENARIO_CHECKS: tuple[Callable[[ScenarioItem], str | None], ...] = (
    _only_device,
    _noise_of_scenario,
    _faults_of_tenants,
    _cache_of_tenants,
    _weights,
    _models,
    _servers,
    _variables,
    _starts,
)


def scenario_seconds(config: pytest.Config, scenario: Scenario) -> float:
    """Return how long a scenario's test measures: its duration, or --hwq-max-time if less."""
    settings = config.stash[keys.SETTINGS]
    size = resolve_size(settings.size, only_device(settings.device).kind)
    duration_s = scenario.duration_s(size)
    return min(duration_s, settings.max_time) if is_given(config, "max-time") else duration_s


def weights_folder(config: pytest.Config) -> Path | None:
    """Return the folder of models' weights (--hwq-weights), relative to pytest's invocation."""
    folder = config.stash[keys.SETTINGS].weights
    return None if folder is None else config.invocation_params.dir / folder


def refusal(item: pytest.Item) -> str | None:
    """Return why a test cannot be measured with its parameters, or None.

    Raises:
        pytest.UsageError: if its scheduler mode or noise does not exist.

    """
    test = candidate_of(item)
    return next((reason for check in CHECKS if (reason := check(test))), None)


def refusal_of_scenario(test: ScenarioItem) -> str | None:
    """Return why a test of a scenario file cannot be measured here, or None."""
    return next((reason for check in SCENARIO_CHECKS if (reason := check(test))), None)


def skip_refused(item: pytest.Item, reason: str | None) -> None:
    """Have a test skipped for a reason, if there is one."""
    if reason is not None:
        item.stash[keys.REFUSED] = reason
        item.add_marker(pytest.mark.skip(reason=reason))


def require_one_possible(items: Sequence[pytest.Item]) -> None:
    """Raise pytest.UsageError, with every reason, if all of these tests are skipped for one."""
    if all(keys.REFUSED in item.stash for item in items):
        reasons = dict.fromkeys(item.stash[keys.REFUSED] for item in items)
        raise pytest.UsageError("nothing to measure: " + "; ".join(reasons))
