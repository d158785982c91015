"""``hwq which`` and ``hwq capacity``: a scenario under every scheduler; how much it carries.

Exit status: 0 the table was printed, whatever it says; 1 no case produced figures, or no rate could
be judged; 2 interrupted, after printing the table so far; 4 wrong usage or input, also where a mode
could not be opened and the others were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import BadOption, HwqError
from pytest_hwqueue.options import of_scenarios as common
from pytest_hwqueue.options.of_commands import (
    INTERRUPTED,
    USAGE,
    interruptible,
    output,
    say,
    with_options,
)
from pytest_hwqueue.options.values import share

if TYPE_CHECKING:
    from pytest_hwqueue.answers.which.capacity_file import CapacityFile
    from pytest_hwqueue.answers.which.rates import RateGrid
    from pytest_hwqueue.answers.which.runs import WhichRuns
    from pytest_hwqueue.answers.which.search import CaseSearch, RateLooks
    from pytest_hwqueue.engine.scenarios.file import Scenario
    from pytest_hwqueue.engine.scenarios.measurer import Measurer, RunSettings
    from pytest_hwqueue.engine.scenarios.planned_runs import Case
    from pytest_hwqueue.options.progress import WhichProgress

# No case has figures, or no rate a verdict.
_NOTHING_SHOWN = 1


@dataclass(frozen=True)
class WhichOptions(common.ScenarioOptions):
    """What ``hwq which`` was asked: each field is the option of its name; ``folders`` is --from."""

    duration: str | None
    rounds: int
    causes: bool
    capacity: bool
    folders: tuple[Path, ...]
    wide: bool
    verbose: bool


@dataclass(frozen=True)
class SearchOptions:
    """How a capacity is searched: each field is the option of its name."""

    tenant: str
    rates: str | None = None
    precision: str = "10%"
    windows: int = 4
    requests: int | None = None
    window: str = "5s"
    time: str = "120s"


@with_options(only=(*common.MEASURING_OPTIONS, "until"))
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
              "hold, as `hwq capacity` does by default: at most 120s more for each scheduler, or 8 "
              "windows where requests are rare")  # fmt: skip
@click.option("--from", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path),
              help="measure nothing: use the records in a folder; repeatable")  # fmt: skip
@common.scenario_options("draw the latency distributions")
@click.option("--wide", is_flag=True,
              help="print, and write to --markdown, one table instead: a row for each scheduler, "
              "with n, rate, mean, P50 to max of the most urgent tenant, the others' throughput, "
              "and each change to native")  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="also print every figure, goal and proof")
def which(file: Path, **given: Any) -> int:
    """Compare schedulers on a scenario: goals met, and the cost.

    Measures every scheduler of SCENARIO (*.hwq.yaml), native, and each tenant alone, in turn; where
    goals ask how tenants use the device, each row but the tenants alone then once more, traced. A
    scheduler that is unavailable or cannot be opened, or under which a tenant dies, is listed with
    the reason.

    Exit status: 0 if the table was printed, 1 if no case produced figures, 2 if interrupted (the
    table so far is printed, and measurements are on disk), and 4 for wrong usage or input, also if
    a scheduler could not be opened.
    """
    from pytest_hwqueue.answers.which.runs import read_runs

    noise = (
        "this command compares schedulers in the quiet; leave the field out of a copy, or measure "
        f"under noise with `pytest {file}`"
    )
    elsewhere = "--from draws from records measured elsewhere"
    asked = WhichOptions.of(file, given)
    scenario, wanted = common.selected(asked, noise, elsewhere)
    if not asked.folders:
        return _measured(scenario, wanted, asked)
    if asked.causes:
        raise HwqError("--causes: runs the cases once more; --from runs nothing: leave out one")
    if asked.capacity:
        raise HwqError("--capacity: measures, and --from does not; see `hwq capacity --help`")
    runs = read_runs(wanted, asked.folders)
    return _report(wanted, runs, asked, complete=True)


def _measured(scenario: Scenario, wanted: list[Case], asked: WhichOptions) -> int:
    from pytest_hwqueue.answers.which.runs import WhichRuns, all_runs
    from pytest_hwqueue.data.records.cell import now
    from pytest_hwqueue.data.records.files import make_session_folder, session_name
    from pytest_hwqueue.engine.scenarios.measurer import Measurer
    from pytest_hwqueue.engine.scenarios.planned_runs import planned_windows
    from pytest_hwqueue.options.progress import WhichProgress

    plan = _planned_in_which(wanted) if asked.capacity else None
    folder = f"which-{session_name(now())}"
    settings = common.run_settings(scenario, asked, folder, asked.duration)
    common.refuse_late_starts(wanted, settings.duration_s / asked.rounds)
    bad = common.unopened_modes(wanted, settings)
    make_session_folder(settings.folder)
    say(f"records are kept in {settings.folder}")
    for window in planned_windows(wanted):
        if reason := window.too_short(settings.duration_s):
            say(reason)
    with common.session_devices(asked.settings):
        with WhichProgress() as progress, common.tenants_server(scenario, settings) as server:
            measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended, server)
            runs = WhichRuns(measurer)
            with interruptible() as interrupted:
                runs.take_turns(
                    all_runs(wanted),
                    asked.rounds,
                    wanted,
                    asked.settings.until,
                    progress.run_begins,
                )
                _trace_for_goals(wanted, runs, measurer, progress)
        stopped = bool(interrupted)
        capacities = None
        if plan is not None and not stopped:
            tenant, looks, grids = plan
            below = replace(settings, folder=settings.folder / "capacity")
            time_s = common.seconds("--time", SearchOptions.time)
            capacities, stopped, _ = _searched(scenario, tenant, grids, looks, time_s, below)
        status = _report(
            wanted, runs, asked, complete=not stopped, folder=settings.folder,
            capacities=capacities,
        )  # fmt: skip
        if asked.causes and not stopped:
            with WhichProgress() as progress, interruptible() as interrupted:
                measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended)
                _print_causes(wanted, runs, measurer, progress)
            stopped = bool(interrupted)
    for reason in bad:
        say(f"requested but not measured: {reason}")
    return INTERRUPTED if stopped else status or (USAGE if bad else 0)


def _trace_for_goals(
    wanted: list[Case], runs: WhichRuns, measurer: Measurer, progress: WhichProgress
) -> None:
    """Run each row's tenants traced whose goals ask how they use the device."""
    from pytest_hwqueue.answers.which.runs import entries
    from pytest_hwqueue.engine.scenarios.traced import trace_for_goals

    rows = [entry.case for entry in entries(wanted) if entry.role != "solo"]
    asking = [case for case in rows if any(goal.traced for goal in case.goals)]
    for done, case in enumerate(asking):
        progress.run_begins(done, len(asking))
        trace_for_goals(runs, case, measurer.trace)


