"""Identifies the device in a separate process, so that the tenants' parent never opens it."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_hwqueue.devices.discover import open_device
from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.processes.measured_process import MeasuredProcess, ProcessEnded
from pytest_hwqueue.processes.starting import worker_environment

_OPENING_S = 180.0


@dataclass(frozen=True)
class DeviceIdentity:
    """What the lease and the record need to know about a device."""

    lease_key: str | None
    fingerprint: Fingerprint


@cache
def identify(label: str) -> DeviceIdentity:
    """Open a GPU in a separate process and identify it; once per label.

    A context in the parent would take memory, and turns, on the device that tenants share.

    Raises:
        DeviceError: if it cannot be opened, with the process's last output.

    """
    if label == "cpu":
        host = open_device(label)
        return DeviceIdentity(host.lease_key, host.fingerprint())
    with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
        log = Path(folder) / "identify.log"
        environment = worker_environment(os.environ)
        process = MeasuredProcess.start(None, "pytest_hwqueue.tenancy.tenant", environment, log)
        try:
            return _answer(process, label)
        except ProcessEnded as ended:
            raise DeviceError(f"{label}: opening it {ended}:\n{process.last_lines(30)}") from None
        finally:
            process.kill("no longer needed")
            process.close()


def _answer(process: MeasuredProcess, label: str) -> DeviceIdentity:
    process.send("identify", device=label)
    message = process.receive(time.monotonic() + _OPENING_S)
    if message is None:
        stacks = process.dump_stacks()
        raise DeviceError(f"{label} was not open within {_OPENING_S:g} s:\n{stacks}")
    if message["kind"] == "failed":
        raise DeviceError(f"{label} cannot be opened: {message['reason']}")
    return DeviceIdentity(message["lease_key"], Fingerprint(**message["fingerprint"]))
