"""What devices can do, known by label before one is opened, and the same of one that is open."""

from __future__ import annotations

import ast
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


def test_labels_begin_with_the_kind_and_an_unknown_one_is_a_real_accelerators() -> None:
    for label in ("cpu", "cuda", "cuda:1", "hip:3", "sim:/a.yaml"):
        assert label.startswith(kind_of(label))
        assert capabilities_of(label) is KINDS[kind_of(label)]
    unknown = capabilities_of("auto")
    assert unknown == capabilities_of("tpu") == Capabilities()
    assert unknown.graphs
    assert {unknown.simulated, unknown.host, unknown.graphs_by_default} == {False}


def test_what_names_devices() -> None:
    for text in ("auto", "all", "cpu", "cuda", "cuda:0", "cuda:MIG-1", "hip", "hip:12", "sim:h200"):
        assert can_name_devices(text), text
    for text in ("", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "hip:1.5", "hip:MIG-1", "sim",
                 "sim:", "all:1"):  # fmt: skip
        assert not can_name_devices(text), text


def asks_for_the_kind(node: ast.AST) -> bool:
    """Whether code compares a kind with the simulated one, a label's beginning, or a class."""
    if isinstance(node, ast.Compare):
        constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return any(each.value in ("sim", "sim:") for each in constants)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func.attr == "startswith" and len(node.args) == 1
        return called and ast.unparse(node.args[0]) in ("'sim'", "'sim:'")
    return isinstance(node, ast.Call) and "SimulatedDevice" in map(ast.unparse, node.args[1:])


def test_nothing_outside_devices_asks_whether_one_is_simulated() -> None:
    for code in ("device.kind == 'sim'", "kind in ('cpu', 'sim')", "label.startswith('sim:')",
                 "isinstance(device, SimulatedDevice)"):  # fmt: skip
        assert any(map(asks_for_the_kind, ast.walk(ast.parse(code))))
    package = Path(pytest_hwqueue.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    asking = [
        f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
        for path, source in sources.items()
        if package / "devices" not in path.parents
        and any(word in source for word in ("'sim", '"sim', "SimulatedDevice"))
        for node in ast.walk(ast.parse(source))
        if asks_for_the_kind(node)
    ]
    assert asking == [], "ask capabilities_of(label), device.capabilities or record.simulated"