def _print_causes(
    wanted: list[Case], runs: WhichRuns, measurer: Measurer, progress: WhichProgress
) -> None:
    """Print below the table why requests were slow, from a traced run of each ok case."""
    from pytest_hwqueue.engine.scenarios.runs import PeakUnknown
    from pytest_hwqueue.engine.scenarios.traced import causes_in_words, tenants_in_question

    for done, case in enumerate(wanted):
        progress.run_begins(done, len(wanted))
        try:
            _, records, _ = runs.measured(case)
        except PeakUnknown:
            continue
        if any(record.status != "ok" for record in records):
            continue
        tenants = tenants_in_question(case)
        for line in causes_in_words(runs, case, tenants, measurer.trace):
            click.echo(f"{case.id}: {line}")


def _report(
    wanted: list[Case], runs: WhichRuns, asked: WhichOptions, *,
    complete: bool, folder: Path | None = None, capacities: CapacityFile | None = None,
) -> int:  # fmt: skip
    from pytest_hwqueue.answers.which.plot import which_svg
    from pytest_hwqueue.answers.which.report import which_document
    from pytest_hwqueue.answers.which.runs import entries
    from pytest_hwqueue.answers.which.table import table
    from pytest_hwqueue.answers.which.wide import wide_document
    from pytest_hwqueue.data.safe_files import write_text

    lines = entries(wanted)
    found = table(lines, runs, complete=complete)
    if capacities is not None:
        per_s = {case.id: case.capacity_per_s for case in capacities.cases}
        cases = [
            case.with_capacity(capacities.tenant, per_s[case.id]) if case.id in per_s else case
            for case in found.cases
        ]
        found = found.model_copy(update={"cases": cases})
    wide = asked.wide
    output(
        wide_document(found) if wide else which_document(found, verbose=asked.verbose),
        asked.files, partial(common.figures_json, found), kept=folder and folder / "which.json",
        written=None if wide else which_document(found),
    )  # fmt: skip
    if asked.files.svg is not None:
        drawn = which_svg(found, lines, runs)
        if drawn is None:
            click.echo(f"no request was completed, so {asked.files.svg} is not drawn", err=True)
        else:
            write_text(asked.files.svg, drawn)
    measured = any(case.status == "ok" and case.role == "case" for case in found.cases)
    return 0 if measured else _NOTHING_SHOWN


