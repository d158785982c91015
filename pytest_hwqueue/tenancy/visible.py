"""Makes exactly one device visible to a tenant, named as in the user's own setting."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.processes.starting import worker_environment


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
