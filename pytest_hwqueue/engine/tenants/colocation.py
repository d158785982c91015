"""Runs tenants together, from start to record; every outcome of a window becomes a record."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

from pytest_hwqueue.data.errors import DeviceError, NotProven
from pytest_hwqueue.data.figures.of_requests import ServedRequests, percentile
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, write_colocation
from pytest_hwqueue.data.redaction import redacted
from pytest_hwqueue.engine.cell.attempt import Attempt, RunEnded, attempt
from pytest_hwqueue.engine.tenants.colocation_run import LivingTenants, TenantSetting
from pytest_hwqueue.engine.tenants.device_use import device_use, in_time_slices
from pytest_hwqueue.engine.tenants.looks import Decided, Look, Looks
from pytest_hwqueue.engine.tenants.open_loop import (
    Window,
    invalid_reason,
    lateness_note,
    overloaded_reason,
)
from pytest_hwqueue.engine.tenants.servers import for_records, secrets_of_plan
from pytest_hwqueue.engine.tenants.simulated_tenants import simulate
from pytest_hwqueue.engine.tenants.tenant_processes import ColocationDraft
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, tenant_requests


@dataclass
class TenantSet(TenantSetting):
    """Tenants that serve one window after the other; use it as a context that ends them.

    Those of a real device start with the first window, and live on until one fails, or they are
    ended. Simulated ones are no processes, and have nothing to end.
    """

    def __post_init__(self) -> None:
        self._living: LivingTenants | None = None
        self._alive = ExitStack()
        # When the living ones were, UTC; empty where nothing was.
        self.started = ""

    def __enter__(self) -> TenantSet:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the tenants; at once if something went wrong, such as an interruption."""
        self._end(ask=kind is None)

    def end(self) -> None:
        """End the tenants, if they live."""
        self._end(ask=True)

    @property
    def live(self) -> bool:
        """Whether they have started, and not ended."""
        return self._living is not None

    def can_serve(self, plan: Colocation) -> bool:
        """Whether tenants live that a plan's window could be of."""
        return self._living is not None and plan.same_tenants(self._living.plan)

    def once(
        self, plan: Colocation, *, run: int = 1, looks: Looks | None = None
    ) -> ColocationRecord:
        """Run tenants together for one window; the arguments are those of `window`."""
        with self:
            return self.window(plan, run=run, looks=looks, last=True)

    def window(
        self, plan: Colocation, *, run: int = 1, looks: Looks | None = None, last: bool = False
    ) -> ColocationRecord:
        """Measure a window; return its record, already written to disk.

        Args:
            plan: who runs, and how; of tenants that live, what they `can_serve`. On a simulated
                device, in virtual time in this process.
            run: which run of this co-location in its session, from 1.
            looks: end the window once they decide; None to measure all of it, as with servers, and
                where requests are counted.
            last: end the tenants before the record is made, which then says how they ended.

        Raises:
            RecordError: if the record cannot be written.
            KeyboardInterrupt: if interrupted, once all processes are gone and the record is
                written.

        """
        return _Measurement(self, plan, run, looks, last=last).record()

    def serve(
        self, plan: Colocation, draft: ColocationDraft, early: Sequence[Look], decided: Decided,
        *, last: bool,
    ) -> Window:  # fmt: skip
        """Serve a window by tenants that are started if none live; end them if it fails.

        Args:
            plan: as `window` takes it.
            draft: receives what becomes known.
            early: looks at the window before its end.
            decided: whether a look ends it.
            last: as `window` takes it.

        """
        try:
            if self._living is None:
                self.started = now()
                own = record_path(self.folder, plan.id).with_suffix("")
                self._living = LivingTenants(plan, self, own, draft)
                self._alive.enter_context(self._living.running())
            window = self._living.window(plan, draft, early, decided)
            if last:
                self.end()
        except BaseException:
            # Nobody knows what tenants of a window that failed would serve next.
            self._end(ask=False)
            raise
        return window

    def _end(self, *, ask: bool) -> None:
        living, self._living = self._living, None
        with self._alive:
            if living is not None and ask:
                living.stop()


