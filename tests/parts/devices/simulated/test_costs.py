"""Launches cost what their operations' arithmetic and traffic say, once per function and shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_hwqueue.judge.baselines.runs import ENVIRONMENT_FIELDS
from pytest_hwqueue.parts.devices.simulated import costs as module
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, Costs, KernelWork
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

_OF_PEAK, _BYTES_PER_S = 0.79, 4.8e12 * 0.85


@pytest.fixture
def costs() -> Iterator[Costs]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    device = SimulatedDevice("h200")
    with device.open_streams(1):
        yield device.costs
    torch.set_float32_matmul_precision(before)


def kernels(costs: Costs, function: Callable[..., object], *arguments: Any) -> list[KernelWork]:
    works = costs.of(function, arguments)
    found = [work for work in works if isinstance(work, KernelWork)]
    assert len(found) == len(works)
    return found


@pytest.mark.parametrize(
    ("dtype", "precision", "rows", "blocks", "flop_per_s"),
    [
        (torch.float32, "highest", 8192, 64 * 64, 67e12),
        (torch.float32, "high", 8192, 64 * 64, 494e12),
        (torch.bfloat16, "highest", 8192, 64 * 64, 989e12),
        (torch.float16, "highest", 8192, 64 * 64, 989e12),
        # 64 tiles of 128 x 128 for 132 multiprocessors, halved once to reach more of them.
        (torch.float32, "highest", 1024, 128, 67e12 * 0.55 * 128 / 132),
        # 4 tiles, halved twice: smaller ones there are not.
        (torch.float32, "highest", 256, 16, 67e12 * 0.55**2 * 16 / 132),
        # 100 tiles: halving would lose more than it gains.
        (torch.float32, "highest", 1280, 100, 67e12 * 100 / 132),
    ],
)
def test_a_product_takes_its_arithmetic_on_the_multiprocessors_that_it_reaches(
    costs: Costs, dtype: torch.dtype, precision: str, rows: int, blocks: int, flop_per_s: float
) -> None:
    torch.set_float32_matmul_precision(precision)
    a, b = torch.empty(rows, 8192, dtype=dtype), torch.empty(8192, rows, dtype=dtype)
    (kernel,) = kernels(costs, torch.matmul, a, b)
    seconds = 2 * rows**2 * 8192 / (flop_per_s * _OF_PEAK)
    assert kernel.duration_ns == pytest.approx(seconds * 1e9, rel=1e-6)
    # Blocks stay to the end only on tensor cores; elsewhere others get in at each wave.
    tensor_cores = dtype is not torch.float32 or precision == "high"
    assert (kernel.blocks, kernel.waves_at_most) == (blocks, 1 if tensor_cores else None)


def test_a_convolution_in_tf32_turns_its_images_and_turns_them_back(costs: Costs) -> None:
    convolve = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    large, small = torch.empty(8, 64, 56, 56), torch.empty(1, 64, 56, 56)
    turned = large.contiguous(memory_format=torch.channels_last)
    assert len(kernels(costs, convolve, large)) == 1  # fp32 without TF32
    torch.set_float32_matmul_precision("high")
    before, convolution, after = kernels(costs, convolve, large)
    assert [len(kernels(costs, convolve, images)) for images in (turned, small)] == [1, 1]
    traffic_ns = 2 * 4 * large.numel() / _BYTES_PER_S * 1e9
    assert before.duration_ns == after.duration_ns == pytest.approx(traffic_ns, abs=1)
    # One operation of the host.
    assert [each.within for each in (before, convolution, after)] == [False, True, True]


def test_elementwise_work_takes_its_traffic_and_views_nothing(costs: Costs) -> None:
    large, small = torch.empty(2**28), torch.empty(8, 8)
    (kernel,) = kernels(costs, lambda: large.add_(1.0))
    assert kernel.duration_ns == pytest.approx(2 * 4 * 2**28 / _BYTES_PER_S * 1e9, rel=1e-6)
    assert kernel.blocks == 2**18
    (kernel,) = kernels(costs, lambda: small.add_(1.0))
    assert (kernel.duration_ns, kernel.blocks) == (800, 1)  # nothing is shorter
    views = kernels(costs, lambda: (small.view(64), small.t(), small[0], torch.empty_like(small)))
    assert views == []
    # A copy beside the host goes to a copy engine.
    target = torch.empty(8, 8)
    copied = costs.of(lambda: target.copy_(small, non_blocking=True), ())
    assert copied == (CopyWork(4 * 64),)


def test_modules_are_costed_by_their_parts_and_gradients_too() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1, gradients=True):
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 7, stride=2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()
        ).eval()
        names = [kernel.name for kernel in kernels(device.costs, net, torch.empty(8, 3, 224, 224))]
        layer, data = torch.nn.Linear(256, 256), torch.empty(64, 256)
        works = kernels(device.costs, lambda: layer(data).sum().backward())
    assert (names[0], names[-1]) == ("aten.convolution", "aten.relu")
    # Forward, and the weights' gradient.
    assert len([work for work in works if "mm" in work.name]) == 2


class Calls:
    """What was called; a plain list in a closure would count as what the work depends on."""

    def __init__(self) -> None:
        self.seen: list[int] = []


def test_a_function_runs_once_per_shape_and_value_though_made_anew(costs: Costs) -> None:
    calls, data = Calls(), torch.empty(10)

    def run(data: torch.Tensor) -> None:
        calls.seen.append(data.numel())
        data.add_(1.0)

    for size in (10, 10, 20, 10):
        costs.of(run, (torch.empty(size),))
    for _ in range(3):

        def run_anew(size: int, data: torch.Tensor = data) -> None:
            calls.seen.append(size)
            data.add_(1.0)

        costs.of(lambda run=run_anew: run(1), ())
        costs.of(functools.partial(run_anew, 2), ())
    assert calls.seen == [10, 20, 1, 2]

    def of(times: int) -> Callable[[], None]:
        def run(*, times: int = times) -> None:
            for _ in range(times):
                data.add_(1.0)

        return run

    assert [len(costs.of(of(times), ())) for times in (1, 3)] == [1, 3]


def test_what_two_cells_did_not_ask_for_is_forgotten(costs: Costs) -> None:
    calls = Calls()

    def run(number: int) -> None:
        calls.seen.append(number)

    for begun in (0, 1, 1, 2):
        for _ in range(begun):
            costs.age()
        costs.of(run, (begun,))
    # That of the second was still known to the third.
    costs.of(run, (0,))
    assert calls.seen == [0, 1, 2, 0]


def test_what_a_function_raises_is_raised_and_leaves_nothing_behind(costs: Costs) -> None:
    data = torch.empty(10)

    def broken() -> None:
        data.add_(1.0)
        raise ValueError("mine")

    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            costs.of(broken, ())
    assert len(costs.of(lambda: data.add_(1.0), ())) == 1


def test_a_cells_identity_is_the_profile_and_what_torch_makes_of_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fingerprint = SimulatedDevice("h200").fingerprint()
    assert set(fingerprint.hard) == {
        "device_kind", "device_name", "model_version", "profile", "profile_sha256",
        "kernels_of_torch",
    }  # fmt: skip
    assert fingerprint.soft["costed_by_torch"] == torch.__version__
    # Of soft fields these would set runs apart.
    assert not ENVIRONMENT_FIELDS & fingerprint.soft.keys()
    anew: Any = module._kernels_of
    monkeypatch.setattr(module, "_kernels_of", anew.__wrapped__)
    assert SimulatedDevice("h200").fingerprint().hard == fingerprint.hard
    # A torch that makes other kernels is another identity.
    linear = functional.linear
    monkeypatch.setattr(
        functional, "linear",
        lambda states, weight, bias=None: linear(states, weight) + (0 if bias is None else bias),
    )  # fmt: skip
    found = SimulatedDevice("h200").fingerprint().hard
    assert found["kernels_of_torch"] != fingerprint.hard["kernels_of_torch"]
