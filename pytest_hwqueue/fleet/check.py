"""``hwq fleet check``: one GPU measured, its record collected, and drained if asked for.

The session measures the rate of launches, that of graph replays, that of matrix products, the wait
of small kernels behind large ones at stream priority, and copies to the device, within it and back,
several times each. It changes no setting of a GPU. Its records are in NODE/DEVICE/SESSION/ below
the folder.

Every ``session.json`` counts. A GPU is known by the UUID in its fingerprint; without one, as on a
simulated device, by the folder around its sessions.

Prometheus gets its text-based exposition format, version 0.0.4.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field

from pytest_hwqueue.baselines.sources import read_session_file
from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import RecordError, within
from pytest_hwqueue.fleet.verdicts import NAMED, FleetVerdict, Gpu, comparable_conditions
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.processes.reaper import die_with_parent
from pytest_hwqueue.records.cell import RunRecord, read_model
from pytest_hwqueue.records.files import write_text
from pytest_hwqueue.suite import pytest_command, pytest_environment

CHECK_FILE = "check.json"


class CheckRecord(BaseModel):
    """How the check of one GPU ended; the figures are in the session's own records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["pytest-hwqueue/fleet-check/1"] = Field(
        "pytest-hwqueue/fleet-check/1", alias="schema"
    )
    node: str
    device: str = Field(description="its name on the node")
    label: str = Field(description="as --hwq-device takes it")
    started: str = Field(description="UTC, ISO 8601")
    wall_s: float
    status: Literal["measured", "unreachable"]
    reason: str = Field("", description="why it is unreachable")


def write_check(
    folder: Path, node: str, device: str, label: str, wall_s: float, reason: str = ""
) -> CheckRecord:
    """Write into a GPU's folder how its check ended now; atomically.

    Args:
        folder: of the GPU; it is made.
        node: name of its machine.
        device: its name on the node.
        label: as ``--hwq-device`` takes it.
        wall_s: how long it took.
        reason: why the GPU is unreachable; empty if it was measured.

    Raises:
        RecordError: if it cannot be written.

    """
    record = CheckRecord(
        node=node,
        device=device,
        label=label,
        started=(datetime.now(timezone.utc) - timedelta(seconds=wall_s)).isoformat("T", "seconds"),
        wall_s=round(wall_s, 3),
        status="unreachable" if reason else "measured",
        reason=reason,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CHECK_FILE, record.model_dump_json(by_alias=True, indent=1) + "\n")
    return record


def read_check(path: Path) -> CheckRecord:
    """Read a GPU's record.

    Raises:
        RecordError: naming the file that cannot be read or is damaged.

    """
    with within(remedy="check again"):
        return read_model(path, CheckRecord, "the record of a check")


LIMIT_S = 300.0
"""A session that takes longer is ended, and its GPU called unreachable."""
_ENDING_S = 10.0
_LOOK_S = 0.5
AGAIN = "again"
"""Folder of the records of suspicious GPUs, and of others, that were measured again."""
_CELLS = (
    "(tiny_kernel and native) or (large_gemm and native and eager) "
    "or (hetero and stream-priority and eager) or (copy_engines and native and eager)"
)
_ALWAYS = (
    "--hwq-workload=tiny_kernel_stress,large_gemm_only,hetero_kernels,copy_engines",
    "--hwq-scheduler=native,stream-priority",
    "--hwq-dispatch=eager,graph",
    # More would share hardware queues: then launches are timed by a profiler, for seconds.
    "--hwq-streams=8",
    "--hwq-param=copy_engines.mebibytes=32",
    "--hwq-max-time=0.5",
    "--hwq-lean",
)


@dataclass
class _Session:
    name: str
    label: str
    folder: Path
    began_s: float
    process: subprocess.Popen[bytes]


