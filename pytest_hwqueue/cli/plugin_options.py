"""The plugin's options as a command's: without their ``hwq-``, and parsed the same way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.settings.options import OPTIONS, Option
from pytest_hwqueue.settings.topics import TOPICS

TABLE = {option.name: option for option in OPTIONS}
_LINES = {name: line for topic in TOPICS for name, line in (topic.common | topic.rare).items()}
_RARE = frozenset(name for topic in TOPICS for name in topic.rare)


def with_options(
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> Callable[[click.Command], click.Command]:
    """Add the plugin's options to a command, ``without`` those that its arguments replace.

    Its help has one line for each, and leaves out rare ones unless the command has few.
    """

    def decorate(command: click.Command) -> click.Command:
        command.params += [
            _click_option(
                option,
                (defaults or {}).get(option.name, option.default),
                hidden=not only and option.name in _RARE,
            )
            for option in OPTIONS
            if option.name not in without and (not only or option.name in only)
        ]
        command.epilog = f"{command.epilog or ''}\n\n`hwq help` explains all options."
        return command

    return decorate


def setting(name: str, given: str | None) -> str:
    """Return an option's value as the plugin would see it, without ini files.

    Raises:
        BadOption: if the environment holds a value that is not valid.

    """
    option = TABLE[name]
    value = given or os.environ.get(option.variable) or option.default
    option.parse(f"environment variable {option.variable}", value)
    return value


def parsed_setting(name: str, given: str | bool | None) -> Any:
    """Return `setting`'s value as the plugin's Settings would hold it.

    Raises:
        BadOption: if the environment holds a value that is not valid.

    """
    text = setting(name, "yes" if given is True else given or None)
    return TABLE[name].parse(f"--{name}", text)


def _click_option(option: Option, default: str, *, hidden: bool) -> click.Option:
    """Convert a row of the plugin's table into a command's option."""
    names = [f"--{option.name}", option.field]
    if option.name == "json":
        names.insert(1, "--output")

    def check(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if isinstance(value, str) or option.repeatable:
            try:
                option.parse(f"--{option.name}", "\n".join(value) if option.repeatable else value)
            except BadOption as error:
                raise click.UsageError(str(error), ctx) from None
        return value

    text = _LINES.get(option.name, option.help)
    if default and not option.flag:
        text += f" [{default}]"
    return click.Option(
        names,
        help=text.replace("--hwq-", "--"),
        metavar=option.metavar or None,
        multiple=option.repeatable,
        is_flag=option.flag,
        default=None if not option.flag else False,
        callback=check,
        hidden=hidden,
    )
