"""A device's energy counter, read at both ends of a window and never within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_hwqueue.data.metrics.energy import EnergyReading, mean_power
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.parts.devices.kinds import Vendor, VendorError, open_amdsmi, open_nvml

COUNTED_KINDS = ("cuda", "hip")
"""Kinds of devices whose vendors' libraries count energy."""


class EnergyMeter:
    """Reads a counter of energy twice a window.

    Args:
        read_mj: reads the counter, in mJ; raises VendorError if it cannot be read.

    """

    def __init__(self, read_mj: Callable[[], int]) -> None:
        self._read_mj = read_mj
        self._readings: list[EnergyReading] = []
        self._missing = ""

    def begin(self) -> None:
        """Forget the window before."""
        self._readings.clear()

    def poll(self, gone_ns: int, end_ns: int) -> None:
        """Read the counter once the window has begun, and once it is over.

        Args:
            gone_ns: time since the window's begin; below 0 before it.
            end_ns: when it is over.

        """
        due = (0, end_ns)[len(self._readings)] if len(self._readings) < 2 else None
        if due is None or gone_ns < due or self._missing:
            return
        try:
            self._readings.append(EnergyReading(gone_ns, self._read_mj()))
        except VendorError as error:
            self._missing = str(error)

    def mean_power(self) -> Estimate:
        """Return the window's mean power in W, or why it is not known."""
        if self._missing or len(self._readings) < 2:
            return Estimate(unit="W", refused=self._missing or "the window ended before its end")
        return mean_power(*self._readings)


@contextmanager
def energy_meter(kind: str, uuid: str) -> Iterator[EnergyMeter]:
    """Open the meter of a GPU, which gives the reason in place of a figure if there is none.

    AMD's is written against the documentation of amdsmi 7.0, and has not run on AMD hardware.

    Args:
        kind: ``cuda`` or ``hip``.
        uuid: the GPU's, or its PCI bus id.

    """
    try:
        vendor = open_nvml(uuid) if kind == "cuda" else open_amdsmi(uuid)
    except VendorError as error:
        reason = str(error)

        def refuse() -> int:
            raise VendorError(reason)

        yield EnergyMeter(refuse)
        return
    read = _nvml_mj if kind == "cuda" else _amd_mj
    try:
        yield EnergyMeter(lambda: read(vendor))
    finally:
        (vendor.library.nvmlShutdown if kind == "cuda" else vendor.library.amdsmi_shut_down)()


def _nvml_mj(vendor: Vendor) -> int:
    if vendor.handle is not vendor.gpu:
        raise VendorError("NVML counts the energy of the whole GPU, not of a MIG slice")
    errors: tuple[type[Exception], ...] = (AttributeError, *vendor.errors)
    try:
        return int(vendor.library.nvmlDeviceGetTotalEnergyConsumption(vendor.gpu))
    except errors as error:
        raise VendorError(f"NVML does not count this GPU's energy: {error}") from error


def _amd_mj(vendor: Vendor) -> int:
    errors: tuple[type[Exception], ...] = (
        AttributeError, LookupError, TypeError, ValueError, *vendor.errors,
    )  # fmt: skip
    try:
        found = vendor.library.amdsmi_get_energy_count(vendor.gpu)
        # In µJ: the counter's steps times their size.
        return int(found["energy_accumulator"] * found["counter_resolution"] / 1e3)
    except errors as error:
        raise VendorError(f"AMD SMI does not count this GPU's energy: {error}") from error