# Below and above the scenario's own rate, unless --rates says otherwise.
_LESS, _MORE = 4.0, 64.0
_LEAST_REQUESTS = 500


@with_options(only=common.MEASURING_OPTIONS)
@click.command()
@click.option("--tenant", metavar="NAME", required=True,
              help="whose arrival rate is searched; it has constant, poisson or lognormal "
              "arrivals")  # fmt: skip
@click.option("--rates", metavar="LOW:HIGH",
              help="search between these, in requests per second (default: from a quarter of "
              "the scenario's rate to 64 times it)")  # fmt: skip
@click.option("--precision", metavar="SHARE", default=SearchOptions.precision, show_default=True,
              help="most that two neighbouring rates differ")  # fmt: skip
@click.option("--windows", metavar="N", type=click.IntRange(min=1), show_default=True,
              default=SearchOptions.windows,
              help="most windows for one rate; it is decided as soon as they suffice, and two "
              "more confirm it at the edge")  # fmt: skip
@click.option("--requests", metavar="N", type=click.IntRange(min=1),
              help="requests of each window (default: 500, or five quarters of what the strictest "
              "percentile among the goals needs, if that is more; in at most 20s where 368 come in "
              "that)")  # fmt: skip
@click.option("--time", metavar="TIME", default=SearchOptions.time, show_default=True,
              help="longest measuring time of each scheduler, with its tenants' starts; where 368 "
              "requests do not come in 20s, at most 8 windows if they take longer")  # fmt: skip
@click.option("--window", metavar="TIME", default=SearchOptions.window, show_default=True,
              help="least length of a window")  # fmt: skip
