"""Launches cost what their operations' arithmetic and traffic say, once per function and shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch

from pytest_hwqueue.devices.simulated.costs import CopyWork, Costs, KernelWork, Work
from pytest_hwqueue.devices.simulated.device import SimulatedDevice


@pytest.fixture
def costs() -> Iterator[Costs]:
    device = SimulatedDevice("h200")
    with device.open_streams(1):
        yield device.costs


class Calls:
    """What was called; a plain list in a closure would count as what the work depends on."""

    def __init__(self) -> None:
        self.seen: list[int] = []


def kernels(works: tuple[Work, ...]) -> list[KernelWork]:
    assert all(isinstance(work, KernelWork) for work in works)
    return [work for work in works if isinstance(work, KernelWork)]


@pytest.mark.parametrize(
    ("dtype", "precision", "flop_per_s"),
    [
        (torch.float32, "highest", 67e12),
        (torch.float32, "high", 494e12),
        (torch.bfloat16, "highest", 989e12),
        (torch.float16, "highest", 989e12),
    ],
)
def test_a_large_product_takes_its_arithmetic(
    costs: Costs, dtype: torch.dtype, precision: str, flop_per_s: float
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        a = torch.empty(8192, 8192, dtype=dtype)
        (kernel,) = kernels(costs.of(lambda: a @ a, ()))
    finally:
        torch.set_float32_matmul_precision(before)
    assert kernel.duration_ns == pytest.approx(2 * 8192**3 / (flop_per_s * 0.79) * 1e9, rel=1e-6)
    assert kernel.blocks == 64 * 64
    # Blocks stay to the end only on tensor cores; elsewhere others get in at each wave.
    tensor_cores = dtype is not torch.float32 or precision == "high"
    assert kernel.waves_at_most == (1 if tensor_cores else None)


@pytest.mark.parametrize(
    ("rows", "blocks", "share"),
    [
        # 64 tiles of 128 x 128 for 132 multiprocessors, halved once.
        (1024, 128, 0.55 * 128 / 132),
        # 4 tiles, halved twice: smaller ones there are not.
        (256, 16, 0.55**2 * 16 / 132),
        # 96 tiles: halving would lose more than it gains.
        (1536, 96, 96 / 132),
    ],
)
def test_a_small_product_is_cut_finer_to_reach_more_multiprocessors(
    costs: Costs, rows: int, blocks: int, share: float
) -> None:
    columns = 1024 if rows > 256 else 256
    a, b = torch.empty(rows, 8192), torch.empty(8192, columns)
    (kernel,) = kernels(costs.of(lambda: a @ b, ()))
    assert kernel.blocks == blocks
    seconds = 2 * rows * columns * 8192 / (67e12 * 0.79 * share)
    assert kernel.duration_ns == pytest.approx(seconds * 1e9, rel=1e-6)


def convolve(images: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(images, torch.empty(64, 64, 3, 3), padding=1)


def test_a_convolution_in_tf32_turns_its_images_and_turns_them_back(
    costs: Costs,
) -> None:
    large, small = torch.empty(8, 64, 56, 56), torch.empty(1, 64, 56, 56)
    turned = large.contiguous(memory_format=torch.channels_last)
    assert len(kernels(costs.of(convolve, (large,)))) == 1  # fp32 without TF32
    torch.set_float32_matmul_precision("high")
    try:
        before, convolution, after = kernels(costs.of(convolve, (large,)))
        assert len(kernels(costs.of(convolve, (turned,)))) == 1
        assert len(kernels(costs.of(convolve, (small,)))) == 1
    finally:
        torch.set_float32_matmul_precision("highest")
    traffic_ns = 2 * 4 * large.numel() / (4.8e12 * 0.85) * 1e9
    assert before.duration_ns == after.duration_ns == pytest.approx(traffic_ns, abs=1)
    # One operation of the host.
    assert [each.within for each in (before, convolution, after)] == [False, True, True]


def test_elementwise_work_takes_its_traffic(costs: Costs) -> None:
    a = torch.empty(2**28)
    (kernel,) = kernels(costs.of(lambda: a.add_(1.0), ()))
    assert kernel.duration_ns == pytest.approx(2 * 4 * 2**28 / (4.8e12 * 0.85) * 1e9, rel=1e-6)
    assert kernel.blocks == 2**18


def test_nothing_is_shorter_than_the_floor(costs: Costs) -> None:
    a = torch.empty(8)
    (kernel,) = kernels(costs.of(lambda: a.add_(1.0), ()))
    assert (kernel.duration_ns, kernel.blocks) == (800, 1)


def test_views_and_allocations_enqueue_nothing(costs: Costs) -> None:
    a = torch.empty(8, 8)
    assert costs.of(lambda: (a.view(64), a.t(), a[0], torch.empty_like(a), a.detach()), ()) == ()


def test_a_copy_beside_the_host_goes_to_a_copy_engine(costs: Costs) -> None:
    a, b = torch.empty(1000), torch.empty(1000)
    assert costs.of(lambda: a.copy_(b, non_blocking=True), ()) == (CopyWork(4000),)


def test_modules_are_costed_by_their_parts(costs: Costs) -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()
    ).eval()
    image = torch.empty(8, 3, 224, 224)
    names = [kernel.name for kernel in kernels(costs.of(module, (image,)))]
    assert names[0] == "aten.convolution"
    assert names[-1] == "aten.relu"


def test_gradients_are_costed_too() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1, gradients=True):
        layer = torch.nn.Linear(256, 256)
        data = torch.empty(64, 256)
        works = device.costs.of(lambda: layer(data).sum().backward(), ())
    products = [work for work in kernels(works) if "mm" in work.name]
    assert len(products) == 2  # forward, and the weights' gradient


def test_a_function_runs_once_per_shape(costs: Costs) -> None:
    calls = Calls()

    def run(data: torch.Tensor) -> None:
        calls.seen.append(data.numel())
        data.add_(1.0)

    for size in (10, 10, 20, 10):
        costs.of(run, (torch.empty(size),))
    assert calls.seen == [10, 20]


def test_functions_made_anew_are_costed_once(costs: Costs) -> None:
    calls = Calls()
    data = torch.empty(10)
    for _ in range(3):

        def run(size: int, data: torch.Tensor = data) -> None:
            calls.seen.append(size)
            data.add_(1.0)

        costs.of(lambda run=run: run(1), ())
        costs.of(functools.partial(run, 2), ())
    assert calls.seen == [1, 2]


def test_functions_that_differ_in_a_default_by_name_are_costed_apart(costs: Costs) -> None:
    data = torch.empty(10)

    def of(times: int) -> Callable[[], None]:
        def run(*, times: int = times) -> None:
            for _ in range(times):
                data.add_(1.0)

        return run

    assert [len(costs.of(of(times), ())) for times in (1, 3)] == [1, 3]


def test_what_a_function_raises_is_raised_and_leaves_nothing_behind(costs: Costs) -> None:
    data = torch.empty(10)

    def broken() -> None:
        data.add_(1.0)
        raise ValueError("mine")

    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            costs.of(broken, ())
    assert len(costs.of(lambda: data.add_(1.0), ())) == 1
