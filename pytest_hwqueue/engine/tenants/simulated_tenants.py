"""Tenants on a simulated device: in this process, in virtual time, labelled simulated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.data.errors import BadInput, DeviceError, OwnCodeFailed, translated
from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import FEWER_KERNELS, Colocation, Tenant
from pytest_hwqueue.data.records.tenants import RequestLog, TenantResult
from pytest_hwqueue.data.records.tracing import Refusal
from pytest_hwqueue.engine.causes.explain import Trace, kept_causes, rows_of
from pytest_hwqueue.engine.causes.traced_pass import VIRTUAL
from pytest_hwqueue.engine.cell.attempt import RunEnded
from pytest_hwqueue.engine.tenants.device_use import device_use
from pytest_hwqueue.engine.tenants.looks import Decided, Look, served_all_ns
from pytest_hwqueue.engine.tenants.open_loop import Demand, Load, Window
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.engine.tenants.tenant_processes import ColocationDraft
from pytest_hwqueue.engine.tenants.tenant_window import (
    demand_of,
    needs_gradients,
    open_work,
)
from pytest_hwqueue.parts.devices.simulated.colocation import (
    ModelledLook,
    ModelledTenant,
    SharedDevice,
    operations_of,
    run_tenants,
)
from pytest_hwqueue.parts.devices.simulated.costs import EnqueuedWork, GraphWork, KernelWork, Work
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.schedulers.declaration import SimulatedSharing
from pytest_hwqueue.parts.schedulers.green_context import partition_of
from pytest_hwqueue.parts.schedulers.syntax import parse_scheduler, tenant_requests

# Of all tenants together; attributing them takes a few seconds.
_MOST_KERNELS = 100_000
# How often the time is halved for each look at whether all counted requests were served.
_COUNTS = range(10, 0, -1)


class _Request(NamedTuple):
    """One request of a tenant: what it is, what it enqueues, and what the host spends on that."""

    what: WorkDone
    kernels: tuple[Work, ...]
    host_ns: int


def simulate(
    plan: Colocation,
    draft: ColocationDraft,
    *,
    traced: bool = False,
    looks: Sequence[Look] = (),
    decided: Decided = lambda *_: False,
) -> None:
    """Run a plan in virtual time.

    Args:
        plan: who runs, and how.
        draft: receives the model's results.
        traced: also find out why tenants' slow requests were slow, from what the model did.
        looks: at the window before its end.
        decided: whether a look ends the window; told what a window of its length has measured.

    Raises:
        RunEnded: if the scheduler or a tenant is not modelled.
        BadInput: if a tenant's arrival is not valid.

    """
    model = _model(plan)
    if traced:
        model = _short_enough(model)
        draft.duration_s = model.duration_ns / 1e9
    ran: list[DeviceWork] | None = [] if traced else None
    served, window_ns = _run(model, ran, looks, decided)
    done_ns = model.all_served_ns(served)
    of_all = model.results(served, model.duration_ns)
    draft.counted(plan, done_ns, {one.name: one for one in of_all})
    draft.tenants = model.results(served, window_ns if done_ns is None else done_ns)
    notes = _notes(model)
    if ran is not None:
        notes += _explain(model, draft, ran)
    draft.fingerprint = model.device.fingerprint()
    draft.notes = [*notes, *draft.notes]


@dataclass(frozen=True)
class _ModelledPlan:
    """The model of a plan.

    Attributes:
        plan: who runs, and how.
        device: that they share.
        sharing: as the scheduler lets them.
        tenants: those of the plan, in its order.
        requests: what one request of each is.
        duration_ns: of the window; less than the plan's where a trace would hold too much.

    """

    plan: Colocation
    device: SimulatedDevice
    sharing: SimulatedSharing
    tenants: Sequence[ModelledTenant]
    requests: Sequence[_Request]
    duration_ns: int

    @property
    def turns(self) -> bool:
        """Whether tenants have the device in time slices."""
        return not self.sharing.together and self.plan.placement != TenantPlacement.THREADS

    def results(self, served: Sequence[RequestLog], window_ns: int) -> list[TenantResult]:
        """Return what a window of a length has of each tenant."""
        each = zip(self.plan.tenants, self.tenants, self.requests, served, strict=True)
        return [_result(*one, window_ns) for one in each]

    def all_served_ns(self, served: Sequence[RequestLog]) -> int | None:
        """Return when all counted requests were served; None if none count, or some were not."""
        results = self.results(served, self.duration_ns)
        return served_all_ns(self.plan, {one.name: one for one in results})


def _model(plan: Colocation) -> _ModelledPlan:
    """Return the model of a plan; RunEnded if its scheduler or a tenant of it has none."""
    device = SimulatedDevice(plan.device.removeprefix("sim:"))
    sharing = _sharing(plan)
    _refuse_groups(plan, sharing, device)
    tenants, requests = [], []
    for spec, request in zip(plan.tenants, tenant_requests(plan.tenants), strict=True):
        # The mode's settings are for those who are to give way, as in XSched's own mode.
        tenant, one = _tenant(plan, spec, device, sharing, request.most_urgent)
        tenants.append(tenant)
        requests.append(one)
    return _ModelledPlan(plan, device, sharing, tenants, requests, plan.duration_ns)


def _run(
    model: _ModelledPlan, ran: list[DeviceWork] | None, looks: Sequence[Look], decided: Decided
) -> tuple[list[RequestLog], int]:
    """Run a model; return what each tenant completed, and the length of the window."""
    plan, profile = model.plan, model.device.profile
    window_ns = model.duration_ns

    def all_by(time_ns: int, served: Sequence[RequestLog]) -> bool:
        done_ns = model.all_served_ns(served)
        return done_ns is not None and Window(0, done_ns).over_ns <= time_ns

    def decides(look: Look, served: Sequence[RequestLog]) -> bool:
        nonlocal window_ns
        if not decided(look, model.results(served, look.window_ns)):
            return False
        window_ns = look.window_ns
        return True

    if plan.counted:
        # What is counted is mostly served long before the end.
        times_ns = [model.duration_ns >> halvings for halvings in _COUNTS]
        at = [ModelledLook(time_ns, partial(all_by, time_ns)) for time_ns in times_ns]
    else:
        at = [
            ModelledLook(Window(0, look.window_ns).over_ns, partial(decides, look))
            for look in looks
        ]
    preempts = model.sharing.preemption is not None
    shared = SharedDevice(
        profile.hardware(),
        "time-slices" if model.turns else "together",
        profile.sharing.preemption_round_trip_ns.value if preempts else None,
        profile.request_host(),
        threads=plan.placement == TenantPlacement.THREADS,
    )
    grace_ns = Window(0, model.duration_ns).grace_ns
    served = run_tenants(shared, model.tenants, model.duration_ns, grace_ns, ran=ran, looks=at)
    return served, window_ns


def _notes(model: _ModelledPlan) -> list[str]:
    """Say what a model's figures are not."""
    return [
        f"simulated: {model.device.name}; the scheduler is part of the model, so nothing is proven",
        "simulated: no values exist, so results were not checked",
        *(
            f"simulated: of tenant {spec.name} the operations of torch are modelled, as its first "
            "request has them; what else its function does takes no time"
            for spec in model.plan.tenants
            if spec.function is not None
        ),
    ]


