"""``hwq scenario``.

Exit status: 0; 1 if a file has errors; 4 for wrong usage.
"""

from __future__ import annotations

from pathlib import Path

import click

from pytest_hwqueue.options.of_scenarios import ScenarioPath


@click.group()
def scenario() -> None:
    """Inspect scenario files (*.hwq.yaml).

    A scenario is tenants that share a device.

    To measure one, pass its file to pytest.
    """


@scenario.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=ScenarioPath())
def check(files: tuple[Path, ...]) -> int:
    """Report everything wrong with scenario files, or list their tests.

    Also says how long a window would decide each goal on latency, at the tenant's rate. Runs
    nothing. The exit status is 1 if a file has errors.
    """
    from pytest_hwqueue.data.errors import BadScenario
    from pytest_hwqueue.engine.scenarios.file import read_scenario
    from pytest_hwqueue.engine.scenarios.planned_runs import cases, planned_windows
    from pytest_hwqueue.engine.tenants import SCENARIO_SUFFIX

    wrong = False
    for file in files:
        try:
            found = read_scenario(file)
        except BadScenario as error:
            click.echo(str(error), err=True)
            wrong = True
            continue
        click.echo(f"{file}: {', '.join(case.id for case in cases(found))}")
        for window in planned_windows(cases(found)):
            click.echo(f"  {window}")
        if not file.name.endswith(SCENARIO_SUFFIX):
            reason = f"pytest does not see it: its name must end in {SCENARIO_SUFFIX}"
            click.echo(f"{file}: {reason}", err=True)
            wrong = True
    return 1 if wrong else 0
