"""``hwq compare`` and ``hwq diff``: compare stored runs.

Exit status: 0 nothing got worse; 1 a regression; 2 something cannot be compared, or wrong usage or
input; 3 a verdict that --on-inconclusive, --on-no-baseline or --on-missing sets to fail. If several
apply, the lowest wins. So status 1 always means that something got worse.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue.cli.gate_options import (
    GATE,
    SOURCE,
    InputRefused,
    OwnStatus,
    comparison_status,
    gate_settings,
    gated_figures,
    open_store,
)
from pytest_hwqueue.cli.plugin_options import parsed_setting, with_options

_COMPARE = (
    "baselines", "fail-on", *GATE, "sentinel", "allow-env", "markdown",
    "on-inconclusive", "on-no-baseline", "on-incomparable", "on-missing",
)  # fmt: skip


def _compare_options(command: click.Command) -> click.Command:
    command = with_options(only=_COMPARE)(command)
    command.params.append(
        click.Option(
            ["--json", "json_file"],
            metavar="FILE",
            help="also write the verdicts and their figures to FILE",
        )
    )
    return command


@_compare_options
@click.command(cls=OwnStatus)
@click.option("--baseline", "a", metavar="A", required=True, help=f"the older runs: {SOURCE}")
@click.option("--test", "b", metavar="B", required=True, help=f"the newer runs: {SOURCE}")
@click.pass_context
def compare(ctx: click.Context, /, a: str, b: str, **given: Any) -> None:
    """Compare stored runs.

    Cells are matched by their ids. Exit status: 1 after a regression, 2 if cells cannot be compared
    or the input is wrong, 3 if a verdict listed in an --on-... option is set to fail, and 0
    otherwise.
    """
    with _no_collector():
        status = _compare(a, b, given)
    ctx.exit(status)


@_compare_options
@click.command(cls=OwnStatus)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.pass_context
def diff(ctx: click.Context, /, a: str, b: str, **given: Any) -> None:
    """Compare A with B: short for compare --baseline A --test B."""
    with _no_collector():
        status = _compare(a, b, given)
    ctx.exit(status)


def _compare(a: str, b: str, given: Mapping[str, Any]) -> int:
    from pytest_hwqueue.baselines.diff import load_source
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.differences import hard_differences, render_differences
    from pytest_hwqueue.reports.judgement_file import judgement_text
    from pytest_hwqueue.reports.outcome import write_markdown
    from pytest_hwqueue.reports.verdicts import render_judgement
    from pytest_hwqueue.verdicts.judging import compare_sources
    from pytest_hwqueue.verdicts.unmatched import nothing_in_common

    settings = gate_settings(given)
    figures = gated_figures(given)
    sentinel = parsed_setting("sentinel", given["sentinel"]) or None
    store = open_store(given["baselines"], packaged=True)
    new = load_source(b, store)
    old = load_source(a, store, of=new)
    if not old.cells.keys() & new.cells.keys():
        ours, theirs = ([cell.header.cell for cell in side.cells.values()] for side in (old, new))
        raise InputRefused(f"nothing to compare\n{nothing_in_common(old.label, ours, theirs)}")
    if sentinel is not None and sentinel not in old.cells:
        raise InputRefused(f"--sentinel: {sentinel!r} is no cell of {old.label}")
    judgement = compare_sources(
        old, new, figures, settings,
        allow_environment=parsed_setting("allow-env", given["allow_env"]), sentinel=sentinel,
    )  # fmt: skip
    if not judgement.verdicts:
        raise InputRefused(
            f"no cell that is in both {old.label} and {new.label} has a figure "
            f"{' or '.join(figures)}"
        )
    status = comparison_status(judgement, _policies(given))
    hard = hard_differences(old, new)
    parts = [render_judgement(judgement, *_terminal()).replace("--hwq-", "--")]
    parts += filter(None, [render_differences(hard)])
    if not judgement.judged:
        parts.append("no cell was judged: that is an error, whatever --on-... says")
    # First of all, so that a file that cannot be written hides no verdict.
    _echo("\n".join(parts))
    if given["json_file"]:
        write_text(Path(given["json_file"]), judgement_text(judgement, new.label, status, hard))
    try:
        write_markdown(parsed_setting("markdown", given["markdown"]), [judgement], [])
    except OSError as error:
        raise InputRefused(f"cannot write GitHub's summary: {error}") from None
    return status


@contextmanager
def _no_collector() -> Iterator[None]:
    """Suspend the garbage collector.

    Runs and verdicts contain no reference cycles, and searching some hundred thousand of them for
    cycles took a third of the time of a comparison of 10 000 cells.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _policies(given: Mapping[str, Any]) -> dict[str, str]:
    names = ("inconclusive", "no-baseline", "incomparable", "missing")
    fields = {name: f"on_{name.replace('-', '_')}" for name in names}
    return {name: parsed_setting(f"on-{name}", given[field]) for name, field in fields.items()}


def _terminal() -> tuple[int, bool]:
    from pytest_hwqueue.reports.doctor import make_console

    console = make_console()
    return console.width, console.color_system is not None


def _echo(text: str) -> None:
    """Print text; the exit status counts even if the reader closes the pipe early."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # What Python would still write when it ends goes nowhere, as its documentation advises.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
