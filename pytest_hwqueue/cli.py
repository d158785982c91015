"""The ``hwq`` command: a thin layer over pytest, with the plugin's options without their ``hwq-``.

Measuring commands end with pytest's own exit status: 0 all measured, 1 failed cells, 2 interrupted,
3 internal error, 4 wrong usage, 5 nothing selected. Those that compare have their own (`cli_gate`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue import __version__, cli_ab, cli_baselines, cli_compare, cli_scenario, cli_which
from pytest_hwqueue.cli_options import TABLE, setting, with_options
from pytest_hwqueue.option_values import BadOption
from pytest_hwqueue.options import OPTIONS
from pytest_hwqueue.workloads.registry import WORKLOADS

_USAGE = 4
_INTERRUPTED = 2
_EXTRA = "pytest_hwqueue.cli.extra"
_SWEEP = {"streams": "1,2,4,8,16"}
# A trace is read by eye: a few iterations show the pattern, and more only make the file large.
_PROFILE = {"iterations": "20"}


class _Commands(click.Group):
    """Gives wrong usage pytest's exit status: click's own, 2, is pytest's "interrupted"."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = _USAGE  # type: ignore[misc]
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.exit_code = _USAGE  # type: ignore[misc]
            raise


class _Measuring(click.Command):
    """A command whose arguments behind ``--`` are pytest's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_EXTRA] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PYTEST_ARGUMENTS...]"]


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


def _run_pytest(ctx: click.Context, arguments: Sequence[str]) -> int:
    from pytest_hwqueue.suite import (
        SuiteNotFound,
        pytest_command,
        pytest_environment,
        run_pytest,
    )

    try:
        command = pytest_command(arguments, ctx.meta[_EXTRA])
    except SuiteNotFound as error:
        raise click.UsageError(str(error), ctx) from None
    return run_pytest(command, pytest_environment())


_WORKLOAD = click.Choice(list(WORKLOADS))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hwq")
def main() -> None:
    """Measure whether a GPU's queue scheduling keeps tail latency.

    Options are also environment variables: --max-time is HWQ_MAX_TIME. Arguments behind -- go to
    pytest. The exit status is pytest's: 0 all measured, 1 failed cells, 2 interrupted, 4 wrong
    usage, 5 nothing selected. Compare, diff and baseline say of their own what theirs mean.
    """


@main.command("list")
@click.option("--verbose", "-v", is_flag=True, help="also list every workload's parameters")
def list_workloads(verbose: bool) -> None:
    """List the workloads: what they measure, and on how many streams."""
    from pytest_hwqueue.reports.listing import describe_workloads, print_workloads

    print_workloads(describe_workloads(), verbose)


@with_options(without=("workload",))
@main.command(cls=_Measuring)
@click.argument("names", nargs=-1, required=True, type=_WORKLOAD, metavar="NAME...")
@click.pass_context
def run(ctx: click.Context, /, names: tuple[str, ...], **given: Any) -> None:
    """Measure workloads by name (see `hwq list`)."""
    ctx.exit(_run_pytest(ctx, plugin_arguments({**given, "workload": ",".join(names)})))


@with_options(without=("workload",), defaults=_SWEEP)
@main.command(cls=_Measuring)
@click.argument("name", type=_WORKLOAD, metavar="NAME")
@click.pass_context
def sweep(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Measure one workload over several numbers of streams.

    Numbers outside the workload's range are skipped, with the reason.
    """
    ctx.exit(_run_pytest(ctx, plugin_arguments({**given, "workload": name}, _SWEEP)))


@with_options(without=("priority",))
@main.command(cls=_Measuring)
@click.argument("marks", metavar="P0[,P1...]")
@click.pass_context
def run_priority(ctx: click.Context, /, marks: str, **given: Any) -> None:
    """Measure all workloads of these priority marks."""
    try:
        TABLE["priority"].parse("P0[,P1...]", marks)
    except BadOption as error:
        raise click.UsageError(str(error), ctx) from None
    ctx.exit(_run_pytest(ctx, plugin_arguments({**given, "priority": marks})))


@with_options(without=("workload", "profile"), defaults=_PROFILE)
@main.command(cls=_Measuring)
@click.argument("name", type=_WORKLOAD, metavar="NAME")
@click.pass_context
def profile(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Run one workload shortly and write a trace for Perfetto."""
    folder = Path(setting("profile-dir", given["profile_dir"]))
    began = time.time()
    given |= {"workload": name, "profile": True}
    status = _run_pytest(ctx, plugin_arguments(given, _PROFILE))
    traces = [path for path in folder.rglob("*.json") if path.stat().st_mtime >= began - 1]
    for path in sorted(traces):
        click.echo(f"trace: {path} (open in Perfetto, https://ui.perfetto.dev)")
    if not traces:
        click.echo(f"no trace was written to {folder}; the output above says why", err=True)
    ctx.exit(status)


@main.command()
def info() -> None:
    """Show versions, devices and their limits."""
    from pytest_hwqueue.doctor.information import describe_machine
    from pytest_hwqueue.reports.doctor import print_machine

    print_machine(describe_machine())


@with_options(only=("device", "dir"))
@main.command()
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False, writable=True),
    help="also write everything found to FILE",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="take fewer samples; what needs more says so")
@click.pass_context
def doctor(ctx: click.Context, /, json_file: str | None, quick: bool, **given: str | None) -> None:
    """Check this machine, measure its limits, and the overhead of measuring itself.

    Ends with exit status 1 if a check found a problem, and 0 otherwise.
    """
    from pytest_hwqueue.baselines.record import RecordError, write_text
    from pytest_hwqueue.devices.lease import LeaseError
    from pytest_hwqueue.doctor import as_json, diagnose
    from pytest_hwqueue.reports.doctor import print_diagnosis

    try:
        diagnosis = diagnose(
            setting("device", given["device"]),
            Path(setting("dir", given["dir"])),
            quick=quick,
            progress=lambda text: click.echo(f"hwq doctor: {text}", err=True),
        )
        print_diagnosis(diagnosis)
        if json_file is not None:
            write_text(Path(json_file), as_json(diagnosis))
    except BadOption as error:
        raise click.UsageError(str(error).replace("--hwq-", "--"), ctx) from None
    except LeaseError as error:
        raise click.UsageError(str(error), ctx) from None
    except RecordError as error:
        raise click.UsageError(f"--json: {error}", ctx) from None
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        ctx.exit(_INTERRUPTED)
    ctx.exit(1 if diagnosis.has_problem else 0)


for _command in (
    cli_ab.ab, cli_compare.compare, cli_compare.diff, cli_baselines.baseline, cli_scenario.scenario,
    cli_which.which,
):  # fmt: skip
    main.add_command(_command)
