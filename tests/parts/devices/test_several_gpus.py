"""Several GPUs in one process: each has its own streams, whichever was used before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.accelerator import Accelerator, AcceleratorPool
from pytest_hwqueue.parts.devices.kinds import Runtime

from .gpus import Gpus
from .marks import within_patience

if TYPE_CHECKING:
    from tests.conftest import Sessions


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus(2, {}, {"cudaStreamGetDevice", "hipStreamGetDevice"})
    made.install(monkeypatch)
    return made


def devices_of(gpus: Gpus, pool: AcceleratorPool) -> list[int]:
    return [gpus.devices[stream.handle] for stream in pool.streams]


def test_streams_are_on_their_device_whichever_is_current(gpus: Gpus) -> None:
    first, second = Accelerator(0, "cuda"), Accelerator(1, "cuda:1")
    assert gpus.current == 0
    for device in (second, first, second):
        with device.open_streams(2) as pool:
            assert gpus.current == device.index
            pool.streams[1].launch(lambda: None)
            assert gpus.current == device.index
            assert devices_of(gpus, pool) == [device.index] * 2
        assert gpus.current == 0
    # After a cell of the other one more streams are needed.
    gpus.set_device(1)
    with first.open_streams(5) as pool:
        assert devices_of(gpus, pool) == [0] * 5
    assert gpus.current == 1


def test_a_new_thread_begins_on_the_first_device_and_opens_on_its_own(gpus: Gpus) -> None:
    device = Accelerator(1, "cuda:1")
    seen: list[int] = []

    def run() -> None:
        assert gpus.current == 0
        with device.open_streams(3) as pool:
            seen.extend(devices_of(gpus, pool))

    within_patience(run)
    assert seen == [1, 1, 1]
    assert gpus.current == 0


def test_threads_that_launch_are_on_their_pools_device_with_a_stream_each(gpus: Gpus) -> None:
    device = Accelerator(1, "cuda:1")
    seen: list[int] = []
    with device.open_streams(3) as pool:
        window = pool.launching_window([lambda: seen.append(gpus.current)] * 3, 60, 100)
        assert pool.busy == {0, 1, 2}
    assert seen == [1] * 60
    assert window.calls == 60


def test_a_stream_on_another_device_is_an_error(gpus: Gpus) -> None:
    device = Accelerator(1, "cuda:1")
    gpus.making_on = 0
    with pytest.raises(DeviceError, match=r"asked of cuda:1 lives on cuda:0: .*make one GPU vis"):
        device.open_streams(1)
    # With one GPU visible nothing is asked: no function that an older runtime may lack.
    gpus.count = 1
    gpus.tells.clear()
    with Accelerator(0, "cuda").open_streams(2) as pool:
        assert devices_of(gpus, pool) == [0, 0]


@pytest.mark.parametrize("tells", [{"cudaStreamGetDevice"}, set()], ids=["runtime", "driver"])
def test_cuda_tells_a_streams_device_by_its_runtime_or_before_that_its_driver(
    gpus: Gpus, tells: set[str]
) -> None:
    gpus.tells.clear()
    gpus.tells.update(tells)
    runtime = Runtime(hip=False)
    for device in (1, 0):
        with gpus.device(device):
            handle = runtime.create_stream(0)
        assert runtime.stream_device(handle) == device


def test_hip_tells_a_streams_device_or_is_too_old(gpus: Gpus) -> None:
    runtime = Runtime(hip=True)
    with gpus.device(1):
        handle = runtime.create_stream(0)
    assert runtime.stream_device(handle) == 1
    gpus.tells.clear()
    with pytest.raises(DeviceError, match="no hipStreamGetDevice: update ROCm"):
        runtime.stream_device(handle)


def test_cuda_in_a_test_is_the_device_that_it_measures(tmp_path: Path, sessions: Sessions) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import torch
from pytest_hwqueue.parts.devices import kinds
from pytest_hwqueue.parts.devices.host import HostDevice

class Gpu(HostDevice):
    torch_device = torch.device("cuda", 1)

chosen = []
torch.cuda.set_device = chosen.append
kinds.open_device = lambda *_: Gpu()
def test_mine(hwq_device):
    assert chosen == [torch.device("cuda", 1)]
"""
    )
    result = sessions.result(tmp_path, "--hwq-device=cpu", "--hwq-isolation=none")
    result.assert_outcomes(passed=1)
