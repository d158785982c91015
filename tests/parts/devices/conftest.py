from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a stand-in of a vendor's library into the place of the real one."""

    def put(module: Any) -> Any:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return put
