"""The simulated device and its telemetry."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.data.records.telemetry import TelemetrySample
from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.devices.protocol import Call, Event
from pytest_hwqueue.parts.devices.simulated.costs import (
    Costs,
    EnqueuedWork,
    HostClock,
    KernelWork,
    SimulatedEvent,
    prepare_kernels,
    simulated_event,
    torch_kernels,
)
from pytest_hwqueue.parts.devices.simulated.launching import ModelledCall
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel, parse_noise
from pytest_hwqueue.parts.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.parts.devices.simulated.profile import BUILT_IN, load_profile
from pytest_hwqueue.parts.devices.telemetry import TelemetryReader

_NOT_MODELLED = "not modelled by the simulated device"


class SimulatedReader(TelemetryReader):
    """Reads a simulated device in its virtual time."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(f"the model of {device.label}")
        unknown = ["memory_clock_mhz", "temperature_c", "power_w", "other_processes"]
        if device.profile.sm_clock_mhz is None:
            unknown.append("sm_clock_mhz")
        self._missing = dict.fromkeys(unknown, _NOT_MODELLED)
        self._device = device

    def read(self) -> TelemetrySample:
        """Return the virtual time, and the profile's clock."""
        clock = self._device.profile.sm_clock_mhz
        clock_mhz = None if clock is None else clock.value
        return TelemetrySample(self._device.clock_ns(), clock_mhz, None, None, None)


# Raised when the same profile gives other figures; 2 has hosts, layouts and halved tiles.
MODEL_VERSION = 2


def prepare(label: str) -> None:
    """Do what each process that measures on this device would do first, in one that forks them."""
    profile = label.removeprefix("sim:")
    # A file's errors are for the session to show.
    if profile in BUILT_IN:
        load_profile(profile)
    prepare_kernels()


