"""Telemetry of a simulated device: the time spent in planted clock dips, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.telemetry import TelemetrySample

if TYPE_CHECKING:
    from pytest_hwqueue.devices.simulated.device import SimulatedDevice

_NOT_MODELLED = "not modelled by the simulated device"


class SimulatedReader:
    """Reads a simulated device in its virtual time."""

    missing: Mapping[str, str] = dict.fromkeys(
        ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "other_processes"),
        _NOT_MODELLED,
    )

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def read(self) -> TelemetrySample:
        """Return the time spent in dips so far, in virtual ns, as drivers count throttling."""
        counters = {}
        dip = self._device.clock_dip
        if dip is not None:
            spent_ns = min(self._device.clock_ns(), dip.end_ns) - dip.begin_ns
            counters["planted clock dip"] = max(0, spent_ns)
        return TelemetrySample(
            when_ns=self._device.clock_ns(),
            sm_clock_mhz=None,
            memory_clock_mhz=None,
            temperature_c=None,
            power_w=None,
            violation_counters=counters,
        )

    def describe(self) -> str:
        """Return what is read, and of which device."""
        return f"the model of {self._device.label}"

    def close(self) -> None:
        """Do nothing: nothing was opened."""
