"""How many iterations a cell measures follows from its samples alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.runner import (
    LEAST_ITERATIONS,
    planned_iterations,
    samples_per_iteration,
    time_shortfall,
    traced_iterations,
)
from pytest_hwqueue.workloads.workload import (
    Parameters,
    PrimaryLatency,
    Setup,
    StreamRange,
    Workload,
)


class Tagged(Workload):
    """Launches that would fail if they ran: counting must not run them."""

    name = "tagged"
    family = "test"
    mark = ""
    description = "for the test"
    stream_range = StreamRange(1, 1, 8)
    units = ()
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, primary: PrimaryLatency, tags: Sequence[str | None]) -> None:
        self.primary = primary  # type: ignore[misc]
        self._launched = tags

    def setup(self, setup: Setup) -> None:
        """Nothing."""

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Launch once with each tag, on the streams in turn."""
        for index, tag in enumerate(self._launched):
            streams[index % len(streams)].launch(_must_not_run, tag=tag)

    def work_per_iteration(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def check(self, run_once: Callable[[], None]) -> None:
        """Nothing."""


def _must_not_run() -> None:
    raise AssertionError("a launch was run where it should have been counted")


def count(per: Any, tags: Sequence[str | None]) -> int:
    with HostDevice().open_streams(2) as pool:
        return samples_per_iteration(Tagged(PrimaryLatency("token", per, "d"), tags), pool.streams)


def test_samples_of_an_iteration_are_counted_without_running_it() -> None:
    assert count("iteration", ["token", "token"]) == 1
    assert count("launch", ["token", None, "other", "token#3"]) == 2
    assert count("request", ["embed#1", "embed#2", "answer#1", "#2", "token", None]) == 2


@pytest.mark.parametrize("per", ["launch", "request"])
def test_an_iteration_without_its_primary_latency_is_refused(per: str) -> None:
    with pytest.raises(ValueError, match="no launch of an iteration is a token"):
        count(per, ["other", None])


@pytest.mark.parametrize(
    ("samples", "each", "traced", "planned"),
    [(1000, 4, 250, 250), (1000, 32, 32, LEAST_ITERATIONS), (1001, 4, 251, 251), (1, 1, 1, 50)],
)
def test_iterations_are_as_many_as_give_the_samples(
    samples: int, each: int, traced: int, planned: int
) -> None:
    workload = Tagged(PrimaryLatency("token", "launch", "d"), ["token"] * each)
    with HostDevice().open_streams(1) as pool:
        assert traced_iterations(workload, pool.streams, samples) == traced
        assert planned_iterations(workload, pool.streams, samples) == planned


def test_what_does_not_fit_into_the_time_is_said_before() -> None:
    plan = LoopPlan(iterations=100, warmup=1, max_time_ns=2_000_000_000, sync_mode="per_iteration")
    assert time_shortfall(plan, 20_000_000) == ""
    text = time_shortfall(plan, 50_000_000)
    assert "100 iterations would take 5 s: about 40 fit into 2 s" in text
