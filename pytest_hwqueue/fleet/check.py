"""``hwq fleet check``: one GPU measured, its record, and drained if asked for.

The session measures the rate of launches, that of graph replays, that of matrix products, and the
wait of small kernels behind large ones at stream priority, several times each. It changes no
setting of a GPU. Its records are in NODE/DEVICE/SESSION/ below the folder.
"""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.fleet.outliers import FleetVerdict
from pytest_hwqueue.processes.reaper import die_with_parent
from pytest_hwqueue.records.cell import now
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
    label: str = Field(description="of the device in cell names, such as cuda:1")
    started: str = Field(description="UTC, ISO 8601")
    wall_s: float
    status: Literal["measured", "unreachable"]
    reason: str = Field("", description="why it is unreachable")


def write_check(folder: Path, record: CheckRecord) -> None:
    """Write a GPU's record into its folder, atomically; raises RecordError."""
    write_text(folder / CHECK_FILE, record.model_dump_json(by_alias=True, indent=1) + "\n")


def read_check(path: Path) -> CheckRecord:
    """Read a GPU's record.

    Raises:
        RecordError: naming the file that cannot be read or is damaged.

    """
    try:
        return CheckRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise RecordError(f"{path} is not the record of a check ({said}): check again") from error


LIMIT_S = 300.0
"""A session that takes longer is ended, and its GPU called unreachable."""
_ENDING_S = 10.0
_CELLS = (
    "(tiny_kernel and native) or (large_gemm and native and eager) "
    "or (hetero and stream-priority and eager)"
)
_ALWAYS = (
    "--hwq-workload=tiny_kernel_stress,large_gemm_only,hetero_kernels",
    "--hwq-scheduler=native,stream-priority",
    "--hwq-dispatch=eager,graph",
    "--hwq-max-time=0.5",
)


@dataclass
class _Session:
    name: str
    label: str
    folder: Path
    started: str
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
    try:
        for name, label in devices:
            sessions.append(_start(name, label, folder / node / name, options))
        return [_ended(session, node) for session in sessions]
    finally:
        for session in sessions:
            _end(session.process)


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
    return _Session(name, label, folder, now(), time.monotonic(), process)


def _ended(session: _Session, node: str) -> CheckRecord:
    left_s = LIMIT_S - (time.monotonic() - session.began_s)
    try:
        status = session.process.wait(max(0.1, left_s))
        reason = f"the session ended with status {status}; see {session.folder / 'check.log'}"
    except subprocess.TimeoutExpired:
        status, reason = -1, f"the session took more than {LIMIT_S:g} s"
    record = CheckRecord(
        node=node,
        device=session.name,
        label=session.label,
        started=session.started,
        wall_s=round(time.monotonic() - session.began_s, 3),
        status="unreachable" if status else "measured",
        reason=reason if status else "",
    )
    write_check(session.folder, record)
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
