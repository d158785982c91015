"""Commands of ``hwq`` that start pytest, caught before they do."""

from __future__ import annotations

import pytest

from pytest_hwqueue import suite
from pytest_hwqueue.settings.options import OPTIONS


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every command that would have been started."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    found: list[list[str]] = []

    def run(command: list[str], environment: dict[str, str]) -> int:
        found.append(command)
        return 0

    monkeypatch.setattr(suite, "run_pytest", run)
    return found
