"""Finds and opens the devices this process can see. The only place that decides ``auto``."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.kinds import KINDS, UUIDS, Capabilities, capabilities_of, kind_of
from pytest_hwqueue.errors import BadExtension, BadOption
from pytest_hwqueue.extensions import load

if TYPE_CHECKING:
    from pytest_hwqueue.devices.kinds import DeviceKind
    from pytest_hwqueue.devices.protocol import Device


@dataclass(frozen=True)
class DeviceChoice:
    """A device by its label in cell names, before it is opened."""

    label: str
    kind: str
    index: int

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return capabilities_of(self.kind)


CPU = DeviceChoice("cpu", "cpu", 0)
_SIMULATED = "sim:"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_devices(specification: str) -> list[DeviceChoice]:
    """Resolve ``auto``, ``all``, ``cpu``, ``cuda[:N]``, ``hip[:N]``, ``sim:PROFILE``, or another's.

    ``cuda:MIG-…`` or ``cuda:GPU-…`` is the visible device of this UUID.

    Raises:
        BadOption: if there is no such device, listing the existing ones.

    """
    if specification == "cpu":
        return [CPU]
    if specification.startswith(_SIMULATED):
        return [_simulated(specification)]
    if specification not in ("auto", "all") and kind_of(specification) in KINDS.added:
        return [_added(specification)]
    kind, count = visible_accelerators()
    if specification == "auto":
        return [_accelerator(kind, 0)] if count else [CPU]
    there_are = ", ".join(["cpu", *(f"{kind}:{index}" for index in range(count))])
    if specification == "all":
        if not count:
            raise BadOption(
                "--hwq-device", "all", f"no accelerator is visible; there is {there_are}"
            )
        return [_accelerator(kind, index) for index in range(count)]
    asked, _, which = specification.partition(":")
    index = _place_of(specification, which) if which.startswith(UUIDS) else int(which or 0)
    if asked != kind or index >= count:
        raise BadOption("--hwq-device", specification, f"visible here: {there_are}")
    return [_accelerator(kind, index)]


def visible_accelerators() -> tuple[DeviceKind, int]:
    """Return kind (``cuda`` or ``hip``) and number of the accelerators torch can use."""
    if "torch" not in sys.modules and not _for_accelerators():
        return "cuda", 0
    import torch

    kind: DeviceKind = "hip" if torch.version.hip else "cuda"
    return kind, torch.cuda.device_count() if torch.cuda.is_available() else 0


@cache
def open_device(which: str, label: str = "") -> Device:
    """Open a device, once per process.

    Args:
        which: label of a visible device.
        label: its label in cell names, if different: ranks that run one cell agree on it.

    """
    if which.startswith(_SIMULATED):
        from pytest_hwqueue.devices.simulated.device import SimulatedDevice

        return SimulatedDevice(which.removeprefix(_SIMULATED))
    if which == "cpu":
        from pytest_hwqueue.devices.host import HostDevice

        return HostDevice()
    if kind_of(which) in KINDS.added:
        device: Device = load(KINDS.added[kind_of(which)])(which)
        return device
    from pytest_hwqueue.devices.accelerator import Accelerator

    return Accelerator(int(which.partition(":")[2] or 0), label or which)


def _place_of(specification: str, uuid: str) -> int:
    """Return the index of a device that CUDA_VISIBLE_DEVICES names by its UUID.

    CUDA makes a MIG instance visible only so, and only if the variable is set before it starts.
    """
    entries = [part.strip() for part in os.environ.get(_VISIBLE, "").split(",")]
    if uuid in entries:
        return entries.index(uuid)
    raise BadOption(
        "--hwq-device", specification, f"{_VISIBLE} does not name it; set {_VISIBLE}={uuid}"
    )


def _for_accelerators() -> bool:
    """Whether the installed torch is built for accelerators; it is not imported."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return True
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return bool(version["cuda"] or version["hip"])


def _simulated(specification: str) -> DeviceChoice:
    from pytest_hwqueue.devices.simulated.profile import BadProfile, load_profile

    try:
        load_profile(specification.removeprefix(_SIMULATED))
    except BadProfile as error:
        raise BadOption("--hwq-device", specification, str(error)) from None
    return DeviceChoice(specification, "sim", 0)


def _added(specification: str) -> DeviceChoice:
    kind = kind_of(specification)
    try:
        _ = KINDS[kind]
    except BadExtension as error:
        raise BadOption("--hwq-device", specification, str(error)) from None
    return DeviceChoice(specification, kind, 0)


def _accelerator(kind: DeviceKind, index: int) -> DeviceChoice:
    return DeviceChoice(kind if index == 0 else f"{kind}:{index}", kind, index)
