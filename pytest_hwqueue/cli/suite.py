"""Shared by the commands that measure the suite: starts pytest with their options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pytest_hwqueue.settings.options import OPTIONS

_EXTRA = "pytest_hwqueue.cli.main.extra"
_VERBOSE = "pytest_hwqueue.cli.main.verbose"


class MeasuringCommand(click.Command):
    """A command that passes arguments after ``--`` to pytest, and ``-v``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verbose = click.Option(
            ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_note_verbose,
            help="print every figure, not one line for each cell",
        )  # fmt: skip
        self.params.append(verbose)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what comes before ``--``; keep the rest."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_EXTRA] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- PYTEST_ARGUMENTS...]"]


def _note_verbose(ctx: click.Context, _: click.Parameter, verbose: bool) -> None:
    ctx.meta[_VERBOSE] = verbose


def plugin_arguments(
    given: Mapping[str, Any], defaults: Mapping[str, str] | None = None
) -> list[str]:
    """Turn a command's options into the plugin's.

    Args:
        given: values by the options' fields; None, an empty tuple or False was not given.
        defaults: the command's own, by the options' names. They yield to the environment, which
            the plugin reads itself.

    """
    arguments = []
    for option in OPTIONS:
        value = given.get(option.field)
        if value in (None, (), False):
            own = (defaults or {}).get(option.name)
            value = None if option.variable in os.environ else own
        if value is None:
            continue
        if option.flag:
            arguments.append(option.command_line)
        else:
            values = value if isinstance(value, tuple) else (value,)
            arguments += [f"{option.command_line}={each}" for each in values]
    return arguments


def run_suite(
    ctx: click.Context,
    arguments: Sequence[str],
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run pytest on the suite; return its exit status.

    Args:
        ctx: of a `MeasuringCommand` command.
        arguments: the plugin's options, and pytest's own.
        before: a command that runs pytest's.
        environment: variables to add to this process's.

    """
    from pytest_hwqueue.suite import (
        SuiteNotFound,
        pytest_command,
        pytest_environment,
        run_pytest,
    )

    extra = ctx.meta[_EXTRA]
    try:
        shown = ["-v"] if ctx.meta[_VERBOSE] else []
        command = pytest_command([*arguments, *shown], extra)
    except SuiteNotFound as error:
        raise click.UsageError(str(error), ctx) from None
    around = {**pytest_environment(plugins=bool(extra)), **(environment or {})}
    return run_pytest([*before, *command], around)
