"""The scheduler mode `patient`: OpenMP's threads sleep while they wait, and leave their cores.

pytest --hwq-device=cpu --hwq-scheduler=native,patient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue import (
    InsideEvidence,
    ModeWithoutServices,
    NotProven,
    Places,
    Proof,
    SchedulerText,
    TenantRequest,
)

_VARIABLE = {"OMP_WAIT_POLICY": "passive"}


class Patient(ModeWithoutServices):
    """Starts processes with OMP_WAIT_POLICY=passive."""

    placements = frozenset({"processes", "threads"})

    def __init__(self, wanted: SchedulerText) -> None:
        self.text = str(wanted)

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Only kernels of the CPU run on OpenMP's threads."""
        return None if device_kind == "cpu" else f"{self.text} is for the CPU, not {device_kind}"

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Set the variable, before the process starts."""
        return _VARIABLE

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Read from the kernel what each process was started with."""
        for name, pid in pids.items():
            if b"OMP_WAIT_POLICY=passive" not in Path(f"/proc/{pid}/environ").read_bytes():
                raise NotProven(f"{self.text}: tenant {name} was started without {_VARIABLE}")
        return Proof(self.text, "OMP_WAIT_POLICY=passive in all processes", ())


def open_patient(wanted: SchedulerText, places: Places) -> Patient:
    """Open the mode."""
    return Patient(wanted)
