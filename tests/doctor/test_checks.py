"""Checks find what was put there for them to find, and say what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from pytest_hwqueue.devices.fingerprint import Fingerprint, fingerprint
from pytest_hwqueue.devices.kinds import CPU, KINDS, DeviceChoice, open_device
from pytest_hwqueue.devices.telemetry import OtherProcess, TelemetrySample, Unavailable
from pytest_hwqueue.doctor import checks
from pytest_hwqueue.doctor.checks import Check, CheckedMachine, CheckStatus, ask, run_checks
from pytest_hwqueue.errors import DeviceError

CUDA = DeviceChoice("cuda", "cuda", 0)
HIP = DeviceChoice("hip", "hip", 0)


class FakeGpu:
    """As much of a GPU as the checks look at; it lets nobody see kernel times."""

    index = 0
    name = "a GPU"
    lease_key = "GPU-0"

    def __init__(self, kind: str) -> None:
        self.kind = self.label = kind
        self.capabilities = KINDS[kind]

    def fingerprint(self) -> Fingerprint:
        kind: Any = self.kind
        return fingerprint(kind, self.index)

    def kernel_of(self, duration_ns: int) -> Any:
        return lambda: None

    def open_streams(self, count: int) -> Any:
        return self

    def __enter__(self) -> FakeGpu:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def held_timeline(self, enqueue: object) -> Any:
        raise DeviceError("no right to trace this GPU")


class FakeReader:
    def __init__(self, **values: Any) -> None:
        empty = {"sm_clock_mhz": None, "memory_clock_mhz": None, "temperature_c": None}
        self.sample = TelemetrySample(when_ns=0, **{**empty, "power_w": None, **values})
        self.closed = False

    def read(self) -> TelemetrySample:
        return self.sample

    def describe(self) -> str:
        return "a fake reader"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty machine: no device files, no governor, no quota."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def machine(
    root: Path,
    choice: DeviceChoice = CPU,
    environment: Mapping[str, str] | None = None,
    **changes: Any,
) -> CheckedMachine:
    device: Any = open_device("cpu") if choice is CPU else FakeGpu(choice.kind)
    made = CheckedMachine(choice, device, "", environment or {}, root / "records", root)
    return dataclasses.replace(made, **changes)


def read_by(monkeypatch: pytest.MonkeyPatch, reader: FakeReader | Unavailable) -> None:
    monkeypatch.setattr(FakeGpu, "open_telemetry", lambda gpu: reader, raising=False)


def place(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_on_this_machine_every_check_answers(tmp_path: Path) -> None:
    found = run_checks(CheckedMachine(CPU, open_device("cpu"), "", {}, tmp_path))

    assert [check.name for check in found] == [
        "torch", "device", "kernel times", "preloaded libraries", "CPU frequency", "cores", "load",
        "disk",
    ]  # fmt: skip
    for check in found:
        assert check.status in get_args(CheckStatus)
        assert check.found
        assert bool(check.advice) == (check.status in ("warning", "problem")), check


def test_an_accelerator_is_asked_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(monkeypatch, FakeReader())
    names = {check.name for check in run_checks(machine(root, CUDA))}
    assert {"driver", "clocks", "other processes", "queue settings", "MPS"} <= names
    assert "MPS" not in {check.name for check in run_checks(machine(root, HIP))}


def test_a_check_that_fails_is_unknown_and_costs_no_other(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> object:
        raise OSError("no such luck")

    monkeypatch.setattr("os.getloadavg", broken)

    found = {check.name: check for check in run_checks(machine(root))}

    assert found["load"] == Check("load", "unknown", "OSError: no such luck")
    assert found["disk"].status == "ok"


def test_a_cpu_build_of_torch_beside_a_gpu_is_a_problem(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert ask("torch", machine(root)).status == "ok"
    place(root / "dev/nvidia0")
    found = ask("torch", machine(root))
    assert found.status == "problem"
    assert "NVIDIA" in found.found
    assert "install" in found.advice


def test_falling_back_to_the_cpu_beside_a_gpu_is_told(root: Path) -> None:
    assert ask("device", machine(root)).status == "ok"
    place(root / "dev/kfd")
    found = ask("device", machine(root))
    assert found.status == "warning"
    assert "AMD" in found.found


def test_a_device_that_cannot_be_opened_is_a_problem_and_the_rest_is_unknown(root: Path) -> None:
    broken = machine(root, CUDA, device=None, device_error="no CUDA-capable device is detected")

    found = {check.name: check for check in run_checks(broken)}

    assert found["device"].status == "problem"
    assert "no CUDA-capable device is detected" in found["device"].found
    for name in ("vendor library", "driver", "clocks", "other processes", "kernel times"):
        assert found[name] == Check(name, "unknown", "the device cannot be opened")


@pytest.mark.parametrize(("choice", "name"), [
    (CUDA, "CUDA_LAUNCH_BLOCKING"), (HIP, "HIP_LAUNCH_BLOCKING"), (HIP, "AMD_SERIALIZE_KERNEL"),
])  # fmt: skip
def test_launches_that_block_are_a_problem(root: Path, choice: DeviceChoice, name: str) -> None:
    found = ask("queue settings", machine(root, choice, {name: "1"}))
    assert found.status == "problem"
    assert f"{name}=1" in found.found
    assert f"unset {name}" in found.advice

    assert ask("queue settings", machine(root, choice, {name: "0"})).status == "warning"


@pytest.mark.parametrize(("choice", "name", "status"), [
    (CUDA, "CUDA_DEVICE_MAX_CONNECTIONS", "warning"),
    (HIP, "GPU_MAX_HW_QUEUES", "warning"),
    (CUDA, "GPU_MAX_HW_QUEUES", "ok"),
    (CUDA, "PATH", "ok"),
])  # fmt: skip
def test_queue_settings_of_the_runtime_in_use_are_told(
    root: Path, choice: DeviceChoice, name: str, status: str
) -> None:
    assert ask("queue settings", machine(root, choice, {name: "4"})).status == status


def test_mps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[Any] = []
    monkeypatch.setattr("psutil.process_iter", lambda attributes: running)
    assert ask("MPS", machine(root, CUDA)).status == "ok"

    place(root / "tmp/nvidia-mps/control")
    assert ask("MPS", machine(root, CUDA)).status == "unknown"

    elsewhere = {"CUDA_MPS_PIPE_DIRECTORY": str(root / "pipes")}
    assert ask("MPS", machine(root, CUDA, elsewhere)).status == "ok"

    class Daemon:
        pid = 77

        def __init__(self) -> None:
            self.info = {"name": "nvidia-cuda-mps"}

    running.append(Daemon())
    found = ask("MPS", machine(root, CUDA, elsewhere))
    assert found.status == "warning"
    assert str(root / "pipes") in found.found


def test_other_processes_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FakeReader(other_processes=(OtherProcess(4711, "trainer", None),))
    read_by(monkeypatch, reader)
    found = ask("other processes", machine(root, CUDA))
    assert found.status == "warning"
    assert found.found == "trainer (process 4711)"
    assert reader.closed

    read_by(monkeypatch, FakeReader())
    assert ask("other processes", machine(root, CUDA)).status == "ok"


def test_without_the_vendors_library_nothing_is_claimed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(monkeypatch, Unavailable("no pynvml here"))

    library = ask("vendor library", machine(root, CUDA))
    assert (library.status, library.found) == ("warning", "no pynvml here")
    others = ask("other processes", machine(root, CUDA))
    assert others.status == "unknown"
    assert "no pynvml here" in others.found


def test_throttling_now_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(monkeypatch, FakeReader(sm_clock_mhz=345.0, throttle_reasons=("power_cap",)))

    found = ask("clocks", machine(root, CUDA))

    assert found.status == "warning"
    assert "345.0 MHz" in found.found
    assert "power_cap" in found.found


def test_no_right_to_trace_costs_timelines_only(root: Path) -> None:
    found = ask("kernel times", machine(root, CUDA))

    assert found.status == "warning"
    assert found.found == "no right to trace this GPU"


def test_a_preloaded_library_is_told(root: Path) -> None:
    assert ask("preloaded libraries", machine(root)).status == "ok"
    found = ask("preloaded libraries", machine(root, environment={"LD_PRELOAD": "/lib/shim.so"}))
    assert found.status == "warning"
    assert "/lib/shim.so" in found.found


@pytest.mark.parametrize(("governors", "status"), [
    (["performance", "performance"], "ok"), (["performance", "powersave"], "warning"),
    ([], "unknown"),
])  # fmt: skip
def test_governor(root: Path, governors: list[str], status: str) -> None:
    for core, governor in enumerate(governors):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        place(folder / "scaling_governor", f"{governor}\n")

    found = ask("CPU frequency", machine(root))

    assert found.status == status
    assert all(governor in found.found for governor in governors)


@pytest.mark.parametrize(("quota", "status"), [
    ("max 100000\n", "ok"), ("800000 100000\n", "ok"), ("150000 100000\n", "warning"),
])  # fmt: skip
def test_a_cpu_quota_below_the_cores_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, quota: str, status: str
) -> None:
    monkeypatch.setattr(checks, "_usable_cores", lambda: 4)
    place(root / "sys/fs/cgroup/cpu.max", quota)

    found = ask("cores", machine(root))

    assert found.status == status
    assert ("1.5 cores" in found.found) == (status == "warning")


@pytest.mark.parametrize(("load", "choice", "status"), [
    (0.1, CPU, "ok"), (1.5, CPU, "warning"), (1.5, CUDA, "ok"), (3.5, CUDA, "warning"),
])  # fmt: skip
def test_load(
    root: Path, monkeypatch: pytest.MonkeyPatch, load: float, choice: DeviceChoice, status: str
) -> None:
    monkeypatch.setattr(checks, "_usable_cores", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))

    assert ask("load", machine(root, choice)).status == status


def test_a_folder_that_cannot_hold_records_is_a_problem(root: Path) -> None:
    place(root / "file")
    found = ask("disk", machine(root, folder=root / "file" / "records"))
    assert found.status == "problem"
    assert str(root / "file") in found.found


def test_a_full_disk_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 2**20

    assert ask("disk", machine(root)).status == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    assert ask("disk", machine(root)).status == "warning"
