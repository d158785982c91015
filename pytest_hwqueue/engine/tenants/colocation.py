"""Runs tenants together, from start to record; every outcome of a window becomes a record."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pytest_hwqueue.data.errors import BadInput, DeviceError, NotProven
from pytest_hwqueue.data.figures.of_requests import Served, percentile
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, write_colocation
from pytest_hwqueue.data.redaction import redacted
from pytest_hwqueue.engine.cell.attempt import Attempt, RunEnded, attempt
from pytest_hwqueue.engine.noise.neighbours import Noise
from pytest_hwqueue.engine.tenants.colocation_run import LivingTenants, Progress
from pytest_hwqueue.engine.tenants.device_use import device_use, in_time_slices
from pytest_hwqueue.engine.tenants.looks import Decided, Look, Looks
from pytest_hwqueue.engine.tenants.open_loop import Window, invalid_reason, lateness_note
from pytest_hwqueue.engine.tenants.servers import for_records, secrets_of_plan
from pytest_hwqueue.engine.tenants.simulated_tenants import simulate
from pytest_hwqueue.engine.tenants.tenant_processes import FoundOfTenants, Limits
from pytest_hwqueue.parts.processes.starting import ForkServer
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, tenant_requests

_LIMITS = Limits()
_NOT_ASKED = Provenance()


@dataclass
class TenantSet:
    """Tenants that serve one window after the other; use it as a context that ends them.

    Those of a real device start with the first window, and live on until one fails, or they are
    ended. Simulated ones are no processes, and have nothing to end.

    Attributes:
        scheduler: the mode of the plans, open, or why it cannot be opened.
        progress: receives the stage, how much of it is done, and its total.
        folder: receives the records, and a folder with the output of tenants and services.
        limits: how long tenants may take before they count as hanging.
        command: repeats this run; for the records.
        provenance: for the records.
        traced: also find out why tenants' slow requests were slow; the times are then not a result,
            and there is one window.
        noise: the plan's, opened, or that of the quiet; None if no noise is compared. With one
            there is one window.
        server: forks the tenants that need no special environment.

    """

    scheduler: Scheduler | BadInput
    progress: Progress
    folder: Path
    limits: Limits = _LIMITS
    command: str = ""
    provenance: Provenance = _NOT_ASKED
    traced: bool = False
    noise: Noise | None = None
    server: ForkServer | None = None

    def __post_init__(self) -> None:
        self._living: LivingTenants | None = None
        self._alive = ExitStack()
        self._started = ""

    def __enter__(self) -> TenantSet:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the tenants; at once if something went wrong, such as an interruption."""
        self._end(ask=kind is None)

    def end(self) -> None:
        """End the tenants, if they live."""
        self._end(ask=True)

    def can_serve(self, plan: Colocation) -> bool:
        """Whether tenants live that a plan's window could be of."""
        return self._living is not None and plan.same_tenants(self._living.plan)

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
        folder, scheduler, traced = self.folder, self.scheduler, self.traced
        folder.mkdir(parents=True, exist_ok=True)
        path = record_path(folder, plan.id)
        simulated = capabilities_of(plan.device).simulated
        nothing = [TenantResult(name=tenant.name) for tenant in plan.tenants]
        found = FoundOfTenants("start", duration_s=plan.duration_s, tenants=nothing)
        if plan.servers or plan.counted:
            looks = None
        # Before all are there, a look could not compare them.
        there_ns = plan.all_there_ns
        early = [each for each in looks.planned[:-1] if each.window_ns > there_ns] if looks else []
        if looks is not None:
            found.look_error = looks.planned[-1].error

        def decided(look: Look, tenants: list[TenantResult]) -> bool:
            seen = replace(
                found, tenants=tenants, duration_s=look.window_ns / 1e9, look_error=look.error
            )
            if looks is None or not looks.decided(recorded(seen, Attempt(now(), 0.0))):
                return False
            found.duration_s, found.look_error = seen.duration_s, seen.look_error
            return True

        def measure() -> None:
            if isinstance(scheduler, BadInput):
                raise RunEnded("failed", str(scheduler))
            if self._living is None:
                # Later, what a mode runs for its tenants would be found in their way.
                _refuse(plan, scheduler)
            if traced:
                _refuse_to_trace(plan)
            if simulated:
                self.progress("simulate", 0, 0)
                simulate(plan, found, traced=traced, looks=early, decided=decided)
                return
            own = path.with_suffix("")
            window = self._measure(plan, scheduler, own, found, early, decided, last=last)
            if traced:
                from pytest_hwqueue.engine.causes.explain import kept_causes, take_traces

                found.stage = "causes"
                traces = take_traces(own, [tenant.name for tenant in found.tenants])
                turns = in_time_slices(
                    plan.placement, plan.scheduler, plan.device, len(plan.tenants)
                )
                found.device_use = device_use(
                    found.tenants, traces, window.begin_ns, round(found.duration_s * 1e9), turns
                )
                found.tenants = kept_causes(
                    found.kept, found.tenants, traces,
                    begin_ns=window.begin_ns, notes=[*found.notes], turns=turns,
                )  # fmt: skip
            else:
                _refuse_unanswered(found)
                _refuse_late(plan, found)

        secrets, kept = secrets_of_plan(plan), for_records(plan)

        def recorded(found: FoundOfTenants, done: Attempt) -> ColocationRecord:
            record = ColocationRecord(
                **done.fields(found, self.provenance),
                id=plan.id,
                run=run,
                plan=kept,
                device=plan.device,
                scheduler=plan.scheduler,
                seed=plan.seed,
                placement=plan.placement,
                tenants_started=self._started,
                elapsed_s=done.seconds,
                command=self.command,
                simulated=simulated,
                traced=traced,
                faults=[f"{spec.name}: {fault}" for spec in plan.tenants for fault in spec.faults],
            )
            return _without_secrets(record, secrets) if plan.servers else record

        # Errors of a mode or of a device speak for themselves.
        done = attempt(measure, NotProven, DeviceError)
        found.store(folder, path.stem)
        record = recorded(found, done)
        write_colocation(path, record)
        done.raise_interruption()
        return record

    def _measure(
        self, plan: Colocation, scheduler: Scheduler, own: Path, found: FoundOfTenants,
        early: Sequence[Look], decided: Decided, *, last: bool,
    ) -> Window:  # fmt: skip
        """Measure a window of tenants that are started if none live; end them if it fails."""
        try:
            if self._living is None:
                self._started = now()
                self._living = LivingTenants(
                    plan, scheduler, self.progress, own, self.limits, found,
                    self.traced, self.noise, self.server,
                )  # fmt: skip
                self._alive.enter_context(self._living.running())
            window = self._living.window(plan, found, early, decided)
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


