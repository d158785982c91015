"""Hardware queues by a runtime's variable: what it takes, and what a device believes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.parts.devices.accelerator import Accelerator
from pytest_hwqueue.parts.devices.connections import CONNECTIONS
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

CUDA, HIP = CONNECTIONS["cuda"], CONNECTIONS["hip"]


@pytest.mark.parametrize(
    ("text", "count", "problem"),
    [
        ("", 8, ""),
        ("1", 1, ""),
        ("32", 32, ""),
        ("33", 32, "the runtime takes numbers from 1 to 32: 33 is 32"),
        ("64", 32, "the runtime takes numbers from 1 to 32: 64 is 32"),
        *(
            (wrong, 8, f"{wrong!r} is no number from 1 to 32, so the default, 8, is assumed")
            for wrong in ("0", "-1", "many", "8.0", " 8", "٨")
        ),
    ],
)
def test_cuda_has_from_1_to_32(text: str, count: int, problem: str) -> None:
    assert CUDA.count({CUDA.variable: text}) == count
    assert CUDA.problem(text) == problem


def test_hip_names_no_greatest_number() -> None:
    assert HIP.count({}) == 4
    assert HIP.count({HIP.variable: "64"}) == 64
    assert HIP.problem("64") == ""
    assert HIP.problem("x") == "'x' is no number of at least 1, so the default, 4, is assumed"


@pytest.mark.parametrize(("kind", "setting", "count"), [("cuda", CUDA, 32), ("hip", HIP, 64)])
def test_a_gpu_has_as_many_as_its_runtime_takes(
    monkeypatch: pytest.MonkeyPatch, kind: str, setting: Any, count: int
) -> None:
    device: Any = Accelerator.__new__(Accelerator)
    device.kind = kind
    monkeypatch.setenv(setting.variable, "64")
    assert device.connections == count


def together_ns(profile: str) -> int:
    """How long one kernel of 1 ms on each of 8 streams takes, each behind a launch and an event."""
    device = SimulatedDevice(profile)
    kernel = device.kernel_of(1_000_000)
    with device.open_streams(8) as pool:
        begin_ns = device.clock_ns()
        for stream in pool.streams:
            for _ in range(2):
                stream.launch(kernel)
                stream.record()
        pool.synchronize()
        return device.clock_ns() - begin_ns


@pytest.mark.parametrize(
    ("profile", "own", "other"), [("h200", CUDA, HIP), ("mi300x", HIP, CUDA)], ids=["cuda", "hip"]
)
def test_a_simulated_gpu_has_its_vendors_variable_modelled(
    monkeypatch: pytest.MonkeyPatch, profile: str, own: Any, other: Any
) -> None:
    monkeypatch.delenv(own.variable, raising=False)
    monkeypatch.setenv(other.variable, "1")
    plain = SimulatedDevice(profile)
    assert plain.connections == own.default
    assert not any("environment" in field for field in plain.fingerprint().hard)
    by_default_ns = together_ns(profile)

    monkeypatch.setenv(own.variable, "8")
    eight_ns = together_ns(profile)
    assert eight_ns < 3_000_000
    assert (by_default_ns == eight_ns) == (own.default == 8)

    monkeypatch.setenv(own.variable, "1")
    changed = SimulatedDevice(profile)
    assert changed.connections == changed.profile.hardware().connections == 1
    assert changed.fingerprint().hard[f"environment.{own.variable}"] == "1"
    # In one queue a stream's event waits for its kernel, and the next stream's kernel for that.
    assert together_ns(profile) > 12_000_000
