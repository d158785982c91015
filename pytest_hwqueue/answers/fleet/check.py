"""``hwq fleet check``: one GPU measured, and how that ended.

The session measures the rate of launches, that of graph replays, that of matrix products, the wait
of small kernels behind large ones at stream priority, and copies to the device, within it and back,
several times each. It changes no setting of a GPU. Its records are in NODE/DEVICE/SESSION/ below
the folder.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Literal
from zlib import crc32

from pydantic import Field

from pytest_hwqueue.data.errors import within
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.sealed import read_model
from pytest_hwqueue.data.safe_files import open_output, write_text
from pytest_hwqueue.options.suite import pytest_command, pytest_environment
from pytest_hwqueue.parts.processes.reaper import die_with_parent

CHECK_FILE = "check.json"


class CheckRecord(PlainData):
    """How the check of one GPU ended; the figures are in the session's own records."""

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
    node_id: str = Field("", description="Ray's id of the node; empty where Ray has no part")


@dataclass(frozen=True)
class Place:
    """Where a GPU is.

    Attributes:
        node: name of its machine, of which no other of the fleet has the same.
        device: its name on the node.
        label: as ``--hwq-device`` takes it.
        node_id: Ray's id of the node; empty where Ray has no part.

    """

    node: str
    device: str
    label: str
    node_id: str = ""


def write_check(folder: Path, place: Place, wall_s: float, reason: str = "") -> CheckRecord:
    """Write into a GPU's folder how its check ended now; atomically.

    Args:
        folder: of the GPU; it is made.
        place: of the GPU.
        wall_s: how long it took.
        reason: why the GPU is unreachable; empty if it was measured.

    Raises:
        RecordError: if it cannot be written.

    """
    began = datetime.now(timezone.utc) - timedelta(seconds=wall_s)
    record = CheckRecord(
        node=place.node,
        node_id=place.node_id,
        device=place.device,
        label=place.label,
        started=began.isoformat(timespec="milliseconds"),
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
    place: Place
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
    node = _own_folder(folder, platform.node())
    sessions: list[_Session] = []
    accelerators = [label for _, label in devices if capabilities_of(label).visible_by]
    with ExitStack() as stack:
        for name, label in devices:
            own = seeded(options, name)
            if label in accelerators and len(accelerators) > 1:
                own.append("--hwq-param=copy_engines.peer=true")
            session = _session(Place(node, name, label), folder / node / name, own)
            sessions.append(stack.enter_context(session))
        return [_ended(session) for session in sessions]


def _own_folder(folder: Path, node: str) -> str:
    """Make the folder of this machine's records; return its name.

    Another machine, or container, of the same name may write into the same shared folder.
    """
    for number in count(1):
        name = node if number == 1 else f"{node}-{number}"
        with suppress(FileExistsError):
            (folder / name).mkdir(parents=True)
            return name
    raise AssertionError


def seeded(options: Sequence[str], name: str) -> list[str]:
    """Return the options with which a simulated GPU's noise is not that of the others."""
    noisy = any(option.startswith("--hwq-sim-noise") for option in options)
    return [*options, f"--hwq-seed={crc32(name.encode())}"] if noisy else list(options)


def follow(place: Place, folder: Path, options: Sequence[str]) -> Iterator[Path]:
    """Check one device; yield each file below ``folder`` once it is there, or there anew.

    Args:
        place: of the device.
        folder: where DEVICE/ is made.
        options: the plugin's, in addition to the check's own.

    Raises:
        OSError: if the session cannot be started.
        RecordError: if a record cannot be written.

    """
    seen: dict[Path, int] = {}
    with _session(place, folder / place.device, options) as session:
        while session.process.poll() is None and time.monotonic() < session.began_s + LIMIT_S:
            time.sleep(_LOOK_S)
            yield from _new_files(session.folder, seen)
        _ended(session)
        yield from _new_files(session.folder, seen)


def _new_files(folder: Path, seen: dict[Path, int]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        # Others are not written yet: they are renamed once they are whole.
        if path.is_file() and not path.name.startswith("."):
            changed_ns = path.stat().st_mtime_ns
            if seen.get(path) != changed_ns:
                seen[path] = changed_ns
                yield path


@contextmanager
def _session(place: Place, folder: Path, options: Sequence[str]) -> Iterator[_Session]:
    """Run a session; it ends with the ``with`` block."""
    folder.mkdir(parents=True, exist_ok=True)
    command = pytest_command(
        [*_ALWAYS, *options, f"--hwq-device={place.label}", f"--hwq-dir={folder.absolute()}"],
        ["-k", _CELLS, "-q"],
    )
    with open_output(folder / "check.log") as log:
        process = subprocess.Popen(
            command, env=pytest_environment(plugins=False), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT,
            # Killed, this process can ask nobody to end; the session would measure on.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
        )  # fmt: skip
    try:
        yield _Session(place, folder, time.monotonic(), process)
    finally:
        # Of one that has ended this does nothing.
        process.terminate()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ended(session: _Session) -> CheckRecord:
    left_s = LIMIT_S - (time.monotonic() - session.began_s)
    try:
        status = session.process.wait(max(0.1, left_s))
        reason = f"the session ended with status {status}; its output is in check.log beside this"
    except subprocess.TimeoutExpired:
        status, reason = -1, f"the session took more than {LIMIT_S:g} s"
    wall_s = time.monotonic() - session.began_s
    record = write_check(session.folder, session.place, wall_s, reason if status else "")
    print(f"hwq fleet check: {session.place.device}: {record.status}", file=sys.stderr)
    return record
