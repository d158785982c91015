"""Checks find what was put there for them to find, and say what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_hwqueue.answers.doctor.checks import Check, CheckedMachine, CheckStatus, ask, run_checks
from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.data.records.telemetry import OtherProcess, TelemetrySample
from pytest_hwqueue.parts.devices.fingerprint import fingerprint
from pytest_hwqueue.parts.devices.kinds import CPU, DeviceChoice, open_device
from pytest_hwqueue.parts.devices.telemetry import Unavailable
from pytest_hwqueue.parts.processes.process_table import RunningProgram

CUDA = DeviceChoice("cuda", "cuda", 0)
HIP = DeviceChoice("hip", "hip", 0)


class FakeGpu:
    """As much of a GPU as the checks look at; it lets nobody see kernel times."""

    index = 0
    name = "a GPU"
    lease_key = "GPU-0"

    def __init__(self, kind: str, reader: FakeReader | Unavailable | None) -> None:
        self.kind = self.label = kind
        self.reader = reader
        self.capabilities = KINDS[kind]

    def fingerprint(self) -> Fingerprint:
        kind: Any = self.kind
        return fingerprint(kind, self.index)

    def open_telemetry(self) -> Any:
        return self.reader

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
    reader: FakeReader | Unavailable | None = None,
    **changes: Any,
) -> CheckedMachine:
    device: Any = open_device("cpu") if choice is CPU else FakeGpu(choice.kind, reader)
    made = CheckedMachine(choice, device, "", environment or {}, root / "records", root)
    return dataclasses.replace(made, **{"programs": lambda names: [], **changes})


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


def test_an_accelerator_is_asked_more(root: Path) -> None:
    reader = FakeReader()
    names = {check.name for check in run_checks(machine(root, CUDA, reader=reader))}
    assert {"driver", "clocks", "other processes", "queue settings", "MPS"} <= names
    assert "MPS" not in {check.name for check in run_checks(machine(root, HIP, reader=reader))}


def test_a_check_that_fails_is_unknown_and_costs_no_other(root: Path) -> None:
    place(root / "proc/loadavg", "no such luck")
    found = {check.name: check for check in run_checks(machine(root))}

    assert found["load"] == Check(
        "load", "unknown", "ValueError: could not convert string to float: 'no'"
    )
    assert found["disk"].status == "ok"


@pytest.mark.parametrize(
    ("name", "device_file", "status", "vendor"),
    [("torch", "dev/nvidia0", "problem", "NVIDIA"), ("device", "dev/kfd", "warning", "AMD")],
)
def test_the_cpu_beside_a_gpu_is_told(
    root: Path, name: str, device_file: str, status: str, vendor: str
) -> None:
    assert ask(name, machine(root, runtime="")).status == "ok"
    place(root / device_file)
    found = ask(name, machine(root, runtime=""))
    assert found.status == status
    assert f"though the {vendor} driver is loaded" in found.found
    assert found.advice


def test_a_device_that_cannot_be_opened_is_a_problem_and_the_rest_is_unknown(root: Path) -> None:
    broken = machine(root, CUDA, device=None, device_error="no CUDA-capable device is detected")

    found = {check.name: check for check in run_checks(broken)}

    assert found["device"].status == "problem"
    assert "no CUDA-capable device is detected" in found["device"].found
    for name in ("vendor library", "driver", "clocks", "other processes", "kernel times"):
        assert found[name] == Check(name, "unknown", "the device cannot be opened")


@pytest.mark.parametrize(("choice", "given", "status"), [
    *((choice, f"{name}={value}", status)
      for choice, name in ((CUDA, "CUDA_LAUNCH_BLOCKING"), (HIP, "HIP_LAUNCH_BLOCKING"),
                           (HIP, "AMD_SERIALIZE_KERNEL"))
      for value, status in (("1", "problem"), ("0", "warning"))),
    (CUDA, "CUDA_DEVICE_MAX_CONNECTIONS=4", "warning"),
    (HIP, "GPU_MAX_HW_QUEUES=4", "warning"),
    (CUDA, "GPU_MAX_HW_QUEUES=4", "ok"),
    (CUDA, "PATH=4", "ok"),
])  # fmt: skip
def test_launches_that_block_are_a_problem_and_other_queue_settings_are_told(
    root: Path, choice: DeviceChoice, given: str, status: str
) -> None:
    name, _, value = given.partition("=")
    found = ask("queue settings", machine(root, choice, {name: value}))
    assert found.status == status
    assert (given in found.found) == (status != "ok")
    assert (f"unset {name}:" in found.advice) == (status == "problem")


@pytest.mark.parametrize(("value", "says"), [
    ("64", "takes numbers from 1 to 32: 64 is 32"), ("many", "'many' is no number from 1 to 32"),
])  # fmt: skip
def test_a_number_of_connections_that_cuda_does_not_take_is_told(
    root: Path, value: str, says: str
) -> None:
    found = ask("queue settings", machine(root, CUDA, {"CUDA_DEVICE_MAX_CONNECTIONS": value}))
    assert found.status == "warning"
    assert says in found.advice


def test_mps(root: Path) -> None:
    assert ask("MPS", machine(root, CUDA)).status == "ok"

    place(root / "tmp/nvidia-mps/control")
    assert ask("MPS", machine(root, CUDA)).status == "unknown"

    elsewhere = {"CUDA_MPS_PIPE_DIRECTORY": str(root / "pipes")}
    assert ask("MPS", machine(root, CUDA, elsewhere)).status == "ok"

    daemon = RunningProgram("nvidia-cuda-mps-server", 77, (), None)
    found = ask("MPS", machine(root, CUDA, elsewhere, programs=lambda names: [daemon]))
    assert found.status == "warning"
    assert found.found == f"running (process 77), pipes in {root}/pipes"


def test_other_processes_are_named(root: Path) -> None:
    reader = FakeReader(other_processes=(OtherProcess(4711, "trainer", None),))
    found = ask("other processes", machine(root, CUDA, reader=reader))
    assert found.status == "warning"
    assert found.found == "trainer (process 4711)"
    assert reader.closed

    quiet = machine(root, CUDA, reader=FakeReader())
    assert ask("other processes", quiet).status == "ok"


@pytest.mark.parametrize(("reader", "name", "status", "said"), [
    (Unavailable("no pynvml here"), "vendor library", "warning", "no pynvml here"),
    (Unavailable("no pynvml here"), "other processes", "unknown", "no pynvml here"),
    (FakeReader(sm_clock_mhz=345.0, throttle_reasons=("power_cap",)), "clocks", "warning",
     "now 345.0 MHz, slowed down by power_cap"),
    # No right to trace costs timelines only.
    (FakeReader(), "kernel times", "warning", "no right to trace this GPU"),
])  # fmt: skip
def test_what_a_gpu_hides_or_is_slowed_down_by_is_told(
    root: Path, reader: FakeReader | Unavailable, name: str, status: str, said: str
) -> None:
    found = ask(name, machine(root, CUDA, reader=reader))
    assert found.status == status
    assert said in found.found


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
def test_a_cpu_quota_below_the_cores_is_told(root: Path, quota: str, status: str) -> None:
    place(root / "sys/fs/cgroup/cpu.max", quota)

    found = ask("cores", machine(root, usable_cores=4))

    assert found.status == status
    assert ("1.5 cores" in found.found) == (status == "warning")


@pytest.mark.parametrize(("load", "choice", "status"), [
    (0.1, CPU, "ok"), (1.5, CPU, "warning"), (1.5, CUDA, "ok"), (3.5, CUDA, "warning"),
])  # fmt: skip
def test_load(root: Path, load: float, choice: DeviceChoice, status: str) -> None:
    place(root / "proc/loadavg", f"{load} 0.00 0.00 1/234 5678\n")
    assert ask("load", machine(root, choice, usable_cores=4)).status == status


def test_a_folder_that_cannot_hold_records_is_a_problem(root: Path) -> None:
    place(root / "file")
    found = ask("disk", machine(root, folder=root / "file" / "records"))
    assert found.status == "problem"
    assert str(root / "file") in found.found


def test_a_full_disk_is_told(root: Path) -> None:
    assert ask("disk", machine(root)).status == "ok"
    assert ask("disk", machine(root, free_bytes=lambda folder: 2**20)).status == "warning"
