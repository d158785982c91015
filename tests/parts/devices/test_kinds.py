"""What devices can do, open or known by label alone, and which one a specification means."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import pytest_hwqueue
from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.data.records.kinds import (
    KINDS,
    Capabilities,
    DeviceKind,
    can_name_devices,
    capabilities_of,
    kind_of,
)
from pytest_hwqueue.parts.devices import kinds
from pytest_hwqueue.parts.devices.kinds import CPU, DeviceChoice, choose_devices, open_device
from tests.torch_builds import built_for

from .gpus import Gpus


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


def test_nothing_but_devices_and_kinds_asks_whether_one_is_simulated() -> None:
    for code in ("device.kind == 'sim'", "kind in ('cpu', 'sim')", "label.startswith('sim:')",
                 "isinstance(device, SimulatedDevice)"):  # fmt: skip
        assert any(map(asks_for_the_kind, ast.walk(ast.parse(code))))
    package = Path(pytest_hwqueue.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    asking = [
        f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
        for path, source in sources.items()
        if package / "parts" / "devices" not in path.parents
        and path != package / "data/records/kinds.py"
        and any(word in source for word in ("'sim", '"sim', "SimulatedDevice"))
        for node in ast.walk(ast.parse(source))
        if asks_for_the_kind(node)
    ]
    assert asking == [], "ask capabilities_of(label), device.capabilities or record.simulated"


GIVEN = "GPU-11-22, MIG-33-44"


@pytest.mark.parametrize(
    ("specification", "kind", "count", "expected"),
    [
        ("auto", "cuda", 0, ["cpu"]),
        ("auto", "cuda", 2, ["cuda"]),
        ("auto", "hip", 1, ["hip"]),
        ("cpu", "hip", 8, ["cpu"]),
        ("cuda", "cuda", 1, ["cuda"]),
        ("cuda:0", "cuda", 1, ["cuda"]),
        ("cuda:1", "cuda", 2, ["cuda:1"]),
        ("hip:7", "hip", 8, ["hip:7"]),
        ("all", "cuda", 1, ["cuda"]),
        ("all", "hip", 3, ["hip", "hip:1", "hip:2"]),
        ("cuda:GPU-11-22", "cuda", 2, ["cuda"]),
        ("cuda:MIG-33-44", "cuda", 2, ["cuda:1"]),
    ],
)
def test_what_a_specification_means(
    monkeypatch: pytest.MonkeyPatch, specification: str, kind: DeviceKind, count: int,
    expected: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GIVEN)
    parts = [(label, *label.partition(":")) for label in expected]
    assert choose_devices(specification, lambda: (kind, count)) == [
        DeviceChoice(label, kind, int(index or 0)) for label, kind, _, index in parts
    ]


@pytest.mark.parametrize(
    ("specification", "kind", "count", "said"),
    [
        ("cuda", "cuda", 0, "visible here: cpu; {why}"),
        ("all", "cuda", 0, "visible here: cpu; {why}"),
        ("cuda:2", "cuda", 2, "visible here: cpu, cuda:0, cuda:1"),
        ("hip", "cuda", 1, "visible here: cpu, cuda:0"),
        ("cuda", "hip", 1, "visible here: cpu, hip:0"),
        ("cuda:MIG-33-44", "cuda", 1, "visible here: cpu, cuda:0"),
        ("cuda:MIG-5", "cuda", 2, "CUDA_VISIBLE_DEVICES does not name it; set "
         "CUDA_VISIBLE_DEVICES=MIG-5"),
    ],
)  # fmt: skip
def test_device_that_is_not_there_is_refused_with_those_that_are_and_why(
    monkeypatch: pytest.MonkeyPatch, specification: str, kind: DeviceKind, count: int, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GIVEN)
    with pytest.raises(BadOption) as refused:
        choose_devices(specification, lambda: (kind, count))
    why = kinds.why_none(bool(torch.version.cuda or torch.version.hip), kinds.loaded_driver())
    found = refused.value.option, refused.value.value, refused.value.valid
    assert found == ("--hwq-device", specification, said.format(why=why))


@pytest.mark.parametrize(
    ("given", "built", "driver", "said"),
    [
        (GIVEN, False, "", "torch is built for the CPU alone: install its build for your "
         "accelerator (https://pytorch.org/get-started)"),
        # Where torch is built for accelerators, the driver and what hides devices are looked at.
        (GIVEN, True, "", "no driver is loaded (no /dev/nvidia0, no /dev/kfd): install it, or give "
         "the container its devices"),
        ("", True, "NVIDIA", "CUDA_VISIBLE_DEVICES= may hide others"),
        (None, True, "NVIDIA", "torch cannot use the NVIDIA driver: "
         "`python -c 'import torch; torch.cuda.init()'`"),
    ],
)  # fmt: skip
def test_why_torch_sees_no_accelerator(
    monkeypatch: pytest.MonkeyPatch, given: str | None, built: bool, driver: str, said: str
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert kinds.why_none(built, driver) == said


def test_what_torch_sees_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(2, {}, set())
    gpus.install(monkeypatch)
    for gpus.available, version, seen in [(False, None, ("cuda", 0)), (True, None, ("cuda", 2)),
                                          (True, "7.0", ("hip", 2))]:  # fmt: skip
        built_for(monkeypatch, hip=version)
        assert kinds.visible_accelerators() == seen


def test_others_need_no_look_at_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> tuple[DeviceKind, int]:
        pytest.fail("torch would be imported for nothing")

    assert choose_devices("cpu", look) == [CPU]
    assert choose_devices("sim:h200", look) == [DeviceChoice("sim:h200", "sim", 0)]
    with pytest.raises(BadOption, match="sim:nowhere"):
        choose_devices("sim:nowhere", look)
    for label in ("cpu", "sim:h200"):
        assert open_device(label) is open_device(label)
        assert open_device(label).label == label
    Gpus(4, {}, set()).install(monkeypatch)
    opened = [open_device.__wrapped__("cuda:3"), open_device.__wrapped__("hip", "hip:5")]
    assert [(each.index, each.label) for each in opened] == [(3, "cuda:3"), (0, "hip:5")]
