"""Opening a vendor's management library for one GPU: NVML for NVIDIA, AMD SMI for AMD.

A GPU is identified by its UUID or PCI bus id, never by an index: the vendors' indices are not
torch's. The packages are optional, so each is imported only when needed.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

_PCI_BUS_ID = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


class VendorError(RuntimeError):
    """A vendor's library, its driver or the device is missing; the text says which and why."""


@dataclass(frozen=True)
class Vendor:
    """A vendor's open library: whoever opened it calls its shutdown function once.

    ``handle`` is the requested device; ``gpu`` the same, or the whole GPU if that is a MIG slice.
    """

    library: Any
    handle: Any
    gpu: Any
    errors: tuple[type[Exception], ...]


def open_nvml(identifier: str) -> Vendor:
    """Open NVML for a GPU or a MIG slice; call ``library.nvmlShutdown`` when done.

    Args:
        identifier: a UUID (``GPU-…``, ``MIG-…`` or bare, as torch prints it) or a PCI bus id. Not
            an index: NVML's indices ignore CUDA_VISIBLE_DEVICES.

    Raises:
        VendorError: without pynvml, a driver, the device, or permission to see it.

    """
    pynvml = _load("pynvml", "pytest-hwqueue[nvidia]")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise VendorError(f"NVML cannot be used here: {error}") from error
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
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise VendorError(f"AMD SMI cannot be used here: {error}") from error
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
