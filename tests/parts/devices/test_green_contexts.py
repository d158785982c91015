"""Green contexts by a stand-in for the driver, and what is said where the real one is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.compute_units import GroupEvidence
from pytest_hwqueue.parts.devices.green_contexts import GreenContexts, group_of, why_not

from .cuda_driver import TOTAL, CUresult, Driver
from .vendors import raising

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    why_not.cache_clear()
    yield
    why_not.cache_clear()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver of an H200; its kernels mark memory of the host."""
    driver = Driver()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", cast(ModuleType, driver))
    return driver


@pytest.mark.parametrize("split", [(8,), (32,), (128,), (8, 16, 24), (64, 64)])
def test_each_stream_runs_on_its_group(driver: Driver, split: tuple[int, ...]) -> None:
    contexts = GreenContexts(0, split)
    handles = [contexts.create_stream(group, -group) for group in range(len(split) + 1)]
    assert [driver.streams[handle][1] for handle in handles] == [-g for g in range(len(handles))]
    for replayed in (False, True):
        groups = [group_of(handle, CPU, replayed=replayed) for handle in handles]
        assert [each.size for each in groups] == [*split, TOTAL - sum(split)]
        numbers = [number for each in groups for number in each.numbers]
        assert sorted(numbers) == list(range(TOTAL))
    # Others of a group share its context.
    again = [contexts.create_stream(group, 0) for group in range(len(split) + 1)]
    owners = [[driver.streams[handle][0] for handle in each] for each in (handles, again)]
    assert owners[0] == owners[1]
    assert len(set(owners[0])) == len(handles)


def test_a_stream_that_is_not_confined_is_seen_everywhere(driver: Driver) -> None:
    stream = GreenContexts(0, (32,)).create_stream(0, 0)
    for replayed in (False, True):
        driver.confined, driver.replays_confined = replayed, not replayed
        assert group_of(stream, CPU, replayed=replayed).numbers == list(range(TOTAL))
        assert len(group_of(stream, CPU, replayed=not replayed).numbers) == 32
    assert group_of(7, CPU, replayed=False) == GroupEvidence(0, list(range(TOTAL)))


@pytest.mark.parametrize(("asked", "read"), [(None, None), (0, 8), (4, 4)])
def test_each_context_is_given_queues_of_its_own(
    driver: Driver, asked: int | None, read: int | None
) -> None:
    contexts = GreenContexts(0, (32, 16), asked)
    handles = [contexts.create_stream(group, 0) for group in range(3)]
    groups = [group_of(handle, CPU, replayed=False, queues=True) for handle in handles]
    assert [each.queues for each in groups] == [read] * 3
    # What is left between two splits is a context that no stream is in: it takes no queues.
    assert [each.wqConfig.sharingScope for each in driver.queues].count(1) == (3 if read else 0)
    assert len(driver.contexts) == 4


OTHERS = ("{} multiprocessors asked for, {} given: of the 132 there are, the driver does not split "
          "off other numbers (at least 8, in multiples of 8); ask for {}")  # fmt: skip
WHOLE = "{} multiprocessors asked for, and the GPU has 132"


@pytest.mark.parametrize(
    ("split", "others", "said"),
    [
        ((32,), True, None),
        ((16, 32), True, None),
        ((128,), True, None),
        ((30,), True, OTHERS.format(30, 32, 32)),
        ((4,), True, OTHERS.format(4, 8, 8)),
        ((64, 30), False, OTHERS.format(30, 32, 32)),
        ((136,), False, WHOLE.format(136)),
        ((64, 72), False, WHOLE.format(136)),
        ((132,), True, WHOLE.format(132) + ", which leaves none for the others"),
    ],
)
def test_an_impossible_split_is_known_before_a_context_is_made(
    driver: Driver, split: tuple[int, ...], others: bool, said: str | None
) -> None:
    assert why_not(split, others=others) == said
    assert not driver.contexts


def test_opening_says_what_was_given_too(driver: Driver) -> None:
    with pytest.raises(DeviceError, match="30 multiprocessors asked for, 32 given"):
        GreenContexts(0, (30,))
    with pytest.raises(DeviceError, match="64 multiprocessors asked for, and 36 are left"):
        GreenContexts(0, (96, 64))
    left = GreenContexts(0, (64, 64)).create_stream(2, 0)
    assert group_of(left, CPU, replayed=False) == GroupEvidence(4, [128, 129, 130, 131])


def test_what_the_driver_lacks_is_named(driver: Driver) -> None:
    driver.version = 12030
    assert "of CUDA 12.3; green contexts came with CUDA 12.4" in (why_not((32,), others=True) or "")
    why_not.cache_clear()
    driver.version = 13000
    said = why_not((32,), others=True, queues=True) or ""
    assert "of CUDA 13.0; work queues of green contexts came with CUDA 13.1: update" in said
    assert why_not((32,), others=True) is None
    why_not.cache_clear()
    driver.version = 13010
    assert why_not((32,), others=True, queues=True) is None
    why_not.cache_clear()
    driver.CUdevWorkqueueConfigScope = SimpleNamespace()
    assert "install cuda-bindings 13.1" in (why_not((32,), others=True, queues=True) or "")
    refused = (CUresult.CUDA_ERROR_INVALID_VALUE,)
    driver.cuInit = lambda *_: refused  # type: ignore[method-assign]
    assert why_not((32,), others=True) == "cuInit failed with error 1: CUDA_ERROR_INVALID_VALUE"

    del driver.cuInit
    absent = raising(RuntimeError('Function "cuGreenCtxStreamCreate" not found'))
    driver.cuGreenCtxStreamCreate = absent  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="cuGreenCtxStreamCreate cannot be called: Function"):
        GreenContexts(0, (32,)).create_stream(0, 0)


def test_without_cuda_bindings_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    reason = why_not((32,), others=True) or ""
    assert "need the Python package cuda-bindings" in reason
    assert "install pytest-hwqueue[green-context]" in reason


def test_the_stand_in_has_the_names_of_cuda_bindings() -> None:
    real = pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    assert importlib.import_module("cuda.bindings.driver") is real
    for name in dir(Driver):
        assert name.startswith("_") or hasattr(real, name), name
