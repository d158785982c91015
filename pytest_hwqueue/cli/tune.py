"""``hwq tune``: the parameters of a scheduler mode that serve a scenario's goals best.

Exit status: 0 the winner is better than native; 1 nothing won; 2 interrupted; 4 wrong usage or
input.
"""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.plugin_options import with_options
from pytest_hwqueue.cli.scenario_cases import (
    INTERRUPTED,
    MEASURING_OPTIONS,
    OUT_FILE,
    Refused,
    check_outputs,
    interrupts,
    seconds,
    session_devices,
    which_settings,
)
from pytest_hwqueue.errors import BadOption

if TYPE_CHECKING:
    from pytest_hwqueue.scenarios.file import Scenario
    from pytest_hwqueue.scenarios.planned_runs import Case

_NOTHING_WON = 1
_CONFIRMING_WINDOWS = 4
_LEAST_TRIALS = 3


@with_options(only=MEASURING_OPTIONS)
@click.command()
@click.argument("file", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option("--scheduler", metavar="MODE", required=True,
              help="whose parameters are searched; those given, as in xsched:level=1, stay as "
              "they are")  # fmt: skip
@click.option("--budget", metavar="TIME", default="10m", show_default=True,
              help="measuring time, the confirmation included")  # fmt: skip
@click.option("--window", metavar="TIME", default="10s", show_default=True,
              help="length of each window; 4 confirm")  # fmt: skip
@click.option("--placement", metavar="NAME", type=click.Choice(["processes", "threads"]),
              help="of the tenants (default: where the scenario lists the mode, else its "
              "first)")  # fmt: skip
@click.option("--variant", metavar="NAME", help="variant of the scenario; needed if it has some")
@click.option("--json", "json_file", metavar="FILE", type=OUT_FILE,
              help="also write every trial to FILE")  # fmt: skip
@click.pass_context
def tune(ctx: click.Context, /, file: Path, **given: Any) -> None:
    """Search the parameters of a scheduler mode for a scenario's goals, and confirm the best.

    Tries parameters of MODE on SCENARIO (*.hwq.yaml), a window each: goals first, then the
    throughput that less urgent tenants keep. The best is then measured beside native in fresh
    windows, in turn; only these decide, so a lucky window wins nothing. Needs optuna (the extra
    `tune`). With equal seeds the search proposes the same parameters for the same figures.

    Exit status: 0 if the best was shown to be better than native, 1 if not, 2 if interrupted, and 4
    for wrong usage or input.
    """
    from pytest_hwqueue.errors import BadScenario, BadScheduler, RecordError
    from pytest_hwqueue.scenarios.file import read_scenario

    try:
        scenario = read_scenario(file)
        if scenario.noise:
            raise Refused(f"{file}: noise: parameters are searched in the quiet; leave it out")
        check_outputs(given, "")
        status = _tuned(scenario, _case(scenario, given), file, given)
    except (BadScenario, BadScheduler, RecordError, ModuleNotFoundError, OSError) as error:
        raise Refused(str(error)) from None
    except BadOption as error:
        raise Refused(str(error).replace("--hwq-", "--")) from None
    ctx.exit(status)


def _case(scenario: Scenario, given: dict[str, Any]) -> Case:
    """Return the case whose mode is searched; it need not be one of the scenario's tests."""
    from pytest_hwqueue.scenarios.planned_runs import cases
    from pytest_hwqueue.schedulers.syntax import parse_scheduler

    mode = str(parse_scheduler(given["scheduler"]))
    names = [variant.name for variant in scenario.variants]
    if (given["variant"] not in names) if names else given["variant"] is not None:
        raise BadOption("--variant", str(given["variant"]), f"choose from {', '.join(names)}"
                        if names else "the scenario has none")  # fmt: skip
    there = [c for c in cases(scenario) if (c.variant and c.variant.name) == given["variant"]]
    name = mode.partition(":")[0]
    listed = [case for case in there if case.scheduler.partition(":")[0] == name]
    first = (listed or there)[0]
    found = replace(first, scheduler=mode, placement=given["placement"] or first.placement)
    if not scenario.goals_of(found.variant, found.placement):
        raise Refused(f"{found.id} has no goals, so any parameters would do; give it some")
    return found


def _tuned(scenario: Scenario, case: Case, file: Path, given: dict[str, Any]) -> int:
    from importlib.util import find_spec

    from pytest_hwqueue.capacity.tune_file import TuneFile, confirmation_data, trial_data
    from pytest_hwqueue.capacity.tuning import INSTALL, Confirmation, Trial, Tuner, best_of
    from pytest_hwqueue.devices.kinds import capabilities_of
    from pytest_hwqueue.metrics.numbers import counted, duration
    from pytest_hwqueue.plugin.session import session_id
    from pytest_hwqueue.records.cell import now
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.capacity.progress import SearchProgress
    from pytest_hwqueue.reports.capacity.tuning import draw_tuning, seen
    from pytest_hwqueue.reports.doctor import make_console
    from pytest_hwqueue.which.session import Measurer, scenario_server

    if find_spec("optuna") is None:
        raise Refused(INSTALL)
    budget_s, window_s = seconds("--budget", given["budget"]), seconds("--window", given["window"])
    settings = which_settings(scenario, file, given, f"tune-{session_id(now())}")
    settings = replace(settings, duration_s=window_s)
    each_s = window_s + scenario.warmup_s(settings.device.partition(":")[0])
    trials = _trials(scenario, case, budget_s, window_s, each_s)
    with ExitStack() as stack:
        stack.enter_context(session_devices("tune", settings.folder, given))
        progress = stack.enter_context(SearchProgress("hwq tune"))
        server = scenario_server(scenario, settings.device)
        if server is not None:
            stack.callback(server.close)
        measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended, server)
        tuner = Tuner(scenario, case, measurer)
        settings.folder.mkdir(parents=True)
        progress.say(f"records are kept in {settings.folder}")
        progress.say(
            f"up to {counted(trials, 'trial')} of {duration(window_s)}, then native and the best "
            f"in {_CONFIRMING_WINDOWS} fresh windows each: {duration(budget_s)} and start-up"
        )
        can = capabilities_of(settings.device)
        measured: list[Trial] = []
        began_s = time.monotonic()

        def tried(trial: Trial) -> bool:
            measured.append(trial)
            progress.say(f"{trial.scheduler}: {seen(trial_data(trial))}")
            if len(measured) == _LEAST_TRIALS and best_of(measured) is None:
                return False
            # Start-up is not in the plan, and must not stretch the search without end.
            return can.virtual_time or time.monotonic() - began_s < budget_s

        confirmed = Confirmation(False, "")
        with interrupts() as interrupted:
            tuner.search(trials, settings.seed, tried)
            best = best_of(measured)
            if best is not None:
                confirmed = tuner.confirm(best.scheduler, _CONFIRMING_WINDOWS)
    best = best_of(measured)
    if best is None and measured:
        confirmed = replace(confirmed, reason=measured[-1].reason)
    found = TuneFile.model_validate(
        {
            "scenario": scenario.name,
            "case": case.id,
            "device": settings.device,
            "simulated": can.simulated,
            "complete": not interrupted,
            "seed": settings.seed,
            "command": shlex.join(["hwq", *sys.argv[1:]]),
            "space": {name: (of.least, of.most) for name, of in tuner.space.items()},
            "trials": [trial_data(trial) for trial in measured],
            "winner": best and best.scheduler,
            **confirmation_data(confirmed),
        }
    )
    draw_tuning(found, make_console())
    text = found.model_dump_json(by_alias=True, indent=1) + "\n"
    for path in filter(None, (given["json_file"], settings.folder / "tune.json")):
        write_text(path, text)
    return INTERRUPTED if interrupted else 0 if found.won else _NOTHING_WON


def _trials(scenario: Scenario, case: Case, budget_s: float, window_s: float, each_s: float) -> int:
    """Return how many trials the budget has room for; refuse what could confirm nothing."""
    from pytest_hwqueue.scenarios.planned_runs import planned_windows, runs_needed

    for window in planned_windows(scenario, [case]):
        if reason := window.too_short(_CONFIRMING_WINDOWS * window_s):
            raise Refused(f"--window: {_CONFIRMING_WINDOWS} of them confirm, and {reason}")
    # References of goals are measured once in the search, and in each confirming round.
    references = max(1, len(runs_needed(scenario, case)) - 1)
    fixed_s = each_s * (references + _CONFIRMING_WINDOWS * (references + 1))
    trials = int((budget_s - fixed_s) / each_s)
    if trials < _LEAST_TRIALS:
        needed_s = fixed_s + _LEAST_TRIALS * each_s
        raise BadOption(
            "--budget", f"{budget_s:g}s",
            f"{_LEAST_TRIALS} trials and the confirmation take {needed_s:.0f}s; give more, or a "
            "shorter --window",
        )  # fmt: skip
    return trials
