"""What commands that take a scenario have in common: its file, its cases, how it is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from pytest_hwqueue.data.errors import BadOption, HwqError, meant, refused_as, within
from pytest_hwqueue.options.of_commands import (
    OutFiles,
    combined,
    interruptible,
    out_file,
    say,
    settings_of,
)

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import Self

    from pytest_hwqueue.data.records.tenants import ColocationRecord
    from pytest_hwqueue.engine.scenarios.file import Scenario
    from pytest_hwqueue.engine.scenarios.measurer import RunSettings
    from pytest_hwqueue.engine.scenarios.planned_runs import Case, PlannedRun
    from pytest_hwqueue.options.options import Settings
    from pytest_hwqueue.parts.processes.starting import ForkServer


class ScenarioPath(click.Path):
    """A scenario's file, or one of the suite's by its name, such as ``high_load``."""

    name = "scenario"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the file's path; what is a file here comes before the suite's."""
        file = Path(value)
        if file.exists() or file.suffix or file.name != str(value):
            return file
        brought = _of_the_suite()
        if value not in brought:
            self.fail(
                f"{meant(value, brought)}there is no file {value}, and the suite's scenarios are "
                f"{', '.join(brought)}", param, ctx,
            )  # fmt: skip
        return brought[value]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the suite's names, and files."""
        names = [CompletionItem(name) for name in _of_the_suite() if name.startswith(incomplete)]
        return [*names, *super().shell_complete(ctx, param, incomplete)]


def _of_the_suite() -> dict[str, Path]:
    from pytest_hwqueue.engine.tenants import SCENARIO_SUFFIX
    from pytest_hwqueue.options.suite import suite_path

    files = sorted((suite_path() / "scenarios").glob(f"*{SCENARIO_SUFFIX}"))
    return {file.name.removesuffix(SCENARIO_SUFFIX): file for file in files}


# Of the plugin's options, those that commands take which measure a scenario's tenants.
MEASURING_OPTIONS = (
    "device", "size", "seed", "timeout", "lease-timeout", "dir", "commit", "xsched-root",
    "preloads", "weights",
)  # fmt: skip