def _explain(model: _ModelledPlan, draft: ColocationDraft, ran: Sequence[DeviceWork]) -> list[str]:
    """Add the device's use and the causes to a traced window; say what a trace did not hold."""
    short = []
    if model.duration_ns < model.plan.duration_ns:
        short.append(
            f"traced for at most {model.duration_ns / 1e9:.2g} s, not {model.plan.duration_s:.2g} "
            "s: the tenants run too many kernels for a trace"
        )
    tenants = draft.tenants
    traces = {one.name: _trace(one.name, ran) for one in tenants}
    draft.device_use = device_use(tenants, traces, 0, round(draft.duration_s * 1e9), model.turns)
    draft.tenants = kept_causes(
        draft.kept, tenants, traces, begin_ns=0, notes=[*short], turns=model.turns
    )
    return short


def _result(
    spec: Tenant, tenant: ModelledTenant, work: _Request, ran: RequestLog, window_ns: int
) -> TenantResult:
    # In order of arrival: of several at once, a later one may end first.
    served = sorted(zip(ran.started_ns, ran.scheduled_ns, ran.finished_ns, strict=True))
    due = tenant.arrivals_ns
    load = Load(
        [due_ns for _, due_ns, _ in served],
        [started_ns for started_ns, _, _ in served],
        [finished_ns for _, _, finished_ns in served],
        closed=due is None,
    ).until(window_ns, Demand(due))
    return delivered(spec, load, window_ns, work.what)


def _short_enough(model: _ModelledPlan) -> _ModelledPlan:
    """Return a model with a window short enough for its tenants' kernels to fit into a trace.

    Raises:
        RunEnded: if a tenant would not have begun by then.

    """
    duration_ns = model.duration_ns
    kernels = 0.0
    for one in model.tenants:
        # A closed loop is no faster than its host, nor than its kernels one after the other.
        alone_ns = max(
            len(operations_of(one.kernels)) * one.host_ns,
            sum(work.duration_ns for work in one.kernels if isinstance(work, KernelWork)),
        )
        requests = duration_ns / max(1, alone_ns + one.synchronise_ns)
        if one.arrivals_ns is not None:
            requests = min(requests, len(one.arrivals_ns))
        if one.most is not None:
            requests = min(requests, one.most)
        kernels += requests * len(one.kernels)
    if kernels > _MOST_KERNELS:
        duration_ns = round(duration_ns * _MOST_KERNELS / kernels)
        tenants = [
            one
            if one.arrivals_ns is None
            else replace(one, arrivals_ns=[due for due in one.arrivals_ns if due < duration_ns])
            for one in model.tenants
        ]
        model = replace(model, tenants=tenants, duration_ns=duration_ns)
    if reason := model.plan.too_short(duration_ns / 1e9, FEWER_KERNELS):
        raise _not_modelled(f"a trace holds no more: {reason}")
    return model


