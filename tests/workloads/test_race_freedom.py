"""No workload has a race, and the two checks that say so find one that is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import CheckFailed
from pytest_hwqueue.workloads.latency_sensitive.graph_subgraphs import GraphSubgraphs
from pytest_hwqueue.workloads.workload import (
    Parameters,
    Setup,
    StreamRange,
    Workload,
    require_close,
)

from .cells import Waits, make
from .everyone import EVERYONE, least_and_recommended
from .orders import unordered
from .perturbed import HeedlessStream, check_perturbed

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_results_stay_right_when_streams_are_slowed_down(
    name: str, streams: int, seed: int
) -> None:
    check_perturbed(HostDevice(), make(EVERYONE[name]), streams, seed)


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_launches_that_share_memory_stand_in_an_order(name: str, streams: int) -> None:
    assert unordered(make(EVERYONE[name]), streams) == []


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_without_its_events_a_workload_that_has_some_races(name: str, streams: int) -> None:
    counted = Waits()
    unordered(make(EVERYONE[name]), streams, around=counted.around)
    races = unordered(make(EVERYONE[name]), streams, around=HeedlessStream)
    assert bool(races) == (counted.count > 0 and streams > 1)


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
    fresh: Callable[[], Workload],
    streams: int,
    around: Callable[[], Callable[[Stream], Stream]] = lambda: lambda stream: stream,
) -> str:
    """What is wrong under the first of 20 seeds that shows it."""
    for seed in range(20):
        try:
            check_perturbed(HostDevice(), fresh(), streams, seed, around=around())
        except CheckFailed as failed:
            return str(failed)
    raise AssertionError("no seed shows the race")


def test_missing_event_makes_the_result_wrong_under_delays() -> None:
    check_perturbed(HostDevice(), Pair(), 2, seed=1)
    assert "doubled" in wrong_for_some_seed(lambda: Pair(waits=False), 2)


def test_missing_event_of_a_workload_makes_its_result_wrong_under_delays() -> None:
    counted = Waits()
    unordered(make(GraphSubgraphs), 3, around=counted.around)
    period = counted.count // 2
    # The first wait of an iteration: the merge's, for the first subgraph.
    text = wrong_for_some_seed(
        lambda: make(GraphSubgraphs), 3, lambda: Waits(left_out=0, period=period).around
    )
    assert "merge" in text


def test_workload_without_any_event_comes_out_wrong_under_delays() -> None:
    assert "merge" in wrong_for_some_seed(lambda: make(GraphSubgraphs), 8, lambda: HeedlessStream)


def test_missing_event_is_found_without_waiting_for_the_race() -> None:
    assert unordered(Pair(), 2) == []
    assert set(unordered(Pair(waits=False), 2)) == {
        "Pair._fill on stream 0 writes what Pair._double on stream 1 reads, in no order",
        "Pair._double on stream 1 reads what Pair._fill on stream 0 writes, in no order",
    }


@pytest.mark.parametrize(("halves", "races"), [("rows", 0), ("columns", 0), ("overlapping", 2)])
def test_parts_of_a_buffer_race_only_if_they_overlap(halves: str, races: int) -> None:
    assert len(unordered(Pair(waits=False, halves=halves), 2)) == races


def test_memory_made_on_one_stream_and_used_on_another_is_found() -> None:
    (found,) = unordered(Pair(made=True), 2)
    assert "Pair._double on stream 1 reads what Pair._fill on stream 0 allocated" in found


@pytest.mark.parametrize("streams", [2, 3])
def test_each_event_of_the_fan_in_is_needed(streams: int) -> None:
    counted = Waits()
    assert unordered(make(GraphSubgraphs), streams, around=counted.around) == []
    period = counted.count // 2
    assert period == 2 * (streams - 1)
    for left_out in range(period):
        waits = Waits(left_out, period)
        assert unordered(make(GraphSubgraphs), streams, around=waits.around)


def test_device_without_values_runs_perturbed_too() -> None:
    check_perturbed(SimulatedDevice("h200"), make(GraphSubgraphs), 3, seed=1)
