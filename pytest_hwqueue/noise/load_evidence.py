"""Evidence that noise ran, from differences of kernel counters; needs no privileges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pytest_hwqueue.records.noise import Done, Machine

_PRESSURES = ("cpu", "io", "memory")
_US_PER_S = 1e6
_NS_PER_S = 1e9


@dataclass(frozen=True)
class MachineReading:
    """Running totals of the machine since its start."""

    pressure_us: dict[str, int]
    softirqs: dict[str, int]
    interrupts: dict[str, int]
    steal_s: float | None
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessReading:
    """Running totals of a process; None where the kernel does not report them."""

    on_cpu_ns: int | None
    waiting_ns: int | None
    handed_over_bytes: int | None
    disk_written_bytes: int | None


def read_machine() -> MachineReading:
    """Read pressure, interrupts and stolen time; ``missing`` holds the reasons for gaps."""
    missing: dict[str, str] = {}
    pressure_us = {}
    for resource in _PRESSURES:
        text = _read(Path("/proc/pressure") / resource, f"pressure.{resource}", missing)
        if text:
            pressure_us[resource] = int(text.split("total=", 1)[1].split()[0])
    softirqs = _read(Path("/proc/softirqs"), "softirqs", missing)
    interrupts = _read(Path("/proc/interrupts"), "interrupts", missing)
    return MachineReading(
        pressure_us=pressure_us,
        softirqs=counts(softirqs),
        interrupts=counts(interrupts),
        steal_s=getattr(psutil.cpu_times(), "steal", None),
        missing=missing,
    )


def machine_between(before: MachineReading, after: MachineReading, duration_s: float) -> Machine:
    """Return what happened between two readings, ``duration_s`` apart."""
    steal_s = None
    if before.steal_s is not None and after.steal_s is not None:
        steal_s = max(0.0, after.steal_s - before.steal_s)
    return Machine(
        pressure_share={
            resource: (after.pressure_us[resource] - us) / _US_PER_S / duration_s
            for resource, us in before.pressure_us.items()
            if resource in after.pressure_us
        },
        softirqs=_risen(before.softirqs, after.softirqs),
        interrupts=_risen(before.interrupts, after.interrupts),
        steal_s=steal_s,
        missing={**before.missing, **after.missing},
    )


def counts(table: str) -> dict[str, int]:
    """Sum the lines of /proc/softirqs or /proc/interrupts over cores.

    Lines of devices are named by numbers; their sum is called ``device``.
    """
    lines = table.splitlines()
    cores = len(lines[0].split()) if lines else 0
    totals: dict[str, int] = {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        name = "device" if name.strip().isdecimal() else name.strip()
        numbers = [int(each) for each in rest.split()[:cores] if each.isdecimal()]
        totals[name] = totals.get(name, 0) + sum(numbers)
    return totals


def processes_under(pid: int) -> list[int]:
    """Return a process's descendants, such as those of a service's guardian."""
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def read_processes(pids: Iterable[int]) -> dict[int, ProcessReading]:
    """Read the totals of processes; leave out those that have ended."""
    readings = {}
    for pid in pids:
        try:
            readings[pid] = _read_process(pid)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return readings


def done_between(before: Mapping[int, ProcessReading], after: Mapping[int, ProcessReading]) -> Done:
    """Return what the later reading's processes did since the earlier reading."""
    sums: dict[str, int | None] = {}
    for name in ("on_cpu_ns", "waiting_ns", "handed_over_bytes", "disk_written_bytes"):
        # One that came later did all that it has done in between.
        first = [getattr(before[pid], name) if pid in before else 0 for pid in after]
        last = [getattr(reading, name) for reading in after.values()]
        whole = last and not any(value is None for value in (*first, *last))
        sums[name] = sum(last) - sum(first) if whole else None
    return Done(
        on_cpu_s=_seconds(sums["on_cpu_ns"]),
        waiting_s=_seconds(sums["waiting_ns"]),
        handed_over_bytes=sums["handed_over_bytes"],
        disk_written_bytes=sums["disk_written_bytes"],
    )


def _read_process(pid: int) -> ProcessReading:
    times = [
        [int(part) for part in task.read_text(encoding="ascii").split()]
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ]
    # A kernel without these statistics says "0 0 0"; the third, of turns on a core, cannot be 0.
    known = any(turns for _, _, turns in times)
    try:
        io = psutil.Process(pid).io_counters()
    except psutil.AccessDenied:
        io = None
    return ProcessReading(
        on_cpu_ns=sum(each[0] for each in times) if known else None,
        waiting_ns=sum(each[1] for each in times) if known else None,
        handed_over_bytes=io and io.write_chars,
        disk_written_bytes=io and io.write_bytes,
    )


def _read(file: Path, name: str, missing: dict[str, str]) -> str:
    try:
        text = file.read_text(encoding="ascii")
    except OSError as error:
        missing[name] = f"{file}: {error.strerror or error}"
        return ""
    if not text:
        # As a container shows it that hides the file.
        missing[name] = f"{file} is empty"
    return text


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    risen = {name: total - before.get(name, 0) for name, total in after.items()}
    return {name: count for name, count in risen.items() if count > 0}


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS_PER_S
