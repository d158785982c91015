"""``hwq sweep``: one or all workloads over several numbers of streams."""

from __future__ import annotations

from typing import Any

import click

from pytest_hwqueue.cli.parameters import MeasuringWorkloads, WorkloadName, with_parameters
from pytest_hwqueue.cli.plugin_options import with_options
from pytest_hwqueue.cli.suite import plugin_arguments, run_suite
from pytest_hwqueue.settings.options import PRIORITIES

ALL = "all"
_DEFAULTS = {"streams": "1,2,4,8,16"}
# Reasons of what is skipped are shown, and a file that cannot be read costs no other's cells.
_PYTEST = ("-p", "pytest_hwqueue.plugin.sweeping", "-rs", "--continue-on-collection-errors")


@with_options(without=("workload",), defaults=_DEFAULTS)
@click.command(cls=MeasuringWorkloads)
@click.argument("name", type=WorkloadName(ALL), metavar="NAME|all")
@click.option(
    "--resume", is_flag=True,
    help="continue the last sweep in --dir with the same settings: keep the cells that it "
    "measured, measure those that failed or are missing",
)  # fmt: skip
@click.pass_context
def sweep(ctx: click.Context, /, name: str, resume: bool, **given: Any) -> None:
    """Measure one or all workloads over several numbers of streams.

    Numbers outside a workload's range are skipped, with the reason. A failing cell costs no other
    its result. Ends with a scaling table per workload, and a plot next to the records.

    --resume continues a sweep with the same options (except --dir, --json, --markdown, --report,
    --timeout and --lease-timeout, which change no figure), commit, plugin and suite files, versions
    of Python, torch, driver and kernel, host, and variables that the GPU's runtime reads.
    """
    given = with_parameters(ctx, [name], given)
    defaults = dict(_DEFAULTS)
    if name == ALL:
        # Every workload has a mark. Scenarios are no workloads, so they stay out.
        defaults["priority"] = ",".join(PRIORITIES)
    else:
        given["workload"] = name
    arguments = [*plugin_arguments(given, defaults), *_PYTEST]
    ctx.exit(run_suite(ctx, [*arguments, "--hwq-resume"] if resume else arguments))
