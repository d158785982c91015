"""Vendors and runtimes of devices, and the devices that this process can see.

A GPU is identified by its UUID or PCI bus id, never by an index: the vendors' indices are not
torch's. The packages are optional, so each is imported only when needed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.data.errors import BadOption, DeviceError, refused_as, translated
from pytest_hwqueue.data.extensions import load
from pytest_hwqueue.data.records.kinds import (
    KINDS,
    UNRESOLVED,
    UUIDS,
    Capabilities,
    DeviceKind,
    capabilities_of,
    kind_of,
)

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.protocol import Device


_PCI_BUS_ID = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


@dataclass(frozen=True)
class Vendor:
    """A vendor's open library: whoever opened it calls its shutdown function once.

    ``handle`` is the requested device; ``gpu`` the same, or the whole GPU if that is a MIG slice.
    """

    library: Any
    handle: Any
    gpu: Any
    errors: tuple[type[Exception], ...]


class VendorError(DeviceError):
    """A vendor's library, its driver or the device is missing; the text says which and why."""


def open_nvml(identifier: str) -> Vendor:
    """Open NVML for a GPU or a MIG slice; call ``library.nvmlShutdown`` when done.

    Args:
        identifier: a UUID (``GPU-…``, ``MIG-…`` or bare, as torch prints it) or a PCI bus id. Not
            an index: NVML's indices ignore CUDA_VISIBLE_DEVICES.

    Raises:
        VendorError: without pynvml, a driver, the device, or permission to see it.

    """
    pynvml = _load("pynvml", "pytest-hwqueue[nvidia]")
    with translated(VendorError, "NVML cannot be used here", pynvml.NVMLError):
        pynvml.nvmlInit()
    try:
        handle = _nvml_handle(pynvml, identifier)
        gpu = handle
        if _is_mig_slice(pynvml, handle):
            gpu = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except pynvml.NVMLError as error:
        pynvml.nvmlShutdown()
        raise VendorError(f"NVML has no device {identifier}: {error}") from error
    # Process lists raise the second one where the package is newer than the driver.
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    return Vendor(pynvml, handle, gpu, (pynvml.NVMLError, mismatch))


def _nvml_handle(pynvml: Any, identifier: str) -> Any:
    if _PCI_BUS_ID.fullmatch(identifier):
        return pynvml.nvmlDeviceGetHandleByPciBusId(identifier)
    if identifier.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(identifier)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identifier}")
    except pynvml.NVMLError:  # torch prints the UUID of a slice without its "MIG-" too
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{identifier}")


def _is_mig_slice(pynvml: Any, handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceIsMigDeviceHandle(handle))
    except (pynvml.NVMLError, AttributeError):  # a package, driver or GPU from before MIG
        return False


def open_amdsmi(identifier: str) -> Vendor:
    """Open AMD SMI for a GPU; call ``library.amdsmi_shut_down`` when done.

    Written against the documentation and Python source of amdsmi 7.0; not yet run on AMD hardware.

    Args:
        identifier: a PCI bus id, or the UUID or serial number as AMD SMI, HIP or torch give it.

    Raises:
        VendorError: without amdsmi, a driver, or the device.

    """
    amdsmi = _load("amdsmi", "the amdsmi of the installed ROCm")
    with translated(VendorError, "AMD SMI cannot be used here", amdsmi.AmdSmiException):
        amdsmi.amdsmi_init()
    wanted = {_plain(identifier)}
    try:  # torch prints the 16 letters that HIP calls the UUID as if they were its bytes
        wanted.add(_plain(bytes.fromhex(identifier.replace("-", "")).decode("ascii")))
    except ValueError:
        wanted.discard("")  # it is not in torch's form, so it names the GPU as it stands
    names: dict[str, Any] = {}
    try:
        for handle in amdsmi.amdsmi_get_processor_handles():
            names[amdsmi.amdsmi_get_gpu_device_bdf(handle)] = handle
            names[amdsmi.amdsmi_get_gpu_device_uuid(handle)] = handle
            names[amdsmi.amdsmi_get_gpu_asic_info(handle)["asic_serial"]] = handle
            if hasattr(amdsmi, "amdsmi_get_gpu_enumeration_info"):  # since ROCm 6.4
                names[amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"]] = handle
    except (amdsmi.AmdSmiException, KeyError) as error:
        amdsmi.amdsmi_shut_down()
        raise VendorError(f"AMD SMI does not name its devices: {error!r}") from error
    for name, handle in names.items():
        if _plain(name) in wanted:
            return Vendor(amdsmi, handle, handle, (amdsmi.AmdSmiException,))
    amdsmi.amdsmi_shut_down()
    raise VendorError(f"AMD SMI has no device {identifier}, only {', '.join(names) or 'none'}")


def _plain(name: str) -> str:
    return name.lower().removeprefix("gpu-").removeprefix("0x").replace("-", "")


def _load(package: str, source: str) -> Any:
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, KeyError) as error:  # amdsmi without its C library: KeyError
        raise VendorError(
            f"the Python package {package} cannot be imported ({error!r}); install {source}"
        ) from error