def colocate(
    plan: Colocation,
    scheduler: Scheduler | BadInput,
    progress: Progress,
    folder: Path,
    *,
    limits: Limits = _LIMITS,
    command: str = "",
    provenance: Provenance = _NOT_ASKED,
    run: int = 1,
    traced: bool = False,
    noise: Noise | None = None,
    server: ForkServer | None = None,
    looks: Looks | None = None,
) -> ColocationRecord:
    """Run tenants together once; the arguments are those of `TenantSet` and of its `window`."""
    tenants = TenantSet(
        scheduler, progress, folder, limits, command, provenance, traced, noise, server
    )
    with tenants:
        return tenants.window(plan, run=run, looks=looks, last=True)


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
                    failure.model_copy(update={"reason": shown(failure.reason)})
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


def _refuse_late(plan: Colocation, found: FoundOfTenants) -> None:
    """Raise RunEnded if a tenant's load generator was too late for what is asked of it."""
    for tenant in found.tenants:
        if tenant.lateness is None:
            continue
        p99_ms = _p99_ms(tenant)
        reason = invalid_reason(tenant.lateness, p99_ms, plan.asked_ms.get(tenant.name))
        if reason and plan.noise is not None:
            # The generator is a part of the tenant's process. What a neighbour does to it on
            # purpose is what was asked for, and latency from the scheduled arrival has it.
            found.notes.append(f"under {plan.noise}, tenant {tenant.name}: {reason}")
        elif reason:
            found.stage = "measure"
            raise RunEnded("invalid", f"tenant {tenant.name}: {reason}")
        elif note := lateness_note(tenant.lateness, p99_ms):
            found.notes.append(f"tenant {tenant.name}: {note}")


def _p99_ms(tenant: TenantResult) -> float:
    """Return P99 of completed requests, as tables show it; infinite if there is none."""
    times_ns = tenant.latency_ns
    whole = Served(len(times_ns), times_ns, (), window_ns=1)
    return (percentile(0.99)([whole], CONFIDENCE).value or math.inf) / 1e6


def _refuse_unanswered(found: FoundOfTenants) -> None:
    """Raise RunEnded if a server answered no request in the window as it should."""
    for tenant in found.tenants:
        if tenant.server is not None and tenant.failures and tenant.completed == 0:
            found.stage = "measure"
            raise RunEnded(
                "failed",
                f"tenant {tenant.name}: none of {tenant.issued} requests to {tenant.server.url} "
                f"was answered as expected; the last: {tenant.failures[-1].reason}",
            )
