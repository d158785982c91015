"""The two checks that say that no workload has a race find one that is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.latency_sensitive.graph_subgraphs import GraphSubgraphs
from pytest_hwqueue.parts.workloads.numerics import require_close
from pytest_hwqueue.parts.workloads.workload import (
    Parameters,
    Setup,
    StreamRange,
    Workload,
)

from .cells import Waits, make
from .everyone import small
from .orders import unordered
from .perturbed import HeedlessStream, check_perturbed


class Pair(Workload):
    """One stream fills a buffer, the other doubles what is there."""

    name = "pair"
    family = "none"
    mark = "P0"
    description = "two streams and a buffer"
    stream_range = StreamRange(2, 2, 2)
    units = ("pairs",)
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {}}

    def __init__(self, *, waits: bool = True, halves: str = "none", made: bool = False) -> None:
        self._waits = waits
        self._halves = halves
        self._made = made

    def setup(self, setup: Setup) -> None:
        self._data = torch.zeros(8, 8)
        self._written = self._read = self._data
        if self._halves == "rows":
            self._written, self._read = self._data[:4], self._data[4:]
        elif self._halves == "columns":
            self._written, self._read = self._data[:, :4], self._data[:, 4:]
        elif self._halves == "overlapping":
            self._written, self._read = self._data[:, :5], self._data[:, 4:]
        self._doubled = torch.zeros_like(self._read)

    def iterate(self, streams: Sequence[Stream]) -> None:
        first, second = streams
        first.launch(self._fill)
        if self._waits:
            second.wait(first.record())
        second.launch(self._double)
        if self._waits:
            first.wait(second.record())

    def work_per_iteration(self) -> dict[str, float]:
        return {"pairs": 1.0}

    def check(self, run_once: Callable[[], None]) -> None:
        self._data.fill_(float("nan"))
        run_once()
        require_close("doubled", self._doubled, torch.full((8, 8), 6.0), 1e-6)

    def _fill(self) -> None:
        if self._made:
            self._read = torch.full((8, 8), 3.0)
        else:
            self._written.fill_(3.0)

    def _double(self) -> None:
        torch.mul(self._read, 2.0, out=self._doubled)


def wrong_for_some_seed(
    fresh: Callable[[], Workload], streams: int, around: Callable[[Stream], Stream] | None = None
) -> str:
    """What is wrong under the first of 20 seeds that shows it."""
    for seed in range(20):
        try:
            check_perturbed(HostDevice(), fresh(), streams, seed, around=around or (lambda s: s))
        except CheckFailed as failed:
            return str(failed)
    raise AssertionError("no seed shows the race")


def test_missing_event_makes_the_result_wrong_under_delays() -> None:
    check_perturbed(HostDevice(), Pair(), 2, seed=1)
    assert "doubled" in wrong_for_some_seed(lambda: Pair(waits=False), 2)


def test_missing_events_of_a_workload_make_its_result_wrong_under_delays() -> None:
    # One of its waits, and then all.
    for streams, around in ((3, Waits(0, 4).around), (8, HeedlessStream)):
        assert "merge" in wrong_for_some_seed(lambda: make(GraphSubgraphs), streams, around)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_check_of_moe_fails_without_events(seed: int) -> None:
    with pytest.raises(CheckFailed):
        check_perturbed(HostDevice(), small("moe"), 5, seed, around=HeedlessStream)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "streams"), [("speculative_decode", 3), ("continuous_batch", 4), ("rag_pipeline", 4)]
)
def test_check_fails_without_events(name: str, streams: int) -> None:
    # A length that nobody resets runs over its buffers, and torch says so before the check does.
    with pytest.raises((CheckFailed, IndexError, RuntimeError)):  # noqa: PT012  # of some seed
        for seed in range(10):
            check_perturbed(HostDevice(), small(name), streams, seed, around=HeedlessStream)


@pytest.mark.parametrize(
    ("pair", "races"),
    [
        (Pair(), set()),
        (
            Pair(waits=False),
            {
                "Pair._fill on stream 0 writes what Pair._double on stream 1 reads, in no order",
                "Pair._double on stream 1 reads what Pair._fill on stream 0 writes, in no order",
            },
        ),
        (
            Pair(made=True),
            {
                "Pair._double on stream 1 reads what Pair._fill on stream 0 allocated: it may be "
                "given away before"
            },
        ),
        (Pair(waits=False, halves="rows"), set()),
        (Pair(waits=False, halves="columns"), set()),
    ],
)
def test_race_is_found_without_waiting_for_it(pair: Pair, races: set[str]) -> None:
    assert set(unordered(pair, 2)) == races


def test_parts_of_a_buffer_that_overlap_race() -> None:
    assert len(unordered(Pair(waits=False, halves="overlapping"), 2)) == 2


def test_device_without_values_runs_perturbed_too() -> None:
    check_perturbed(SimulatedDevice("h200"), make(GraphSubgraphs), 3, seed=1)
