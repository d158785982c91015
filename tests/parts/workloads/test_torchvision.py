"""torchvision's models: by name, seeded, part of a cell's identity, refused where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.errors import BadInput, HwqError
from pytest_hwqueue.data.records.conditions import VERSION_FIELDS
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.data.records.tenants import read_colocation
from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records
from pytest_hwqueue.parts.devices import conditions
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.tenants import shapes
from pytest_hwqueue.parts.workloads.tenants.families import Torchvision
from pytest_hwqueue.parts.workloads.tenants.models import (
    OpenModel,
    import_model,
    open_models,
    seeded_model,
)
from pytest_hwqueue.parts.workloads.tenants.shapes import find_model, missing_package, model_shape
from tests.conftest import slow
from tests.parts.workloads.torchvision_standin import put_on_path

NAME = "torchvision:resnet18"


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The libraries whose versions are conditions; none is left behind."""
    found: dict[str, str] = {}
    monkeypatch.setattr(conditions, "_used", found)
    return found


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    put_on_path(tmp_path, monkeypatch)
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def opened(name: str = NAME, seed: int = 3, weights: str | None = None, **given: Any) -> OpenModel:
    tenant = Tenant("one", name, batch=2, size="tiny", weights=weights, parameters=given)
    device = HostDevice()
    with device.open_streams(1) as pool:
        (model,) = open_models(tenant, device, [pool.streams[0]], seed)
        model.check()
    return model


@pytest.mark.usefixtures("standin")
def test_a_model_is_made_by_name_and_its_version_is_a_condition(used: dict[str, str]) -> None:
    assert "torchvision_version" not in conditions.settings("cpu")
    model = opened()
    assert model.description.startswith(
        "torchvision:resnet18 (tiny), batch 2, images of 3×96×96, fp32 without TF32, "
    )
    assert used == {"torchvision": "0.99+standin"}
    assert conditions.settings("cpu")["torchvision_version"]() == "0.99+standin"
    assert "torchvision_version" in VERSION_FIELDS


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_weights_follow_the_seed_and_nothing_drops_out(dtype: Any) -> None:
    first, again, other = (opened(seed=seed, dtype=dtype).output for seed in (3, 3, 4))
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.usefixtures("standin")
def test_what_blocks_add_is_scaled_as_in_the_other_resnets() -> None:
    model = seeded_model(Torchvision("resnet18"), "full", 0, torch.float32)
    assert {float(block.bn2.weight[0]) for block in model.blocks} == {0.5}
    assert {float(block.bn1.weight[0]) for block in model.blocks} == {1.0}
    assert not model.training


@pytest.mark.usefixtures("standin")
def test_it_runs_on_the_simulated_device() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        (model,) = open_models(Tenant("one", NAME, batch=8, size="full"), device, pool.streams, 3)
        model.request()
        enqueued_ns = device.clock_ns()
        pool.synchronize()
        assert device.clock_ns() > enqueued_ns


@pytest.mark.usefixtures("standin")
def test_a_name_that_torchvision_lacks_is_refused_with_what_was_meant() -> None:
    said = "torchvision has no classification model 'resnet81'; .*resnet18"
    with pytest.raises(BadInput, match=said):
        import_model("torchvision:resnet81")
    with pytest.raises(BadInput, match=said):
        opened("torchvision:resnet81")
    import_model(NAME)


@pytest.mark.usefixtures("standin")
def test_weights_from_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="its weights are seeded; leave --hwq-weights out"):
        opened(weights=str(tmp_path))


def test_its_name_and_shape_are_read_without_torchvision() -> None:
    assert find_model(NAME)[:2] == ("Torchvision", "resnet18")
    assert model_shape(NAME, "full", {}).model_dump() == {"dtype": "fp32", "image_size": 224}
    for wrong in ("torchvision:", "torchvision:ResNet-18", "torchvision:a b", "torch:resnet18"):
        with pytest.raises(BadInput, match=r"no model .*, and torchvision:NAME"):
            find_model(wrong)


def test_what_is_missing_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert missing_package(["resnet18", None]) is None
    said = missing_package(["resnet18", "torchvision:resnet50"])
    assert said == (
        "model torchvision:resnet50 needs the package torchvision, which is not installed: pip "
        "install torchvision, in the build that fits your torch, or give model: resnet50 "
        "(transformers')"
    )
    assert "or give model: resnet18" in str(missing_package(["torchvision:vit_b_16"]))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert missing_package(["resnet18"]) == shapes.MISSING_TRANSFORMERS
    with pytest.raises(HwqError, match="torchvision cannot be imported: "):
        opened()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weights"), [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("alexnet", None)]
)
def test_the_real_ones_run(name: str, weights: int | None) -> None:
    """Only where torchvision is installed, as on machines with GPUs."""
    torchvision = pytest.importorskip("torchvision")
    model = opened(f"torchvision:{name}")
    assert weights in (None, model.parameters)
    assert conditions.settings("cpu")["torchvision_version"]() == torchvision.__version__


def hwq(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="hwq", env={"COLUMNS": "250"})


SCENARIO = """\
name: tv
duration: 300ms
warmup: 50ms
tenants:
  - {name: only, model: "torchvision:resnet18", batch: 2}
"""


@pytest.mark.usefixtures("standin")
def test_a_tenant_of_a_scenario_runs_it_and_its_records_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tv.hwq.yaml").write_text(SCENARIO, encoding="utf-8")
    found = hwq("which", "tv.hwq.yaml", "--device=cpu")
    assert found.exit_code == 0, found.output
    (file, *_) = [each for each in tmp_path.rglob("tv*.json") if "which" in each.parts[-2]]
    record = read_colocation(file)
    assert record.tenants[0].work.startswith("torchvision:resnet18 (tiny), batch 2, ")
    assert record.fingerprint is not None
    assert record.fingerprint.soft["torchvision_version"] == "0.99+standin"
    (own,) = tenant_records(record, "x", {})
    assert own.cell.parameters["only.model"] == "torchvision:resnet18"


_WRONG = [
    (("resnet18", "resnet81"), "tenant only: model: torchvision has no classification model"),
    (("resnet18", "ResNet"), "no model 'torchvision:ResNet'"),
    (("2}", "2, parameters: {image_size: 31}}"), "torchvision:resnet18.image_size=31"),
]


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        *(("which", *wrong) for wrong in _WRONG),
        # A process asks torchvision, as for the other command.
        slow("capacity", *_WRONG[0]),
        *(("capacity", *wrong) for wrong in _WRONG[1:]),
    ],
)
@pytest.mark.usefixtures("standin")
def test_a_wrong_one_is_refused_before_anything_starts(
    command: str, change: tuple[str, str], said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("tv.hwq.yaml").write_text(SCENARIO.replace(*change), encoding="utf-8")
    more = ["--tenant=only"] if command == "capacity" else []
    found = hwq(command, "tv.hwq.yaml", "--device=cpu", *more)
    assert (found.exit_code, said in found.output) == (4, True), found.output
    assert not Path(".hwqueue").exists()


@pytest.mark.usefixtures("standin")
def test_a_folder_of_weights_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tv.hwq.yaml").write_text(SCENARIO, encoding="utf-8")
    found = hwq("which", "tv.hwq.yaml", "--device=cpu", "--weights=.")
    said = "tenant only's torchvision:resnet18 has seeded weights alone"
    assert (found.exit_code, said in found.output) == (4, True), found.output