class _Measurement:
    """One window's, from its first stage to its record; the arguments are those of `window`."""

    def __init__(
        self, tenants: TenantSet, plan: Colocation, run: int, looks: Looks | None, *, last: bool
    ) -> None:
        self._tenants, self._plan, self._run, self._last = tenants, plan, run, last
        self._path = record_path(tenants.folder, plan.id)
        self._simulated = capabilities_of(plan.device).simulated
        self._secrets, self._kept = secrets_of_plan(plan), for_records(plan)
        nothing = [TenantResult(name=tenant.name) for tenant in plan.tenants]
        self._draft = ColocationDraft("start", duration_s=plan.duration_s, tenants=nothing)
        self._looks = None if plan.servers or plan.counted else looks
        if self._looks is not None:
            self._draft.look_error = self._looks.planned[-1].error

    def record(self) -> ColocationRecord:
        """Measure the window; return its record, already written to disk."""
        folder = self._tenants.folder
        folder.mkdir(parents=True, exist_ok=True)
        # Errors of a mode or of a device speak for themselves.
        done = attempt(self._measure, NotProven, DeviceError)
        self._draft.store(folder, self._path.stem)
        record = self._recorded(self._draft, done)
        write_colocation(self._path, record)
        done.raise_interruption()
        return record

    def _measure(self) -> None:
        plan, draft, tenants = self._plan, self._draft, self._tenants
        scheduler = tenants.mode
        if not tenants.live:
            # Later, what a mode runs for its tenants would be found in their way.
            _refuse(plan, scheduler)
        if tenants.traced:
            _refuse_to_trace(plan)
        if self._simulated:
            tenants.progress("simulate", 0, 0)
            simulate(plan, draft, traced=tenants.traced, looks=self._early(), decided=self._decided)
            return
        window = tenants.serve(plan, draft, self._early(), self._decided, last=self._last)
        if tenants.traced:
            self._find_causes(window)
        else:
            _refuse_unanswered(draft)
            _refuse_late(plan, draft)

    def _early(self) -> list[Look]:
        """Return the looks before the window's end at which all are there: these can compare."""
        planned = [] if self._looks is None else self._looks.planned[:-1]
        return [each for each in planned if each.window_ns > self._plan.all_there_ns]

    def _decided(self, look: Look, tenants: list[TenantResult]) -> bool:
        """Whether a look decides all that is asked; then the window is as long as it saw."""
        draft = self._draft
        seen = replace(
            draft, tenants=tenants, duration_s=look.window_ns / 1e9, look_error=look.error
        )
        if self._looks is None or not self._looks.decided(
            self._recorded(seen, Attempt(now(), 0.0))
        ):
            return False
        draft.duration_s, draft.look_error = seen.duration_s, seen.look_error
        return True

    def _find_causes(self, window: Window) -> None:
        from pytest_hwqueue.engine.causes.explain import kept_causes, take_traces

        plan, draft = self._plan, self._draft
        draft.stage = "causes"
        traces = take_traces(self._path.with_suffix(""), [tenant.name for tenant in draft.tenants])
        turns = in_time_slices(plan.placement, plan.scheduler, plan.device, len(plan.tenants))
        draft.device_use = device_use(
            draft.tenants, traces, window.begin_ns, round(draft.duration_s * 1e9), turns
        )
        draft.tenants = kept_causes(
            draft.kept, draft.tenants, traces,
            begin_ns=window.begin_ns, notes=[*draft.notes], turns=turns,
        )  # fmt: skip

    def _recorded(self, draft: ColocationDraft, done: Attempt) -> ColocationRecord:
        plan, tenants = self._plan, self._tenants
        record = ColocationRecord(
            **done.head(draft, tenants.provenance),
            id=plan.id,
            run=self._run,
            duration_s=draft.duration_s,
            look_error=draft.look_error,
            proof=draft.proof,
            tenants=draft.tenants,
            device_use=draft.device_use,
            mean_power_w=draft.mean_power_w,
            plan=self._kept,
            device=plan.device,
            scheduler=plan.scheduler,
            seed=plan.seed,
            placement=plan.placement,
            tenants_started=tenants.started,
            elapsed_s=done.seconds,
            command=tenants.command,
            simulated=self._simulated,
            traced=tenants.traced,
            faults=[f"{spec.name}: {fault}" for spec in plan.tenants for fault in spec.faults],
        )
        return _without_secrets(record, self._secrets) if plan.servers else record


