"""``hwq which``: one scenario under every scheduler, in one table.

Exit status: 0 the table was printed, whatever it says; 1 no case produced figures; 2 interrupted,
after printing the table so far; 4 wrong usage or input, also where a mode could not be opened and
the others were measured; 5 no case was selected.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.plugin_options import parsed_setting, with_options
from pytest_hwqueue.errors import BadOption

if TYPE_CHECKING:
    from pytest_hwqueue.reports.which.progress import WhichProgress
    from pytest_hwqueue.scenarios.file import Scenario
    from pytest_hwqueue.scenarios.planned_runs import Case
    from pytest_hwqueue.which.runs import WhichRuns
    from pytest_hwqueue.which.session import Measurer, WhichSettings

_NO_FIGURES, _INTERRUPTED, _USAGE, _NOTHING_SELECTED = 1, 2, 4, 5
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class _Refused(click.ClickException):
    """Something the user named cannot be used."""

    exit_code = _USAGE


@with_options(
    only=(
        "device",
        "size",
        "seed",
        "timeout",
        "lease-timeout",
        "dir",
        "commit",
        "xsched-root",
        "preloads",
        "weights",
    )
)
@click.command()
@click.argument("file", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option("--duration", metavar="TIME", help="measuring time of each case, such as 60s "
              "(default: the scenario's; at sizes tiny and small its short one)")  # fmt: skip
@click.option("--rounds", metavar="N", type=click.IntRange(min=1), default=2, show_default=True,
              help="windows that share this time; cases take turns, back and forth")  # fmt: skip
@click.option("--schedulers", metavar="MODE[,MODE...]",
              help="only these of the scenario's; a mode without parameters selects all its "
              "kinds")  # fmt: skip
@click.option("--variant", metavar="NAME", help="only this variant of the scenario")
@click.option("--causes", is_flag=True,
              help="then run each case once more, traced, for at most 20 s, and explain "
              "its slow requests")  # fmt: skip
@click.option("--from", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path),
              help="measure nothing: use the records in a folder; repeatable")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", type=_FILE,
              help="also write every figure to FILE")  # fmt: skip
@click.option("--markdown", metavar="FILE", type=_FILE, help="also write the table to FILE")
@click.option("--svg", metavar="FILE", type=_FILE,
              help="also draw the latency distributions to FILE; needs matplotlib")  # fmt: skip
@click.pass_context
def which(ctx: click.Context, /, file: Path, **given: Any) -> None:
    """Compare schedulers on a scenario: which ones meet its goals, and what they cost others.

    Measures every scheduler of SCENARIO (*.hwq.yaml), native, and each tenant alone, in turn. A
    scheduler that is unavailable or cannot be opened, or under which a tenant dies, is listed with
    the reason.

    Exit status: 0 if the table was printed, 1 if no case produced figures, 2 if interrupted (the
    table so far is printed, and measurements are on disk), 4 for wrong usage or input, also if a
    scheduler could not be opened, and 5 if no case was selected.
    """
    from pytest_hwqueue.errors import BadScenario, RecordError
    from pytest_hwqueue.scenarios.file import read_scenario

    try:
        scenario = read_scenario(file)
        if scenario.noise:
            raise _Refused(
                f"{file}: noise: this command compares schedulers in the quiet; leave the field "
                f"out of a copy, or measure under noise with `pytest {file}`"
            )
        wanted = _wanted(ctx, scenario, given)
        _check_outputs(given)
        if given["folders"] and given["causes"]:
            raise _Refused("--causes: runs the cases once more; --from runs nothing: leave out one")
        if given["folders"]:
            status = _again(scenario, wanted, given)
        else:
            status = _measured(scenario, wanted, file, given)
    except (BadScenario, RecordError, OSError) as error:
        raise _Refused(str(error)) from None
    except BadOption as error:
        raise _Refused(str(error).replace("--hwq-", "--")) from None
    ctx.exit(status)


def _wanted(ctx: click.Context, scenario: Scenario, given: dict[str, Any]) -> list[Case]:
    from pytest_hwqueue.errors import BadScheduler
    from pytest_hwqueue.scenarios.planned_runs import cases
    from pytest_hwqueue.schedulers.syntax import parse_schedulers

    found = cases(scenario)
    if given["variant"] is not None:
        names = [variant.name for variant in scenario.variants]
        if given["variant"] not in names:
            raise BadOption("--variant", given["variant"], f"choose from {', '.join(names)}"
                            if names else "the scenario has none")  # fmt: skip
        found = [case for case in found if case.variant and case.variant.name == given["variant"]]
    if given["schedulers"] is not None:
        try:
            modes = [str(mode) for mode in parse_schedulers(given["schedulers"])]
        except BadScheduler as error:
            raise _Refused(f"--schedulers: {error}") from None
        # One without parameters stands for any.
        found = [
            case
            for case in found
            if case.scheduler in modes or case.scheduler.partition(":")[0] in modes
        ]
    if not found:
        there = ", ".join(dict.fromkeys(case.scheduler for case in cases(scenario)))
        click.echo(f"no case was selected; the scenario has {there}", err=True)
        ctx.exit(_NOTHING_SELECTED)
    return found


def _check_outputs(given: dict[str, Any]) -> None:
    """Refuse, before anything is measured, outputs that could not be written."""
    from pytest_hwqueue.reports.latency_plot import INSTALL, can_plot

    if given["svg"] is not None and not can_plot():
        raise _Refused(f"--svg: {INSTALL}; --from draws from records measured elsewhere")
    for name in ("json_file", "markdown", "svg"):
        path = given[name]
        if path is not None and not path.absolute().parent.is_dir():
            option = name.removesuffix("_file")
            raise _Refused(f"--{option}: {path}: there is no folder {path.parent}")


def _again(scenario: Scenario, wanted: list[Case], given: dict[str, Any]) -> int:
    from pytest_hwqueue.which.runs import read_runs

    runs = read_runs(scenario, wanted, given["folders"])
    return _report(scenario, wanted, runs, given, complete=True)


def _measured(scenario: Scenario, wanted: list[Case], file: Path, given: dict[str, Any]) -> int:
    from pytest_hwqueue.devices.lease import session_leases
    from pytest_hwqueue.reports.which.progress import WhichProgress
    from pytest_hwqueue.schedulers.unopened import unopened
    from pytest_hwqueue.which.runs import WhichRuns
    from pytest_hwqueue.which.session import Measurer, scenario_server
    from pytest_hwqueue.workloads.tenants.names import MISSING_TRANSFORMERS

    if find_spec("transformers") is None and any(tenant.model for tenant in scenario.tenants):
        raise _Refused(MISSING_TRANSFORMERS)
    settings = _settings(scenario, file, given)
    bad = unopened(dict.fromkeys(case.scheduler for case in wanted), settings.scheduler_paths)
    if all(case.scheduler in bad for case in wanted):
        raise _Refused("; ".join(bad.values()))
    settings.folder.mkdir(parents=True)
    click.echo(f"hwq which: records are kept in {settings.folder}", err=True)
    kept = session_leases(
        settings.folder.name,
        lambda text: click.echo(f"hwq which: {text}", err=True),
        parsed_setting("lease-timeout", given["lease_timeout"]),
    )
    with kept:
        with ExitStack() as stack:
            progress = stack.enter_context(WhichProgress())
            server = scenario_server(scenario, settings.device)
            if server is not None:
                stack.callback(server.close)
            measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended, server)
            runs = WhichRuns(scenario, measurer)
            with _interrupts() as interrupted:
                runs.measure_all(wanted, given["rounds"], progress.run_begins)
        status = _report(
            scenario, wanted, runs, given, complete=not interrupted, folder=settings.folder
        )
        if given["causes"] and not interrupted:
            with WhichProgress() as progress, _interrupts() as interrupted:
                measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended)
                _print_causes(scenario, wanted, runs, measurer, progress)
    for reason in bad.values():
        click.echo(f"hwq which: requested but not measured: {reason}", err=True)
    return _INTERRUPTED if interrupted else status or (_USAGE if bad else 0)


def _print_causes(
    scenario: Scenario, wanted: list[Case], runs: WhichRuns, measurer: Measurer,
    progress: WhichProgress,
) -> None:  # fmt: skip
    """Print below the table why requests were slow, from a traced run of each ok case."""
    from pytest_hwqueue.scenarios.runs import PeakUnknown
    from pytest_hwqueue.scenarios.traced_rerun import causes_in_words, tenants_in_question

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


@contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """Stop measuring on Ctrl-C and SIGTERM; the yielded list is then no longer empty."""
    from pytest_hwqueue.processes.groups import signals_interrupt

    happened: list[bool] = []
    try:
        with signals_interrupt():
            yield happened
    except KeyboardInterrupt:
        happened.append(True)


def _settings(scenario: Scenario, file: Path, given: dict[str, Any]) -> WhichSettings:
    from pytest_hwqueue.devices.discover import choose_devices
    from pytest_hwqueue.plugin.cell_settings import resolve_size
    from pytest_hwqueue.plugin.session import session_id
    from pytest_hwqueue.records.cell import now
    from pytest_hwqueue.records.provenance import OtherCommit, provenance_of
    from pytest_hwqueue.scenarios.planned_runs import missing_weights
    from pytest_hwqueue.schedulers.mode import SchedulerPaths
    from pytest_hwqueue.which.session import WhichSettings

    devices = choose_devices(parsed_setting("device", given["device"]))
    if len(devices) > 1:
        labels = ", ".join(device.label for device in devices)
        raise BadOption("--device", "all", f"tenants share one device; choose from {labels}")
    size = parsed_setting("size", given["size"])
    duration_s = scenario.duration_s(resolve_size(size, devices[0].kind))
    if given["duration"] is not None:
        duration_s = _seconds(given["duration"])
    here = Path.cwd()
    weights = parsed_setting("weights", given["weights"])
    if weights is not None:
        weights = here / weights
        lacking = missing_weights(scenario.tenants, weights)
        if lacking is not None:
            raise _Refused(lacking)
    commit = parsed_setting("commit", given["commit"])
    try:
        provenance = provenance_of(file.absolute().parent, commit)
    except OtherCommit as error:
        raise BadOption("--commit", commit, str(error)) from None
    return WhichSettings(
        device=devices[0].label,
        size=size,
        duration_s=duration_s,
        seed=parsed_setting("seed", given["seed"]),
        timeout_s=parsed_setting("timeout", given["timeout"]),
        scheduler_paths=SchedulerPaths(
            parsed_setting("xsched-root", given["xsched_root"]),
            parsed_setting("preloads", given["preloads"]),
        ),
        folder=here / parsed_setting("dir", given["dir"]) / f"which-{session_id(now())}",
        scenario_folder=file.absolute().parent,
        weights=weights,
        command=shlex.join(["hwq", *sys.argv[1:]]),
        provenance=provenance,
    )


def _seconds(text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    from pytest_hwqueue.scenarios.fields import Seconds

    try:
        return TypeAdapter(Seconds).validate_python(text)
    except ValidationError as error:
        raise BadOption("--duration", text, str(error.errors()[0]["ctx"]["error"])) from None


def _report(
    scenario: Scenario, wanted: list[Case], runs: WhichRuns, given: dict[str, Any], *,
    complete: bool, folder: Path | None = None,
) -> int:  # fmt: skip
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.doctor import make_console
    from pytest_hwqueue.reports.which.markdown import which_markdown
    from pytest_hwqueue.reports.which.plot import which_svg
    from pytest_hwqueue.reports.which.table import draw_which
    from pytest_hwqueue.which.runs import entries
    from pytest_hwqueue.which.table import table

    lines = entries(scenario, wanted)
    found = table(scenario, lines, runs, complete=complete)
    # First of all, so that a file that cannot be written hides no figure.
    draw_which(found, make_console())
    text = found.model_dump_json(by_alias=True, indent=1) + "\n"
    for path in filter(None, (given["json_file"], folder and folder / "which.json")):
        write_text(path, text)
    if given["markdown"] is not None:
        write_text(given["markdown"], which_markdown(found))
    if given["svg"] is not None:
        drawn = which_svg(found, lines, runs)
        if drawn is None:
            click.echo(f"no request was completed, so {given['svg']} is not drawn", err=True)
        else:
            write_text(given["svg"], drawn)
    measured = any(case.status == "ok" and case.role == "case" for case in found.cases)
    return 0 if measured else _NO_FIGURES
