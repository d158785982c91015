"""Registers the options with pytest, and reads them once into Settings.

The command line takes precedence over the environment, the environment over the ini file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.settings.options import OPTIONS, Settings

if TYPE_CHECKING:
    import pytest


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest: a command-line option and an ini key for each row."""
    group = parser.getgroup("hwqueue", "hardware queues (pytest-hwqueue)")
    for option in OPTIONS:
        # argparse expands % in help texts.
        text = option.help_with_default.replace("%", "%%")
        if option.flag:
            group.addoption(
                option.command_line, action="store_const", const="yes", default=None, help=text
            )
        elif option.repeatable:
            group.addoption(
                option.command_line, action="append", metavar=option.metavar, default=None,
                help=text,
            )  # fmt: skip
        else:
            group.addoption(option.command_line, metavar=option.metavar, default=None, help=text)
        parser.addini(option.key, option.help_with_default, default=None)


def read_settings(config: pytest.Config, environment: Mapping[str, str] | None = None) -> Settings:
    """Read every option once: command line, then environment, then ini file, then default.

    Raises:
        BadOption: naming the source of the refused value, the value, and what is valid.

    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for option in OPTIONS:
        given = config.getoption(option.key)
        source, text = option.command_line, given
        if option.repeatable and given is not None:
            text = "\n".join(given)
        if text is None and option.variable in environment:
            source, text = f"environment variable {option.variable}", environment[option.variable]
        if text is None:
            text = config.getini(option.key)
            source = f"ini key {option.key}"
        if text is None or text == "":
            source, text = option.command_line, option.default
        values[option.field] = option.parse(source, str(text))
    return Settings(**values)


def is_given(config: pytest.Config, name: str) -> bool:
    """Whether an option has a value other than by default."""
    (option,) = (option for option in OPTIONS if option.name == name)
    given = config.getoption(option.key)
    if given is None:
        given = os.environ.get(option.variable)
    if given is None:
        given = config.getini(option.key)
    return given not in (None, "")
