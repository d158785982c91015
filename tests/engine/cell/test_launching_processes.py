"""Processes that launch at once: each makes its share, and a failure of one is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.engine.cell.launching_pass import LaunchingTask
from pytest_hwqueue.engine.cell.launching_processes import LaunchingProcesses
from pytest_hwqueue.parts.workloads.registry import workload_class
from tests.conftest import slow
from tests.parts.workloads.cells import measured

PARAMETERS = {"elements": 16, "launchers": "processes"}
TASK = LaunchingTask("cpu", "launch_contention", PARAMETERS, 0, "native", replayed=False)


@pytest.fixture(scope="module")
def processes() -> Iterator[LaunchingProcesses]:
    with LaunchingProcesses(TASK, 2) as found:
        yield found


@pytest.mark.parametrize(("launchers", "control_ns"), [(2, 0), (2, 2000), (1, 0)])
def test_each_process_makes_its_share_of_the_calls(
    processes: LaunchingProcesses, launchers: int, control_ns: int
) -> None:
    window = processes.window(launchers, 60, control_ns)
    assert [len(each) for each in window.begun_ns] == [60 // launchers] * launchers
    for begun, returned in zip(window.begun_ns, window.returned_ns, strict=True):
        times = [time for call in zip(begun, returned, strict=True) for time in call]
        assert times == sorted(times)


@pytest.mark.slow
def test_a_failure_of_a_process_is_told_and_ends_all() -> None:
    unknown = LaunchingTask("cpu", "launch_contention", {"width": 1}, 0, "native", replayed=False)
    with (
        pytest.raises(HwqError, match="launches failed: BadInput: launch_contention has no"),
        LaunchingProcesses(unknown, 1),
    ):
        pytest.fail("it began")


@pytest.mark.parametrize("streams", [slow(2)])
def test_a_cell_of_processes_is_measured(streams: int) -> None:
    record = measured(workload_class("launch_contention"), streams, given=PARAMETERS)
    assert (record.status, record.reason) == ("ok", "")
    assert record.samples is not None
    found = record.samples.launching
    assert found is not None
    assert (found.launchers, found.by) == (streams, "processes")
    # On a busy machine its cores may be too few; no interpreter is shared.
    assert found.refused == "" or found.refused.startswith("cores: ")
