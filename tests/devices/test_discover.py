"""Which device a specification means, given what is visible."""

from __future__ import annotations

import pytest
import torch

from pytest_hwqueue.devices import discover
from pytest_hwqueue.devices.discover import CPU, DeviceChoice, choose_devices, open_device
from pytest_hwqueue.errors import BadOption


def see(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    monkeypatch.setattr(discover, "visible_accelerators", lambda: (kind, count))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11-22, MIG-33-44")


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
    monkeypatch: pytest.MonkeyPatch, specification: str, kind: str, count: int, expected: list[str]
) -> None:
    see(monkeypatch, kind, count)
    parts = [(label, *label.partition(":")) for label in expected]
    assert choose_devices(specification) == [
        DeviceChoice(label, kind, int(index or 0)) for label, kind, _, index in parts
    ]


@pytest.mark.parametrize(
    ("specification", "kind", "count", "said"),
    [
        ("cuda", "cuda", 0, "visible here: cpu"),
        ("cuda:2", "cuda", 2, "visible here: cpu, cuda:0, cuda:1"),
        ("hip", "cuda", 1, "visible here: cpu, cuda:0"),
        ("cuda", "hip", 1, "visible here: cpu, hip:0"),
        ("all", "cuda", 0, "no accelerator is visible; there is cpu"),
        ("cuda:MIG-33-44", "cuda", 1, "visible here: cpu, cuda:0"),
        ("cuda:MIG-5", "cuda", 2, "CUDA_VISIBLE_DEVICES does not name it; set "
         "CUDA_VISIBLE_DEVICES=MIG-5"),
    ],
)  # fmt: skip
def test_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, specification: str, kind: str, count: int, said: str
) -> None:
    see(monkeypatch, kind, count)
    with pytest.raises(BadOption) as refused:
        choose_devices(specification)
    assert (refused.value.option, refused.value.value) == ("--hwq-device", specification)
    assert refused.value.valid == said


def test_what_torch_sees_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for there_are, version, seen in [(False, None, ("cuda", 0)), (True, None, ("cuda", 2)),
                                     (True, "7.0", ("hip", 2))]:  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=there_are: answer)
        monkeypatch.setattr(torch.version, "hip", version)
        assert discover.visible_accelerators() == seen


def test_others_are_chosen_without_looking_for_accelerators_and_opened_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look() -> tuple[str, int]:
        pytest.fail("torch would be imported for nothing")

    monkeypatch.setattr(discover, "visible_accelerators", look)
    assert choose_devices("cpu") == [CPU]
    assert choose_devices("sim:h200") == [DeviceChoice("sim:h200", "sim", 0)]
    with pytest.raises(BadOption, match="sim:nowhere"):
        choose_devices("sim:nowhere")
    for label in ("cpu", "sim:h200"):
        assert open_device(label) is open_device(label)
        assert open_device(label).label == label
    opened: list[object] = []
    monkeypatch.setattr(
        "pytest_hwqueue.devices.accelerator.Accelerator", lambda *given: opened.append(given)
    )
    open_device.__wrapped__("cuda:3")
    open_device.__wrapped__("hip", "hip:5")
    assert opened == [(3, "cuda:3"), (0, "hip:5")]
