"""The fixtures: hwq_device, hwq_streams, hwq_scheduler, hwq_noise, and hwq, which measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.noise.names import NONE

if TYPE_CHECKING:
    from pytest_hwqueue.devices.protocol import Device
    from pytest_hwqueue.plugin.measurement import Hwq
    from pytest_hwqueue.plugin.noise_fixture import HwqNoise
    from pytest_hwqueue.schedulers.mode import Scheduler

# In the order in which they stand in a test's id.


@pytest.fixture
def hwq_device(request: pytest.FixtureRequest) -> Device:
    """The device to measure (--hwq-device), opened."""
    from pytest_hwqueue.devices.discover import open_device
    from pytest_hwqueue.plugin.ranks_needed import local_device
    from pytest_hwqueue.plugin.state import RUN, SETTINGS

    stash = request.config.stash
    device = open_device(local_device(request.param), request.param)
    if device.model is not None:
        settings = stash[SETTINGS]
        of = f"{request.node.nodeid}/{stash.get(RUN, 1)}"
        device.model.vary(settings.sim_noise, settings.seed, of)
    return device


@pytest.fixture
def hwq_streams(request: pytest.FixtureRequest) -> int:
    """How many concurrent streams to use (--hwq-streams)."""
    count: int = request.param
    return count


@pytest.fixture
def hwq_scheduler(request: pytest.FixtureRequest) -> Scheduler:
    """The scheduler mode to measure under (--hwq-scheduler)."""
    from pytest_hwqueue.plugin.state import SETTINGS
    from pytest_hwqueue.schedulers.syntax import open_scheduler

    config = request.config
    paths = config.stash[SETTINGS].scheduler_paths(config.invocation_params.dir)
    return open_scheduler(request.param, paths)


@pytest.fixture
def hwq_dispatch(request: pytest.FixtureRequest) -> str:
    """How work reaches the queues: ``eager`` or ``graph`` (--hwq-dispatch)."""
    mode: str = request.param
    return mode


@pytest.fixture
def hwq_beside(request: pytest.FixtureRequest) -> str:
    """The noise (--hwq-noise) during the test's cells; ``none`` in the quiet turn."""
    noise: str = getattr(request, "param", NONE)
    return noise


@pytest.fixture
def hwq_noise(request: pytest.FixtureRequest) -> HwqNoise:
    """Runs background load on the CPU during a block: ``with hwq_noise("cpu"):``."""
    from pytest_hwqueue.plugin.noise_fixture import HwqNoise
    from pytest_hwqueue.plugin.state import NOISE, SETTINGS

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
    from pytest_hwqueue.plugin.state import SETTINGS, SINK

    stash = request.config.stash
    return Hwq(
        request,
        stash[SETTINGS],
        hwq_device,
        hwq_streams,
        hwq_scheduler,
        hwq_dispatch,
        hwq_beside,
        stash[SINK],
    )
