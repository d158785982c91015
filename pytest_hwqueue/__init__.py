"""Does this GPU, this driver, this scheduler keep my tail latency? A pytest plugin and suite.

The names in ``__all__`` are public: for annotations in tests, for tools that read records, and for
packages that add workloads, schedulers, noises, devices or reports. docs/api.md lists them by
purpose. Each is imported on first use, so importing this package imports neither torch nor numpy.
Everything else is internal and changes without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.devices.compute_units import Partition
    from pytest_hwqueue.devices.kinds import open_device
    from pytest_hwqueue.devices.protocol import Device, Event, Stream, StreamPool
    from pytest_hwqueue.errors import (
        BadInput,
        BadOption,
        BoundMissed,
        BoundUndecided,
        CheckFailed,
        DeviceError,
        HwqError,
        InvalidMeasurement,
        NotApplicable,
        NotProven,
        OwnCodeFailed,
        RecordError,
        RefusedFigure,
    )
    from pytest_hwqueue.gate.verdict import Verdict
    from pytest_hwqueue.metrics.estimate import Estimate
    from pytest_hwqueue.metrics.latency import LatencySummary
    from pytest_hwqueue.noise.neighbours import (
        LoadEvidence,
        Neighbour,
        NeighbourOrder,
        NeighbourProgram,
        NeighbourRound,
        Noise,
        NoisePlaces,
    )
    from pytest_hwqueue.plugin.measurement import Hwq
    from pytest_hwqueue.plugin.noise import HwqNoise
    from pytest_hwqueue.processes.guardian import Stop
    from pytest_hwqueue.processes.services import run_service, service_environment
    from pytest_hwqueue.records.cell import Cell, Metrics, RunRecord, Samples, read_record
    from pytest_hwqueue.records.declared import LatencyRatio
    from pytest_hwqueue.records.fingerprint import Fingerprint
    from pytest_hwqueue.records.kinds import Capabilities
    from pytest_hwqueue.records.noise import NoiseRound
    from pytest_hwqueue.records.proof import Proof
    from pytest_hwqueue.records.tenants import ColocationRecord, TenantResult, read_colocation
    from pytest_hwqueue.schedulers.declaration import (
        Preemption,
        SchedulerDeclaration,
        SchedulerParameter,
        SchedulerSpec,
        SimulatedSharing,
    )
    from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
    from pytest_hwqueue.schedulers.syntax import Scheduler, SchedulerPaths, TenantRequest
    from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement
    from pytest_hwqueue.workloads.numerics import require_close
    from pytest_hwqueue.workloads.own_function import MakeStep
    from pytest_hwqueue.workloads.registry import StreamRange
    from pytest_hwqueue.workloads.workload import Parameters, PrimaryLatency, Setup, Where, Workload

__version__ = "0.2.0"

__all__ = [
    "BadInput", "BadOption", "BoundMissed", "BoundUndecided", "Capabilities", "Cell", "CellVerdict",
    "CheckFailed",
    "ColocationRecord", "Device", "DeviceError", "Estimate", "Event", "Fingerprint", "Hwq",
    "HwqError", "HwqNoise", "InsideEvidence", "InvalidMeasurement", "Judgement", "LatencyRatio",
    "LatencySummary", "LoadEvidence", "MakeStep", "Metrics", "Neighbour", "NeighbourOrder",
    "NeighbourProgram", "NeighbourRound", "Noise", "NoisePlaces", "NoiseRound", "NotApplicable",
    "NotProven", "OwnCodeFailed", "Parameters", "Partition", "Preemption", "PrimaryLatency",
    "Proof", "RecordError", "RefusedFigure", "RunRecord", "Samples", "Scheduler",
    "SchedulerDeclaration", "SchedulerParameter", "SchedulerPaths", "SchedulerSpec", "Setup",
    "SimulatedSharing", "Stop", "Stream", "StreamPool", "StreamRange", "TenantRequest",
    "TenantResult", "Verdict", "Where", "Workload", "__version__", "open_device", "read_colocation",
    "read_record", "require_close", "run_service", "service_environment",
]  # fmt: skip

# Where each is defined, errors aside.
_MODULES = {
    "devices.kinds": ("open_device",),
    "devices.compute_units": ("Partition",),
    "devices.protocol": ("Device", "Event", "Stream", "StreamPool"),
    "gate.verdict": ("Verdict",),
    "metrics.estimate": ("Estimate",),
    "metrics.latency": ("LatencySummary",),
    "noise.neighbours": (
        "LoadEvidence", "Neighbour", "NeighbourOrder", "NeighbourProgram", "NeighbourRound",
        "Noise", "NoisePlaces",
    ),
    "plugin.measurement": ("Hwq",),
    "plugin.noise": ("HwqNoise",),
    "processes.guardian": ("Stop",),
    "processes.services": ("run_service", "service_environment"),
    "records.cell": ("Cell", "Metrics", "RunRecord", "Samples", "read_record"),
    "records.declared": ("LatencyRatio",),
    "records.fingerprint": ("Fingerprint",),
    "records.kinds": ("Capabilities",),
    "records.noise": ("NoiseRound",),
    "records.proof": ("Proof",),
    "records.tenants": ("ColocationRecord", "TenantResult", "read_colocation"),
    "schedulers.declaration": (
        "Preemption", "SchedulerDeclaration", "SchedulerParameter", "SchedulerSpec",
        "SimulatedSharing",
    ),
    "schedulers.inside_evidence": ("InsideEvidence",),
    "schedulers.syntax": ("Scheduler", "SchedulerPaths", "TenantRequest"),
    "verdicts.judging": ("CellVerdict", "Judgement"),
    "workloads.registry": ("StreamRange",),
    "workloads.own_function": ("MakeStep",),
    "workloads.numerics": ("require_close",),
    "workloads.workload": ("Parameters", "PrimaryLatency", "Setup", "Where", "Workload"),
}  # fmt: skip


# There is no `__dir__`: who walks through all loaded modules, as freezegun does at each freeze,
# would import torch by it, into sessions that measure nothing.
def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _MODULES.items() if name in names), "errors")
    return getattr(import_module(f"{__name__}.{home}"), name)