def names_of(labels: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Return each device's name on this node and its label; ``count`` of each simulated one."""
    named = []
    for label in labels:
        simulated = capabilities_of(label).simulated
        copies = [f"{label}-{number}" for number in range(count)] if simulated else [label]
        named += [(name.replace(":", "-").replace("/", "-"), label) for name in copies]
    return named


def check_devices(
    devices: Sequence[tuple[str, str]], folder: Path, options: Sequence[str]
) -> list[CheckRecord]:
    """Check devices at once, a process each; return how it ended on each.

    Args:
        devices: name and label of each.
        folder: where NODE/DEVICE/ is made.
        options: the plugin's, in addition to the check's own.

    Raises:
        OSError: if a session cannot be started.
        RecordError: if a record cannot be written.

    """
    node = platform.node()
    sessions: list[_Session] = []
    accelerators = [label for _, label in devices if capabilities_of(label).visible_by]
    try:
        for name, label in devices:
            own = seeded(options, name)
            if label in accelerators and len(accelerators) > 1:
                own.append("--hwq-param=copy_engines.peer=true")
            sessions.append(_start(name, label, folder / node / name, own))
        return [_ended(session, node) for session in sessions]
    finally:
        for session in sessions:
            _end(session.process)


def seeded(options: Sequence[str], name: str) -> list[str]:
    """Return the options with which a simulated GPU's noise is not that of the others."""
    noisy = any(option.startswith("--hwq-sim-noise") for option in options)
    return [*options, f"--hwq-seed={crc32(name.encode())}"] if noisy else list(options)


def follow(
    node: str, name: str, label: str, folder: Path, options: Sequence[str]
) -> Iterator[Path]:
    """Check one device; yield each file below ``folder`` once it is there, or there anew.

    Args:
        node: name of this machine.
        name: of the device on it.
        label: as ``--hwq-device`` takes it.
        folder: where DEVICE/ is made.
        options: the plugin's, in addition to the check's own.

    Raises:
        OSError: if the session cannot be started.
        RecordError: if a record cannot be written.

    """
    session = _start(name, label, folder / name, options)
    seen: dict[Path, int] = {}
    try:
        while session.process.poll() is None and time.monotonic() < session.began_s + LIMIT_S:
            time.sleep(_LOOK_S)
            yield from _new_files(session.folder, seen)
        _ended(session, node)
        yield from _new_files(session.folder, seen)
    finally:
        _end(session.process)


def _new_files(folder: Path, seen: dict[Path, int]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        # Others are not written yet: they are renamed once they are whole.
        if path.is_file() and not path.name.startswith("."):
            changed_ns = path.stat().st_mtime_ns
            if seen.get(path) != changed_ns:
                seen[path] = changed_ns
                yield path


def _start(name: str, label: str, folder: Path, options: Sequence[str]) -> _Session:
    folder.mkdir(parents=True, exist_ok=True)
    command = pytest_command(
        [*_ALWAYS, *options, f"--hwq-device={label}", f"--hwq-dir={folder.absolute()}"],
        ["-k", _CELLS, "-q"],
    )
    with open(folder / "check.log", "wb") as log:
        process = subprocess.Popen(
            command, env=pytest_environment(plugins=False), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT,
            # Killed, this process can ask nobody to end; the session would measure on.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
        )  # fmt: skip
    return _Session(name, label, folder, time.monotonic(), process)


def _ended(session: _Session, node: str) -> CheckRecord:
    left_s = LIMIT_S - (time.monotonic() - session.began_s)
    try:
        status = session.process.wait(max(0.1, left_s))
        reason = f"the session ended with status {status}; its output is in check.log beside this"
    except subprocess.TimeoutExpired:
        status, reason = -1, f"the session took more than {LIMIT_S:g} s"
    wall_s = time.monotonic() - session.began_s
    record = write_check(
        session.folder, node, session.name, session.label, wall_s, reason if status else ""
    )
    print(f"hwq fleet check: {session.name}: {record.status}", file=sys.stderr)
    return record


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


SYSTEMS = ("slurm", "kubernetes")


def drain_commands(found: FleetVerdict, system: str) -> list[str]:
    """Return a command for each node with a named GPU.

    Raises:
        ValueError: if the system is none of `SYSTEMS`.

    """
    if system not in SYSTEMS:
        raise ValueError(f"{system} is none of {', '.join(SYSTEMS)}")
    by_node: dict[str, list[str]] = {}
    for gpu in found.named:
        by_node.setdefault(gpu.node, []).append(f"{gpu.device} {gpu.verdict}")
    if system == "kubernetes":
        return [f"kubectl cordon -- {shlex.quote(node)}" for node in sorted(by_node)]
    return [
        f"scontrol update {shlex.quote(f'nodename={node}')} state=drain "
        f"reason={shlex.quote('hwq: ' + ', '.join(by_node[node]))}"
        for node in sorted(by_node)
    ]


_SESSION = "session.json"
# Where the work's rate says more than one sample's latency: these keep the device full.
_BY_RATE = frozenset({"tiny_kernel_stress", "large_gemm_only"})
# Whose tagged launches are figures of their own.
_BY_TAG = frozenset({"copy_engines"})
# Clocks that a limit holds down on healthy GPUs, too, and what AMD SMI gives without a reason.
_NO_FAULT = frozenset({"power_cap", "sync_boost", "unspecified"})
# Xid errors that a process can cause. https://docs.nvidia.com/deploy/xid-errors/
_OF_PROCESSES = frozenset({8, 13, 31, 43, 45, 68, 69})


def checked_gpus(folder: Path) -> frozenset[tuple[str, str]]:
    """Return node and name of the GPUs of which a folder has a check that measured."""
    checks = map(read_check, folder.glob(f"*/*/{CHECK_FILE}"))
    return frozenset((each.node, each.device) for each in checks if each.status == "measured")


def collect(folders: Sequence[Path]) -> tuple[list[Gpu], list[Gpu]]:
    """Return the GPUs whose records are below these folders, and those measured again.

    They are in order of node and device.

    Raises:
        RecordError: naming a folder without records, or a file that is damaged.
        RecordError: likewise, of a session.

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


def _gpus(paths: Sequence[Path]) -> list[Gpu]:
    """Return the GPUs of these session files and checks."""
    measured: dict[str, list[RunRecord]] = {}
    places: dict[str, Path] = {}
    missed: list[Gpu] = []
    for path in paths:
        if path.name == _SESSION:
            _, records = read_session_file(path)
            for record in records:
                key = _identity(record, path)
                measured.setdefault(key, []).append(record)
                places[key] = path.parent.parent
        elif (check := read_check(path)).status == "unreachable":
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
        tuple(_faults(fingerprint, good)),
        day=good[-1].started[:10],
    )


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
    # A label's value is escaped as a string of JSON is.
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "{" + ",".join(pairs) + "}"
