"""Diagnoses a machine: is it fit to measure on, and what are its limits?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_jsonable_python

from pytest_hwqueue import __version__
from pytest_hwqueue.answers.doctor.checks import Check, CheckedMachine, run_checks
from pytest_hwqueue.answers.doctor.limits import DeviceLimits, measure_limits
from pytest_hwqueue.data.errors import BadOption, in_utf8
from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.parts.devices.kinds import choose_devices, open_device
from pytest_hwqueue.parts.devices.lease import lease

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
    limits, key = None, None if opened is None else opened.lease_key
    with nullcontext() if key is None else lease(key, on_wait=progress):
        progress("checking the machine")
        checks = run_checks(machine)
        if opened is not None:
            limits = measure_limits(opened, quick=quick, progress=progress)
    name = "" if opened is None else opened.name
    return Diagnosis(choice.label, name, started, __version__, quick, checks, limits)


def as_json(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as JSON text."""
    content = to_jsonable_python({"schema": SCHEMA, **vars(diagnosis)})
    return in_utf8(json.dumps(content, indent=2, ensure_ascii=False))
