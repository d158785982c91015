"""Diagnoses a machine: is it fit to measure on, and what are its limits?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.doctor.checks import Check
    from pytest_hwqueue.doctor.limits import DeviceLimits
    from pytest_hwqueue.metrics.estimate import Estimate

SCHEMA = "pytest-hwqueue/doctor/3"


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis; ``limits`` is None if the device could not be opened."""

    device: str
    device_name: str
    started: str
    version: str
    quick: bool
    checks: list[Check]
    limits: DeviceLimits | None

    @property
    def has_problem(self) -> bool:
        """Whether a check found a problem that makes measuring pointless."""
        return any(check.status == "problem" for check in self.checks)


def diagnose(
    device: str, folder: Path, *, quick: bool = False, progress: Callable[[str], None]
) -> Diagnosis:
    """Check the machine, then take the device's lease and measure.

    Args:
        device: as for ``--hwq-device``, except ``all``.
        folder: where records would be written.
        quick: take fewer samples.
        progress: receives what happens next.

    Raises:
        BadOption: if there is no such device.
        LeaseError: if the device's lease cannot be taken.

    """
    from pytest_hwqueue import __version__
    from pytest_hwqueue.devices.kinds import KINDS, choose_devices, open_device
    from pytest_hwqueue.devices.lease import lease
    from pytest_hwqueue.doctor.checks import CheckedMachine, run_checks
    from pytest_hwqueue.doctor.limits import measure_limits
    from pytest_hwqueue.errors import BadOption
    from pytest_hwqueue.records.cell import now

    if device == "all":
        raise BadOption("--hwq-device", device, "doctor looks at one device at a time")
    choice = choose_devices(device)[0]
    if choice.capabilities.simulated or choice.kind not in KINDS.built_in:
        raise BadOption("--hwq-device", device, "doctor examines this machine's real devices only")
    started = now()
    opened, reason = None, ""
    try:
        opened = open_device(choice.label)
    except RuntimeError as error:  # torch's, or our DeviceError: a finding like others
        reason = str(error)
    machine = CheckedMachine(choice, opened, reason, os.environ, folder)
    limits = None
    if opened is None:
        checks = run_checks(machine)
    else:
        key = opened.lease_key
        with nullcontext() if key is None else lease(key, on_wait=progress):
            progress("checking the machine")
            checks = run_checks(machine)
            limits = measure_limits(opened, quick=quick, progress=progress)
    return Diagnosis(
        device=choice.label,
        device_name="" if opened is None else opened.name,
        started=started,
        version=__version__,
        quick=quick,
        checks=checks,
        limits=limits,
    )


def as_json(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as JSON text."""
    content = {"schema": SCHEMA, **asdict(diagnosis)}
    return json.dumps(content, indent=2, ensure_ascii=False, default=_of_estimate)


def _of_estimate(given: Estimate) -> object:
    """Return what is no data class."""
    return given.model_dump(mode="json")
