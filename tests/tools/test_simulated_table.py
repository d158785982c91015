"""The references, simulated beside measured: what is off is what is called not calibrated."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.data.document.document import markdown
from pytest_hwqueue.options.listing import workloads_document
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.profile import load_profile
from tools.simulated_table import off, pairs

BASELINES = Path(__file__).parents[2] / "baselines"


def test_what_is_off_by_more_than_twofold_is_called_not_calibrated() -> None:
    found = off(pairs("sim-h200/reference", "nvidia-h200/reference", BASELINES))
    named = load_profile("h200").not_calibrated
    assert found.keys() == named.keys()
    assert {name: round(ratio, 2) for name, ratio in found.items()} == pytest.approx(named)


def test_it_is_said_in_lists_and_beside_figures_and_is_no_other_device() -> None:
    device = SimulatedDevice("h200")
    said = "not calibrated: P99 of llm_decode on sim:h200 is 0.41 of that on a measured NVIDIA H200"
    assert device.doubt("llm_decode") == said
    assert device.doubt("hetero_kernels") == ""
    listed = markdown(workloads_document(verbose=False))
    assert listed.count("sim:h200 is not calibrated for it") == len(device.profile.not_calibrated)
    before = device.fingerprint()
    device.profile = device.profile.model_copy(update={"not_calibrated": {}})
    assert device.fingerprint() == before
