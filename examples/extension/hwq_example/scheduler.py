"""The scheduler mode `patient`: OpenMP's threads sleep while they wait, and leave their cores.

pytest --hwq-device=cpu --hwq-scheduler=native,patient
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_hwqueue import (
    InsideEvidence,
    NotProven,
    Proof,
    Scheduler,
    SchedulerDeclaration,
    TenantRequest,
)

_VARIABLE = {"OMP_WAIT_POLICY": "passive"}

PATIENT = SchedulerDeclaration(
    "patient",
    "OpenMP's threads sleep while they wait",
    "hwq_example.scheduler:Patient",
    devices=("cpu",),
    elsewhere="{mode} is for the CPU, not {device}",
)


class Patient(Scheduler):
    """Starts processes with OMP_WAIT_POLICY=passive."""

    placements = frozenset({"processes", "threads"})

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Set the variable, before the process starts."""
        return _VARIABLE

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Read from the kernel what each process was started with."""
        for name, pid in pids.items():
            if b"OMP_WAIT_POLICY=passive" not in Path(f"/proc/{pid}/environ").read_bytes():
                raise NotProven(f"{self.mode}: tenant {name} was started without {_VARIABLE}")
        return Proof(self.mode, "OMP_WAIT_POLICY=passive in all processes", ())
