"""Context switches, waiting for a core and interrupts of a measured pass, as records keep them.

What the kernel does not report is null, never 0, with the reason in ``missing``. Interrupts and
softirqs are counted for the whole system, over all processes and CPUs.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import PlainData


class ThreadCounts(PlainData):
    """One thread's counters during the pass; null is not reported by the kernel."""

    thread: int = Field(description="the kernel's id")
    name: str = Field(
        description="enqueuing for the one that launches, hwq-stream-N for a stream of the host "
        "device, else what the thread calls itself"
    )
    voluntary: int | None = Field(description="switches away from it when it waited")
    involuntary: int | None = Field(description="switches away from it when it could have run on")
    on_cpu_s: float | None
    run_delay_s: float | None = Field(description="ready to run, and waiting for a core")


class PerThousand(PlainData):
    """Counts per 1,000 launches or kernels; null is not reported by the kernel."""

    voluntary: float | None
    involuntary: float | None
    run_delay_us: float | None = Field(description="microseconds, of all threads")
    system_softirqs: dict[str, float] | None = Field(description="of the whole machine, by type")
    system_interrupts: dict[str, float] | None = Field(description="of the whole machine, by line")

    def times(self, factor: float) -> PerThousand:
        """Return every count multiplied by a factor."""

        def by(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: by(each) for name, each in value.items()}
            return None if value is None else value * factor

        return PerThousand(**{name: by(value) for name, value in self})


class CpuCounters(PlainData):
    """Context switches, waiting for a core, and interrupts while a cell was measured.

    Threads are those of the measured process. Interrupts are the whole machine's: the kernel does
    not count them by process.
    """

    duration_s: float
    iterations: int = Field(description="in that time, with the few that lead in")
    launches: int = Field(
        description="in that time: calls of a stream's launch, each of which may launch several "
        "kernels; in graph dispatch each is a replay"
    )
    kernels: int | None = Field(None, description="in that time, from those of a traced iteration")
    threads: list[ThreadCounts] = Field(description="those that ran or were switched")
    idle_threads: int = Field(description="the others")
    ended_threads: int = Field(description="ended in that time, and counted nowhere")
    voluntary: int | None = Field(description="of all threads together")
    involuntary: int | None
    on_cpu_s: float | None
    run_delay_s: float | None
    system_softirqs: dict[str, int] | None = Field(description="of the whole machine, by type")
    system_interrupts: dict[str, int] | None = Field(
        description="hardware interrupts of the whole machine, by line and name, such as LOC Local "
        "timer interrupts"
    )
    per_1000_launches: PerThousand | None
    per_1000_kernels: PerThousand | None = None
    missing: dict[str, str] = Field(default_factory=dict, description="why something is null")

    def waited_most(self) -> tuple[str, float] | None:
        """Return the thread that waited longest for a core, and the share of the pass it waited.

        None if unknown.
        """
        known = [each for each in self.threads if each.run_delay_s is not None]
        if not known or self.duration_s <= 0:
            return None
        most = max(known, key=lambda each: each.run_delay_s or 0.0)
        return most.name, (most.run_delay_s or 0.0) / self.duration_s

    def with_kernels(self, of_an_iteration: int) -> CpuCounters:
        """Return a copy with rates per kernel, given the kernels of one iteration."""
        kernels = of_an_iteration * self.iterations
        launches = self.per_1000_launches
        rates = launches and launches.times(self.launches / kernels) if kernels else None
        missing = {name: why for name, why in self.missing.items() if name != "kernels"}
        return self.model_copy(
            update={"kernels": kernels, "per_1000_kernels": rates, "missing": missing}
        )

    def without_kernels(self, reason: str) -> CpuCounters:
        """Return a copy with the reason why the number of kernels is unknown."""
        return self.model_copy(update={"missing": {**self.missing, "kernels": reason}})
