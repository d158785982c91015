"""``hwq trace``: one cell's traced pass as a file for Perfetto, with the causes of its tail."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue.cli.parameters import MeasuringWorkloads, WorkloadName, with_parameters
from pytest_hwqueue.cli.plugin_options import setting, with_options
from pytest_hwqueue.cli.suite import plugin_arguments, run_suite
from pytest_hwqueue.devices.named_trace import PICTURES, WITH_CSV
from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.settings.options import DISPATCHES, SIZES, SYNC_MODES
from pytest_hwqueue.workloads.registry import WORKLOADS

# Enough for P99, and not too many for a picture.
_DEFAULTS = {"iterations": "400"}
_CELL = re.compile(
    r"(?P<name>.+)\[(?P<device>.+?)-s(?P<streams>\d+)-(?P<scheduler>.+?)"
    rf"-(?P<dispatch>{'|'.join(DISPATCHES)})"
    rf"(?:-(?P<sync_mode>{'|'.join(SYNC_MODES)}))?(?:-(?P<variant>.+))?\]"
)
_RANKS = re.compile(r"(\d+)ranks")


class _NotACell(ValueError):
    """Text in brackets is not a cell's id; the message says why."""


class _Tracing(MeasuringWorkloads):
    """Accepts a cell's id in place of a workload's name and options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put an id's options before all others, which override them."""
        at = next((index for index, each in enumerate(args) if each.endswith("]")), None)
        if at is not None and "--" not in args[:at]:
            try:
                name, options = words_of_cell(args[at])
            except _NotACell as error:
                raise click.UsageError(str(error), ctx) from None
            args = [name, *options, *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)


@with_options(without=("workload", "profile", "causes"), defaults=_DEFAULTS)
@click.command(cls=_Tracing)
@click.argument("name", type=WorkloadName(), metavar="NAME|CELL")
@click.option("--csv", is_flag=True, help="also write the events as CSV, next to the trace")
@click.pass_context
def trace(ctx: click.Context, /, name: str, csv: bool, **given: Any) -> None:
    """Trace one workload's iterations, and write everything seen to one file.

    NAME is a workload, or a CELL's id as in tables and records, such as 'moe[cpu-s8-native-eager]',
    which then sets the options. The file shows requests (one per --iterations), launches by
    thread, kernels by stream with an arrow from each launch, times off the CPU and who ran
    instead, interrupts, and clocks; how much depends on this process's privileges. Requests above
    P95 and P99 show their cause.
    """
    try:
        folder = Path(setting("profile-dir", given["profile_dir"]))
    except BadOption as error:
        raise click.UsageError(str(error), ctx) from None
    given = {**with_parameters(ctx, [name], given), "workload": name}
    began = time.time()
    status = run_suite(
        ctx,
        plugin_arguments(given, _DEFAULTS),
        environment={PICTURES: WITH_CSV if csv else "1"},
    )
    pictures = _written(folder, "json", began)
    for path in pictures:
        click.echo(f"trace: {path} (open in Perfetto, https://ui.perfetto.dev)")
    for path in _written(folder, "csv", began):
        click.echo(f"events: {path}")
    if not pictures:
        click.echo(f"no trace was written to {folder}; the output above says why", err=True)
    ctx.exit(status)


def words_of_cell(text: str) -> tuple[str, list[str]]:
    """Return a cell id's workload, and the options that measure the cell.

    Raises:
        _NotACell: if it is no id, or names what no option of this command sets.

    """
    found = _CELL.fullmatch(text)
    if found is None:
        raise _NotACell(
            f"{text!r} is no cell's id; such as hetero_kernels[cuda-s8-native-eager], in quotes"
        )
    if found["name"] not in WORKLOADS:
        raise _NotACell(
            f"{found['name']!r} is no workload of the suite (see `hwq list`); trace a test of your "
            "own with `pytest TEST --hwq-causes=always`"
        )
    options = [
        f"--device={found['device']}", f"--streams={found['streams']}",
        f"--scheduler={found['scheduler']}", f"--dispatch={found['dispatch']}",
    ]  # fmt: skip
    if found["sync_mode"]:
        options.append(f"--sync-mode={found['sync_mode']}")
    return found["name"], [*options, *_of_variant(found["variant"] or "")]


def _of_variant(text: str) -> list[str]:
    """Return the options for the remaining parts of a cell's id."""
    options: list[str] = []
    for part in text.split("-") if text else []:
        ranks = _RANKS.fullmatch(part)
        if ranks:
            options.append(f"--ranks={ranks[1]}")
        elif part in SIZES:
            options.append(f"--size={part}")
        elif "=" in part:
            options.append(f"--param={part}")
        elif options and options[-1].startswith("--param="):
            # A value with a hyphen, such as 1e-3.
            options[-1] += f"-{part}"
        else:
            raise _NotACell(f"what {part!r} in the cell's id asks for is to be given as options")
    return options


def _written(folder: Path, suffix: str, began: float) -> list[Path]:
    """Return the files that this command wrote."""
    found = folder.glob(f"trace-*.{suffix}")
    return sorted(path for path in found if path.stat().st_mtime >= began - 1)
