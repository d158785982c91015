"""The fixtures that tests take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.plugin.keys import ASSIGNMENT, NOISE, SETTINGS, Assignment

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.protocol import Device
    from pytest_hwqueue.parts.schedulers.syntax import Scheduler
    from pytest_hwqueue.plugin.measurement import Hwq
    from pytest_hwqueue.plugin.noise import HwqNoise


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
