"""Which device tenants share: identified from outside, and the only one that they see."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.starting import worker_environment

_OPENING_S = 180.0


@dataclass(frozen=True)
class DeviceIdentity:
    """What the lease and the record need to know about a device."""

    lease_key: str | None
    fingerprint: Fingerprint


_KNOWN: dict[str, DeviceIdentity] = {}


def identify(label: str, folder: Path) -> DeviceIdentity:
    """Open a GPU in a separate process and identify it; once per label.

    A context in the parent would take memory, and turns, on the device that tenants share.

    Args:
        label: of the device.
        folder: of the run, made unless it is there. It keeps the process's output as
            ``identify.log`` if that fails; what is killed meanwhile leaves it there, too.

    Raises:
        DeviceError: if it cannot be opened, with the process's last output.

    """
    if label not in _KNOWN:
        _KNOWN[label] = _identity(label, folder)
    return _KNOWN[label]


def _identity(label: str, folder: Path) -> DeviceIdentity:
    if label == "cpu":
        host = open_device(label)
        return DeviceIdentity(host.lease_key, host.fingerprint())
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "identify.log"
    process = MeasuredProcess.start(
        None, "pytest_hwqueue.engine.tenants.tenant", worker_environment(os.environ), log
    )
    try:
        found = _answer(process, label)
    except ProcessEnded as ended:
        raise DeviceError(f"{label}: opening it {ended}:\n{process.last_lines(30)}") from None
    finally:
        process.kill("no longer needed")
        process.close()
    log.unlink()
    return found


def _answer(process: MeasuredProcess, label: str) -> DeviceIdentity:
    process.send("identify", device=label)
    message = process.receive(time.monotonic() + _OPENING_S)
    if message is None:
        stacks = process.dump_stacks()
        raise DeviceError(f"{label} was not open within {_OPENING_S:g} s:\n{stacks}")
    if message["kind"] == "failed":
        raise DeviceError(f"{label} cannot be opened: {message['reason']}")
    return DeviceIdentity(message["lease_key"], Fingerprint(**message["fingerprint"]))


def tenant_environment(device: str) -> dict[str, str]:
    """Return the environment of tenants on a real device, before a scheduler adds to it.

    Raises:
        DeviceError: if the user's setting does not make the device visible.

    """
    kind, _, index = device.partition(":")
    plain = worker_environment(os.environ)
    plain.update(one_visible(kind, int(index or 0), plain))
    return plain


def one_visible(kind: str, index: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that leave a process only the ``index``-th of the visible devices.

    The variable gets that device's own entry, be it a number or a UUID; without one, the index.
    ROCR_VISIBLE_DEVICES and CUDA_DEVICE_ORDER stay as they are: HIP and CUDA number the devices
    that these leave visible, in their order.

    Args:
        kind: of the device; the CPU needs no variable.
        index: among the devices that ``environment`` makes visible, from 0.
        environment: the user's.

    Raises:
        DeviceError: if the user's setting has no such entry.

    """
    names = capabilities_of(kind).visible_by
    if not names:
        return {}
    given = next((name for name in names if environment.get(name)), None)
    entry = str(index)
    if given is not None:
        entries = [part.strip() for part in environment[given].split(",")]
        if index >= len(entries) or not entries[index]:
            raise DeviceError(
                f"{kind}:{index} is not visible: {given}={environment[given]} has no entry "
                f"number {index} (the first is 0)"
            )
        entry = entries[index]
    # Where both are set they must agree: torch and HIP look at either.
    return {name: entry for name in names if name == names[0] or name in environment}
