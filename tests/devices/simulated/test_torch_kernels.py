"""A simulated cell's identity: the profile and what torch makes of operations, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_hwqueue.baselines.runs import ENVIRONMENT_FIELDS
from pytest_hwqueue.devices.simulated import costs as module
from pytest_hwqueue.devices.simulated import device as device_module
from pytest_hwqueue.devices.simulated.device import SimulatedDevice


def test_neither_the_machine_nor_torchs_version_identifies_a_simulated_cell() -> None:
    fingerprint = SimulatedDevice("h200").fingerprint()
    assert set(fingerprint.hard) == {
        "device_kind", "device_name", "model_version", "profile", "profile_sha256",
        "kernels_of_torch",
    }  # fmt: skip
    assert fingerprint.soft["costed_by_torch"] == torch.__version__
    # Of soft fields these would set runs apart.
    assert not ENVIRONMENT_FIELDS & fingerprint.soft.keys()


def test_a_torch_that_makes_other_kernels_is_another_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = module.torch_kernels()
    other: Any = module.torch_kernels.__wrapped__
    assert other() == before
    linear = functional.linear

    def in_two_kernels(states: Any, weight: Any, bias: Any = None) -> Any:
        product = linear(states, weight)
        return product if bias is None else product + bias

    monkeypatch.setattr(functional, "linear", in_two_kernels)
    assert other() != before
    monkeypatch.setattr(device_module, "torch_kernels", other)
    assert SimulatedDevice("h200").fingerprint().hard["kernels_of_torch"] != before
