"""The causes of a cell's slow requests, from its traced pass."""

from __future__ import annotations

from pytest_hwqueue.causes.explain import explain
from pytest_hwqueue.causes.kept import CellCauses, keep_cell
from pytest_hwqueue.causes.seen import trace_of
from pytest_hwqueue.causes.trace_file import Trace
from pytest_hwqueue.causes.traced_pass import TracedPass
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.telemetry import TelemetrySample
from pytest_hwqueue.metrics.attribution import Attribution
from pytest_hwqueue.metrics.delay_evidence import Cause, Evidence
from pytest_hwqueue.records.causes import Causes
from pytest_hwqueue.records.timelines import Kept

_OWNER = "the cell"
_NOT_MODELLED = "a simulated device does not model it"


def causes_of_pass(
    device: Device, passed: TracedPass, kept: Kept | None = None
) -> tuple[Causes, Attribution]:
    """Return why the slow requests of a pass were slow: as a record keeps it, and one by one.

    Args:
        device: that ran it.
        passed: the pass.
        kept: takes what the causes are found in; None keeps nothing.

    """
    # What the host waits for the device is no gap of its launching; nor is what lies between
    # chunks, when the pass itself was at work.
    pauses = [start_ns for start_ns, _ in passed.waits]
    trace, work = trace_of(passed, _OWNER, device.kind, pauses)
    not_seen = _not_seen(trace)
    evidence = _of_throttling(passed, not_seen)
    if kept is not None:
        keep_cell(kept, CellCauses(passed.requests, trace, work, not_seen, evidence))
    return explain(passed.requests, trace, work, not_seen, evidence=evidence)


def _not_seen(trace: Trace) -> dict[Cause, str]:
    found: dict[Cause, str] = {
        "generator late": "in a closed loop nothing is due at a time",
        "time slice": "kernels of other processes are not seen",
    }
    if trace.work_unseen:
        found |= {"queued": trace.work_unseen, "own work": trace.work_unseen}
    if trace.level == "rusage" or (trace.off_cpu is not None and trace.interrupts is None):
        found["interrupted"] = f"level {trace.level} sees no interrupts"
    if trace.off_cpu is None and trace.delays is None:
        found["descheduled"] = _why_not(trace)
        found.setdefault("interrupted", found["descheduled"])
    return found | unseen_on_host(trace)


def unseen_on_host(trace: Trace) -> dict[Cause, str]:
    """Return what could not be seen of threads' waits and of the host's own work, and why."""
    found: dict[Cause, str] = {}
    if trace.waits is None:
        found["blocked"] = trace.waits_unseen
    device = capabilities_of(trace.device_kind)
    if not device.runs_kernels:
        found |= dict.fromkeys(("garbage collection", "compilation", "allocation"), _NOT_MODELLED)
    elif device.host:
        found["allocation"] = "allocations of the CPU's memory cannot be seen"
    return found


def _why_not(trace: Trace) -> str:
    if trace.level == "rusage":
        return "the kernel keeps no times on the run queue (/proc/self/task/*/schedstat)"
    return trace.refused[-1].reason if trace.refused else "nothing of the CPU can be traced here"


def _of_throttling(passed: TracedPass, not_seen: dict[Cause, str]) -> list[Evidence]:
    telemetry = passed.telemetry
    if not any(isinstance(sample, TelemetrySample) for sample in telemetry.samples):
        reasons = telemetry.missing.get("telemetry", "no reading of this device tells of it")
        not_seen["throttled"] = reasons
        return []
    missing = telemetry.missing.get("throttle_reasons")
    if missing is not None:
        not_seen["throttled"] = missing
        return []
    return [
        Evidence(
            "throttled",
            passed.requests[span.first_sample].started_ns,
            passed.requests[span.end_sample - 1].finished_ns,
            ", ".join(span.reasons),
        )
        for span in telemetry.throttled
    ]
