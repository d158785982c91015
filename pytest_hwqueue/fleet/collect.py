"""Records of a fleet collected, and its figures for Prometheus.

Every ``session.json`` counts. A GPU is known by the UUID in its fingerprint; without one, as on a
simulated device, by the folder around its sessions.

Prometheus gets its text-based exposition format, version 0.0.4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.baselines.sources import read_session_file
from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.fleet.check import CHECK_FILE, read_check
from pytest_hwqueue.fleet.outliers import NAMED, FleetVerdict, Gpu, comparable_conditions
from pytest_hwqueue.records.cell import RunRecord

_SESSION = "session.json"
# Where the work's rate says more than one sample's latency: these keep the device full.
_BY_RATE = frozenset({"tiny_kernel_stress", "large_gemm_only"})


def collect(folders: Sequence[Path]) -> list[Gpu]:
    """Return the GPUs whose records are below these folders, by node and device.

    Raises:
        RecordError: naming a folder without records, or a file that is damaged.
        BaselineError: likewise, of a session.

    """
    measured: dict[str, list[RunRecord]] = {}
    places: dict[str, Path] = {}
    missed: list[Gpu] = []
    for folder in folders:
        sessions, checks = sorted(folder.rglob(_SESSION)), sorted(folder.rglob(CHECK_FILE))
        if not sessions and not checks:
            raise RecordError(f"{folder} has neither {_SESSION} nor {CHECK_FILE} below it")
        for path in sessions:
            _, records = read_session_file(path)
            for record in records:
                key = _identity(record, path)
                measured.setdefault(key, []).append(record)
                places[key] = path.parent.parent
        for check in map(read_check, checks):
            if check.status == "unreachable":
                missed.append(Gpu(check.node, check.device, unreachable=check.reason))
    gpus = _told_apart(
        {key: _gpu(records, places[key]) for key, records in measured.items()}, places
    )
    named = {(gpu.node, gpu.device) for gpu in missed}
    kept = [gpu for gpu in gpus if (gpu.node, gpu.device) not in named]
    return sorted([*missed, *kept], key=lambda gpu: (gpu.node, gpu.device))


def _told_apart(gpus: dict[str, Gpu], places: dict[str, Path]) -> list[Gpu]:
    """Call GPUs by their folders where several of a node have one label, as if each were alone."""
    labels = Counter((gpu.node, gpu.device) for gpu in gpus.values())
    return [
        gpu if labels[gpu.node, gpu.device] == 1 else replace(gpu, device=places[key].name)
        for key, gpu in gpus.items()
    ]


def _identity(record: RunRecord, path: Path) -> str:
    uuid = None if record.fingerprint is None else record.fingerprint.soft.get("device_uuid")
    return str(uuid) if uuid else f"{path.parent.parent.resolve()} {record.cell.device}"


def _gpu(records: Sequence[RunRecord], place: Path) -> Gpu:
    check = read_check(place / CHECK_FILE) if (place / CHECK_FILE).exists() else None
    good = [each for each in records if each.status == "ok" and each.fingerprint is not None]
    fingerprint = good[-1].fingerprint if good else None
    host = fingerprint.soft.get("host_name") if fingerprint is not None else None
    node = check.node if check is not None else str(host or place.parent.name or "unknown")
    label = records[0].cell.device
    real = fingerprint is not None and "device_uuid" in fingerprint.soft
    device = check.device if check is not None else label if real else place.name
    if fingerprint is None:
        reason = next((each.reason for each in records if each.reason), "nothing was measured")
        return Gpu(node, device, unreachable=reason.splitlines()[0][:200])
    return Gpu(
        node,
        device,
        str(fingerprint.hard.get("device_name", label)),
        comparable_conditions(fingerprint.hard, fingerprint.soft),
        _log_times(good),
    )


def _log_times(records: Sequence[RunRecord]) -> dict[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda each: each.started):
        time = _log_time(record)
        if time is not None:
            found.setdefault(_figure(record), []).append(time)
    return {name: tuple(values) for name, values in found.items()}


def _figure(record: RunRecord) -> str:
    cell = record.cell
    parts = [cell.name, f"s{cell.streams}", cell.scheduler, cell.dispatch, cell.variant]
    return " ".join(part for part in parts if part)


def _log_time(record: RunRecord) -> float | None:
    """Return the logarithm of a run's time for some work: per unit, or a sample's median."""
    metrics = record.metrics
    if record.cell.name in _BY_RATE:
        rate = metrics.throughput[0].value if metrics.throughput else None
        return None if not rate else -math.log(rate)
    p50 = metrics.latency.p50 if metrics.latency is not None else None
    return None if not p50 else math.log(p50)


_HEAD = (
    "# HELP hwq_fleet_named Whether the GPU was named: 1 yes, 0 no.\n# TYPE hwq_fleet_named gauge"
)
_DEVIATION = (
    "# HELP hwq_fleet_deviation_ratio Time relative to the median GPU of its model, less 1.\n"
    "# TYPE hwq_fleet_deviation_ratio gauge"
)


def prometheus_text(found: FleetVerdict) -> str:
    """Return the file's text, with a final newline."""
    lines = [_HEAD]
    for gpu in found.gpus:
        labels = _labels(node=gpu.node, device=gpu.device, verdict=gpu.verdict)
        lines.append(f"hwq_fleet_named{labels} {int(gpu.verdict in NAMED)}")
    lines.append(_DEVIATION)
    for gpu in found.gpus:
        for figure, deviation in gpu.deviations.items():
            labels = _labels(node=gpu.node, device=gpu.device, figure=figure)
            lines.append(f"hwq_fleet_deviation_ratio{labels} {deviation:.6g}")
    return "\n".join(lines) + "\n"


def _labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