def _without_secrets(record: ColocationRecord, secrets: Collection[str]) -> ColocationRecord:
    """Return a record without secrets in what its servers, and who asked them, have said."""

    # A server that fails mostly does so in the same words.
    @cache
    def shown(text: str) -> str:
        return redacted(text, secrets)

    tenants = [
        tenant.model_copy(
            update={
                "failures": [
                    failure.model_copy(
                        update={"reason": shown(failure.reason), "kind": shown(failure.kind)}
                    )
                    for failure in tenant.failures
                ],
                "exit": shown(tenant.exit),
                "last_output": shown(tenant.last_output),
            }
        )
        for tenant in record.tenants
    ]
    proof = record.proof and replace(record.proof, evidence=shown(record.proof.evidence))
    texts = {"reason": shown(record.reason), "command": shown(record.command)}
    notes = [shown(note) for note in record.notes]
    return record.model_copy(update={**texts, "notes": notes, "tenants": tenants, "proof": proof})


def _refuse(plan: Colocation, scheduler: Scheduler) -> None:
    """Raise RunEnded if the mode cannot be used for these tenants here."""
    reason = scheduler.unavailable(plan.device.partition(":")[0], tenant_requests(plan.tenants))
    if reason is None and plan.placement not in scheduler.placements:
        can = " or ".join(sorted(scheduler.placements))
        reason = f"{scheduler.mode} needs tenants in {can}, and these are in {plan.placement}"
    if reason is None and scheduler.spec.declaration.needs_environment:
        servers = [tenant.server for tenant in plan.tenants]
        if all(server is not None and not server.ours for server in servers):
            reason = f"{scheduler.mode} would change nothing: no tenant is started here"
    if reason is not None:
        raise RunEnded("skipped", reason)


def _refuse_to_trace(plan: Colocation) -> None:
    """Raise RunEnded if a tenant serves several requests at once, or is a server."""
    for tenant in plan.tenants:
        if tenant.server is not None:
            raise RunEnded("skipped", f"tenant {tenant.name} is a server, which is not traced")
        if tenant.concurrency > 1:
            raise RunEnded(
                "skipped",
                f"tenant {tenant.name} serves {tenant.concurrency} requests at once, and a trace "
                "does not say to which of them a kernel belongs; give it a concurrency of 1",
            )


def _refuse_late(plan: Colocation, draft: ColocationDraft) -> None:
    """Raise RunEnded if a tenant's load generator was too late for what is asked, or too busy."""
    for tenant in draft.tenants:
        p99_ms = _p99_ms(tenant)
        reason = invalid_reason(tenant.lateness, p99_ms, plan.asked_ms.get(tenant.name))
        if tenant.server is not None and reason is None:
            reason = overloaded_reason(tenant.server.generator_busy)
        if reason and plan.noise is not None:
            # The generator is a part of the tenant's process. What a neighbour does to it on
            # purpose is what was asked for, and latency from the scheduled arrival has it.
            draft.notes.append(f"under {plan.noise}, tenant {tenant.name}: {reason}")
        elif reason:
            draft.stage = "measure"
            raise RunEnded("invalid", f"tenant {tenant.name}: {reason}")
        elif note := lateness_note(tenant.lateness, p99_ms):
            draft.notes.append(f"tenant {tenant.name}: {note}")


def _p99_ms(tenant: TenantResult) -> float:
    """Return P99 of completed requests, as tables show it; infinite if there is none."""
    times_ns = tenant.latency_ns
    whole = ServedRequests(len(times_ns), times_ns, (), window_ns=1)
    return (percentile(0.99)([whole], CONFIDENCE).value or math.inf) / 1e6


def _refuse_unanswered(draft: ColocationDraft) -> None:
    """Raise RunEnded if a server answered no request in the window as it should."""
    for tenant in draft.tenants:
        if tenant.server is not None and tenant.failures and tenant.completed == 0:
            draft.stage = "measure"
            raise RunEnded(
                "failed",
                f"tenant {tenant.name}: none of {tenant.issued} requests to {tenant.server.url} "
                f"was answered as expected; the last: {tenant.failures[-1].reason}",
            )