def scenario_options(drawn: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Add the scenario, its cases, and the files to write; ``drawn`` says what --svg draws."""

    return combined(
        out_file("svg", f"also {drawn} to FILE; needs the extra report"),
        out_file("markdown", "also write the tables to FILE"),
        out_file("json", "also write every figure to FILE"),
        click.option("--variant", metavar="NAME", help="only this variant of the scenario"),
        click.option("--schedulers", metavar="MODE[,MODE...]",
                     help="only these rows of the table; a mode without parameters or threads- "
                     "selects all its kinds; one that the file does not list is added"),
        click.argument("file", metavar="SCENARIO", type=ScenarioPath()),
    )  # fmt: skip


@dataclass(frozen=True)
class ScenarioOptions:
    """What a command that takes a scenario was asked.

    Attributes:
        file: of the scenario.
        settings: the plugin's options among the command's.
        files: to write.
        variant: the only one to measure; None for all.
        schedulers: the only rows to measure, as given; None for all.

    """

    file: Path
    settings: Settings
    files: OutFiles
    variant: str | None
    schedulers: str | None

    @classmethod
    def of(cls, file: Path, given: Mapping[str, Any]) -> Self:
        """Sort a command's options: its own by the class's fields, the plugin's as settings."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in given.items() if name in names}
        plugins = {name: value for name, value in given.items() if name not in names}
        return cls(file=file, settings=settings_of(plugins), files=OutFiles.of(given), **own)


def unopened_modes(wanted: Sequence[Case], settings: RunSettings) -> list[str]:
    """Return why modes cannot be opened; refuse a scenario of which no case can be measured."""
    from pytest_hwqueue.parts.schedulers.syntax import unopened

    bad = unopened(dict.fromkeys(case.scheduler for case in wanted), settings.scheduler_paths)
    if all(case.scheduler in bad for case in wanted):
        raise HwqError("; ".join(bad.values()))
    return list(bad.values())


def refuse_late_starts(wanted: Sequence[Case], window_s: float) -> None:
    """Refuse cases with a tenant, or one compared with, that such windows end too soon for."""
    from pytest_hwqueue.engine.scenarios.planned_runs import late_start

    for case in wanted:
        if reason := late_start(case, window_s):
            raise HwqError(f"{case.id}: {reason}")


@contextmanager
def tenants_server(scenario: Scenario, settings: RunSettings) -> Iterator[ForkServer | None]:
    """Run what forks the scenario's tenants during the ``with`` block, if anything does."""
    from pytest_hwqueue.engine.scenarios.measurer import scenario_server

    server = scenario_server(scenario, settings.plan.device)
    try:
        yield server
    finally:
        if server is not None:
            server.close()


def figures_json(found: BaseModel) -> str:
    """Return the text of --json."""
    return found.model_dump_json(by_alias=True, indent=1) + "\n"


def selected(asked: ScenarioOptions, noise: str, elsewhere: str) -> tuple[Scenario, list[Case]]:
    """Return a scenario and the cases of it that a command is to measure.

    Args:
        asked: the command's options.
        noise: why a scenario with noises is refused.
        elsewhere: how to get a picture where none can be drawn.

    Raises:
        HwqError: if outputs could not be written, before anything is measured.

    """
    from pytest_hwqueue.engine.scenarios.file import read_scenario

    scenario = read_scenario(asked.file)
    if scenario.noise:
        raise HwqError(f"{asked.file}: noise: {noise}")
    wanted = _wanted_cases(scenario, asked)
    refuse_unwritable(asked.files, elsewhere)
    return scenario, wanted


def refuse_unwritable(files: OutFiles, elsewhere: str) -> None:
    """Refuse outputs that could not be written, before anything is measured.

    Args:
        files: to write.
        elsewhere: how to get a picture where none can be drawn.

    """
    from pytest_hwqueue.data.document.drawing import INSTALL, can_plot

    if files.svg is not None and not can_plot():
        raise HwqError(f"--svg: {INSTALL}; {elsewhere}")
    for option, path in files.named():
        if not path.absolute().parent.is_dir():
            raise HwqError(f"{option}: {path}: there is no folder {path.parent}")


def _wanted_cases(scenario: Scenario, asked: ScenarioOptions) -> list[Case]:
    """Return the cases that --variant and --schedulers select, with those of modes they add."""
    from pytest_hwqueue.data.records.placement import TenantPlacement
    from pytest_hwqueue.engine.scenarios.planned_runs import Case, cases
    from pytest_hwqueue.parts.schedulers.syntax import parse_entry, split_entries

    found = cases(scenario)
    if asked.variant is not None:
        names = [variant.name for variant in scenario.variants]
        if asked.variant not in names:
            raise BadOption("--variant", asked.variant, f"choose from {', '.join(names)}"
                            if names else "the scenario has none")  # fmt: skip
        found = [case for case in found if case.variant and case.variant.name == asked.variant]
    if asked.schedulers is None:
        return found
    in_threads = f"{TenantPlacement.THREADS}-"
    rows = [Case(scenario, None, case.placement, case.scheduler).id for case in found]
    there = ", ".join(dict.fromkeys(rows))
    modes = []
    with within("--schedulers", remedy=f"the scenario has {there}"):
        for entry in split_entries(asked.schedulers):
            mode = entry.removeprefix(in_threads)
            modes += [f"{entry.removesuffix(mode)}{each}" for each in parse_entry(mode)]
    # One without parameters stands for any, and one without its placement for both.
    spelt = [(row, case.scheduler) for row, case in zip(rows, found, strict=True)]
    kinds = [{*names, *(name.partition(":")[0] for name in names)} for names in spelt]
    wanted = [case for case, each in zip(found, kinds, strict=True) if each.intersection(modes)]
    unlisted = [mode for mode in modes if not any(mode in each for each in kinds)]
    return [*wanted, *_added(unlisted, found, asked.settings)]


def _added(modes: Sequence[str], found: Sequence[Case], settings: Settings) -> list[Case]:
    """Return cases of modes that a scenario does not list: one for each of its variants.

    Args:
        modes: such as ``threads-native``; without a placement it is the file's, and processes where
            the file has both.
        found: the file's own cases, of the variants asked for.
        settings: say where descriptions and installations are.

    Raises:
        HwqError: if a mode cannot be opened, or tenants that are servers are to be threads.

    """
    from pytest_hwqueue.data.records.placement import TenantPlacement
    from pytest_hwqueue.parts.schedulers.syntax import unopened

    in_threads, placements = f"{TenantPlacement.THREADS}-", {case.placement for case in found}
    usual = placements.pop() if len(placements) == 1 else TenantPlacement.PROCESSES
    names = [mode.removeprefix(in_threads) for mode in modes]
    if bad := unopened(names, settings.scheduler_paths(Path())):
        raise HwqError(f"--schedulers: {'; '.join(bad.values())}")
    added = []
    for mode, name in zip(modes, names, strict=True):
        placement = usual if mode == name else TenantPlacement.THREADS
        cases = [replace(case, placement=placement, scheduler=name) for case in found]
        # The file's cases of one variant differ in nothing else.
        added += list(dict.fromkeys(cases))
        servers = [each.name for each in added[-1].tenants if each.server is not None]
        if servers and placement == TenantPlacement.THREADS:
            raise HwqError(
                f"--schedulers: {mode}: {', '.join(servers)} is a server, which is a process: "
                f"leave out {in_threads}"
            )
    return added


def session_devices(settings: Settings) -> AbstractContextManager[None]:
    """Keep the device for the whole session, as `session_leases` says; waiting is announced."""
    from pytest_hwqueue.parts.devices.lease import session_leases

    return session_leases(say, settings.lease_timeout)


def run_settings(
    scenario: Scenario, asked: ScenarioOptions, folder: str, duration: str | None = None
) -> RunSettings:
    """Return how runs are measured.

    Args:
        scenario: what is measured.
        asked: the command's options.
        folder: of the records, in --dir.
        duration: as given with --duration; the scenario's own by default.

    """
    from pytest_hwqueue.data.redaction import redacted_command
    from pytest_hwqueue.engine.scenarios.measurer import RunSettings
    from pytest_hwqueue.engine.scenarios.own_functions import check_functions
    from pytest_hwqueue.engine.scenarios.planned_runs import (
        SessionPlan,
        missing_weights,
        unset_variable,
    )
    from pytest_hwqueue.engine.tenants.servers import missing_client
    from pytest_hwqueue.parts.devices.kinds import only_device, resolve_size
    from pytest_hwqueue.parts.processes.git import provenance_of
    from pytest_hwqueue.parts.workloads.tenants.shapes import missing_package

    file, settings, here = asked.file, asked.settings, Path.cwd()
    check_functions(scenario, file)
    device, tenants = only_device(settings.device), scenario.tenants_of(None)
    duration_s = scenario.duration_s(resolve_size(settings.size, device.kind))
    if duration is not None:
        duration_s = seconds("--duration", duration)
    weights = settings.weights and here / settings.weights
    if weights is not None:
        lacking = missing_weights(tenants, weights)
        if lacking is not None:
            raise HwqError(lacking)
    lacking = missing_package(each.model for each in tenants)
    if lacking is None and any(each.server for each in tenants):
        lacking = missing_client()
    if lacking is not None:
        raise HwqError(lacking)
    unset = unset_variable(tenants, file)
    if unset is not None:
        raise HwqError(unset)
    with refused_as("--commit", settings.commit):
        provenance = provenance_of(file.absolute().parent, settings.commit)
    return RunSettings(
        plan=SessionPlan(
            device.label,
            settings.size,
            file.absolute().parent,
            scenario.warmup,
            settings.seed,
            weights,
        ),
        duration_s=duration_s,
        timeout_s=settings.timeout,
        scheduler_paths=settings.scheduler_paths(Path()),
        folder=here / settings.dir / folder,
        command=redacted_command(["hwq", *sys.argv[1:]], scenario.secrets()),
        provenance=provenance,
    )


@dataclass(frozen=True)
class RoundsPlan:
    """What a command measures that makes a scenario by itself.

    Attributes:
        scenario: its name is that of the command.
        text: of the scenario, which is kept beside the records.
        window_s: the longest that one window of most runs may take.
        lasts_s: about how long all windows take together, without the tenants' starts.
        rounds: of most runs, which take turns in mirrored order.
        first: whether a run is measured before the others, once, for at most as long as all rounds
            of another.

    """

    scenario: Scenario
    text: str
    window_s: float
    lasts_s: float
    rounds: int
    first: Callable[[PlannedRun], bool] = lambda run: False


class RoundsMeasured(NamedTuple):
    """What came of a plan.

    Attributes:
        records: of all windows, run by run.
        folder: that has them.
        unopened: why modes could not be opened.
        interrupted: before all was measured.

    """

    records: list[ColocationRecord]
    folder: Path
    unopened: list[str]
    interrupted: bool


def measure_rounds(plan: RoundsPlan, given: Mapping[str, Any]) -> RoundsMeasured:
    """Measure all that a plan's scenario has, with a command's options; refuse what cannot be."""
    from pytest_hwqueue.data.metrics.numbers import duration
    from pytest_hwqueue.data.records.cell import now
    from pytest_hwqueue.data.records.files import make_session_folder, session_name
    from pytest_hwqueue.data.safe_files import write_text
    from pytest_hwqueue.engine.scenarios.measurer import Measurer
    from pytest_hwqueue.engine.scenarios.planned_runs import cases, once, own_run
    from pytest_hwqueue.engine.scenarios.runs import NotMeasured, ScenarioRuns
    from pytest_hwqueue.options.progress import RoundsProgress

    scenario, name = plan.scenario, plan.scenario.name
    asked = ScenarioOptions(
        file=Path.cwd() / f"{name}.hwq.yaml",
        settings=settings_of(given),
        files=OutFiles.of(given),
        variant=None,
        schedulers=None,
    )
    whole = f"{plan.rounds * plan.window_s:.3f}s"
    settings = run_settings(scenario, asked, f"{name}-{session_name(now())}", whole)
    wanted = cases(scenario)
    bad = unopened_modes([case for case in wanted if len(case.tenants) > 1], settings)
    make_session_folder(settings.folder)
    write_text(settings.folder / asked.file.name, plan.text)
    say(f"records are kept in {settings.folder}")
    say(f"about {duration(plan.lasts_s)} of measuring, without the tenants' starts")
    runs_of = once(map(own_run, wanted))
    first = [run for run in runs_of if plan.first(run)]
    others = [run for run in runs_of if not plan.first(run)]
    with (
        session_devices(asked.settings),
        RoundsProgress(name) as progress,
        tenants_server(scenario, settings) as server,
    ):
        measurer = Measurer(scenario, settings, progress.run_is_at, progress.run_ended, server)
        runs = ScenarioRuns(measurer)
        with interruptible() as interrupted:
            for stage, rounds in ((first, 1), (others, plan.rounds)):
                if stage:
                    runs.take_turns(stage, rounds, [], "end", progress.run_begins)
    records: list[ColocationRecord] = []
    for run in runs_of:
        try:
            records += runs.records(run)
        except NotMeasured:
            continue
    return RoundsMeasured(records, settings.folder, bad, bool(interrupted))


def windows_in(folder: Path) -> list[ColocationRecord]:
    """Return the windows in a folder of --from; refuse those of several devices."""
    from pytest_hwqueue.data.metrics.numbers import listed
    from pytest_hwqueue.data.records.tenants import records_in

    records = [record for _, record in records_in(folder)]
    if len(devices := {record.device for record in records}) > 1:
        raise HwqError(
            f"--from: {folder} has windows of {listed(sorted(devices))}, which are not compared: "
            "give the folder of one session"
        )
    return records


def seconds(option: str, text: str) -> float:
    """Read a duration such as 60s."""
    from pydantic import TypeAdapter, ValidationError

    from pytest_hwqueue.engine.scenarios.fields import Seconds

    try:
        return TypeAdapter(Seconds).validate_python(text)
    except ValidationError as error:
        raise BadOption(option, text, str(error.errors()[0]["ctx"]["error"])) from None
