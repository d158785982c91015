"""Evidence that noise ran and was felt, without privileges: counters, placement, a core's speed.

Autogroups decide a neighbour's effect: each session is one, and cores are shared among sessions
first. So a neighbour in its own session takes little from the measured process, and nice counts
only within a session (sched(7), "The autogroup feature").
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from pytest_hwqueue.data.records.noise import Done, Machine, Placement

_PRESSURES = ("cpu", "io", "memory")
_US_PER_S = 1e6
_NS_PER_S = 1e9
_CGROUPS = Path("/sys/fs/cgroup")
_ROUNDS = 1000
_CPU_TIME_NS = 100_000_000


class MachineReading(NamedTuple):
    """Running totals of the machine since its start."""

    pressure_s: dict[str, float]
    softirqs: dict[str, int]
    interrupts: dict[str, int]
    steal_s: float | None
    missing: dict[str, str]


def read_machine(proc: Path = Path("/proc")) -> MachineReading:
    """Read pressure, interrupts and stolen time; ``missing`` holds the reasons for gaps."""
    missing: dict[str, str] = {}
    pressure_s = {}
    for resource in _PRESSURES:
        text = _read(proc / "pressure" / resource, f"pressure.{resource}", missing)
        if text:
            pressure_s[resource] = int(text.split("total=", 1)[1].split()[0]) / _US_PER_S
    softirqs = _read(proc / "softirqs", "softirqs", missing)
    interrupts = _read(proc / "interrupts", "interrupts", missing)
    steal_s = getattr(psutil.cpu_times(), "steal", None)
    return MachineReading(pressure_s, counts(softirqs), counts(interrupts), steal_s, missing)


def machine_between(before: MachineReading, after: MachineReading, duration_s: float) -> Machine:
    """Return what happened between two readings, ``duration_s`` apart."""
    steal_s = None
    if before.steal_s is not None and after.steal_s is not None:
        steal_s = max(0.0, after.steal_s - before.steal_s)
    return Machine(
        pressure_share={
            resource: (after.pressure_s[resource] - began_s) / duration_s
            for resource, began_s in before.pressure_s.items()
            if resource in after.pressure_s
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


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def read_processes(pids: Iterable[int]) -> dict[int, Done]:
    """Read what processes have done since they began; leave out those that have ended."""
    readings = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            readings[pid] = _read_process(pid)
    return readings


# What one that came later had done before.
_NOTHING = Done(on_cpu_s=0, waiting_s=0, handed_over_bytes=0, disk_written_bytes=0)


def done_between(before: Mapping[int, Done], after: Mapping[int, Done]) -> Done:
    """Return what the later reading's processes did since the earlier reading."""

    def risen(total: str) -> float | None:
        pairs = [(getattr(before.get(p, _NOTHING), total), getattr(after[p], total)) for p in after]
        known = [last - first for first, last in pairs if None not in (first, last)]
        # To the nanosecond, as the kernel counts.
        return round(sum(known), 9) if known and len(known) == len(pairs) else None

    return Done.model_validate({total: risen(total) for total in Done.model_fields})


def _read_process(pid: int) -> Done:
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
    return Done(
        on_cpu_s=sum(each[0] for each in times) / _NS_PER_S if known else None,
        waiting_s=sum(each[1] for each in times) / _NS_PER_S if known else None,
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


def placement(pid: int) -> Placement | None:
    """Return how a process's first thread is scheduled, or None if it has ended."""
    try:
        process = psutil.Process(pid)
        cgroup, weight = _cgroup(pid)
        return Placement(
            session=os.getsid(pid),
            autogroup=_text(Path(f"/proc/{pid}/autogroup")),
            cgroup=cgroup,
            cpu_weight=weight,
            nice=process.nice(),
            cores=sorted(process.cpu_affinity()),
        )
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


def autogroup_enabled() -> bool | None:
    """Whether the kernel schedules by autogroups; None if it does not know them."""
    text = _text(Path("/proc/sys/kernel/sched_autogroup_enabled"))
    return None if text is None else text == "1"


def misplaced(
    measured: Placement,
    neighbour: Placement,
    autogroup: bool | None,
    kept_free: Collection[int] = (),
) -> str | None:
    """Return why a neighbour cannot contend with the measured process as intended, or None.

    It must stay off cores kept free, and contend on the others.
    """
    if autogroup and neighbour.session != measured.session:
        return (
            "it runs in its own session, and the kernel's autogroups share cores among "
            "sessions; start it without setsid"
        )
    if kept_free:
        on = sorted(set(neighbour.cores) & set(kept_free))
        return f"it may run on cores {_list(on)}, which were to be kept free of it" if on else None
    if not set(neighbour.cores) & set(measured.cores):
        theirs, own = _list(neighbour.cores), _list(measured.cores)
        return f"it may run on cores {theirs}, what is measured on {own}: they never meet"
    return None


def _cgroup(pid: int) -> tuple[str | None, str | None]:
    """Return the cgroup of the CPU controller and its weight, in either version of cgroups."""
    for line in (_text(Path(f"/proc/{pid}/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        first = _CGROUPS / controllers / path.lstrip("/")
        if "cpu" in controllers.split(","):
            return path, _weight(first / "cpu.shares")
        if not controllers and (weight := _weight(first / "cpu.weight")) is not None:
            return path, weight
    return None, None


def _weight(file: Path) -> str | None:
    text = _text(file)
    return None if text is None else f"{file.name} {text}"


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _list(cores: list[int]) -> str:
    return ", ".join(map(str, cores))


def core_speed(
    cpu_clock_ns: Callable[[], int] = time.thread_time_ns, cpu_time_ns: int = _CPU_TIME_NS
) -> float:
    """Return rounds of a fixed loop per second of this thread's CPU time.

    A thread that is switched out or waits for a core gets less CPU time. A core that shares its
    hardware (hyperthreads, caches, clocks, a hypervisor's other guests) does less in the same CPU
    time, which no kernel counter shows. The loop runs in the interpreter, as launching from Python
    does.

    Args:
        cpu_clock_ns: reads the CPU time of this thread, in ns.
        cpu_time_ns: of the loop.

    """
    begin_ns = cpu_clock_ns()
    rounds = 0
    while (spent_ns := cpu_clock_ns() - begin_ns) < cpu_time_ns:
        value = 1
        for _ in range(_ROUNDS):
            value = value * 5 & 0xFFFF
        rounds += _ROUNDS
    return rounds * _NS_PER_S / spent_ns