def _trace(tenant: str, ran: Sequence[DeviceWork]) -> Trace:
    return Trace(
        owner=tenant,
        device_kind="sim",
        threads=[],
        stream_threads={},
        work=rows_of(work for work in ran if work.owner == tenant),
        calls=[],
        level="none",
        refused=[Refusal("perf", None, VIRTUAL)],
    )


def _sharing(plan: Colocation) -> SimulatedSharing:
    sharing = parse_scheduler(plan.scheduler).simulated
    if sharing is None:
        raise _not_modelled(f"the simulator does not model {plan.scheduler}; use a real device")
    return sharing


def _refuse_groups(plan: Colocation, sharing: SimulatedSharing, device: SimulatedDevice) -> None:
    """Raise RunEnded if the device cannot be split into a mode's groups."""
    if not sharing.groups:
        return
    others = any(tenant.name not in sharing.groups for tenant in plan.tenants)
    with translated(_not_modelled, plan.scheduler, DeviceError):
        device.profile.refuse_split(tuple(sharing.groups.values()), others=others)


def _priority(sharing: SimulatedSharing, device: SimulatedDevice, priority: int) -> int:
    """Return the priority of a tenant's stream in the engine, where larger is more urgent."""
    if sharing.priorities == "streams":
        return -device.device_priority(priority)
    if sharing.priorities == "two-levels":
        return int(priority > 0)
    return priority if sharing.priorities == "all" else 0


def _tenant(
    plan: Colocation,
    spec: Tenant,
    device: SimulatedDevice,
    sharing: SimulatedSharing,
    most_urgent: bool,
) -> tuple[ModelledTenant, _Request]:
    if spec.streams != 1:
        raise _not_modelled(
            f"tenant {spec.name} has {spec.streams} streams; simulated tenants have one each",
        )
    if spec.faults:
        raise _not_modelled(
            f"tenant {spec.name}: faults are planted in tenants of real devices only"
        )
    # Whoever runs the same thing enqueues the same kernels, whenever its requests arrive.
    same = replace(
        spec, arrival="closed", priority=0, share=None, concurrency=1, start_s=0.0, requests=None
    )
    text = json.dumps(asdict(same), sort_keys=True)
    try:
        request = _request(plan.device, text, plan.seed_of_work, plan.folder)
    except (BadInput, OwnCodeFailed) as error:
        raise RunEnded("failed", f"tenant {spec.name}: {error}") from error
    if not request.kernels:
        raise _not_modelled(
            f"tenant {spec.name}: {request.what.description} runs no operation of torch on the "
            "device, and nothing else of it is modelled; use a real device",
        )
    demand = demand_of(plan, spec.name)
    tenant = ModelledTenant(
        spec.name,
        request.kernels,
        host_ns=round(request.host_ns / len(operations_of(request.kernels))),
        synchronise_ns=device.profile.host.synchronise_ns.value,
        arrivals_ns=demand.schedule,
        priority=_priority(sharing, device, spec.priority),
        seed=plan.tenant_seed(spec.name),
        concurrency=spec.concurrency,
        partition=partition_of(sharing.groups, spec.name) if sharing.groups else None,
        start_ns=demand.first_ns,
        delay_ns=demand.delay_ns,
        most=demand.most,
    )
    if sharing.preemption is not None:
        in_flight, batch, of_most_urgent = sharing.preemption
        if most_urgent:
            in_flight = of_most_urgent
        tenant = replace(tenant, in_flight=in_flight, batch=batch)
    return tenant, request


@lru_cache(maxsize=64)
def _request(label: str, spec_json: str, seed: int, folder: str) -> _Request:
    """Capture one request; kept, since a scenario's runs have the same tenants."""
    device = SimulatedDevice(label.removeprefix("sim:"))
    spec = Tenant(**json.loads(spec_json))
    with device.open_streams(1, gradients=needs_gradients(spec)) as pool:
        (work,) = open_work(spec, device, pool, seed, Path(folder))
        # What happens only the first time happens here.
        work.request()
        before_ns = device.clock_ns()
        work.enqueue()
        host_ns = device.clock_ns() - before_ns
        pool.synchronize()
        captured = pool.capture(0, work.enqueue)
    assert isinstance(captured, EnqueuedWork)
    assert isinstance(captured.work, GraphWork)
    kernels = tuple(node.work for node in captured.work.nodes if node.work is not None)
    if spec.model is not None:
        # Beside its operations, which were costed, a network calls its modules.
        host_ns += len(operations_of(kernels)) * device.profile.host.module_call_ns.value
    return _Request(work.what, kernels, host_ns)


def _not_modelled(reason: str) -> RunEnded:
    """Return that the model cannot represent a plan; the reason says what is missing."""
    return RunEnded("skipped", reason)
