"""Settings of torch that a workload makes for its process, as they were before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_hwqueue.parts.devices.torch_settings import changed_settings, torch_settings
from pytest_hwqueue.parts.workloads.numerics import restore_precision

from .two_ranks import Printed, printed_of


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    threads = torch.get_num_threads()
    # Tiny operations only wait for one another on several cores.
    torch.set_num_threads(1)
    before = torch_settings()
    yield
    # As at a cell's end: what a workload has set is put back, or costs its process.
    restore_precision()
    changes = changed_settings(before, torch_settings())
    torch.set_num_threads(threads)
    assert not changes


@pytest.fixture(scope="session")
def printed_by_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Printed:
    """See the function's arguments; workers of xdist share what two ranks print."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    return lambda name, size=2: printed_of(name, size, shared)
