"""What a tenant does in its warm-up and in the common window: its requests, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import BadInput, InvalidMeasurement, NotApplicable
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.engine.cell.program import slowed_request
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival, schedule
from pytest_hwqueue.engine.tenants.open_loop import Demand, Window
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone
from pytest_hwqueue.parts.devices.kinds import resolve_size
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.parts.workloads.own_function import load, prepared
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import Setup, Workload, parameters_for

if TYPE_CHECKING:
    from pytest_hwqueue.parts.workloads.tenants.models import OpenModel

# Fewer say nothing about how long a request takes.
_LEAST_REQUESTS = 3


def warm_up(
    plan: Colocation,
    device: Device,
    requests: Sequence[Callable[[], None]],
    begin_thread: Callable[[], object],
) -> list[int]:
    """Serve requests in a closed loop, as many at once as in the window; return their times in ns.

    Args:
        plan: says for how long.
        device: whose clock is used.
        requests: as `open_loop.serve` takes them.
        begin_thread: likewise.

    Raises:
        InvalidMeasurement: if a request outlasts the window and its grace.

    """
    began_ns = device.clock_ns()

    def loop(request: Callable[[], None]) -> list[int]:
        times_ns: list[int] = []
        while device.clock_ns() - began_ns < plan.warmup_s * 1e9 or len(times_ns) < _LEAST_REQUESTS:
            before_ns = device.clock_ns()
            request()
            times_ns.append(device.clock_ns() - before_ns)
            refuse_endless(plan, times_ns)
        return times_ns

    if len(requests) == 1:
        return loop(requests[0])
    with ThreadPoolExecutor(len(requests), "hwq-warm-up", begin_thread) as threads:
        return [each for times_ns in threads.map(loop, requests) for each in times_ns]


def refuse_endless(plan: Colocation, times_ns: list[int]) -> None:
    """Raise if requests outlast the window and its grace, before a long, useless warm-up.

    The first request does not count: it may compile and allocate.
    """
    window = Window(0, plan.duration_ns)
    if len(times_ns) > 1 and times_ns[-1] > window.duration_ns + window.grace_ns:
        raise InvalidMeasurement(
            f"a request took {times_ns[-1] / 1e9:.3g} s in warm-up, and the window is "
            f"{window.duration_ns / 1e9:.3g} s long: give a longer duration, or a smaller size"
        )


def demand_of(plan: Colocation, name: str) -> Demand:
    """Return when a tenant's requests are asked for in a window; its arrivals begin when it does.

    They are of this window's plan: where tenants live on, their first had others.
    """
    spec = plan.tenant(name)
    arrival, start_ns = parse_arrival(spec.arrival, Path(plan.folder)), spec.start_ns
    due = schedule(arrival, plan.tenant_seed(name), plan.duration_ns - start_ns)
    scheduled = None if due is None else [start_ns + each for each in due[: spec.requests]]
    return Demand(scheduled, start_ns, round(arrival.delay_s * 1e9), spec.requests)


Enqueue = Callable[[Sequence[Stream]], None]


@dataclass
class TenantWork:
    """A tenant's work on its own streams, one request at a time.

    Attributes:
        what: one request is.
        check: compares the results with a reference, once; only if the device has values.

    """

    _enqueue: Enqueue
    _streams: Sequence[Stream]
    what: WorkDone
    check: Callable[[], None]

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


def needs_gradients(spec: Tenant) -> bool:
    """Whether the tenant's streams must record autograd graphs."""
    if spec.function is not None:
        # Torch is as the user's own program finds it.
        return True
    return spec.workload is not None and workload_class(spec.workload).gradients


def open_work(
    spec: Tenant, device: Device, pool: StreamPool, seed: int, folder: Path
) -> list[TenantWork]:
    """Set up a tenant's work, once for each request that is served at once.

    Args:
        spec: the tenant.
        device: that it runs on.
        pool: its own; each request has ``spec.streams`` of its streams to itself.
        seed: of weights and inputs.
        folder: where a function's module is.

    Raises:
        BadInput: if there is none of this name, a function cannot be found or called, or a
            parameter is wrong.
        OwnCodeFailed: if a function raises.
        NotApplicable: if the work cannot use so many streams.

    """
    each = [
        pool.streams[first : first + spec.streams]
        for first in range(0, spec.streams * spec.concurrency, spec.streams)
    ]
    if spec.function is not None:
        function = load(spec.function, folder, spec.parameters)
        make = partial(function, device=device, seed=seed, **spec.parameters)
        return [_function(spec, make, pool, streams, folder) for streams in each]
    if spec.workload is not None:
        return [_workload(spec, device, streams, seed) for streams in each]
    return _models(spec, device, each, seed)


def _function(
    spec: Tenant, make: Callable[..., object], pool: StreamPool, streams: Sequence[Stream],
    folder: Path,
) -> TenantWork:  # fmt: skip
    assert spec.function is not None
    enqueue, launched_once = prepared(spec.function, make, streams, folder)

    def check() -> None:
        before = pool.launched
        work.request()
        # A launch within a launch may run after the request that does not wait for it.
        if launched_once and pool.launched != before + 1:
            raise BadInput(
                f"the step of {spec.function} runs in a launch and launches itself; let it take "
                "one argument, the streams, and launch all that it does"
            )

    work = TenantWork(enqueue, streams, WorkDone(_described(spec, spec.parameters)), check)
    return work


def _workload(spec: Tenant, device: Device, streams: Sequence[Stream], seed: int) -> TenantWork:
    # A generator of load, whose process has this module too, does without torch.
    import torch.distributed as dist

    from pytest_hwqueue.engine.cell.ranks import open_group_of_one

    assert spec.workload is not None
    found = workload_class(spec.workload)
    needs = found.stream_range
    if not needs.least <= spec.streams <= needs.most:
        raise NotApplicable(
            f"tenant {spec.name}: {found.name} runs on {needs.least} to {needs.most} streams, "
            f"not on {spec.streams}; set its field streams"
        )
    parameters = parameters_for(found, resolve_size(spec.size, device.kind), spec.parameters)
    workload: Workload = found(parameters)
    if found.collective and not dist.is_initialized():
        # For as long as the process lives: it serves this scenario's tenants only.
        open_group_of_one(device)
    workload.setup(Setup(device, spec.streams, seed))
    unit, amount = next(iter(workload.work_per_iteration().items()))
    what = WorkDone(_described(spec, parameters.model_dump()), amount, unit)
    work = TenantWork(workload.iterate, streams, what, lambda: workload.check(work.request))
    return work


def _models(
    spec: Tenant, device: Device, each: Sequence[Sequence[Stream]], seed: int
) -> list[TenantWork]:
    from pytest_hwqueue.parts.workloads.tenants.models import open_models

    if spec.streams != 1:
        raise NotApplicable(
            f"tenant {spec.name}: a model runs on 1 stream, not on {spec.streams}; set its field "
            "streams"
        )
    models = open_models(spec, device, [streams[0] for streams in each], seed)
    return [_of_model(model, streams) for model, streams in zip(models, each, strict=True)]


def _of_model(model: OpenModel, streams: Sequence[Stream]) -> TenantWork:
    what = WorkDone(model.description, model.items_per_request, "items")
    return TenantWork(lambda _: model.request(), streams, what, model.check)


def _described(spec: Tenant, parameters: Mapping[str, object]) -> str:
    given = ", ".join(f"{name}={value}" for name, value in parameters.items())
    name = spec.function or spec.workload
    return f"{name} with {given}" if given else f"{name}"
