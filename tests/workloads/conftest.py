"""Settings of torch that a workload makes for its process, as they were before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .two_ranks import Printed, printed_of


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    threads = torch.get_num_threads()
    # Tiny operations only wait for one another on several cores.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.fixture(scope="session")
def printed_by_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Printed:
    """See the function's arguments; workers of xdist share what two ranks print."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    return lambda name, size=2: printed_of(name, size, shared)
