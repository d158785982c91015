"""A tenant sees one device: the one that the session's label means under the user's own setting."""

from __future__ import annotations

import pytest

from pytest_hwqueue.data.errors import BadInput, DeviceError
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.engine.tenants.identified import one_visible

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("kind", "index", "environment", "expected"),
    [
        ("cpu", 0, {CUDA: "3"}, {}),
        ("cuda", 0, {}, {CUDA: "0"}),
        ("cuda", 1, {}, {CUDA: "1"}),
        # cuda:1 is the second of those that the user left visible.
        ("cuda", 1, {CUDA: "4,2,7"}, {CUDA: "2"}),
        ("cuda", 0, {CUDA: " 5 , 6"}, {CUDA: "5"}),
        ("cuda", 1, {CUDA: "GPU-1b2c, GPU-3d4e"}, {CUDA: "GPU-3d4e"}),
        ("cuda", 0, {CUDA: "MIG-0a1b"}, {CUDA: "MIG-0a1b"}),
        # HIP's setting is not CUDA's.
        ("cuda", 1, {HIP: "4,2"}, {CUDA: "1"}),
        ("hip", 1, {}, {HIP: "1"}),
        ("hip", 1, {HIP: "4,2"}, {HIP: "2"}),
        ("hip", 1, {CUDA: "4,2"}, {HIP: "2", CUDA: "2"}),
        ("hip", 1, {HIP: "4,2", CUDA: "4,2"}, {HIP: "2", CUDA: "2"}),
        # Numbers count what ROCr leaves, so its setting stays.
        ("hip", 1, {"ROCR_VISIBLE_DEVICES": "6,7"}, {HIP: "1"}),
    ],
)
def test_indices_count_what_is_visible(
    kind: str, index: int, environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert one_visible(kind, index, environment) == expected


@pytest.mark.parametrize("setting", ["4", "4,", "4, "])
def test_a_device_that_is_not_visible_is_refused(setting: str) -> None:
    with pytest.raises(DeviceError, match=rf"cuda:1 is not visible: {CUDA}={setting} has no entry"):
        one_visible("cuda", 1, {CUDA: setting})


@pytest.mark.parametrize("field", ["batch", "streams", "concurrency"])
def test_a_tenant_has_one_of_each_at_least(field: str) -> None:
    with pytest.raises(BadInput, match=f"tenant one: {field} is 0; give at least 1"):
        Tenant("one", model="any", **{field: 0})  # type: ignore[arg-type]
