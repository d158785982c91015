"""Requests of a tenant on the simulated H200, delayed by what is known: who shares it, and how."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pytest_hwqueue.data.metrics.attribution import Cause, DeviceWork, Request, RequestCause
from pytest_hwqueue.engine.causes.explain import Others, Trace, explain
from pytest_hwqueue.parts.devices.simulated.colocation import (
    ModelledTenant,
    SharedDevice,
    run_tenants,
)
from pytest_hwqueue.parts.devices.simulated.costs import KernelWork
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

_MS = 1_000_000
_HIGH, _LOW = "high", "low"
Sharing = Literal["together", "time-slices"]

# Launch-bound, as a small model in Python is: kernels far shorter than their launches.
_SMALL = tuple(KernelWork(8_000, blocks=64, name="small") for _ in range(60))
_HOST_NS = 50_000
_SYNCHRONISE_NS = 20_000
_WAVES = 20


def _large(device: SimulatedDevice, milliseconds: float) -> tuple[KernelWork, ...]:
    """A kernel that fills the device, in waves, so that others wait for blocks."""
    slots = device.profile.hardware().slots
    return (KernelWork(round(milliseconds * _MS), blocks=_WAVES * slots, name="large"),)


def _served(
    tenants: Sequence[ModelledTenant], sharing: Sharing, duration_ns: int
) -> list[RequestCause | None]:
    """Run tenants; return what the first one's slow requests are given.

    Nothing of the model varies but who else is there: every request above P95 that is longer than
    the fastest was delayed by it.
    """
    device = SimulatedDevice("h200")
    ran: list[DeviceWork] = []
    shared = SharedDevice(device.profile.hardware(), sharing)
    results = run_tenants(shared, tenants, duration_ns, ran=ran)
    times = results[0]
    requests, free_ns = [], 0
    each = zip(times.scheduled_ns, times.started_ns, times.finished_ns, strict=True)
    for number, (due_ns, started_ns, finished_ns) in enumerate(each):
        ready_ns = min(max(due_ns, free_ns), started_ns)
        requests.append(Request(number, due_ns, ready_ns, started_ns, finished_ns))
        free_ns = finished_ns
    trace = Trace(
        owner=_HIGH, device_kind="sim", threads=[], stream_threads={}, calls=[], level="none",
        refused=[],
    )  # fmt: skip
    own = [one for one in ran if one.owner == _HIGH]
    others = Others([one for one in ran if one.owner != _HIGH], turns=sharing == "time-slices")
    _, attribution = explain(requests, trace, own, {}, others=others)
    fastest = min(one.finished_ns - one.arrival_ns for one in requests)
    return [
        one
        for one in attribution.tails["p95"].requests
        if one.excess_ns + attribution.tails["p95"].median_ns > 1.05 * fastest
    ]


def _poisson(seed: int, every_ns: int, duration_ns: int) -> list[int]:
    draw = random.Random(seed)
    found, at = [], 0.0
    while (at := at + draw.expovariate(1 / every_ns)) < duration_ns:
        found.append(round(at))
    return found


def _high(duration_ns: int, **changed: object) -> ModelledTenant:
    draw = random.Random(1)
    arrivals = [at + draw.randrange(2 * _MS) for at in range(0, duration_ns, 20 * _MS)]
    return ModelledTenant(_HIGH, _SMALL, _HOST_NS, _SYNCHRONISE_NS, arrivals_ns=arrivals)


def _beside(
    plants: int, sharing: Sharing, milliseconds: float, every_ns: int | None
) -> Iterator[RequestCause | None]:
    """Run a tenant beside another, which comes now and then or is always there."""
    device = SimulatedDevice("h200")
    # A tail of 5 % at 50 requests a second.
    duration_ns = plants * 20 * 20 * _MS
    arrivals = None if every_ns is None else _poisson(2, every_ns, duration_ns)
    low = ModelledTenant(
        _LOW, _large(device, milliseconds), _HOST_NS, _SYNCHRONISE_NS, arrivals_ns=arrivals
    )
    yield from _served([_high(duration_ns), low], sharing, duration_ns)


def _bursts(plants: int) -> Iterator[RequestCause | None]:
    duration_ns = plants * 20 * 20 * _MS
    draw = random.Random(4)
    arrivals: list[int] = []
    for at in range(0, duration_ns, 20 * _MS):
        # Now and then two at once: the second one waits for the first.
        arrivals += [at] * (2 if draw.random() < 0.04 else 1)
    high = ModelledTenant(_HIGH, _SMALL, _HOST_NS, _SYNCHRONISE_NS, arrivals_ns=arrivals)
    yield from _served([high], "together", duration_ns)


Run = Callable[[int], Iterator[RequestCause | None]]
TENANT_KINDS: dict[str, tuple[Cause | None, str, Run]] = {
    "MPS: another's kernel now and then": (
        "queued", "low's large", lambda plants: _beside(plants, "together", 12, 400 * _MS),
    ),
    "MPS: another's kernels always": (
        "queued", "low's large", lambda plants: _beside(plants, "together", 12, None),
    ),
    "native: another's time slices now and then": (
        "time slice", "low had the device",
        lambda plants: _beside(plants, "time-slices", 12, 400 * _MS),
    ),
    "native: another's time slices always": (
        "time slice", "low had the device", lambda plants: _beside(plants, "time-slices", 12, None),
    ),
    "its own earlier requests": ("queued", "earlier requests", _bursts),
}  # fmt: skip