@common.scenario_options("plot P99 and others' loss against the rate")
def capacity(file: Path, **given: Any) -> int:
    """Find the greatest arrival rate at which all goals hold.

    Under each scheduler it changes the rate of one tenant of SCENARIO (*.hwq.yaml): begins at a
    quarter to half of what the tenant serves alone, doubles or lowers it until goals break or hold,
    then bisects. A rate is judged after each of its windows, and left as soon as all goals are
    shown to be met, or one to be missed. A scheduler's tenants are started once, and serve window
    after window; the greatest rate that held and the least that broke are then confirmed in two
    fresh starts. The time that a search takes at most is printed before the first rate.

    Every window is kept in a folder below --dir, and the same command continues there.

    Exit status: 0 if the table was printed, 1 if no rate could be judged, 2 if interrupted, and 4
    for wrong usage or input, also if a scheduler could not be opened.
    """
    from pytest_hwqueue.answers.which.capacity_report import capacity_document, capacity_svg
    from pytest_hwqueue.data.safe_files import write_text

    asked = common.ScenarioOptions.of(file, given)
    how = SearchOptions(**{field.name: given[field.name] for field in fields(SearchOptions)})
    scenario, wanted = common.selected(
        asked, "capacity is searched in the quiet; leave the field out",
        "the same command draws where the records are and vl-convert-python is",
    )  # fmt: skip
    settings = common.run_settings(scenario, asked, f"capacity-{scenario.name}-{how.tenant}")
    looks, grids = _planned(wanted, how)
    time_s = common.seconds("--time", how.time)
    with common.session_devices(asked.settings):
        found, interrupted, bad = _searched(scenario, how.tenant, grids, looks, time_s, settings)
    output(capacity_document(found), asked.files, partial(common.figures_json, found),
           kept=settings.folder / "capacity.json")  # fmt: skip
    if asked.files.svg is not None:
        write_text(asked.files.svg, capacity_svg(found))
    if interrupted:
        return INTERRUPTED
    judged = any(rate.verdict for case in found.cases for rate in case.rates)
    return USAGE if bad else 0 if judged else _NOTHING_SHOWN


def _planned_in_which(
    wanted: list[Case],
) -> tuple[str, RateLooks, list[tuple[Case, RateGrid]]]:
    """Return the tenant whose capacity ``hwq which`` searches, and how, with this command's own.

    It is the most urgent of those with a rate, the first if there are several.
    """
    from pytest_hwqueue.engine.tenants.arrivals import CLIENT, is_closed

    tenants = wanted[0].scenario.tenants
    rated = [each for each in tenants if not is_closed(each.arrival) and each.arrival != CLIENT]
    if not rated:
        raise HwqError("--capacity: no tenant has an arrival rate that could be searched")
    tenant = max(rated, key=lambda each: each.priority).name
    return tenant, *_planned(wanted, SearchOptions(tenant))


