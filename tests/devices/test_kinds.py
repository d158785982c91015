"""What devices can do, known by label before one is opened, and the same of one that is open."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_hwqueue
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.kinds import (
    KINDS,
    Capabilities,
    can_name_devices,
    capabilities_of,
    kind_of,
)
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.simulated.device import SimulatedDevice


@pytest.mark.parametrize("device", [HostDevice(), SimulatedDevice("h200")])
def test_an_open_device_can_do_what_its_label_says(device: Device) -> None:
    assert device.capabilities == capabilities_of(device.label) == KINDS[device.kind]
    assert (device.model is None) == (not device.capabilities.simulated)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("cuda:1", "cuda"),
        ("hip:3", "hip"),
        ("sim:/a.yaml", "sim"),
    ],
)
def test_labels_begin_with_the_kind(label: str, kind: str) -> None:
    assert kind_of(label) == kind
    assert capabilities_of(label) is KINDS[kind]


def test_a_device_that_nothing_is_known_of_is_a_real_accelerator() -> None:
    unknown = capabilities_of("auto")
    assert unknown == Capabilities()
    assert unknown.graphs
    assert {unknown.simulated, unknown.host, unknown.graphs_by_default} == {False}


@pytest.mark.parametrize(
    "text", ["auto", "all", "cpu", "cuda", "cuda:0", "hip", "hip:12", "sim:h200", "sim:my.yaml"]
)
def test_what_names_devices(text: str) -> None:
    assert can_name_devices(text)


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "hip:1.5", "sim", "sim:", "all:1"]
)
def test_what_names_no_device(text: str) -> None:
    assert not can_name_devices(text)


def test_they_are_known_without_torch() -> None:
    code = (
        "import sys, pytest_hwqueue.devices.kinds; assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def asks_for_the_kind(node: ast.AST) -> bool:
    """Whether code compares a kind with the simulated one, a label's beginning, or a class."""
    if isinstance(node, ast.Compare):
        constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return any(each.value in ("sim", "sim:") for each in constants)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func.attr == "startswith" and len(node.args) == 1
        return called and ast.unparse(node.args[0]) in ("'sim'", "'sim:'")
    return isinstance(node, ast.Call) and "SimulatedDevice" in map(ast.unparse, node.args[1:])


@pytest.mark.parametrize(
    "code",
    [
        "device.kind == 'sim'", "kind != 'sim'", "kind in ('cpu', 'sim')",
        "label.startswith('sim:')", "isinstance(device, SimulatedDevice)",
    ],
)  # fmt: skip
def test_such_questions_are_recognised(code: str) -> None:
    assert any(map(asks_for_the_kind, ast.walk(ast.parse(code))))


def test_nothing_outside_devices_asks_whether_one_is_simulated() -> None:
    package = Path(pytest_hwqueue.__file__).parent
    asking = [
        f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
        for path in package.rglob("*.py")
        if package / "devices" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if asks_for_the_kind(node)
    ]
    assert asking == [], "ask capabilities_of(label), device.capabilities or record.simulated"
