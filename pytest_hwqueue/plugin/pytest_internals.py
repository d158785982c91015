"""What the plugin takes of pytest that pytest does not promise: here alone, each with its reason.

pytest from 8.1 to 9.2 has all of it, as `tox run -e oldest,tests` shows; `tox run -e pytest-main`
asks its main branch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_hwqueue.data.errors import HwqError

_TESTED = "8.1 to 9.2"


def import_builtin_plugins() -> None:
    """Import what each pytest session begins with.

    It takes a third of a second, which a fork server can spend once for all that it forks. pytest
    lists these modules nowhere else.
    """
    for name in _of(importlib.import_module("_pytest.config"), "default_plugins"):
        importlib.import_module(f"_pytest.{name}")


def tear_down_to(session: pytest.Session, following: pytest.Item | None) -> None:
    """Tear down fixtures that the test which follows, or the session's end, does not share.

    The hook for it, pytest_runtest_teardown, would have all plugins tear down a test that they have
    not seen, or once more.
    """
    _of(_of(session, "_setupstate"), "teardown_exact")(following)


def tests_among(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """Return those words of a command line that name tests.

    Only the parser, which pytest hands out before it knows all options, can tell a test from an
    option's value that reads the same.
    """
    found: list[str] = _of(_of(config, "_parser"), "parse")(words).file_or_dir
    return found


def terminal_file(config: pytest.Config) -> Any:
    """Return the file that pytest's reporter writes to: the terminal, whatever is captured."""
    return _of(config.get_terminal_writer(), "_file")


def redirect_terminal(config: pytest.Config, file: Any) -> None:
    """Have pytest's reporter write to another file; its writer takes one only as it is made."""
    terminal_file(config)
    writer: Any = config.get_terminal_writer()
    writer._file = file


def _of(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        place = getattr(owner, "__name__", type(owner).__name__)
        raise HwqError(
            f"pytest {pytest.__version__} has no {place}.{name}, which pytest-hwqueue needs; it is "
            f"tested with pytest {_TESTED}: install one of these, or a later pytest-hwqueue"
        ) from None
