"""Registers the options with pytest, and reads them once into Settings.

The command line takes precedence over the environment, the environment over the ini file.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.settings.options import OPTIONS, Option, Settings
from pytest_hwqueue.settings.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest: a command-line option and an ini key for each row.

    `pytest --help` lists the common options, by topic, with one line each.
    """
    group = parser.getgroup("hwqueue", "hardware queues ([default]; more of it: `hwq help`)")
    common = {name: line for topic in TOPICS for name, line in topic.common.items()}
    names = [*common, *(option.name for option in OPTIONS if option.name not in common)]
    table = {option.name: option for option in OPTIONS}
    for option in (table[name] for name in names):
        line = common.get(option.name)
        # Of a list its first entry is enough here.
        how: dict[str, Any] = {"metavar": option.metavar.partition("[")[0]}
        if option.flag:
            how = {"action": "store_const", "const": "yes"}
        elif option.repeatable:
            how["action"] = "append"
        text = SUPPRESS if line is None else _line(option, line)
        # Without `dest`, pytest compares it with each other's.
        group.addoption(option.command_line, dest=option.key, default=None, help=text, **how)
        parser.addini(option.key, option.help, default=None)


def _line(option: Option, line: str) -> str:
    """Return an option's line, with its default; argparse expands % in it."""
    default = "" if option.flag or not option.default else f" [{option.default}]"
    return f"{line}{default}".replace("%", "%%")


def hide_ini_keys(config: pytest.Config) -> None:
    """Leave the ini keys out of `pytest --help`, where they would repeat the options.

    pytest lists every key it knows, with no public way to leave one out.
    """
    known: dict[str, object] = getattr(config._parser, "_inidict", {})
    for option in OPTIONS:
        known.pop(option.key, None)


def read_settings(config: pytest.Config, environment: Mapping[str, str] | None = None) -> Settings:
    """Read what is given: on the command line, else in the environment, else in the ini file.

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
        if text is not None and text != "":
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
