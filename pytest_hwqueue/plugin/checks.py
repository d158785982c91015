"""Checks whether a test can be measured with its parameters; the first reason counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.faults.specification import impossible
from pytest_hwqueue.plugin.candidate import Candidate, candidate_of
from pytest_hwqueue.plugin.noise_fixture import refusal_of_noise
from pytest_hwqueue.plugin.parameters import chosen_devices
from pytest_hwqueue.plugin.ranks_needed import refusal_of_ranks
from pytest_hwqueue.plugin.worker.scheduler_services import (
    refusal_of_scheduler,
    refusal_of_services,
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


def _faults(test: Candidate) -> str | None:
    return impossible(test.settings.fault, test.kind) if test.device else None


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
    _faults,
    _simulated_noise,
    _graphs,
    refusal_of_noise,
    refusal_of_ranks,
    refusal_of_services,
    refusal_of_scheduler,
)


def refusal(item: pytest.Item) -> str | None:
    """Return why a test cannot be measured with its parameters, or None.

    Raises:
        pytest.UsageError: if its scheduler mode or noise does not exist.

    """
    test = candidate_of(item)
    return next((reason for check in CHECKS if (reason := check(test)) is not None), None)
