"""Pipelines between host and device."""

from __future__ import annotations

import pytest

from pytest_hwqueue import Hwq

pytestmark = pytest.mark.pipeline


@pytest.mark.P3
@pytest.mark.hwq_workload("copy_engines")
def test_copy_engines(hwq: Hwq) -> None:
    """Copies to the device, within it and back."""
    hwq.run()


@pytest.mark.P3
@pytest.mark.hwq_workload("async_dataload")
def test_async_dataload(hwq: Hwq) -> None:
    """Copies to the device alongside preprocessing and a network."""
    hwq.run()


@pytest.mark.P3
@pytest.mark.hwq_workload("zero_offload")
def test_zero_offload(hwq: Hwq) -> None:
    """Parameters in host memory, fetched and updated layer by layer."""
    hwq.run()


@pytest.mark.P3
@pytest.mark.hwq_workload("torch_compile")
def test_torch_compile(hwq: Hwq) -> None:
    """Compiled regions on streams of their own."""
    hwq.run()