# cudaStreamNonBlocking and hipStreamNonBlocking: no implicit order against the default stream.
_NON_BLOCKING = 1


class Runtime:
    """Calls of the library that torch has loaded.

    A second HIP runtime in the process would fail with "invalid device ordinal".
    """

    def __init__(self, hip: bool) -> None:
        self._prefix = "hip" if hip else "cuda"
        stem = "libamdhip64" if hip else "libcudart"
        self._library = open_library(stem)
        least, greatest = ctypes.c_int(), ctypes.c_int()
        self.call("DeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        self.least_priority, self.greatest_priority = least.value, greatest.value

    def create_stream(self, priority: int) -> int:
        """Create a stream; 0 is normal, larger is more urgent, clamped to the device's range."""
        handle = ctypes.c_void_p()
        self.call(
            "StreamCreateWithPriority",
            ctypes.byref(handle),
            ctypes.c_uint(_NON_BLOCKING),
            ctypes.c_int(self.device_priority(priority)),
        )
        if not handle.value:
            raise DeviceError(f"{self._prefix}StreamCreateWithPriority returned no stream")
        return handle.value

    def device_priority(self, priority: int) -> int:
        """Convert a priority (larger is more urgent) to the device's numbers, clamped."""
        # The runtime counts the other way: numerically lower is more urgent.
        return max(self.greatest_priority, min(self.least_priority, -priority))

    def stream_priority(self, handle: int) -> int:
        """Read a stream's priority back, in the device's own numbers."""
        priority = ctypes.c_int()
        self.call("StreamGetPriority", ctypes.c_void_p(handle), ctypes.byref(priority))
        return priority.value

    def stream_device(self, handle: int) -> int:
        """Read back on which of the visible devices a stream is.

        Raises:
            DeviceError: if neither runtime nor driver tells.

        """
        device = ctypes.c_int()
        # HIP has it since 5.6, CUDA's runtime since 12.8.
        if hasattr(self._library, f"{self._prefix}StreamGetDevice"):
            self.call("StreamGetDevice", ctypes.c_void_p(handle), ctypes.byref(device))
            return device.value
        if self._prefix == "hip":
            raise DeviceError("this HIP runtime has no hipStreamGetDevice: update ROCm")
        return _device_by_driver(handle)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its name without ``cuda`` or ``hip``; DeviceError if it fails."""
        status = getattr(self._library, self._prefix + name)(*arguments)
        if status != 0:
            describe = getattr(self._library, f"{self._prefix}GetErrorString")
            describe.restype = ctypes.c_char_p
            text = describe(status).decode()
            raise DeviceError(f"{self._prefix}{name} failed with error {status}: {text}")


def _device_by_driver(handle: int) -> int:
    """Ask CUDA's driver: a stream's context tells its device only while it is current."""
    driver = open_library("libcuda.so")

    def call(name: str, *arguments: object) -> None:
        with translated(DeviceError, f"the driver has no {name}", AttributeError):
            status = getattr(driver, name)(*arguments)
        if status != 0:
            raise DeviceError(f"{name} failed with error {status}")

    context, device = ctypes.c_void_p(), ctypes.c_int()
    call("cuStreamGetCtx", ctypes.c_void_p(handle), ctypes.byref(context))
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuCtxGetDevice", ctypes.byref(device))
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
    return device.value


def open_library(stem: str) -> ctypes.CDLL:
    """Return a shared library that this process has already loaded.

    Raises:
        DeviceError: if there is none of that name.

    """
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")
            name = path[2].rpartition("/")[2]
            if name.startswith(stem):
                return ctypes.CDLL("/" + path[2])
    raise DeviceError(
        f"this process has loaded no {stem}: torch may have it linked in; install a torch build "
        "that uses shared libraries"
    )


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
_HIDING = (_VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def visible_accelerators() -> tuple[DeviceKind, int]:
    """Return kind (``cuda`` or ``hip``) and number of the accelerators torch can use."""
    if "torch" not in sys.modules and not _for_accelerators():
        return "cuda", 0
    import torch

    kind: DeviceKind = "hip" if torch.version.hip else "cuda"
    return kind, torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_devices(
    specification: str, look: Callable[[], tuple[DeviceKind, int]] = visible_accelerators
) -> list[DeviceChoice]:
    """Resolve ``auto``, ``all``, ``cpu``, ``cuda[:N]``, ``hip[:N]``, ``sim:PROFILE``, or another's.

    ``cuda:MIG-…`` or ``cuda:GPU-…`` is the visible device of this UUID.

    Args:
        specification: as `--hwq-device` has it.
        look: for kind and number of the accelerators that torch can use; not called for others.

    Raises:
        BadOption: if there is no such device, listing the existing ones.

    """
    if specification == "cpu":
        return [CPU]
    own = kind_of(specification)
    if specification.startswith(_SIMULATED):
        from pytest_hwqueue.parts.devices.simulated.profile import load_profile

        with refused_as("--hwq-device", specification):
            load_profile(specification.removeprefix(_SIMULATED))
        return [DeviceChoice(specification, "sim", 0)]
    if specification not in UNRESOLVED and own in KINDS.added:
        with refused_as("--hwq-device", specification):
            _ = KINDS[own]
        return [DeviceChoice(specification, own, 0)]
    kind, count = look()
    if specification == "auto":
        return [_accelerator(kind, 0)] if count else [CPU]
    there_are = ", ".join(["visible here: cpu", *(f"{kind}:{index}" for index in range(count))])
    if not count:
        there_are += f"; {why_none(_for_accelerators(), loaded_driver())}"
    if specification == "all":
        if not count:
            raise BadOption("--hwq-device", "all", there_are)
        return [_accelerator(kind, index) for index in range(count)]
    asked, _, which = specification.partition(":")
    index = _place_of(specification, which) if which.startswith(UUIDS) else int(which or 0)
    if asked != kind or index >= count:
        raise BadOption("--hwq-device", specification, there_are)
    return [_accelerator(kind, index)]


@cache
def open_device(which: str, label: str = "") -> Device:
    """Open a device, once per process.

    Args:
        which: label of a visible device.
        label: its label in cell names, if different: ranks that run one cell agree on it.

    """
    if which.startswith(_SIMULATED):
        from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

        return SimulatedDevice(which.removeprefix(_SIMULATED))
    if which == "cpu":
        from pytest_hwqueue.parts.devices.host import HostDevice

        return HostDevice()
    if kind_of(which) in KINDS.added:
        device: Device = load(KINDS.added[kind_of(which)])(which)
        return device
    from pytest_hwqueue.parts.devices.accelerator import Accelerator

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


def loaded_driver(root: Path = Path("/")) -> str:
    """Return the loaded accelerator driver that has a device; empty if none."""
    if any(root.glob("dev/nvidia[0-9]*")):
        return "NVIDIA"
    return "AMD" if (root / "dev/kfd").exists() else ""


def why_none(built: bool, driver: str) -> str:
    """Return why torch sees no accelerator, and what to do.

    Args:
        built: whether torch is built for accelerators.
        driver: `loaded_driver`'s.

    """
    if not built:
        return (
            "torch is built for the CPU alone: install its build for your accelerator "
            "(https://pytorch.org/get-started)"
        )
    if not driver:
        return (
            "no driver is loaded (no /dev/nvidia0, no /dev/kfd): install it, or give the container "
            "its devices"
        )
    hidden = [f"{name}={os.environ[name]}" for name in _HIDING if name in os.environ]
    if hidden:
        return f"{' and '.join(hidden)} may hide others"
    return f"torch cannot use the {driver} driver: `python -c 'import torch; torch.cuda.init()'`"


def _for_accelerators() -> bool:
    """Whether the installed torch is built for accelerators; it is not imported."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return True
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return bool(version["cuda"] or version["hip"])


def _accelerator(kind: DeviceKind, index: int) -> DeviceChoice:
    return DeviceChoice(kind if index == 0 else f"{kind}:{index}", kind, index)


def default_size(device_kind: str) -> str:
    """Return the size that ``auto`` selects on this kind of device."""
    return "tiny" if capabilities_of(device_kind).host else "full"


def resolve_size(size: str, device_kind: str) -> str:
    """Resolve the size ``auto``."""
    return default_size(device_kind) if size == "auto" else size


@cache
def chosen_devices(specification: str) -> list[DeviceChoice]:
    """Resolve `--hwq-device`, once; BadOption if there is no such device."""
    return choose_devices(specification)


def only_device(specification: str) -> DeviceChoice:
    """Resolve `--hwq-device` for tenants, who share one; BadOption if there is none, or several."""
    devices = chosen_devices(specification)
    if len(devices) > 1:
        labels = ", ".join(device.label for device in devices)
        reason = f"a scenario's tenants share one device: choose from {labels}"
        raise BadOption("--hwq-device", specification, reason)
    return devices[0]
