"""Runs tenants together once, from start to record; whatever happens there is a record."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import DeviceError, NotProven
from pytest_hwqueue.harness.failures import describe_failure
from pytest_hwqueue.harness.open_loop import Window
from pytest_hwqueue.noise.names import NONE
from pytest_hwqueue.noise.opening import Noise
from pytest_hwqueue.processes.starting import ForkServer
from pytest_hwqueue.records.cell import Status, now
from pytest_hwqueue.records.tenants import (
    ColocationProof,
    ColocationRecord,
    TenantResult,
    record_path,
    write_colocation,
)
from pytest_hwqueue.schedulers.mode import Proof, Scheduler, tenant_requests
from pytest_hwqueue.tenancy.outcome import delivered
from pytest_hwqueue.tenancy.run import Ended, Found, Limits, Progress, Run
from pytest_hwqueue.tenancy.simulated import NotModelled, simulate
from pytest_hwqueue.tenancy.spec import Colocation

_LIMITS = Limits()


def colocate(
    plan: Colocation,
    scheduler: Scheduler,
    progress: Progress,
    folder: Path,
    *,
    limits: Limits = _LIMITS,
    command: str = "",
    git_commit: str | None = None,
    run: int = 1,
    traced: bool = False,
    noise: Noise | None = None,
    server: ForkServer | None = None,
) -> ColocationRecord:
    """Run tenants together once; return the record, which is on disk by then.

    Args:
        plan: who runs, and how; on a simulated device in virtual time and in this process.
        scheduler: the mode of ``plan.scheduler``, open.
        progress: told the stage, how much of it is done, and how much there is to do.
        folder: takes the record, and beside it a folder with what tenants and services wrote.
        limits: how long tenants may take before they count as hanging.
        command: what repeats this, for the record.
        git_commit: for the record.
        run: which run of this co-location in its session, from 1.
        traced: also find out why tenants' slow requests were slow; the times are no result then.
        noise: that of ``plan.noise``, open; None where it has none.
        server: forks the tenants that need no environment of their own.

    Raises:
        RecordError: if the record cannot be written.
        KeyboardInterrupt: when interrupted, after all processes are gone and the record is written.

    """
    folder.mkdir(parents=True, exist_ok=True)
    path = record_path(folder, plan.id)
    started, begin = now(), time.monotonic()
    found = Found()
    status: Status = "ok"
    reason = ""
    interrupted: BaseException | None = None
    tenants: list[TenantResult] = []
    duration_ns = plan.duration_ns
    simulated = capabilities_of(plan.device).simulated
    try:
        _refuse(plan, scheduler)
        if simulated:
            progress("simulate", 0, 0)
            simulation = simulate(plan, traced=traced)
            tenants, found.notes = simulation.tenants, simulation.notes
            duration_ns = simulation.duration_ns
            found.fingerprint = simulation.fingerprint
        else:
            own = path.with_suffix("")
            run_ = Run(
                plan, scheduler, progress, own, limits, found,
                traced=traced, beside=noise, server=server,
            )  # fmt: skip
            run_.run()
            if traced:
                assert found.window is not None
                duration_ns = found.window.duration_ns
                tenants = _with_causes(plan, found, found.window, own)
            else:
                _refuse_late(plan, found)
    except Ended as ended:
        status, reason = ended.status, str(ended)
    except NotModelled as error:
        status, reason = "skipped", str(error)
    except Exception as error:  # every cause becomes a record
        status, reason = "failed", _in_words(error)
    except BaseException as error:
        status, reason, interrupted = "failed", "interrupted before it was measured", error
    record = ColocationRecord(
        id=plan.id,
        run=run,
        plan=plan.to_json(),
        status=status,
        reason=reason,
        stage=found.stage if status != "ok" else "",
        device=plan.device,
        scheduler=plan.scheduler,
        proof=_proof(found.proof),
        tenants=tenants or _results(plan, found, duration_ns),
        fingerprint=found.fingerprint,
        noise=found.noise,
        seed=plan.seed,
        placement=plan.placement,
        duration_s=plan.duration_s if duration_ns == plan.duration_ns else duration_ns / 1e9,
        elapsed_s=round(time.monotonic() - begin, 3),
        started=started,
        command=command,
        git_commit=git_commit,
        simulated=simulated,
        traced=traced,
        faults=[f"{spec.name}: {fault}" for spec in plan.tenants for fault in spec.faults],
        notes=found.notes,
    )
    write_colocation(path, record)
    if interrupted is not None:
        raise interrupted
    return record


def _results(plan: Colocation, found: Found, duration_ns: int) -> list[TenantResult]:
    return [_result(found, tenant.name, duration_ns) for tenant in plan.tenants]


def _result(found: Found, name: str, duration_ns: int) -> TenantResult:
    told = found.messages.get(name)
    result = TenantResult(name=name) if told is None else delivered(name, told, duration_ns)
    return result.model_copy(
        update={"exit": found.exits.get(name, ""), "last_output": found.outputs.get(name, "")}
    )


def _with_causes(
    plan: Colocation, found: Found, window: Window, folder: Path
) -> list[TenantResult]:
    from pytest_hwqueue.causes.tenant_causes import causes_of, take_traces

    found.stage = "causes"
    results = _results(plan, found, window.duration_ns)
    traces = take_traces(folder, [tenant.name for tenant in plan.tenants])
    causes = causes_of(results, traces, window.begin_ns, found.notes)
    return [one.model_copy(update={"causes": causes[one.name]}) for one in results]


def _refuse(plan: Colocation, scheduler: Scheduler) -> None:
    """Raise Ended if the mode cannot be used for these tenants, here."""
    tenants = tenant_requests((t.name, t.priority, t.share) for t in plan.tenants)
    reason = scheduler.unavailable(plan.device.partition(":")[0], tenants)
    if reason is None and plan.placement not in scheduler.placements:
        can = " or ".join(sorted(scheduler.placements))
        reason = f"{scheduler.mode} needs tenants in {can}, and these are in {plan.placement}"
    if reason is not None:
        raise Ended("skipped", reason)


def _refuse_late(plan: Colocation, found: Found) -> None:
    """Raise Ended if a tenant's load generator was late."""
    for tenant in plan.tenants:
        reason = found.messages[tenant.name]["invalid"]
        if reason and plan.noise not in (None, NONE):
            # The generator is a part of the tenant's process. What a neighbour does to it on
            # purpose is what was asked for, and latency from the scheduled arrival has it.
            found.notes.append(f"beside {plan.noise}, tenant {tenant.name}: {reason}")
        elif reason:
            found.stage = "measure"
            raise Ended("invalid", f"tenant {tenant.name}: {reason}")


def _proof(proof: Proof | None) -> ColocationProof | None:
    if proof is None:
        return None
    return ColocationProof(
        mode=proof.mode,
        evidence=proof.evidence,
        device_priorities=list(proof.device_priorities),
        effective=proof.effective,
        counts=dict(proof.counts),
    )


def _in_words(error: Exception) -> str:
    # These speak for themselves.
    if isinstance(error, (NotProven, DeviceError)):
        return str(error)
    return describe_failure(error).reason
