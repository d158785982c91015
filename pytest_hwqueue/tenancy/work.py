"""What one request of a tenant does: an iteration of a workload, or a model's pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_hwqueue.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.errors import BadParameter, NotApplicable
from pytest_hwqueue.faults.planting import PlantedFaults
from pytest_hwqueue.faults.specification import Fault
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.program import Program
from pytest_hwqueue.ranks.group import open_group_of_one
from pytest_hwqueue.tenancy.spec import TenantSpec
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import Setup, parameters_for

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.workload import Workload

Enqueue = Callable[[Sequence[Stream]], None]


class TenantWork:
    """A tenant's work on its own streams.

    Attributes:
        items_per_request: images, sequences, or the workload's own unit.
        unit: what an item is.
        check: compares the results with a reference, once; only if the device has values.

    """

    def __init__(
        self,
        enqueue: Enqueue,
        streams: Sequence[Stream],
        items_per_request: float,
        unit: str,
        check: Callable[[], None],
    ) -> None:
        self.items_per_request = items_per_request
        self.unit = unit
        self.check = check
        self._enqueue = enqueue
        self._streams = streams

    def enqueue(self) -> None:
        """Enqueue one request, without waiting for it."""
        self._enqueue(self._streams)

    def request(self) -> None:
        """Serve one request: enqueue it, and wait for the streams on which it ran."""
        self.enqueue()
        # Not the whole device: other tenants' streams may be in this process.
        for stream in self._streams:
            stream.synchronize()

    def plant(self, faults: Sequence[Fault], device: Device, seed: int, request_ns: int) -> None:
        """Plant faults in the requests from now on, counted from 1."""
        # A request is judged as a whole, so it is slowed as a whole: behind its work.
        whole = tuple(
            Fault("slower-tail", (*fault.values, 100)) if fault.name == "slower" else fault
            for fault in faults
        )
        program = PlantedFaults(whole, seed).measured(
            device, Program(self._enqueue, None), LoopPlan(1, 0, 0, "per_iteration", request_ns)
        )
        self._enqueue = program.enqueue


def needs_gradients(spec: TenantSpec) -> bool:
    """Whether the tenant's streams must record autograd graphs."""
    return spec.workload is not None and workload_class(spec.workload).gradients


def open_work(spec: TenantSpec, device: Device, pool: StreamPool, seed: int) -> TenantWork:
    """Set up a tenant's work on the streams of its own pool.

    Raises:
        UnknownWorkload: if there is none of this name.
        UnknownModel: likewise.
        BadParameter: naming a parameter.
        NotApplicable: if the work cannot use so many streams.

    """
    if spec.workload is not None:
        return _workload(spec, device, pool, seed)
    return _model(spec, device, pool, seed)


def _workload(spec: TenantSpec, device: Device, pool: StreamPool, seed: int) -> TenantWork:
    assert spec.workload is not None
    found = workload_class(spec.workload)
    needs = found.stream_range
    if not needs.least <= spec.streams <= needs.most:
        raise NotApplicable(
            f"tenant {spec.name}: {found.name} runs on {needs.least} to {needs.most} streams, "
            f"not on {spec.streams}; set its field streams"
        )
    parameters = parameters_for(found, _size(spec, device), spec.parameters)
    workload: Workload = found(parameters)  # type: ignore[call-arg]
    if found.collective and not dist.is_initialized():
        # For as long as the process lives: it serves this scenario's tenants only.
        open_group_of_one(device)
    workload.setup(Setup(device, spec.streams, seed))
    unit, amount = next(iter(workload.work_per_iteration().items()))

    def run_once() -> None:
        workload.iterate(pool.streams)
        for stream in pool.streams:
            stream.synchronize()

    return TenantWork(
        workload.iterate, pool.streams, amount, unit, lambda: workload.check(run_once)
    )


def _model(spec: TenantSpec, device: Device, pool: StreamPool, seed: int) -> TenantWork:
    from pytest_hwqueue.workloads.tenants.models import open_model

    assert spec.model is not None
    unknown = set(spec.parameters) - {"dtype"}
    if unknown:
        raise BadParameter(f"tenant {spec.name}: a model has dtype, and no {', '.join(unknown)}")
    if spec.streams != 1:
        raise NotApplicable(
            f"tenant {spec.name}: a model runs on 1 stream, not on {spec.streams}; set its field "
            "streams"
        )
    model = open_model(
        spec.model,
        spec.batch or 1,
        device,
        pool.streams[0],
        seed,
        None if spec.weights is None else Path(spec.weights),
        # Models are full or tiny: a small size only makes the window short.
        "tiny" if _size(spec, device) == "tiny" else "full",
        **spec.parameters,
    )
    return TenantWork(
        lambda _: model.request(), pool.streams, model.items_per_request, "items", model.check
    )


def _size(spec: TenantSpec, device: Device) -> str:
    if spec.size != "auto":
        return spec.size
    return "tiny" if device.capabilities.host else "full"
