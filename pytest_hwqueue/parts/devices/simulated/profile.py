"""Profiles of simulated devices: their hardware, and files that describe it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_hwqueue.data.errors import BadInput, DeviceError, abridged, nearest, translated
from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.devices.connections import CONNECTIONS, Connections


@dataclass(frozen=True)
class Hardware:
    """What the model is given; times in ns.

    Attributes:
        slots: blocks of one slot that all multiprocessors hold together.
        slots_per_multiprocessor: how many of them each holds.
        connections: hardware queues per process and priority; streams beyond share them in turn.
        concurrent_kernels: kernels the device holds at once, from being started to having ended.
        start_ns: from ready to running.
        queue_switch_ns: added where the front end last served another queue.
        front_end_ns: time between two starts of kernels launched into streams.
        graph_start_ns: time between two starts of graph nodes.
        graph_gap_ns: from a graph node's being ready to its running.
        copy_bytes_per_s: bandwidth of each copy engine.
        time_slice_ns: how long one process has the device while others want it.
        process_switch_ns: how long nothing runs when the device goes to another process.
        share_processes: all processes' kernels share the multiprocessors, as under MPS.

    """

    slots: int
    slots_per_multiprocessor: int = 1
    connections: int = 8
    concurrent_kernels: int = 128
    start_ns: int = 0
    queue_switch_ns: int = 0
    front_end_ns: int = 0
    graph_start_ns: int = 0
    graph_gap_ns: int = 0
    copy_bytes_per_s: tuple[float, ...] = ()
    time_slice_ns: int = 2_000_000
    process_switch_ns: int = 0
    share_processes: bool = False

    def slots_of(self, partition: Partition | None) -> int:
        """Return the slots of a group's multiprocessors; all if there are no groups."""
        if partition is None:
            return self.slots
        each = self.slots_per_multiprocessor
        return len(partition.numbers(self.slots // each)) * each


@dataclass(frozen=True)
class RequestHost:
    """How hosts of tenants behave; times in ns. By default all requests cost their host the same.

    Attributes:
        cold_factor: on the host work of a request before which its process rested.
        cold_after_ns: for how long it must have launched nothing to count as rested.
        spread: of the lognormal factor on each request's host work.
        handover_ns: from the end of a thread's turn to the begin of another thread's.

    """

    cold_factor: float = 1.0
    cold_after_ns: int = 0
    spread: float = 0.0
    handover_ns: int = 0


@dataclass(frozen=True)
class HeldLocks:
    """For how long launching threads hold locks, in ns.

    Attributes:
        driver_ns: the driver's, in a launching call; None for all of it.
        interpreter_ns: the interpreter's, between two calls.

    """

    driver_ns: int | None = None
    interpreter_ns: int = 0


BUILT_IN = ("h200", "mi300x")

_Value = TypeVar("_Value")
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Time = Annotated[int, Field(ge=0)]
_Count = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(gt=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileFigure(_Section, Generic[_Value]):
    """A number and where it comes from."""

    value: _Value
    source: str = Field(min_length=1)


class Arithmetic(_Section):
    """Peak rates, the share of them that matrix products reach, and what convolutions compute in.

    A library turns the images of a convolution on tensor cores in float32 into the layout that it
    computes in, and the result back, by a kernel each, if it reads or writes at least
    ``layout_least_elements``; never, if that is null.
    """

    fp32_flop_per_s: ProfileFigure[_Positive]
    tf32_flop_per_s: ProfileFigure[_Positive]
    bf16_flop_per_s: ProfileFigure[_Positive]
    fp16_flop_per_s: ProfileFigure[_Positive]
    matrix_efficiency: ProfileFigure[_Share]
    layout_least_elements: ProfileFigure[_Count] | None


class Memory(_Section):
    """Device memory: size, peak bandwidth, and the share of it that kernels reach."""

    capacity_bytes: ProfileFigure[_Count]
    bandwidth_bytes_per_s: ProfileFigure[_Positive]
    bandwidth_efficiency: ProfileFigure[_Share]


class Host(_Section):
    """What one host thread spends; times in ns.

    A launch into a stream costs ``launch_call_ns`` once and ``kernel_launch_ns`` per operation. Of
    a tenant's model each operation costs ``module_call_ns`` more. If nothing was launched in its
    process for ``cold_after_ns``, a request's host work takes ``cold_factor`` times as long; from
    request to request it differs by a lognormal ``request_spread``. Threads of a process take turns
    at operations, and where one goes before another, ``lock_handover_ns`` pass in between.
    """

    kernel_launch_ns: ProfileFigure[_Time]
    launch_call_ns: ProfileFigure[_Time]
    event_record_ns: ProfileFigure[_Time]
    stream_wait_ns: ProfileFigure[_Time]
    synchronise_ns: ProfileFigure[_Time]
    graph_launch_ns: ProfileFigure[_Time]
    graph_node_launch_ns: ProfileFigure[_Time]
    launch_queue_commands: ProfileFigure[_Count]
    module_call_ns: ProfileFigure[_Time]
    cold_factor: ProfileFigure[Annotated[float, Field(ge=1, allow_inf_nan=False)]]
    cold_after_ns: ProfileFigure[_Time]
    request_spread: ProfileFigure[Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]]
    lock_handover_ns: ProfileFigure[_Time]


class LaunchLocks(_Section):
    """Locks that threads which launch at once take in turn, planted; times in ns.

    ``driver_ns`` is how long each launching call holds the driver's, ``interpreter_ns`` how long a
    thread holds the interpreter's between two calls.
    """

    driver_ns: ProfileFigure[_Count]
    interpreter_ns: ProfileFigure[_Time]


class Dispatch(_Section):
    """How the device gets from a queue's head to a running kernel; times in ns."""

    connections: ProfileFigure[_Count]
    concurrent_kernels: ProfileFigure[_Count]
    start_ns: ProfileFigure[_Time]
    queue_switch_ns: ProfileFigure[_Time]
    front_end_ns: ProfileFigure[_Time]
    graph_start_ns: ProfileFigure[_Time]
    graph_gap_ns: ProfileFigure[_Time]


class Multiprocessing(_Section):
    """Multiprocessors, and how kernels are cut into blocks.

    ``halved_tile_efficiency`` is the share of its rate that a product keeps where its tiles are
    halved to reach more multiprocessors.
    """

    multiprocessors: ProfileFigure[_Count]
    block_slots_per_multiprocessor: ProfileFigure[_Count]
    elements_per_block: ProfileFigure[_Count]
    matrix_tile: ProfileFigure[_Count]
    matrix_block_slots: ProfileFigure[_Count]
    matrix_waves_at_most: ProfileFigure[_Count]
    halved_tile_efficiency: ProfileFigure[_Share]
    kernel_floor_ns: ProfileFigure[_Count]


class Sharing(_Section):
    """How processes share the device, and what an in-between scheduler costs; times in ns."""

    processes: Literal["time-slices", "together"]
    time_slice_ns: ProfileFigure[_Count]
    process_switch_ns: ProfileFigure[_Time]
    preemption_round_trip_ns: ProfileFigure[_Time]


class Priorities(_Section):
    """Range of stream priorities in the device's own numbers: lower is more urgent."""

    least: ProfileFigure[int]
    greatest: ProfileFigure[int]


class CopyEngine(_Section):
    """One copy engine, which serves one copy at a time."""

    name: str
    bandwidth_bytes_per_s: ProfileFigure[_Positive]


class Profile(_Section):
    """One modelled device."""

    name: str = Field(min_length=1)
    vendor: Literal["nvidia", "amd"]
    calibrated: bool
    arithmetic: Arithmetic
    memory: Memory
    host: Host
    dispatch: Dispatch
    multiprocessing: Multiprocessing
    sharing: Sharing
    priorities: Priorities
    copy_engines: tuple[CopyEngine, ...] = Field(min_length=1)
    # Without any the driver has one lock, held for all of a launching call, and the interpreter
    # none.
    launch_locks: LaunchLocks | None = None
    # What telemetry reads; rates and times above hold at this clock.
    sm_clock_mhz: ProfileFigure[_Positive] | None = None
    # Workloads whose P99 is off by more than twofold: simulated over measured.
    not_calibrated: dict[str, _Positive] = Field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Blocks of one slot that all multiprocessors hold together."""
        cut = self.multiprocessing
        return cut.multiprocessors.value * cut.block_slots_per_multiprocessor.value

    def refuse_split(self, split: Sequence[int], *, others: bool) -> None:
        """Raise DeviceError if the device cannot be split into groups of multiprocessors so.

        NVIDIA's driver splits GPUs of compute capability 9.0 and later into multiples of 8 (CUDA
        driver API, "Green Contexts"); AMD's masks have a bit for each compute unit.

        Args:
            split: multiprocessors of each group.
            others: whether some streams are in no group, and need what is left.

        """
        total, wanted = self.multiprocessing.multiprocessors.value, sum(split)
        step = 8 if self.vendor == "nvidia" else 1
        most = (total - others) // step * step
        if wanted + others > total:
            left = ", which leaves none for the others" if wanted == total else ""
            raise DeviceError(
                f"{wanted} multiprocessors asked for, and {self.name} has {total}{left}; ask for "
                f"at most {most}{' in all' if len(split) > 1 else ''}"
            )
        rounded = [-(-count // step) * step for count in split]
        for count, given in zip(split, rounded, strict=True):
            if count != given:
                possible = min(given, most - sum(rounded) + given)
                advice = f"{possible}" if possible > 0 else f"at most {most} in all"
                got = f", {given} given:" if possible == given else ":"
                raise DeviceError(
                    f"{count} multiprocessors asked for{got} {self.name} is split into "
                    f"multiples of {step}; ask for {advice}"
                )

    def request_host(self) -> RequestHost:
        """What the model of tenants needs to know of their hosts."""
        host = self.host
        return RequestHost(
            cold_factor=host.cold_factor.value,
            cold_after_ns=host.cold_after_ns.value,
            spread=host.request_spread.value,
            handover_ns=host.lock_handover_ns.value,
        )

    def locks(self) -> HeldLocks:
        """What the model of launching threads needs to know."""
        if self.launch_locks is None:
            return HeldLocks()
        return HeldLocks(self.launch_locks.driver_ns.value, self.launch_locks.interpreter_ns.value)

    @property
    def connections_setting(self) -> Connections:
        """The variable by which the vendor's runtime has other numbers of hardware queues."""
        return CONNECTIONS["cuda" if self.vendor == "nvidia" else "hip"]

    @property
    def connections(self) -> int:
        """Hardware queues, by the profile or as this process's environment asks for them."""
        return self.connections_setting.count(os.environ, self.dispatch.connections.value)

    def hardware(self) -> Hardware:
        """What the event-driven model needs of the profile."""
        sharing = self.sharing
        return Hardware(
            slots=self.slots,
            slots_per_multiprocessor=self.multiprocessing.block_slots_per_multiprocessor.value,
            copy_bytes_per_s=tuple(
                engine.bandwidth_bytes_per_s.value for engine in self.copy_engines
            ),
            time_slice_ns=sharing.time_slice_ns.value,
            process_switch_ns=sharing.process_switch_ns.value,
            share_processes=sharing.processes == "together",
            **{
                **{name: figure.value for name, figure in self.dispatch},
                "connections": self.connections,
            },
        )


def load_profile(specification: str) -> Profile:
    """Load the profile ``h200``, ``mi300x``, or the one in a file that ends in .yaml or .yml.

    Raises:
        BadInput: naming the file, the field and the reason.

    """
    if specification in BUILT_IN:
        file = resources.files(__package__) / "profiles" / f"{specification}.yaml"
        return _parse(f"{specification}.yaml", file.read_text(encoding="utf-8"))
    if not specification.endswith((".yaml", ".yml")):
        raise BadInput(
            f"{specification!r}: no such profile; {nearest(specification, BUILT_IN)}, "
            "or name a file that ends in .yaml"
        )
    with translated(BadInput, f"{specification}: cannot be read", OSError, UnicodeDecodeError):
        text = Path(specification).read_text(encoding="utf-8")
    return _parse(specification, text)


def modelled_variable(device: str) -> str | None:
    """Return which variable of its vendor's runtime a device models; None if it is no such model.

    Raises:
        BadInput: if there is no such profile, or its file is wrong.

    """
    kind, _, profile = device.partition(":")
    return load_profile(profile).connections_setting.variable if kind == "sim" else None


@lru_cache
def _parse(file: str, text: str) -> Profile:
    with translated(BadInput, f"{file}: not YAML", yaml.YAMLError):
        values: Any = yaml.safe_load(text)
    if not isinstance(values, dict):
        raise BadInput(f"{file}: not a table of fields but {type(values).__name__}")
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        reasons = abridged("; ".join(_reason(dict(problem)) for problem in error.errors()))
        raise BadInput(f"{file}: {reasons}") from None


def _reason(problem: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{field}: missing"
    if problem["type"] == "extra_forbidden":
        return f"{field}: unknown field"
    return f"{field}: {problem['msg']} (got {problem['input']!r})"
