"""Every stream asked for gets work: seen in what is launched, and in the timeline."""

from __future__ import annotations

import pytest

from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.workloads.workload import Setup

from .cells import Counts, Run, make
from .everyone import EVERYONE, least_and_recommended
from .perturbed import group_for


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_work_is_launched_on_every_stream(name: str, streams: int) -> None:
    counts = Counts()
    with Run(make(EVERYONE[name]), streams, counts.around) as run:
        run.once()
        counts.launches.clear()
        run.once()
    assert counts.streams == set(range(streams))
    used = {tag for _, tag in counts.launches if tag is not None}
    assert used == set(EVERYONE[name].tags), "the tags declared are those used"
    primary = EVERYONE[name].primary
    assert primary.per != "request" or counts.requests, "it has samples"
    assert primary.per != "launch" or primary.name in used, "it has samples"


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_kernels_run_on_every_stream_of_the_timeline(name: str, streams: int) -> None:
    device, workload = SimulatedDevice("h200"), make(EVERYONE[name])
    with (
        group_for(workload, device),
        device.open_streams(streams, gradients=workload.gradients) as pool,
    ):
        workload.setup(Setup(device, streams, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    assert {kernel.stream for kernel in timeline.kernels} == set(range(streams))
