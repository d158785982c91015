"""A test that would measure, with everything that decides whether it can."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from pytest_hwqueue.devices.kinds import Capabilities, capabilities_of, kind_of
from pytest_hwqueue.noise.names import NONE
from pytest_hwqueue.plugin.ranks import ranks_needed, workload_of
from pytest_hwqueue.plugin.state import SETTINGS, WORKER_KEY, isolates, parameters_of
from pytest_hwqueue.ranks.launched import LaunchedRank, launched_rank
from pytest_hwqueue.schedulers.declaration import NATIVE
from pytest_hwqueue.schedulers.syntax import needs_environment
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.workloads.registry import Declaration


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
        return self.config.stash[SETTINGS]

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
    config, parameters = item.config, parameters_of(item)
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
        isolated=isolates(config),
        in_worker=WORKER_KEY in getattr(config, "workerinput", {}),
    )
