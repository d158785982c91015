"""What tests of tenants share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other sessions on this machine do not hold these tests up."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("leases"))
    yield
    tempfile.tempdir = before
