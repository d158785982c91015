"""Batches on their way to a network: three groups of streams, and buffers used again in order."""

from __future__ import annotations

import pytest

from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.workloads.pipeline.stages import grouped, thirds

from .cells import Counts, Run, kernels_of, simulated_timeline
from .everyone import small
from .orders import unordered


@pytest.mark.parametrize("streams", range(3, 13))
def test_streams_are_split_into_three_groups_of_one_kind_of_work(streams: int) -> None:
    sizes, counts = thirds(streams), Counts()
    assert max(sizes) - min(sizes) <= 1
    with HostDevice().open_streams(streams) as pool:
        groups = grouped(pool.streams, sizes)
    assert [stream.index for group in groups for stream in group] == list(range(streams))
    assert tuple(map(len, groups)) == sizes
    with Run(small("async_dataload"), streams, counts.around) as run:
        run.once()
    assert len(counts.launches) == streams, "one tag per stream"
    assert streams % 4 or unordered(small("async_dataload"), streams) == []


def test_images_are_drawn_from_the_seed_and_counted() -> None:
    images = []
    for seed in (5, 5, 6):
        with Run(small("async_dataload", batch=3), 4, seed=seed) as run:
            images.append(run.workload._host.clone())  # type: ignore[attr-defined]
            assert run.workload.work_per_iteration() == {"images": 15.0}
    # The network depends on the seed too, so outputs alone say nothing of the images.
    assert images[0].equal(images[1])
    assert not images[0].equal(images[2])


def test_copies_are_copies_on_a_simulated_device() -> None:
    timeline = simulated_timeline(small("async_dataload"), 3)
    copies = [kernel for kernel in timeline.kernels if kernel.name == "copy"]
    assert copies == kernels_of(timeline, "copy")
    assert len(copies) == 5


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
@pytest.mark.parametrize("batches", [4, 8, 64])
def test_timeline_takes_no_more_batches_than_can_be_held(model: str, batches: int) -> None:
    changed = small("async_dataload", batches=batches, model=model).timeline_parameters(6)
    assert 4 <= changed["batches"] <= batches
    small("async_dataload", model=model, **changed)
