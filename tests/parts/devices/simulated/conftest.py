"""A bench whose right answers are known: any variant of the H200, measured as users measure."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import yaml
from hypothesis import strategies as st

from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.declared import LatencyRatio
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.devices.simulated.costs import Work
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.own_function import FunctionWorkload
from pytest_hwqueue.parts.workloads.workload import Workload
from tests.parts.workloads.cells import record_of

Enqueue = Callable[[Sequence[Stream]], object]
Launchable = Callable[[], None]
T = TypeVar("T")

# Nothing varies but what is planted, in whole nanoseconds: only divisions round.
EXACT = 1e-9
_COSTS = {
    "kernel_launch_ns": (700, 10_000), "launch_call_ns": (0, 15_000),
    "event_record_ns": (0, 8_000), "stream_wait_ns": (0, 3_000), "synchronise_ns": (0, 10_000),
    "start_ns": (0, 3_000), "queue_switch_ns": (0, 5_000),
    "front_end_ns": (0, 700),  # never slower than the host launches
    "graph_launch_ns": (0, 10_000), "graph_node_launch_ns": (0, 100), "graph_gap_ns": (0, 1_000),
}  # fmt: skip
ON_DEVICE = ("start_ns", "queue_switch_ns", "front_end_ns")


def costs(*names: str) -> st.SearchStrategy[dict[str, int]]:
    """Return figures of the profile by their names, or all that are ever varied."""
    return st.fixed_dictionaries({name: st.integers(*_COSTS[name]) for name in names or _COSTS})


def present(value: T | None) -> T:
    """Return what a record must have."""
    assert value is not None
    return value


def on_each(kernel: Launchable) -> Callable[[Sequence[Stream]], None]:
    """Return what launches a kernel on each stream."""

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel)

    return enqueue


# No cell here is cut short, unless its test says so: in virtual time alone, since a machine that
# is busy for a moment must not end a cell whose time cap is a millisecond.
_AN_HOUR_NS = 3_600_000_000_000


class _Planted(FunctionWorkload):
    """What `hwq.measure_streams` was given, with references and ratios as the suite's have."""

    def __init__(
        self,
        enqueue: Enqueue,
        work: Mapping[str, float],
        tags: Sequence[str],
        references: Mapping[str, Callable[[Sequence[Stream]], None]],
    ) -> None:
        super().__init__(enqueue, work, tags)
        self._references = dict(references)
        self.ratios = tuple(  # type: ignore[misc]
            LatencyRatio(f"{tag}/{name}", tag, name, "") for name in references for tag in tags
        )

    def references(self) -> dict[str, Callable[[Sequence[Stream]], None]]:
        return self._references


class Bench:
    """Makes variants of the modelled device, and measures on them."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "variant.yaml"
        profiles = resources.files("pytest_hwqueue.parts.devices.simulated") / "profiles"
        text = (profiles / "h200.yaml").read_text(encoding="utf-8")
        self._h200: dict[str, Any] = yaml.safe_load(text)

    def device(
        self, *, copy_engines: int = 2, copy_bytes_per_s: int = 55 * 10**9, **figures: int
    ) -> SimulatedDevice:
        """An H200 with other figures, by their names in the profile, from a profile's file."""
        values = deepcopy(self._h200)
        for name, value in figures.items():
            sections = (part for part in values.values() if isinstance(part, dict))
            (section,) = (part for part in sections if name in part)
            section[name]["value"] = value
        rate = {"value": copy_bytes_per_s, "source": "-"}
        values["copy_engines"] = [
            {"name": f"{index}", "bandwidth_bytes_per_s": rate} for index in range(copy_engines)
        ]
        self._file.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
        return SimulatedDevice(str(self._file))

    def launchable(self, device: SimulatedDevice, *works: Work) -> Launchable:
        """What enqueues exactly these works when launched."""

        def enqueue() -> None:
            for work in works:
                device.costs.add(work)

        return enqueue

    def measure(
        self,
        device: SimulatedDevice,
        streams: int,
        enqueue: Enqueue,
        *,
        work: Mapping[str, float] | None = None,
        tags: Sequence[str] = (),
        references: Mapping[str, Callable[[Sequence[Stream]], None]] | None = None,
        iterations: int = 1,
        **how: Any,
    ) -> RunRecord:
        """Measure streams as `hwq.measure_streams` does; see `record`."""
        workload = _Planted(enqueue, work or {"iterations": 1.0}, tags, references or {})
        record = self.record(device, streams, workload, iterations=iterations, **how)
        assert record.status == "ok", f"{record.stage}: {record.reason}"
        return record

    def record(
        self,
        device: SimulatedDevice,
        streams: int,
        workload: Workload,
        *,
        make: Callable[[Mapping[str, Any]], Workload] | None = None,
        iterations: int,
        dispatch: str = "eager",
        sync_mode: str = "per_iteration",
        scheduler: str = "native",
        urgency: Sequence[int] | None = None,
        max_time_ns: int = _AN_HOUR_NS,
        wall_ns: int = _AN_HOUR_NS,
    ) -> RunRecord:
        """Measure a cell as `hwq` does; return its record as it would be read from its file."""
        plan = Plan(StopRule(iterations, max_time_ns, wall_ns), 1, sync_mode)
        record = record_of(
            cast(Device, device), workload, streams, plan, scheduler=scheduler, dispatch=dispatch,
            make=make, urgency=urgency,
        )  # fmt: skip
        return RunRecord.model_validate_json(record.model_dump_json())


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    # Every cell collects garbage before it measures; what imports have left need not be looked
    # through each time, which would take four fifths of these tests' time.
    gc.freeze()
    yield Bench(tmp_path_factory.mktemp("bench"))
    gc.unfreeze()
