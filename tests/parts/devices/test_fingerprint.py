"""Fingerprints: what is read, what is missing and why, and how two differ."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.records.conditions import SETTING_FIELDS, is_of_process
from pytest_hwqueue.data.records.fingerprint import Fingerprint, FingerprintDifference, differences
from pytest_hwqueue.data.records.kinds import DeviceKind
from pytest_hwqueue.parts.devices import conditions
from pytest_hwqueue.parts.devices.fingerprint import (
    CUDA_QUEUE_SETTINGS,
    HIP_QUEUE_SETTINGS,
    NOT_KNOWN,
    fingerprint,
    of_processes,
    value_of_process,
)
from tests.stored_texts import assert_as_stored
from tests.torch_builds import built_for

from .vendors import NOT_SUPPORTED, SLICE, UUID, AmdSmi, Nvml, raising


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The properties of the one GPU that torch has."""
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150_000_000_000, uuid=UUID,
        multi_processor_count=132, gcnArchName="gfx942:sramecc+:xnack-",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: properties}.__getitem__)
    built_for(monkeypatch, cuda="13.0")
    return properties


@pytest.fixture
def nvml(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """NVML for it; of the runtimes' variables one is set, and one is empty."""
    settings = (name.removeprefix("environment.") for name in SETTING_FIELDS)
    for name in (*CUDA_QUEUE_SETTINGS, *HIP_QUEUE_SETTINGS, *settings):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for name, value in (("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("GPU_MAX_HW_QUEUES", "8"),
                        ("CUDA_LAUNCH_BLOCKING", "")):  # fmt: skip
        monkeypatch.setenv(name, value)
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def text_of(read: Fingerprint) -> str:
    """The fields, but those of the machine and the packages, which are checked here."""
    soft = dict(read.soft)
    assert soft.pop("torch_version") == torch.__version__
    assert soft.pop("python_version") == platform.python_version()
    assert soft.pop("host_name") == platform.node()
    assert soft.pop("kernel_release") == platform.release()
    assert soft.pop("cpu_model", "")
    assert soft.pop("usable_logical_cores") == len(os.sched_getaffinity(0))
    assert not read.missing.keys() & {*read.hard, *read.soft}
    groups: dict[str, dict[str, Any]] = {"hard": read.hard, "soft": soft, "missing": read.missing}
    return "".join(
        f"  {group} {field}: {value!r}\n"
        for group, fields in groups.items()
        for field, value in sorted(fields.items())
        if field.startswith("environment.")
        or not (is_of_process(field) or field in conditions.host())
    )


def test_accelerators_in_full(
    nvml: Nvml, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"an H200": text_of(fingerprint("cuda", 0))}
    texts["hip where torch is built for cuda"] = text_of(fingerprint("hip", 0))
    gpu.uuid, nvml.answers["MigMode"] = SLICE, [1, 0]
    texts["a MIG slice"] = text_of(fingerprint("cuda", 0))
    assert nvml.opened == 0
    gpu.uuid = UUID
    nvml.nvmlDeviceIsMigDeviceHandle = raising(NOT_SUPPORTED)  # type: ignore[method-assign]
    nvml.answers["MigMode"] = nvml.answers["ApplicationsClock"] = NOT_SUPPORTED
    del nvml.answers["PersistenceMode"]
    closed = pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    nvml.nvmlShutdown = raising(closed)  # type: ignore[method-assign]
    texts["a GPU from before MIG, of whose settings NVML tells nothing"] = text_of(
        fingerprint("cuda", 0)
    )
    monkeypatch.setitem(sys.modules, "pynvml", None)
    texts["an H200 without NVML"] = text_of(fingerprint("cuda", 0))
    library = AmdSmi()
    gpu.uuid = library.answers["device_uuid"]
    built_for(monkeypatch, cuda="13.0", hip="7.0.2")
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    texts["an MI300"] = text_of(fingerprint("hip", 0))
    assert library.opened == 0
    library.answers["driver_info"] = {"driver_version": "N/A"}
    texts["an MI300 without a driver's version"] = text_of(fingerprint("hip", 0))
    told = "\n".join(f"{name}:\n{text}" for name, text in texts.items())
    assert_as_stored(__file__, "fingerprints.txt", told.replace(torch.__version__, "2.13"))


def test_cpu_of_this_machine() -> None:
    read = fingerprint("cpu", 0)
    assert read.hard["device_kind"] == "cpu"
    assert read.hard["usable_logical_cores"] == len(os.sched_getaffinity(0))
    assert "device_name" in read.hard.keys() | read.missing.keys()
    assert not [name for name in read.hard if name.startswith("environment.")]
    assert differences(read, fingerprint("cpu", 0)) == ([], [])
    stored = Fingerprint(**json.loads(json.dumps(dataclasses.asdict(read))))
    assert differences(read, stored) == ([], [])


def test_real_torch_without_the_device_raises_nothing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    read = fingerprint("cuda", 0)
    assert {"device_name", "driver_major", "mig_mode"} <= read.missing.keys()
    assert all(read.missing.values())


def test_what_the_runtimes_do_anyway_makes_no_difference(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queue_settings(kind: DeviceKind) -> dict[str, Any]:
        read = fingerprint(kind, 0).hard
        return {name: read[name] for name in read if name.startswith("environment.")}

    kinds: tuple[DeviceKind, ...] = ("cuda", "hip")
    defaults = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_LAUNCH_BLOCKING": "0", "GPU_MAX_HW_QUEUES": "4",
        "AMD_SERIALIZE_KERNEL": "0",
    }  # fmt: skip
    for name in (*CUDA_QUEUE_SETTINGS, *HIP_QUEUE_SETTINGS):
        monkeypatch.delenv(name, raising=False)
    before = [queue_settings(kind) for kind in kinds]
    for name, value in defaults.items():
        monkeypatch.setenv(name, value)
    assert [queue_settings(kind) for kind in kinds] == before
    for name in defaults:
        monkeypatch.setenv(name, "2")
    after = [queue_settings(kind) for kind in kinds]
    changed = {name for a, b in zip(before, after, strict=True) for name in a if a[name] != b[name]}
    assert changed == {f"environment.{name}" for name in defaults}


def test_processes_that_differ_are_named_in_the_field_in_which_they_do() -> None:
    def found(product: str, cores: int = 132) -> Fingerprint:
        hard: dict[str, Any] = {"device_name": "H200", "fp32_product": product}
        hard["multiprocessor_count"] = cores
        return Fingerprint(hard, {"allocator": "native"}, {"tracers": "no /proc"})

    own = found("float32")
    own.hard["compute_partition"] = "SPX"
    read = of_processes(own, {"high": found("TF32"), "low": found("TF32", 96), "server": None})
    assert read.hard == {
        "device_name": "H200",
        "fp32_product": "high: TF32; low: TF32; server: not known",
        "multiprocessor_count": "high: 132; low: 96",
        "compute_partition": "not known",
    }
    assert read.soft == {"allocator": "high: native; low: native; server: not known"}
    assert read.missing == {"tracers": "no /proc"}
    alone = of_processes(own, {"server": None})
    assert alone.hard == {**own.hard, "fp32_product": "not known"}
    assert of_processes(own, {"high": own, "low": own}) == own
    # Whoever was ready first.
    seen = {"low": found("TF32", 96), "server": None, "high": found("TF32")}
    assert of_processes(own, seen) == read
    # Each rank has a device of its own.
    first, second = (Fingerprint({}, {"device_uuid": uuid}) for uuid in "ab")
    assert of_processes(first, {"rank 0": first, "rank 1": second}).soft == {"device_uuid": "a"}


@given(
    st.dictionaries(
        st.from_regex("[a-z][a-z0-9_ ]{0,5}", fullmatch=True),
        st.none() | st.sampled_from(["TF32", "a: b", "x", "1"]),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_what_each_process_found_is_told_again(products: dict[str, str | None]) -> None:
    told = {
        name: None if value is None else Fingerprint({"fp32_product": value}, {})
        for name, value in products.items()
    }
    joined = of_processes(Fingerprint({"fp32_product": "own"}, {}), told).hard["fp32_product"]
    for name, value in products.items():
        assert value_of_process(joined, name, products) == (NOT_KNOWN if value is None else value)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["0", "1", "x"]))
FIELDS = st.dictionaries(st.sampled_from("abcdef"), VALUES)


@given(FIELDS, FIELDS, FIELDS, FIELDS)
def test_differences_are_complete_and_name_the_field_and_both_values(
    hard_a: dict[str, Any], soft_a: dict[str, Any], hard_b: dict[str, Any], soft_b: dict[str, Any]
) -> None:
    def expected(a: dict[str, Any], b: dict[str, Any]) -> list[FingerprintDifference]:
        same = {each for each in a.keys() & b.keys() if a[each] == b[each]}
        names = sorted({*a, *b} - same)
        return [FingerprintDifference(name, a.get(name), b.get(name)) for name in names]

    a, b = Fingerprint(hard_a, soft_a), Fingerprint(hard_b, soft_b)
    assert differences(a, b) == (expected(hard_a, hard_b), expected(soft_a, soft_b))
    assert differences(a, a) == ([], [])
