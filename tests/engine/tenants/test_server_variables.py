"""Placeholders and variables in a server's texts: filled in once, whatever they look like."""

from __future__ import annotations

import pytest

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.engine.tenants.server_variables import fill


def test_what_is_filled_in_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "a {folder} ${B} {url}")
    monkeypatch.setenv("B", "never")
    values = {"{url}": "http://127.0.0.1/${A}", "{folder}": "/tmp/{url}"}
    filled = fill("${A}|{url}|{folder}|$${A}|{other}|{}", values)
    assert filled == "a {folder} ${B} {url}|http://127.0.0.1/${A}|/tmp/{url}|${A}|{other}|{}"


def test_a_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A", raising=False)
    with pytest.raises(HwqError, match="the environment variable A is not set"):
        fill("{url} ${A}", {"{url}": "x"})