def _planned(
    wanted: list[Case], how: SearchOptions
) -> tuple[RateLooks, list[tuple[Case, RateGrid]]]:
    """Return how rates are judged, and each case's rates; refuse what cannot be judged."""
    from pytest_hwqueue.answers.which.rates import make_grid
    from pytest_hwqueue.answers.which.search import RateLooks, least_requests, look_confidence

    precision = share(2)("--precision", how.precision)
    bounds = _rates(how.rates)
    goals = [goal for case in wanted for goal in case.goals]
    grids = []
    for case in wanted:
        counted = [tenant.name for tenant in case.tenants if tenant.requests is not None]
        if counted:
            raise HwqError(
                f"{case.id}: tenant {counted[0]} counts its requests, and a search sets how long "
                "windows are: leave requests out of a copy"
            )
        if not case.goals:
            raise HwqError(f"{case.id} has no goals, so any rate would do; give it some")
        for goal in filter(lambda each: each.traced, case.goals):
            raise HwqError(
                f"{case.id}: {goal} is judged by a traced window, and the windows of a search are "
                "not traced; leave the goal out of a copy"
            )
        own_rate = _own_rate(case, how.tenant)
        if own_rate is None and bounds is None:
            raise BadOption("--tenant", how.tenant, "its rate is a share of its peak, which "
                            "is not known yet; give --rates")  # fmt: skip
        low, high = bounds or ((own_rate or 0.0) / _LESS, (own_rate or 0.0) * _MORE)
        inside = own_rate is not None and low <= own_rate <= high
        start = own_rate if own_rate is not None and inside else (low * high) ** 0.5
        grids.append((case, make_grid(start, precision, low, high)))
    needed = least_requests(goals, look_confidence(how.windows))
    requests = how.requests or max(_LEAST_REQUESTS, 5 * needed // 4)
    if requests * how.windows < needed:
        raise BadOption(
            "--requests", str(requests),
            f"{how.windows} windows of it are fewer than the {needed} independent requests "
            "with which the goals' percentiles can be judged at all",
        )  # fmt: skip
    least_s = common.seconds("--window", how.window)
    common.refuse_late_starts(wanted, least_s)
    # Of windows that long, the user has asked for all.
    fewest = how.requests or least_requests(goals)
    return RateLooks(how.windows, requests, least_s, fewest), grids


def _searched(
    scenario: Scenario, tenant: str, grids: list[tuple[Case, RateGrid]], looks: RateLooks,
    time_s: float, settings: RunSettings,
) -> tuple[CapacityFile, bool, list[str]]:  # fmt: skip
    """Search, or continue; return the result, whether it was interrupted, and bad schedulers."""
    from pytest_hwqueue.answers.which.budget import SearchBudget
    from pytest_hwqueue.answers.which.capacity_file import result
    from pytest_hwqueue.answers.which.search import (
        CapacitySearch,
        CaseSearch,
        KeptWindows,
        ResumingMeasurer,
    )
    from pytest_hwqueue.data.metrics.numbers import counted
    from pytest_hwqueue.engine.scenarios.measurer import Measurer
    from pytest_hwqueue.options.progress import SearchProgress

    bad = common.unopened_modes([case for case, _ in grids], settings)
    settings.folder.mkdir(parents=True, exist_ok=True)
    kept = KeptWindows(settings.folder)
    reused = f", {counted(len(kept), 'window')} of it reused" if len(kept) else ""
    say(f"records are kept in {settings.folder}{reused}")
    with SearchProgress() as progress, common.tenants_server(scenario, settings) as server:
        measurer = Measurer(
            scenario, settings, progress.run_is_at, progress.run_ended, server, live_on=True
        )

        def measure_for(window_s: float) -> ResumingMeasurer:
            return ResumingMeasurer(measurer, kept, window_s, looks.planned(window_s))

        search = CapacitySearch(
            [CaseSearch(case, grid, SearchBudget(time_s, scenario.warmup)) for case, grid in grids],
            tenant, looks, measure_for, measurer.end_tenants, progress,
        )  # fmt: skip
        with interruptible() as interrupted, measurer:
            search.begin()
            progress.say(_time(search.found, looks, settings.plan.device))
            search.search()
    found = result(search, seed=settings.plan.seed, complete=not interrupted)
    for reason in bad:
        say(f"requested but not measured: {reason}")
    return found, bool(interrupted), bad


def _time(begun: Sequence[CaseSearch], looks: RateLooks, device: str) -> str:
    """Return what a search takes at most, without what it is compared with."""
    from pytest_hwqueue.answers.which.budget import MOST_WINDOWS
    from pytest_hwqueue.data.metrics.numbers import counted, duration
    from pytest_hwqueue.data.records.kinds import capabilities_of

    first = begun[0]
    start = first.grid.rate_per_s(first.first)
    most = f"at most {duration(first.budget.time_s)}"
    if looks.counted(start):
        most += f", or {counted(MOST_WINDOWS, 'window')} if they take longer,"
    virtual = capabilities_of(device).virtual_time
    clock = ", in virtual time, which passes faster" if virtual else ""
    return (
        f"{most} for each of {counted(len(begun), 'scheduler')}{clock}; the search begins at "
        f"{start:g}/s, where each window takes {duration(looks.window_s(start))}"
    )


def _own_rate(case: Case, tenant: str) -> float | None:
    """Return the rate in the scenario file; None if it is a share of a peak."""
    from pytest_hwqueue.answers.which.search import arrival_of
    from pytest_hwqueue.engine.tenants.arrivals import share_of_peak

    rate = arrival_of(case, tenant).rate_per_s
    (own,) = (each for each in case.tenants if each.name == tenant)
    return rate if share_of_peak(own.arrival) is None else None


def _rates(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = 0.0, 0.0
    if not colon or not 0 < bounds[0] < bounds[1] <= 1e5:
        raise BadOption("--rates", text, "give two rates per second, such as 10:400")
    return bounds
