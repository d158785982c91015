"""The schema of one round's background load: what ran, what it did, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_hwqueue.metrics.plain_data import PlainData

NoiseStatus = Literal["quiet", "applied", "not applied"]


class Placement(PlainData):
    """How the kernel schedules a process; null if unreadable."""

    session: int = Field(description="id of its session; autogroups go by it")
    autogroup: str | None = Field(description="such as ``/autogroup-25 nice 0``")
    cgroup: str | None = Field(description="of the CPU controller")
    cpu_weight: str | None = Field(
        description="of that cgroup, such as ``cpu.weight 100``; a root cgroup has none"
    )
    nice: int
    cores: list[int] = Field(description="that it may run on")


class Done(PlainData):
    """What a neighbour's processes did during a round; null if unreadable."""

    on_cpu_s: float | None = Field(description="time on a core, summed over all threads")
    waiting_s: float | None = Field(description="time ready to run, waiting for a core")
    handed_over_bytes: int | None = Field(
        description="by write calls, to sockets and files (wchar of /proc/PID/io)"
    )
    disk_written_bytes: int | None = Field(description="write_bytes of /proc/PID/io")


class NeighbourRecord(PlainData):
    """One neighbour of a round."""

    name: str
    commands: list[list[str]]
    version: str | None = Field(description="what the program says of itself; null if not asked")
    notes: list[str] = Field(default_factory=list)
    placement: Placement | None = Field(
        description="of its first program's first process; null if that had ended"
    )
    done: Done


class Machine(PlainData):
    """The whole machine's load during a round, by all processes and not only the neighbours.

    What could not be read is absent, with the reason in ``missing``.
    """

    pressure_share: dict[str, float] = Field(
        description="share of the time in which some task waited (PSI ``some``), by resource"
    )
    softirqs: dict[str, int] = Field(description="raised, by type; those that rose")
    interrupts: dict[str, int] = Field(
        description="by the kernel's name, such as LOC; ``device`` sums the numbered lines"
    )
    steal_s: float | None = Field(description="taken by the hypervisor, summed over all cores")
    missing: dict[str, str] = Field(default_factory=dict)


class RemedyRecord(PlainData):
    """How the measured process was pinned and raised, as read back from the kernel."""

    cores_before: list[int]
    cores: list[int]
    nice_before: int
    nice: int
    threads: int
    kept_free: list[int] = Field(
        default_factory=list,
        description="cores that neighbours were kept off: those of ``cores`` and their "
        "hyperthreads; empty if neighbours could run there too",
    )
    hyperthreads_unknown: list[int] = Field(
        default_factory=list,
        description="cores whose hyperthreads could not be read, so neighbours were not kept off",
    )


class NoiseRound(PlainData):
    """The background load of one measured round."""

    noise: str
    status: NoiseStatus
    reason: str = Field("", description="why it was not applied")
    started: str = Field(description="UTC, ISO 8601")
    duration_s: float = Field(description="from settled to the end of the round")
    autogroup_enabled: bool | None = Field(description="null where the kernel has no autogroups")
    measured: Placement | None = Field(
        description="of the measured process, or the first of several; null if it had ended"
    )
    measured_on_cpu_s: float | None = Field(description="of all measured processes together")
    measured_run_delay_s: float | None = Field(
        description="time their threads were ready to run and waited for a core"
    )
    core_speed_per_s: float | None = Field(
        None,
        description="rounds of a fixed loop that the enqueuing thread did per second of its CPU "
        "time, right behind the samples: fewer where its core shares hardware or clocks lower; "
        "null where a scenario's tenants or a block of a test were measured",
    )
    remedy: RemedyRecord | None
    neighbours: list[NeighbourRecord]
    machine: Machine
