"""Which device a specification means, given what is visible."""

from __future__ import annotations

import pytest

from pytest_hwqueue.devices import kinds
from pytest_hwqueue.devices.kinds import CPU, DeviceChoice, choose_devices, open_device
from pytest_hwqueue.errors import BadOption


def see(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    monkeypatch.setattr(kinds, "visible_accelerators", lambda: (kind, count))


@pytest.mark.parametrize(
    ("specification", "kind", "count", "expected"),
    [
        ("auto", "cuda", 0, [CPU]),
        ("auto", "cuda", 2, [DeviceChoice("cuda", "cuda", 0)]),
        ("auto", "hip", 1, [DeviceChoice("hip", "hip", 0)]),
        ("cpu", "cuda", 0, [CPU]),
        ("cpu", "hip", 8, [CPU]),
        ("cuda", "cuda", 1, [DeviceChoice("cuda", "cuda", 0)]),
        ("cuda:0", "cuda", 1, [DeviceChoice("cuda", "cuda", 0)]),
        ("cuda:1", "cuda", 2, [DeviceChoice("cuda:1", "cuda", 1)]),
        ("hip:7", "hip", 8, [DeviceChoice("hip:7", "hip", 7)]),
        ("all", "cuda", 1, [DeviceChoice("cuda", "cuda", 0)]),
        ("all", "hip", 3, [
            DeviceChoice("hip", "hip", 0),
            DeviceChoice("hip:1", "hip", 1),
            DeviceChoice("hip:2", "hip", 2),
        ]),
    ],
)  # fmt: skip
def test_what_a_specification_means(
    monkeypatch: pytest.MonkeyPatch,
    specification: str,
    kind: str,
    count: int,
    expected: list[DeviceChoice],
) -> None:
    see(monkeypatch, kind, count)
    assert choose_devices(specification) == expected


def test_a_mig_instance_is_named_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, "cuda", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11-22, MIG-33-44")
    assert choose_devices("cuda:GPU-11-22") == [DeviceChoice("cuda", "cuda", 0)]
    assert choose_devices("cuda:MIG-33-44") == [DeviceChoice("cuda:1", "cuda", 1)]
    with pytest.raises(BadOption, match="does not name it; set CUDA_VISIBLE_DEVICES=MIG-55-66"):
        choose_devices("cuda:MIG-55-66")
    see(monkeypatch, "cuda", 1)
    with pytest.raises(BadOption, match="visible here: cpu, cuda:0"):
        choose_devices("cuda:MIG-33-44")


@pytest.mark.parametrize(
    ("specification", "kind", "count", "visible"),
    [
        ("cuda", "cuda", 0, "cpu"),
        ("cuda:2", "cuda", 2, "cpu, cuda:0, cuda:1"),
        ("hip", "cuda", 1, "cpu, cuda:0"),
        ("cuda", "hip", 1, "cpu, hip:0"),
        ("all", "cuda", 0, "cpu"),
    ],
)
def test_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, specification: str, kind: str, count: int, visible: str
) -> None:
    see(monkeypatch, kind, count)
    with pytest.raises(BadOption) as refused:
        choose_devices(specification)
    assert refused.value.option == "--hwq-device"
    assert refused.value.value == specification
    assert refused.value.valid.endswith(f": {visible}") or refused.value.valid.endswith(
        f"there is {visible}"
    )


def test_cpu_is_chosen_without_looking_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> tuple[str, int]:
        pytest.fail("torch would be imported for nothing")

    monkeypatch.setattr(kinds, "visible_accelerators", look)
    assert choose_devices("cpu") == [CPU]


def test_device_is_opened_once() -> None:
    assert open_device("cpu") is open_device("cpu")
    assert open_device("cpu").label == "cpu"
