"""Does this GPU, this driver, this scheduler keep my tail latency? A pytest plugin and suite.

The names in ``__all__`` are public: for annotations in tests, for tools that read records, and for
packages that add workloads, schedulers, noises, devices, reports or commands. docs/api.md lists
them by purpose. Each is imported on first use, so importing this package imports neither torch nor
numpy.
Everything else is internal and changes without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.data.errors import (
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
    from pytest_hwqueue.data.metrics.estimate import Estimate
    from pytest_hwqueue.data.metrics.latency import LatencySummary
    from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord, Samples, read_record
    from pytest_hwqueue.data.records.declared import LatencyRatio
    from pytest_hwqueue.data.records.fingerprint import Fingerprint
    from pytest_hwqueue.data.records.kinds import Capabilities
    from pytest_hwqueue.data.records.noise import NoiseRound
    from pytest_hwqueue.data.records.proof import Proof
    from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, read_colocation
    from pytest_hwqueue.engine.noise.neighbours import (
        LoadEvidence,
        Neighbour,
        NeighbourOrder,
        NeighbourProgram,
        NeighbourRound,
        Noise,
        NoisePlaces,
    )
    from pytest_hwqueue.judge.judging import CellVerdict, Judgement
    from pytest_hwqueue.judge.verdict import Verdict
    from pytest_hwqueue.parts.devices.compute_units import Partition
    from pytest_hwqueue.parts.devices.kinds import open_device
    from pytest_hwqueue.parts.devices.protocol import Device, Event, Stream, StreamPool
    from pytest_hwqueue.parts.processes.guardian import Stop
    from pytest_hwqueue.parts.processes.services import run_service, service_environment
    from pytest_hwqueue.parts.schedulers.declaration import (
        IsolationClaims,
        Preemption,
        SchedulerDeclaration,
        SchedulerParameter,
        SchedulerSpec,
        SimulatedSharing,
    )
    from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
    from pytest_hwqueue.parts.schedulers.syntax import Scheduler, SchedulerPaths, TenantRequest
    from pytest_hwqueue.parts.workloads.numerics import require_close
    from pytest_hwqueue.parts.workloads.own_function import MakeStep
    from pytest_hwqueue.parts.workloads.registry import StreamRange
    from pytest_hwqueue.parts.workloads.workload import (
        Parameters,
        PrimaryLatency,
        Setup,
        Where,
        Workload,
    )
    from pytest_hwqueue.plugin.measurement import Hwq
    from pytest_hwqueue.plugin.noise import HwqNoise

__version__ = "0.2.0"

__all__ = [
    "BadInput", "BadOption", "BoundMissed", "BoundUndecided", "Capabilities", "Cell", "CellVerdict",
    "CheckFailed",
    "ColocationRecord", "Device", "DeviceError", "Estimate", "Event", "Fingerprint", "Hwq",
    "HwqError", "HwqNoise", "InsideEvidence", "InvalidMeasurement", "IsolationClaims", "Judgement",
    "LatencyRatio", "LatencySummary", "LoadEvidence", "MakeStep", "Metrics", "Neighbour",
    "NeighbourOrder",
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
    "parts.devices.kinds": ("open_device",),
    "parts.devices.compute_units": ("Partition",),
    "parts.devices.protocol": ("Device", "Event", "Stream", "StreamPool"),
    "judge.verdict": ("Verdict",),
    "data.metrics.estimate": ("Estimate",),
    "data.metrics.latency": ("LatencySummary",),
    "engine.noise.neighbours": (
        "LoadEvidence", "Neighbour", "NeighbourOrder", "NeighbourProgram", "NeighbourRound",
        "Noise", "NoisePlaces",
    ),
    "plugin.measurement": ("Hwq",),
    "plugin.noise": ("HwqNoise",),
    "parts.processes.guardian": ("Stop",),
    "parts.processes.services": ("run_service", "service_environment"),
    "data.records.cell": ("Cell", "Metrics", "RunRecord", "Samples", "read_record"),
    "data.records.declared": ("LatencyRatio",),
    "data.records.fingerprint": ("Fingerprint",),
    "data.records.kinds": ("Capabilities",),
    "data.records.noise": ("NoiseRound",),
    "data.records.proof": ("Proof",),
    "data.records.tenants": ("ColocationRecord", "TenantResult", "read_colocation"),
    "parts.schedulers.declaration": (
        "IsolationClaims", "Preemption", "SchedulerDeclaration", "SchedulerParameter",
        "SchedulerSpec", "SimulatedSharing",
    ),
    "parts.schedulers.inside_evidence": ("InsideEvidence",),
    "parts.schedulers.syntax": ("Scheduler", "SchedulerPaths", "TenantRequest"),
    "judge.judging": ("CellVerdict", "Judgement"),
    "parts.workloads.registry": ("StreamRange",),
    "parts.workloads.own_function": ("MakeStep",),
    "parts.workloads.numerics": ("require_close",),
    "parts.workloads.workload": ("Parameters", "PrimaryLatency", "Setup", "Where", "Workload"),
}  # fmt: skip


# There is no `__dir__`: who walks through all loaded modules, as freezegun does at each freeze,
# would import torch by it, into sessions that measure nothing.
def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _MODULES.items() if name in names), "data.errors")
    return getattr(import_module(f"{__name__}.{home}"), name)
