"""The line that shows what is being measured."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_hwqueue.plugin.progress import Progress


@pytest.mark.parametrize("name", ["moe[cpu-s2-native-eager]", "test_mine[[/x]]", "[red]"])
def test_names_are_shown_as_they_are(name: str) -> None:
    reporter = SimpleNamespace(isatty=True, verbosity=0, ensure_newline=lambda: None)
    writer = SimpleNamespace(_file=io.StringIO())
    config = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda name: reporter),
        get_terminal_writer=lambda: writer,
    )
    progress = Progress(cast("Any", config))
    progress.update(name, "measure", 1, 2)
    progress.clear()
    assert name in writer._file.getvalue()
