"""The ``hwq`` command: a thin layer over pytest, with the plugin's options without their ``hwq-``.

Measuring commands end with pytest's own exit status: 0 all measured, 1 failed cells, 2 interrupted,
3 internal error, 4 wrong usage, 5 nothing selected. Those that compare have their own
(`gate_options`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pytest_hwqueue import __version__
from pytest_hwqueue.cli.ab import ab
from pytest_hwqueue.cli.advise import advise
from pytest_hwqueue.cli.baselines import baseline
from pytest_hwqueue.cli.bisect import bisect
from pytest_hwqueue.cli.capacity import capacity
from pytest_hwqueue.cli.compare import compare, diff
from pytest_hwqueue.cli.help import help_command
from pytest_hwqueue.cli.history import history
from pytest_hwqueue.cli.parameters import MeasuringWorkloads, WorkloadName, with_parameters
from pytest_hwqueue.cli.plugin_options import TABLE, setting, with_options
from pytest_hwqueue.cli.profile import profile
from pytest_hwqueue.cli.recompute import recompute
from pytest_hwqueue.cli.report import report
from pytest_hwqueue.cli.scenario import scenario
from pytest_hwqueue.cli.suite import MeasuringCommand, plugin_arguments, run_suite
from pytest_hwqueue.cli.sweep import sweep
from pytest_hwqueue.cli.trace import trace
from pytest_hwqueue.cli.tune import tune
from pytest_hwqueue.cli.which import which
from pytest_hwqueue.errors import BadExtension, BadOption

_USAGE = 4
_INTERRUPTED = 2


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
        except BadExtension as error:
            refused = click.UsageError(str(error), ctx)
            refused.exit_code = _USAGE  # type: ignore[misc]
            raise refused from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hwq")
def main() -> None:
    """Measure whether a GPU's queue scheduling keeps tail latency.

    Options are also environment variables: --max-time is HWQ_MAX_TIME. Arguments after -- go to
    pytest. The exit status is pytest's: 0 all measured, 1 failed cells, 2 interrupted, 4 wrong
    usage, 5 nothing selected. Commands that compare stored runs or commits document their own.
    `hwq help` explains the options by topic.
    """


@main.command("list")
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="also show everything that each declares, with its parameters",
)
def list_workloads(verbose: bool) -> None:
    """List the workloads: what they measure, and on how many streams.

    With --verbose, also show whether a workload needs several processes, what its ratios mean, and
    its parameters with types, bounds and defaults at each size.
    """
    from pytest_hwqueue.reports.listing import describe_workloads, print_workloads

    print_workloads(describe_workloads(), verbose)


@with_options(without=("workload",))
@main.command(cls=MeasuringWorkloads)
@click.argument("names", nargs=-1, required=True, type=WorkloadName(), metavar="NAME...")
@click.pass_context
def run(ctx: click.Context, /, names: tuple[str, ...], **given: Any) -> None:
    """Measure workloads by name (see `hwq list`).

    The parameters of a single workload are options too: `hwq run hetero_kernels --mm-dim 2048`
    (`hwq run NAME --help` lists them).
    """
    given = with_parameters(ctx, names, given)
    ctx.exit(run_suite(ctx, plugin_arguments({**given, "workload": ",".join(names)})))


@with_options(without=("priority",))
@main.command(cls=MeasuringCommand)
@click.argument("marks", metavar="P0[,P1...]")
@click.pass_context
def run_priority(ctx: click.Context, /, marks: str, **given: Any) -> None:
    """Measure all workloads with these priority marks."""
    try:
        TABLE["priority"].parse("P0[,P1...]", marks)
    except BadOption as error:
        raise click.UsageError(str(error), ctx) from None
    ctx.exit(run_suite(ctx, plugin_arguments({**given, "priority": marks})))


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
    help="also write all results to FILE",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="take fewer samples; refuse figures that need more")
@click.pass_context
def doctor(ctx: click.Context, /, json_file: str | None, quick: bool, **given: str | None) -> None:
    """Check this machine, and measure its limits and the cost of measuring.

    Ends with exit status 1 if a check found a problem, and 0 otherwise.
    """
    from pytest_hwqueue.doctor import as_json, diagnose
    from pytest_hwqueue.errors import LeaseError, RecordError
    from pytest_hwqueue.records.files import write_text
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
    ab, compare, diff, baseline, scenario, profile, sweep, trace, which, capacity, tune,
    advise, recompute, report, history, bisect, help_command,
):  # fmt: skip
    main.add_command(_command)
