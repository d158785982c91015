"""How the kernel schedules processes: session, autogroup, cgroup, nice, cores.

Autogroups decide a neighbour's effect: each session is one, and cores are shared among sessions
first. So a neighbour in its own session takes little from the measured process, and nice counts
only within a session (sched(7), "The autogroup feature").
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import psutil

from pytest_hwqueue.records.noise import Placement

_CGROUPS = Path("/sys/fs/cgroup")


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
        return (
            f"it may run on cores {_list(neighbour.cores)}, what is measured on "
            f"{_list(measured.cores)}: they never meet"
        )
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
