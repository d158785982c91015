"""What tests of tenants share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_hwqueue.engine.tenants.tenant_processes import tenant_server
from pytest_hwqueue.parts.processes.starting import ForkServer
from tests.conftest import begun

_SERVERS: list[ForkServer] = []


@pytest.fixture(scope="session", autouse=True)
def _one_server() -> Iterator[None]:
    """Start one fork server for all tests, as a session does for all its scenarios."""
    _SERVERS.append(tenant_server("cpu", ["large_gemm_only", "tiny_kernel_stress"], []))
    begun(_SERVERS[0])
    yield
    _SERVERS.pop().close()


def server_of_tests() -> ForkServer | None:
    """What forks tenants whose environment is the tests' own; nothing in a process of a test's."""
    return next(iter(_SERVERS), None)
