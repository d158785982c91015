"""The GPUs of a fleet, as their records say.

Every ``session.json`` counts. A GPU is known by the UUID in its fingerprint; without one, as on a
simulated device, by the folder around its sessions.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.answers.fleet.check import AGAIN, CHECK_FILE, CheckRecord, read_check
from pytest_hwqueue.answers.fleet.verdicts import Gpu
from pytest_hwqueue.data.errors import RecordError, files
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.fingerprint import Fingerprint, Value
from pytest_hwqueue.judge.baselines.runs import ENVIRONMENT_FIELDS
from pytest_hwqueue.judge.baselines.sources import read_session_file

_SESSION = "session.json"
_DAMAGED = ".damaged"
# Where the work's rate says more than one sample's latency: these keep the device full.
_BY_RATE = frozenset({"tiny_kernel_stress", "large_gemm_only"})
# Whose tagged launches are figures of their own.
_BY_TAG = frozenset({"copy_engines"})
# Clocks that a limit holds down on healthy GPUs, too, and what AMD SMI gives without a reason.
_NO_FAULT = frozenset({"power_cap", "sync_boost", "unspecified"})
# Xid errors that a process can cause. https://docs.nvidia.com/deploy/xid-errors/
_OF_PROCESSES = frozenset({8, 13, 31, 43, 45, 68, 69})


def collect(folders: Sequence[Path]) -> tuple[list[Gpu], list[Gpu]]:
    """Return the GPUs whose records are below these folders, and those measured again.

    They are in order of node and device. One of which a file is damaged is unreachable.

    Raises:
        RecordError: naming a folder without records.

    """
    first: list[Path] = []
    again: list[Path] = []
    for folder in folders:
        found = [*sorted(folder.rglob(_SESSION)), *sorted(folder.rglob(CHECK_FILE))]
        if not found:
            raise RecordError(f"{folder} has neither {_SESSION} nor {CHECK_FILE} below it")
        for path in found:
            (again if AGAIN in path.relative_to(folder).parts else first).append(path)
    return _gpus(first), _gpus(again)


def checked_gpus(folder: Path) -> frozenset[tuple[str, str]]:
    """Return node and name of the GPUs of which a folder has a check that measured.

    One whose record is damaged, as by a full disk, is none of them, and none that has no session.
    """
    found = set()
    for path in folder.glob(f"*/*/{CHECK_FILE}"):
        try:
            check = read_check(path)
        except RecordError as error:
            print(f"hwq fleet: {error}", file=sys.stderr)
            continue
        if check.status == "measured" and any(path.parent.glob(f"*/{_SESSION}")):
            found.add((check.node, check.device))
    return frozenset(found)


def set_damaged_aside(folder: Path) -> None:
    """Rename each ``session.json`` of which a file is damaged or missing, and say so.

    Its GPU is measured again, and would have no verdict as long as the session counted.

    Raises:
        RecordError: if it cannot be renamed.

    """
    for path in sorted(folder.rglob(_SESSION)):
        try:
            read_session_file(path)
        except RecordError as error:
            aside = path.with_name(f"{_SESSION}{_DAMAGED}")
            with files("rename", path):
                path.replace(aside)
            print(
                f"hwq fleet: {error}; the GPU is measured again, and what it had is kept, with "
                f"{aside.name} as its list",
                file=sys.stderr,
            )


def _gpus(paths: Sequence[Path]) -> list[Gpu]:
    """Return the GPUs of these session files and checks."""
    measured: dict[str, list[RunRecord]] = {}
    places: dict[str, Path] = {}
    checks: dict[Path, CheckRecord] = {}
    lost: dict[Path, str] = {}
    for path in paths:
        place = path.parent.parent if path.name == _SESSION else path.parent
        try:
            if path.name == CHECK_FILE:
                checks[place] = read_check(path)
                continue
            for record in read_session_file(path)[1]:
                key = _identity(record, path)
                measured.setdefault(key, []).append(record)
                places[key] = place
        except RecordError as error:
            # It is its GPU's alone: the others are judged.
            lost[place] = f"its records cannot be used: {error}"
    lost |= {place: each.reason for place, each in checks.items() if each.status == "unreachable"}
    missed = {}
    for place, reason in lost.items():
        check = checks.get(place)
        node, device = (check.node, check.device) if check else (place.parent.name, place.name)
        missed[place] = Gpu(node, device, unreachable=reason)
    gpus = [
        (_gpu(records, places[key], checks.get(places[key])), places[key])
        for key, records in measured.items()
    ]
    # What a session had measured before it failed tells which GPU that is.
    for gpu, place in gpus:
        if place in missed:
            missed[place] = replace(missed[place], uuid=gpu.uuid, pci=gpu.pci)
    unreachable = [(gpu, place) for place, gpu in missed.items()]
    kept = [(gpu, place) for gpu, place in gpus if place not in missed]
    return sorted(_told_apart([*unreachable, *kept]), key=lambda gpu: (gpu.node, gpu.device))


def _told_apart(gpus: Sequence[tuple[Gpu, Path]]) -> list[Gpu]:
    """Call GPUs by their folders where several of a node have one label, as if each were alone.

    Where two machines have one name, these may be the same, too: then by what is their own.
    """
    found = [gpu for gpu, _ in gpus]
    places = [place for _, place in gpus]
    for more in (lambda gpu, place: place.name,
                 lambda gpu, place: f"{gpu.device} {gpu.uuid or place.resolve()}"):  # fmt: skip
        times = Counter((gpu.node, gpu.device) for gpu in found)
        found = [
            gpu if times[gpu.node, gpu.device] == 1 else replace(gpu, device=more(gpu, place))
            for gpu, place in zip(found, places, strict=True)
        ]
    return found


def _identity(record: RunRecord, path: Path) -> str:
    uuid = None if record.fingerprint is None else record.fingerprint.soft.get("device_uuid")
    return str(uuid) if uuid else f"{path.parent.parent.resolve()} {record.cell.device}"


def _gpu(records: Sequence[RunRecord], place: Path, check: CheckRecord | None) -> Gpu:
    good = [each for each in records if each.status == "ok" and each.fingerprint is not None]
    fingerprint = good[-1].fingerprint if good else None
    host = fingerprint.soft.get("host_name") if fingerprint is not None else None
    node = check.node if check is not None else str(host or place.parent.name or "unknown")
    label = records[0].cell.device
    real = fingerprint is not None and "device_uuid" in fingerprint.soft
    device = check.device if check is not None else label if real else place.name
    uuid, pci = (_identifier(records, each) for each in ("device_uuid", "pci_bus_id"))
    if fingerprint is None:
        reason = next((each.reason for each in records if each.reason), "nothing was measured")
        said = reason.splitlines()[0][:200]
        return Gpu(node, device, unreachable=said, uuid=uuid, pci=pci)
    return Gpu(
        node,
        device,
        str(fingerprint.hard.get("device_name", label)),
        uuid,
        pci,
        conditions=_comparable_conditions(fingerprint),
        log_times=_log_times(good),
        faults=tuple(_faults(fingerprint, good)),
        day=good[-1].started[:10],
    )


def _identifier(records: Sequence[RunRecord], field: str) -> str:
    """Return what identifies a GPU, as the last record says that knows it; empty if none does."""
    soft = (each.fingerprint.soft for each in reversed(records) if each.fingerprint is not None)
    return next((str(each[field]) for each in soft if each.get(field)), "")


def _comparable_conditions(fingerprint: Fingerprint) -> dict[str, Value]:
    """Return the fields of a fingerprint in which healthy GPUs of a model agree."""
    known = {
        *ENVIRONMENT_FIELDS, "driver_version", "cuda_driver_version", "pcie_link_width",
        "nvlinks_active",
    }  # fmt: skip
    soft = {name: value for name, value in fingerprint.soft.items() if name in known}
    return {**fingerprint.hard, **soft}


def _faults(fingerprint: Fingerprint, records: Sequence[RunRecord]) -> Iterator[str]:
    """Yield what the driver reports of a GPU that no healthy one has."""
    if uncorrected := fingerprint.soft.get("ecc_uncorrected_errors"):
        yield f"{counted(int(uncorrected), 'uncorrected ECC error')} since its driver was loaded"
    if (remapping := fingerprint.soft.get("row_remapping", "ok")) != "ok":
        yield f"remapping of its memory's rows: {remapping}"
    read = [each.telemetry for each in records if each.telemetry is not None]
    spans = [span for each in read for span in each.throttled]
    if reasons := {reason for span in spans for reason in span.reasons} - _NO_FAULT:
        yield f"slowed down while it was measured: {', '.join(sorted(reasons))}"
    if errors := {number for each in read for number in each.xid_errors} - _OF_PROCESSES:
        yield f"Xid while it was measured: {', '.join(map(str, sorted(errors)))}"


def _log_times(records: Sequence[RunRecord]) -> dict[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda each: each.started):
        for name, time_ns in _times(record):
            found.setdefault(name, []).append(math.log(time_ns))
    return {name: tuple(values) for name, values in found.items()}


def _times(record: RunRecord) -> Iterator[tuple[str, float]]:
    """Yield a run's figures and their times for some work: per unit, or a sample's median."""
    cell, metrics = record.cell, record.metrics
    parts = [cell.name, f"s{cell.streams}", cell.scheduler, cell.dispatch, cell.variant]
    figure = " ".join(part for part in parts if part)
    if cell.name in _BY_RATE:
        if metrics.throughput and metrics.throughput[0].value:
            yield figure, 1 / metrics.throughput[0].value
        return
    latencies = {figure: metrics.latency}
    if cell.name in _BY_TAG:
        latencies = {f"{figure} {record.primary.name}": metrics.latency}
        latencies |= {f"{figure} {tag}": latency for tag, latency in metrics.tags.items()}
    for name, latency in latencies.items():
        if latency is not None and latency.p50.value:
            yield name, latency.p50.value
