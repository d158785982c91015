"""pytest's own objects for the plugin's functions: configs, and tests collected from a module."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pytest_hwqueue.options.suite import plugin_name

Configure = Callable[..., pytest.Config]
Collect = Callable[..., list[pytest.Item]]


class EndedProcess:
    """The part of a process's stand-in that notes how it was ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: list[str] = []

    def finish(self, within_s: float) -> None:
        self.ended.append("finished")

    def kill(self, why: str) -> None:
        self.ended.append(why)

    def close(self) -> None:
        self.ended.append("closed")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_", "PYTEST_ADDOPTS")) or name in (
            "RANK", "WORLD_SIZE",
        ):  # fmt: skip
            monkeypatch.delenv(name)


@pytest.fixture
def configure(pytester: pytest.Pytester) -> Configure:
    """Configure pytest with the plugin and these arguments."""
    return lambda *arguments: pytester.parseconfigure("-p", plugin_name(), *arguments)


@pytest.fixture
def collect(_imported: None, pytester: pytest.Pytester) -> Collect:
    """Collect the tests of a module, given as text, with these arguments."""

    def collect(text: str, *arguments: str, name: str = "test_mine") -> list[pytest.Item]:
        pytester.makepyfile(**{name: text})
        items, _ = pytester.inline_genitems(
            "-p", plugin_name(), "-p", "no:faulthandler", "-p", "no:cacheprovider", *arguments
        )
        found: list[pytest.Item] = items
        return found

    return collect
