"""What tests of tenants share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_hwqueue.engine.tenants.identified import tenant_environment
from pytest_hwqueue.parts.processes.starting import ForkServer
from tests.conftest import Lent

_SERVERS: list[Lent] = []


@pytest.fixture(scope="session", autouse=True)
def _one_server(tenants_descriptor: int) -> Iterator[None]:
    """Fork the tenants of all tests from one server, as a session does for all its scenarios."""
    _SERVERS.append(Lent(tenants_descriptor, tenant_environment("cpu")))
    yield
    ForkServer.close(_SERVERS.pop())


def server_of_tests() -> ForkServer | None:
    """What forks tenants whose environment is the tests' own; nothing in a process of a test's."""
    return next(iter(_SERVERS), None)