class SimulatedDevice:
    """A simulated GPU with the interface of a real one.

    Tensors created while a pool is open have shapes but no values, so results cannot be checked.
    They say ``cpu``: with a torch built without CUDA, fake CUDA tensors have no
    generators, no convolutions and no copies from the host, and fake CPU ones have all of them.
    The host's memory and the device's are therefore not distinguished; a copy with ``non_blocking``
    goes to the first copy engine. Operations outside launches cost no virtual time. torch refuses
    to read a tensor's value (``item``, a branch on it).

    Args:
        specification: ``h200``, ``mi300x``, or a profile's path that ends in .yaml.
        noise: makes kernels' durations vary; None for constant durations.

    Attributes:
        slowdown: factor on every kernel's duration, planted by a fault.

    Raises:
        BadInput: naming the profile's file, field and reason.

    """

    kind: Literal["sim"] = "sim"
    capabilities = KINDS["sim"]
    profiled = False
    index = 0

    def __init__(self, specification: str = "h200", noise: NoiseModel | None = None) -> None:
        self.profile = load_profile(specification)
        self.label = f"sim:{specification}"
        self.noise = noise
        self.slowdown = 1.0
        self.clock = HostClock()
        self.costs = Costs(self.profile)
        self.fake_tensors = FakeTensorMode(allow_non_fake_inputs=True)
        self._pools = 0

    @property
    def name(self) -> str:
        """The model's name, which says that it is simulated."""
        calibrated = "" if self.profile.calibrated else ", not calibrated"
        return f"simulated {self.profile.name}{calibrated}"

    @property
    def torch_device(self) -> torch.device:
        """The torch device of tensors: they are fake, and say ``cpu``."""
        return torch.device("cpu")

    @property
    def connections(self) -> int:
        """How many streams have their own hardware queue."""
        return self.profile.connections

    @property
    def lease_key(self) -> None:
        """None: nobody else uses this device."""
        return None

    def doubt(self, workload: str) -> str:
        """Return how far a workload's figures are known to be off; empty: no more than twofold."""
        ratio = self.profile.not_calibrated.get(workload)
        if ratio is None:
            return ""
        return (
            f"not calibrated: P99 of {workload} on {self.label} is {ratio:.2f} of that on a "
            f"measured {self.profile.name}"
        )

    @property
    def model(self) -> SimulatedDevice:
        """The device itself: all of it is a model."""
        return self

    @contextmanager
    def slowed(self, factor: float) -> Iterator[None]:
        """Make all kernels take ``factor`` times as long in a block."""
        self.slowdown = factor
        try:
            yield
        finally:
            self.slowdown = 1.0

    def vary(self, noise: str, seed: int, of: str) -> None:
        """Make kernels' durations vary, as requested by `--hwq-sim-noise`.

        Args:
            noise: amplitudes by name, as `parse_noise` reads them; empty for none.
            seed: of the session.
            of: what is measured; different measurements get different draws.

        """
        self.noise = parse_noise(noise, seed, of)

    def open_telemetry(self) -> SimulatedReader:
        """Open a reader of the clock, which has nothing else to tell."""
        return SimulatedReader(self)

    def clock_ns(self) -> int:
        """Return the virtual host clock, in ns since the device was opened."""
        return self.clock.now_ns

    def kernel_factor(self, run: int) -> float:
        """Return the factor on the duration of a kernel launched now in the ``run``-th pool."""
        factor = self.slowdown
        if self.noise is not None:
            factor *= self.noise.factor(run, self.clock.now_ns)
        return factor

    def steady_factor(self, run: int) -> float | None:
        """Return the factor on kernels' durations if it does not depend on time."""
        if self.noise is not None and not self.noise.steady:
            return None
        return self.kernel_factor(run)

    def fingerprint(self) -> Fingerprint:
        """Return the model, the profile and its contents, and the kernels torch makes of a call.

        With these goes the number of hardware queues that the environment asks for. Nothing else
        changes a figure: neither the machine nor torch's version as such.
        """
        # The clock is only read, and what is known to be off only told: no figure depends on them.
        excluded = {"sm_clock_mhz", "not_calibrated"}
        if self.profile.launch_locks is None:
            # So that profiles without any stay comparable with what was stored before there were.
            excluded.add("launch_locks")
        contents = self.profile.model_dump_json(exclude=excluded)
        fingerprint = Fingerprint(
            hard={
                "device_kind": self.kind,
                "device_name": self.name,
                "model_version": MODEL_VERSION,
                "profile": self.label,
                "profile_sha256": sha256(contents.encode()).hexdigest(),
                "kernels_of_torch": torch_kernels(),
            },
            # Not `torch_version`, which sets measured runs apart: here only its kernels matter.
            soft={
                "costed_by_torch": torch.__version__,
                "python_version": platform.python_version(),
            },
            missing={},
        )
        variable = self.profile.connections_setting.variable
        if os.environ.get(variable):
            fingerprint.hard[f"environment.{variable}"] = os.environ[variable]
        if self.noise is not None:
            fingerprint.hard["noise"] = self.noise.describe()
            fingerprint.soft["noise_seed"] = self.noise.seed
        return fingerprint

    def sleep_until_ns(self, when_ns: int) -> None:
        """Have the host sleep until its clock reads ``when_ns``."""
        self.clock.reach(when_ns)

    def device_priority(self, priority: int) -> int:
        """Convert a priority (larger is more urgent) to the device's numbers, clamped."""
        range_ = self.profile.priorities
        return max(range_.greatest.value, min(range_.least.value, -priority))

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> SimulatedPool:
        """Create ``count`` streams on an idle device.

        Raises:
            DeviceError: if ``count`` is below 1.

        """
        if count < 1:
            raise DeviceError(f"{count} streams asked for; there must be at least 1")
        return self._open(list(priorities or [0] * count), [None] * count, gradients)

    def open_partitioned(
        self,
        partitions: Sequence[Partition],
        priorities: Sequence[int],
        *,
        gradients: bool = False,
    ) -> SimulatedPool:
        """Create a stream for each partition on an idle device.

        Raises:
            DeviceError: if the device cannot be split so.

        """
        split = partitions[0].split
        others = any(partition.group == len(split) for partition in partitions)
        self.profile.refuse_split(split, others=others)
        return self._open(priorities, partitions, gradients)

    def _open(
        self, priorities: Sequence[int], partitions: Sequence[Partition | None], gradients: bool
    ) -> SimulatedPool:
        self._pools += 1
        return SimulatedPool(self, priorities, partitions, gradients, self._pools)

    def new_event(self) -> SimulatedEvent:
        """Create an event that can be timed with `elapsed_ns`."""
        return SimulatedEvent()

    def new_graph_event(self) -> SimulatedEvent:
        """Create a timing event that a graph records on every replay."""
        return SimulatedEvent(in_graphs=True)

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Return the virtual device time between two completed events, in ns."""
        return simulated_event(end).when_ns - simulated_event(start).when_ns

    def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
        """Return a kernel of one block, or of waves of them, that lasts ``duration_ns``."""
        cut = self.profile.multiprocessing
        slots = cut.multiprocessors.value * cut.block_slots_per_multiprocessor.value
        blocks = slots * waves or 1
        return EnqueuedWork(self.costs, KernelWork(max(1, duration_ns), blocks, name="spin"), {})

    def call_of(self, duration_ns: int) -> Call:
        """Return a call of a host's thread that takes no lock of the driver."""
        return ModelledCall(duration_ns, 0)

    def clock_reading_ns(self) -> None:
        """Return None: reading the virtual clock takes no time."""

    def memory_bytes(self) -> dict[str, int]:
        """Return nothing: memory is not modelled."""
        return {}

    def reset_memory(self) -> None:
        """Do nothing: memory is not modelled."""

    def limits(self) -> dict[str, Any]:
        """Return the profile's properties."""
        cut, range_ = self.profile.multiprocessing, self.profile.priorities
        return {
            "simulated": True,
            "calibrated": self.profile.calibrated,
            "multiprocessors": cut.multiprocessors.value,
            "memory GiB": round(self.profile.memory.capacity_bytes.value / 2**30, 1),
            "stream priorities (least, greatest)": (range_.least.value, range_.greatest.value),
        }
