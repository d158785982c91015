"""What one request of a tenant does: an iteration of a workload, a model's pass, or a step of the
user's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_hwqueue.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.errors import BadFunction, NotApplicable
from pytest_hwqueue.harness.slower import slowed_request
from pytest_hwqueue.ranks.cell import open_group_of_one
from pytest_hwqueue.tenancy.spec import TenantSpec
from pytest_hwqueue.workloads.own_function import MakeStep, load, prepared
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import Setup, parameters_for

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.tenants.models import OpenModel
    from pytest_hwqueue.workloads.workload import Workload

Enqueue = Callable[[Sequence[Stream]], None]


class TenantWork:
    """A tenant's work on its own streams, one request at a time.

    Attributes:
        items_per_request: images, sequences, or the workload's own unit.
        unit: what an item is.
        check: compares the results with a reference, once; only if the device has values.
        description: what runs, for people.

    """

    def __init__(
        self,
        enqueue: Enqueue,
        streams: Sequence[Stream],
        items_per_request: float,
        unit: str,
        check: Callable[[], None],
        description: str,
    ) -> None:
        self.items_per_request = items_per_request
        self.unit = unit
        self.check = check
        self.description = description
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

    def slow_down(self, faults: Sequence[str], device: Device, request_ns: int) -> None:
        """Plant faults in the requests from now on, each of which takes so long without."""
        self._enqueue = slowed_request(device, self._enqueue, faults, request_ns)


def needs_gradients(spec: TenantSpec) -> bool:
    """Whether the tenant's streams must record autograd graphs."""
    if spec.function is not None:
        # Torch is as the user's own program finds it.
        return True
    return spec.workload is not None and workload_class(spec.workload).gradients


def open_work(
    spec: TenantSpec, device: Device, pool: StreamPool, seed: int, folder: Path
) -> list[TenantWork]:
    """Set up a tenant's work, once for each request that is served at once.

    Args:
        spec: the tenant.
        device: that it runs on.
        pool: its own; each request has ``spec.streams`` of its streams to itself.
        seed: of weights and inputs.
        folder: where a function's module is.

    Raises:
        UnknownWorkload: if there is none of this name.
        UnknownModel: likewise.
        BadFunction: if a function cannot be found or called.
        OwnCodeFailed: if it raises.
        BadParameter: naming a parameter.
        NotApplicable: if the work cannot use so many streams.

    """
    each = [
        pool.streams[first : first + spec.streams]
        for first in range(0, spec.streams * spec.concurrency, spec.streams)
    ]
    if spec.function is not None:
        make = load(spec.function, folder, spec.parameters)
        return [_function(spec, make, device, pool, streams, seed, folder) for streams in each]
    if spec.workload is not None:
        return [_workload(spec, device, streams, seed) for streams in each]
    return _models(spec, device, each, seed)


def _function(
    spec: TenantSpec,
    make: MakeStep,
    device: Device,
    pool: StreamPool,
    streams: Sequence[Stream],
    seed: int,
    folder: Path,
) -> TenantWork:
    assert spec.function is not None
    enqueue, launched_once = prepared(
        spec.function, make, device, streams, seed, spec.parameters, folder
    )

    def check() -> None:
        before = pool.launched
        work.request()
        # A launch within a launch may run after the request that does not wait for it.
        if launched_once and pool.launched != before + 1:
            raise BadFunction(
                f"the step of {spec.function} runs in a launch and launches itself; let it take "
                "one argument, the streams, and launch all that it does"
            )

    work = TenantWork(enqueue, streams, 1, "requests", check, _described(spec))
    return work


def _workload(spec: TenantSpec, device: Device, streams: Sequence[Stream], seed: int) -> TenantWork:
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
        workload.iterate(streams)
        for stream in streams:
            stream.synchronize()

    described = _described(spec, parameters.model_dump())
    return TenantWork(
        workload.iterate, streams, amount, unit, lambda: workload.check(run_once), described
    )


def _models(
    spec: TenantSpec, device: Device, each: Sequence[Sequence[Stream]], seed: int
) -> list[TenantWork]:
    from pytest_hwqueue.workloads.tenants.models import open_models

    assert spec.model is not None
    if spec.streams != 1:
        raise NotApplicable(
            f"tenant {spec.name}: a model runs on 1 stream, not on {spec.streams}; set its field "
            "streams"
        )
    models = open_models(
        spec.model,
        spec.batch or 1,
        device,
        [streams[0] for streams in each],
        seed,
        None if spec.weights is None else Path(spec.weights),
        # Models are full or tiny: a small size only makes the window short.
        "tiny" if _size(spec, device) == "tiny" else "full",
        **spec.parameters,
    )
    return [_of_model(model, streams) for model, streams in zip(models, each, strict=True)]


def _of_model(model: OpenModel, streams: Sequence[Stream]) -> TenantWork:
    return TenantWork(
        lambda _: model.request(), streams, model.items_per_request, "items", model.check,
        model.description,
    )  # fmt: skip


def _described(spec: TenantSpec, parameters: Mapping[str, object] | None = None) -> str:
    values = spec.parameters if parameters is None else parameters
    given = ", ".join(f"{name}={value}" for name, value in values.items())
    name = spec.function or spec.workload
    return f"{name} with {given}" if given else f"{name}"


def _size(spec: TenantSpec, device: Device) -> str:
    if spec.size != "auto":
        return spec.size
    return "tiny" if device.capabilities.host else "full"
