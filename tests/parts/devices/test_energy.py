"""The energy meter reads a vendor's counter at a window's two ends, and says why it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.parts.devices.energy import EnergyMeter, energy_meter

from .vendors import NOT_SUPPORTED, SLICE, UUID, AmdSmi, Nvml

WINDOW_NS = 10_000_000_000


def watch(meter: EnergyMeter, *gone_s: float, end_ns: int = WINDOW_NS) -> None:
    meter.begin()
    for each in gone_s:
        meter.poll(round(each * 1e9), end_ns)


def test_it_is_read_twice_a_window_and_at_its_ends() -> None:
    counter = iter((1_000_000, 5_000_000, 7_000_000, 8_000_000))
    meter = EnergyMeter(lambda: next(counter))

    watch(meter, -0.5, 0.01, 3, 9.9, 10.01, 10.5)
    assert float(meter.mean_power()) == pytest.approx(400)
    # The next window of the same tenants.
    watch(meter, 0, 10)
    assert float(meter.mean_power()) == pytest.approx(100)


def test_a_window_that_ends_early_is_read_when_it_has() -> None:
    counter = iter((0, 2_400_000))
    meter = EnergyMeter(lambda: next(counter))
    watch(meter, 0, 4)
    meter.poll(6_000_000_000, 0)
    assert float(meter.mean_power()) == pytest.approx(400)


def test_nvml_counts_in_millijoules(install: Any) -> None:
    library = install(Nvml(TotalEnergyConsumption=123_000))
    with energy_meter("cuda", UUID) as meter:
        watch(meter, 0)
        library.answers["TotalEnergyConsumption"] = 4_123_000
        meter.poll(WINDOW_NS, WINDOW_NS)
        assert float(meter.mean_power()) == pytest.approx(400)
    assert library.opened == 0


def test_amd_smi_counts_steps_of_a_size_in_microjoules(install: Any) -> None:
    library = install(AmdSmi())
    counted = {"energy_accumulator": 0, "counter_resolution": 15.3, "timestamp": 1}
    library.amdsmi_get_energy_count = lambda gpu: counted
    with energy_meter("hip", "0000:23:00.0") as meter:
        watch(meter, 0)
        counted["energy_accumulator"] = round(4e9 / 15.3)
        meter.poll(WINDOW_NS, WINDOW_NS)
        assert float(meter.mean_power()) == pytest.approx(400, rel=1e-4)


@pytest.mark.parametrize(
    ("uuid", "answers", "reason"),
    [
        (UUID, {"TotalEnergyConsumption": NOT_SUPPORTED}, "does not count this GPU's energy"),
        (UUID, {}, "does not count this GPU's energy"),
        (SLICE, {"TotalEnergyConsumption": 1}, "of the whole GPU, not of a MIG slice"),
        ("no-such", {"TotalEnergyConsumption": 1}, "NVML has no device no-such"),
    ],
)
def test_without_a_counter_the_reason_is_in_its_place(
    install: Any, uuid: str, answers: dict[str, Any], reason: str
) -> None:
    library = install(Nvml(**answers))
    with energy_meter("cuda", uuid) as meter:
        watch(meter, 0, 10)
        power = meter.mean_power()
    assert power.value is None
    assert reason in power.refused
    assert library.opened == 0
