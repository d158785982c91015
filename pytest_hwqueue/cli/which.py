"""``hwq which``: one scenario under every scheduler, in one table.

Exit status: 0 the table was printed, whatever it says; 1 no case produced figures; 2 interrupted,
after printing the table so far; 4 wrong usage or input, also where a mode could not be opened and
the others were measured; 5 no case was selected.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.capacity import planned_in_which, searched
from pytest_hwqueue.cli.options import INTERRUPTED, USAGE, output, say, with_options
from pytest_hwqueue.cli.scenario import (
    MEASURING_OPTIONS,
    check_outputs,
    figures_json,
    interrupts,
    scenario_options,
    session_devices,
    tenants_server,
    unopened_modes,
    wanted_cases,
    which_settings,
)
from pytest_hwqueue.errors import HwqError

if TYPE_CHECKING:
    from pytest_hwqueue.capacity.result import CapacityFile
    from pytest_hwqueue.reports.progress import WhichProgress
    from pytest_hwqueue.scenarios.file import Scenario
    from pytest_hwqueue.scenarios.planned_runs import Case
    from pytest_hwqueue.which.runs import WhichRuns
    from pytest_hwqueue.which.session import Measurer

_NO_FIGURES = 1


@with_options(only=(*MEASURING_OPTIONS, "whole-windows"))
@click.command()
@click.option("--duration", metavar="TIME", help="longest measuring time of each case, such as 60s "
              "(default: the scenario's; at sizes tiny and small its short one)")  # fmt: skip
@click.option("--rounds", metavar="N", type=click.IntRange(min=1), default=2, show_default=True,
              help="windows that share this time; cases take turns, in mirrored order")  # fmt: skip
@click.option("--causes", is_flag=True,
              help="then run each case once more, traced, for at most 20 s, and explain "
              "its slow requests")  # fmt: skip
@click.option("--capacity", is_flag=True,
              help="then search for the greatest rate of the most urgent tenant at which all goals "
              "hold, as `hwq capacity` does by default")  # fmt: skip
@click.option("--from", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path),
              help="measure nothing: use the records in a folder; repeatable")  # fmt: skip
@scenario_options("draw the latency distributions")
@click.option("--verbose", "-v", is_flag=True, help="also print every figure, goal and proof")
def which(file: Path, **given: Any) -> int:
    """Compare schedulers on a scenario: goals met, and the cost.

    Measures every scheduler of SCENARIO (*.hwq.yaml), native, and each tenant alone, in turn. A
    scheduler that is unavailable or cannot be opened, or under which a tenant dies, is listed with
    the reason.

    Exit status: 0 if the table was printed, 1 if no case produced figures, 2 if interrupted (the
    table so far is printed, and measurements are on disk), 4 for wrong usage or input, also if a
    scheduler could not be opened, and 5 if no case was selected.
    """
    from pytest_hwqueue.scenarios.file import read_scenario
    from pytest_hwqueue.schedulers.declaration import NATIVE
    from pytest_hwqueue.which.runs import read_runs

    scenario = read_scenario(file)
    if scenario.noise:
        raise HwqError(
            f"{file}: noise: this command compares schedulers in the quiet; leave the field "
            f"out of a copy, or measure under noise with `pytest {file}`"
        )
    wanted = wanted_cases(scenario, given, always=(NATIVE.name,))
    check_outputs(given, "--from draws from records measured elsewhere")
    if not given["folders"]:
        return _measured(scenario, wanted, file, given)
    if given["causes"]:
        raise HwqError("--causes: runs the cases once more; --from runs nothing: leave out one")
    if given["capacity"]:
        raise HwqError("--capacity: measures, and --from does not; see `hwq capacity --help`")
    runs = read_runs(scenario, wanted, given["folders"])
    return _report(scenario, wanted, runs, given, complete=True)


def _measured(scenario: Scenario, wanted: list[Case], file: Path, given: dict[str, Any]) -> int:
    from pytest_hwqueue.plugin.session import session_id
    from pytest_hwqueue.records.cell import now
    from pytest_hwqueue.records.files import make_session_folder
    from pytest_hwqueue.reports.progress import WhichProgress
    from pytest_hwqueue.scenarios.own_functions import check_functions
    from pytest_hwqueue.scenarios.planned_runs import planned_windows
    from pytest_hwqueue.which.runs import WhichRuns
    from pytest_hwqueue.which.session import Measurer
    from pytest_hwqueue.workloads.tenants.shapes import MISSING_TRANSFORMERS

    check_functions(scenario, file)
    if find_spec("transformers") is None and any(tenant.model for tenant in scenario.tenants):
        raise HwqError(MISSING_TRANSFORMERS)
    plan = planned_in_which(scenario, wanted) if given["capacity"] else None
    settings = which_settings(scenario, file, given, f"which-{session_id(now())}")
    bad = unopened_modes(wanted, settings)
    make_session_folder(settings.folder)
    say(f"records are kept in {settings.folder}")
    for window in planned_windows(scenario, wanted):
        if reason := window.too_short(settings.duration_s):
            say(reason)
    with session_devices(settings.folder, given):
        with WhichProgress() as progress, tenants_server(scenario, settings) as server:
            measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended, server)
            runs = WhichRuns(scenario, measurer)
            early = not given["whole_windows"]
            if early:
                measurer.decided = partial(runs.decided, wanted)
            with interrupts() as interrupted:
                runs.measure_all(wanted, given["rounds"], progress.run_begins, early=early)
        stopped = bool(interrupted)
        capacities = None
        if plan is not None and not stopped:
            tenant, looks, grids = plan
            below = replace(settings, folder=settings.folder / "capacity")
            capacities, stopped, _ = searched(scenario, tenant, grids, looks, below)
        status = _report(
            scenario, wanted, runs, given, complete=not stopped, folder=settings.folder,
            capacities=capacities,
        )  # fmt: skip
        if given["causes"] and not stopped:
            with WhichProgress() as progress, interrupts() as interrupted:
                measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended)
                _print_causes(scenario, wanted, runs, measurer, progress)
            stopped = bool(interrupted)
    for reason in bad:
        say(f"requested but not measured: {reason}")
    return INTERRUPTED if stopped else status or (USAGE if bad else 0)


def _print_causes(
    scenario: Scenario, wanted: list[Case], runs: WhichRuns, measurer: Measurer,
    progress: WhichProgress,
) -> None:  # fmt: skip
    """Print below the table why requests were slow, from a traced run of each ok case."""
    from pytest_hwqueue.scenarios.runs import PeakUnknown
    from pytest_hwqueue.scenarios.traced import causes_in_words, tenants_in_question

    for done, case in enumerate(wanted):
        progress.run_begins(done, len(wanted))
        try:
            _, records, _ = runs.measured(case)
        except PeakUnknown:
            continue
        if any(record.status != "ok" for record in records):
            continue
        tenants = tenants_in_question(scenario, case)
        for line in causes_in_words(runs, case, tenants, measurer.trace):
            click.echo(f"{case.id}: {line}")


def _report(
    scenario: Scenario, wanted: list[Case], runs: WhichRuns, given: dict[str, Any], *,
    complete: bool, folder: Path | None = None, capacities: CapacityFile | None = None,
) -> int:  # fmt: skip
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.which.document import which_document
    from pytest_hwqueue.reports.which.plot import which_svg
    from pytest_hwqueue.which.runs import entries
    from pytest_hwqueue.which.table import table

    lines = entries(scenario, wanted)
    found = table(scenario, lines, runs, complete=complete)
    if capacities is not None:
        per_s = {case.id: case.capacity_per_s for case in capacities.cases}
        cases = [
            case.with_capacity(capacities.tenant, per_s[case.id]) if case.id in per_s else case
            for case in found.cases
        ]
        found = found.model_copy(update={"cases": cases})
    output(
        which_document(found, verbose=given["verbose"]), given, partial(figures_json, found),
        kept=folder and folder / "which.json", written=which_document(found),
    )  # fmt: skip
    if given["svg"] is not None:
        drawn = which_svg(found, lines, runs)
        if drawn is None:
            click.echo(f"no request was completed, so {given['svg']} is not drawn", err=True)
        else:
            write_text(given["svg"], drawn)
    measured = any(case.status == "ok" and case.role == "case" for case in found.cases)
    return 0 if measured else _NO_FIGURES
