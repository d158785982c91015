"""Compares a session's runs with a baseline and stores them: tests fail by their verdicts.

This is the gate's connection to pytest. Names and files are checked before anything is measured.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import BadInput, RecordError
from pytest_hwqueue.data.redaction import redacted_command
from pytest_hwqueue.judge.baselines.folders import packaged_folder
from pytest_hwqueue.judge.baselines.runs import CellBaseline, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.baselines.store import Store, keep_record
from pytest_hwqueue.judge.judging import (
    CellVerdict,
    Judgement,
    Judging,
    judged_once,
    planned_samples,
)
from pytest_hwqueue.judge.stored import (
    NamedSources,
    StoredFigure,
    describe_stored,
    load_named,
    may_be,
    nothing_in_common,
    why_unjudged,
)
from pytest_hwqueue.judge.verdict import LEAST_FIRST_RUNS, OTHER_CODE, GateSettings, Verdict
from pytest_hwqueue.judge.words import explain, properties_of, with_limits
from pytest_hwqueue.options.options import OPTIONS, Settings
from pytest_hwqueue.options.values import VERDICTS
from pytest_hwqueue.plugin.against import Against, confirmed
from pytest_hwqueue.plugin.cells import planned_cells
from pytest_hwqueue.plugin.keys import SETTINGS, session_secrets
from pytest_hwqueue.plugin.reading import wrong_usage

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.data.records.stored import StoredRecords

_SAVED_RUNS = 10
_TAILS = ("p95", "p99", "p999")


def gate_settings(settings: Settings) -> GateSettings:
    """Return the gate's settings from a session's.

    Raises:
        ValueError: naming the field that conflicts with the others.

    """
    gate = GateSettings.of_options(
        rate=settings.rate,
        min_effect=settings.min_effect,
        detect=settings.detect,
        tau=settings.tau,
        pairs=settings.pairs,
    )
    if settings.runs is None or not settings.compare:
        return gate
    if settings.runs < LEAST_FIRST_RUNS:
        raise BadInput(
            f"--hwq-runs={settings.runs}: a comparison takes {LEAST_FIRST_RUNS} new runs of each "
            "cell at least; leave --hwq-runs out for as many as each verdict needs"
        )
    return judged_once(gate, settings.runs)


class Regression:
    """Judges a session's records, and stores them.

    Attributes:
        baseline: the cells compared with, by id, without what this session stores.
        undelivered: failed reports of verdicts whose tests called themselves skipped or xfailed.

    Raises:
        pytest.UsageError: naming the option that cannot be followed.

    """

    def __init__(
        self,
        config: pytest.Config,
        folder_of_records: Path,
        records: StoredRecords,
        say: Callable[[str], None],
    ) -> None:
        folder = config.invocation_params.dir
        self._config = config
        self._settings = settings = config.stash[SETTINGS]
        self._folder = folder_of_records
        self._session = folder_of_records.name
        self._store = Store(folder / settings.baselines, packaged_folder())
        self.baseline: dict[str, CellBaseline] = {}
        self.undelivered: list[pytest.TestReport] = []
        self._judgings: dict[str, Judging] = {}
        self._named: NamedSources | None = None
        self._nodes: dict[str, str] = {}
        self._unmeasured: dict[str, str] = {}
        self._unsaved: dict[str, str] = {}
        self._failed: set[str] = set()
        self._kept_by: set[str] = set()
        # Cells that a test measured several times in one run.
        self._refused: set[str] = set()
        self._stored: set[str] = set()
        self._judgements: list[Judgement] | None = None
        self._records = records
        self._runs: Counter[str] = Counter()
        self._asked: dict[str, int] = {}
        self._against: Against | None = None
        # Why nothing could be measured against the other commit.
        self._not_against = ""
        # What is known of the causes of slow requests, by cell; goes with verdicts that fail.
        self._causes: dict[str, str] = {}
        if settings.compare:
            self._named = self._load()
        if settings.against:
            gate = gate_settings(settings)
            self._against = Against(config, settings, settings.against, gate, say)

    @property
    def first_runs(self) -> int:
        """How many runs each cell gets first: --hwq-runs, or the meaning of its ``auto``."""
        if self._settings.runs is not None:
            return self._settings.runs
        if self._settings.compare:
            return gate_settings(self._settings).first_runs
        return _SAVED_RUNS if self._settings.save else 1

    def add(self, nodeid: str, records: Sequence[RunRecord], *, failed: bool) -> None:
        """Take the records of one run of a test; store them at once if nothing is compared.

        Args:
            nodeid: the test.
            records: what it measured.
            failed: whether it failed all the same; then it is no norm for others.

        """
        if failed:
            self._failed.add(nodeid)
        # What a test measured twice is nobody's figure, the first time neither.
        self._refused |= {record.cell_id for record in records if record.status != "ok"} & {
            record.cell_id for record in records if record.status == "ok"
        }
        for record in records:
            self._nodes.setdefault(record.cell_id, nodeid)
            if record.status != "ok":
                self._unmeasured[record.cell_id] = f"{record.status}: {record.reason}"
                continue
            if record.cell_id in self._refused:
                continue
            self._runs[record.cell_id] += 1
            if self._settings.compare:
                try:
                    cell = cell_of_record(record, self._session)
                except RecordError as error:
                    self._unmeasured[record.cell_id] = str(error)
                    continue
                self._judging(cell).add(cell)
            elif self._settings.save and not failed:
                self._save(nodeid, record)

    def check(self, items: Sequence[pytest.Item]) -> None:
        """Refuse a session in which nothing can be compared with the baseline.

        Args:
            items: the tests to be measured.

        Raises:
            pytest.UsageError: saying what the baseline holds and how the cells differ.

        """
        named, settings = self._named, self._settings
        planned = planned_cells(items, settings.sync_mode, settings.cache)
        if named is None or planned is None or settings.save == settings.compare:
            return
        if not any(may_be(each, cell) for cell in named.cells for each in planned):
            raise pytest.UsageError(
                "--hwq-compare: none of the tests measures a cell of the baseline\n"
                + nothing_in_common(named.label, named.cells, planned)
            )

    def planned_samples(self) -> dict[str, int]:
        """Return, by cell id, how many latency samples the baseline's runs have.

        A run to be judged should reach this number. If several devices have cells with the same id,
        the one with more samples counts.
        """
        planned: dict[str, int] = {}
        for source in [] if self._named is None else self._named.sources:
            for cell_id, samples in planned_samples(source).items():
                planned[cell_id] = max(samples, planned.get(cell_id, 0))
        return planned

    def compared_devices(self) -> list[str]:
        """Return the folders of the models that have a baseline; none if all are compared."""
        named = self._named
        return [] if named is None or named.explicit is not None else [*named.by_device]

    def wanted(self) -> list[str]:
        """Return the tests to run once more.

        There are none once a regression is certain and is not to be confirmed: the session fails,
        whatever the cells still in doubt would show.
        """
        if not self._settings.against and any(each.convicts for each in self._judgings.values()):
            return []
        wanted = [cell for judging in self._judgings.values() for cell in judging.wanted()]
        # A test that has failed since, or measured nothing when it was run again, is not asked on.
        cells = [
            cell
            for cell in wanted
            if cell not in self._unmeasured and self._asked.get(cell) != self._runs[cell]
        ]
        self._asked |= {cell: self._runs[cell] for cell in cells}
        return list(dict.fromkeys(self._nodes[cell] for cell in cells))

    def judgements(self) -> list[Judgement]:
        """Return all verdicts, as one judgement per device model."""
        if self._judgements is None:
            self._judgements = [
                with_limits(judging.judgement(self._unmeasured), self._records)
                for judging in self._judgings.values()
            ]
            # Before anything is confirmed: what is no regression against the other commit is still
            # no norm for a baseline that it is far from.
            self._save_passed()
            if self._against is not None:
                self._judgements = self._interleaved(self._against, self._judgements)
        return self._judgements

    def interrupted(self) -> None:
        """Judge by the runs so far; measure nothing more against another commit."""
        self._against = None

    def failing_tails(self) -> dict[str, str]:
        """Return the cells whose latency tail fails, with their tests; first those worst off."""
        failing = {
            judged.cell_id: judged.verdict.main.ratio if judged.verdict.main else 1.0
            for judgement in self.judgements()
            for judged in judgement.verdicts
            if _of_a_tail(judged) and self._fails(judged.verdict)
        }
        worst = sorted(failing, key=failing.__getitem__, reverse=True)
        return {cell: self._nodes[cell] for cell in worst}

    def explain_tails(self, causes: Mapping[str, str]) -> None:
        """Add a line on causes to the verdicts on tails, by cell."""
        self._causes |= causes

    def apply(self, nodeid: str, file: Path, reports: Sequence[pytest.TestReport]) -> None:
        """Put the verdicts on a test of a file into its reports; fail its call if they are bad.

        A test that called itself skipped or xfailed keeps that outcome; what is bad has a report of
        its own then.
        """
        failures = []
        for judgement in self.judgements():
            for judged in judgement.verdicts:
                if self._nodes.get(judged.cell_id) != nodeid:
                    continue
                for report in reports:
                    report.user_properties += properties_of(judged)
                if self._fails(judged.verdict):
                    command = self._command(nodeid, file)
                    text = explain(judged, judgement.baseline, command)
                    causes = self._causes.get(judged.cell_id) if _of_a_tail(judged) else None
                    failures.append(text if causes is None else f"{text}\n{causes}")
        if nodeid in self._unsaved:
            failures.append(self._unsaved[nodeid])
        if not failures:
            return
        said = "\n\n".join(failures)
        # The last: with subtests each of them has one before.
        for report in reversed(reports):
            # pytest counts no failure of a report that carries an expected one.
            if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                report.outcome = "failed"
                report.longrepr = said
                return
        if not any(report.failed for report in reports):
            label = self._settings.compare or self._settings.against or self._settings.save
            self.undelivered.append(_failed_report(f"{label}::{nodeid}", (label, nodeid), said))

    def missing(self) -> list[pytest.TestReport]:
        """Return a failed report for each cell that only one side has."""
        if self._settings.on.get("missing") != "fail":
            return []
        return [
            _failed_report(
                f"{judgement.baseline}::{cell.cell_id}",
                (judgement.baseline, cell.cell_id),
                f"{cell.cell_id} is missing in the comparison with {judgement.baseline}: "
                f"{cell.reason} (--hwq-on=missing:fail)",
            )
            for judgement in self.judgements()
            for cell in judgement.missing
        ]

    def not_measured(self) -> list[pytest.TestReport]:
        """Return a failed report if the other commit could not be measured."""
        if not self._not_against:
            return []
        ref = self._settings.against
        return [_failed_report(f"--hwq-against={ref}", (ref, "is not measured"), self._not_against)]

    def unjudged(self) -> list[pytest.TestReport]:
        """Return a failed report if what was asked for judged or stored nothing at all."""
        settings = self._settings
        asked = settings.compare or settings.against
        if settings.save and not asked and not self._stored:
            option = f"--hwq-save={settings.save}"
            return [_failed_report(option, (settings.save, "stores nothing"),
                                  f"{option} stores no cell: none was measured")]  # fmt: skip
        if not asked or any(judgement.judged for judgement in self.judgements()):
            return []
        if settings.save == settings.compare and self._stored:
            # The baseline begins with these runs.
            return []
        option = f"--hwq-{'compare' if settings.compare else 'against'}={asked}"
        why = why_unjudged(
            self._named or settings.compare,
            self.judgements(),
            list(self._judgings),
            [record.cell for record in self._records if record.status == "ok"],
        )
        return [
            _failed_report(option, (asked, "judges nothing"), f"{option} judges no cell\n{why}")
        ]

    def files(self, session: str) -> list[dict[str, Any]]:
        """Return all verdicts as the session file of that id holds them."""
        from pytest_hwqueue.judge.file import judgement_file

        nothing = bool(self.unjudged())
        return [
            judgement_file(each, session, int(nothing or self._fails_by(each)), {})
            for each in self.judgements()
        ]

    def stored(self) -> dict[str, list[StoredFigure]]:
        """Describe the baselines into which this session has stored runs, by DEVICE/NAME."""
        settings = self._settings
        return {
            f"{device}/{settings.save}": describe_stored(
                self._store.read(settings.save, device),
                settings.fail_on,
                gate_settings(settings),
            )
            for device in sorted(self._stored)
        }

    def of_failed_tests(self) -> list[str]:
        """Say, a line a test, what is stored of tests that measured and failed."""
        name = self._settings.save
        measured = sorted(self._failed & set(self._nodes.values())) if name else []
        return [
            f"{nodeid} failed after it had measured: "
            + (
                f"stored in {name} all the same"
                if nodeid in self._kept_by
                else f"not stored in {name}"
            )
            for nodeid in measured
        ]

    def node_of(self, cell_id: str) -> str:
        """Return the test that measures a cell."""
        return self._nodes[cell_id]

    def level(self, verdict: Verdict) -> str:
        """Return the outcome that the settings assign to a verdict: pass, warn or fail."""
        state = verdict.state
        if verdict.reason == OTHER_CODE:
            # No setting can let pass what was never measured.
            return "fail"
        if state in VERDICTS:
            return self._settings.on.get(state, "warn")
        return "fail" if state == "regression" else "pass"

    def _interleaved(self, against: Against, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Measure against the other commit: what the baseline convicts, or all without one."""
        if not self._settings.compare:
            nodes = list(dict.fromkeys(self._nodes[cell] for cell in self._runs))
            found = self._judged_against(against, nodes, whole=True) if nodes else None
            return [] if found is None else [found]
        return [self._confirm(against, judgement) for judgement in judgements]

    def _confirm(self, against: Against, judgement: Judgement) -> Judgement:
        worse = (each for each in judgement.verdicts if each.verdict.state == "regression")
        nodes = list(dict.fromkeys(self._nodes[each.cell_id] for each in worse))
        if not nodes:
            return judgement
        found = self._judged_against(against, nodes, among=judgement.compared)
        if found is None:
            # What is not confirmed is not acquitted either.
            return judgement
        return confirmed(judgement, found)

    def _judged_against(
        self, against: Against, nodes: Sequence[str], among: int = 1, *, whole: bool = False
    ) -> Judgement | None:
        """Return the judgement, or None if the other commit cannot be measured."""
        try:
            judgement, measured_by = against.judge(nodes, among, whole=whole)
        except pytest.UsageError as error:
            # The session has measured: it keeps its figures, and fails.
            self._not_against = str(error)
            return None
        self._nodes = {**measured_by, **self._nodes}
        return judgement

    def _fails_by(self, judgement: Judgement) -> bool:
        missing = bool(judgement.missing) and self._settings.on.get("missing") == "fail"
        return missing or any(self._fails(each.verdict) for each in judgement.verdicts)

    def _fails(self, verdict: Verdict) -> bool:
        return self.level(verdict) == "fail"

    def _load(self) -> NamedSources | None:
        """Read the baselines that the session may be compared with, and check the options."""
        name, settings = self._settings.compare, self._settings
        with wrong_usage("--hwq-compare"):
            gate_settings(settings)
            if settings.save == name and not self._store.devices_with(name):
                return None
            named = load_named(name, self._store)
        if len(named.sources) == 1:
            # Of several devices' baselines only those of the devices measured matter.
            self._judge_against(named.sources[0])
        return named

    def _judge_against(self, source: Source) -> Judging:
        settings = self._settings
        with wrong_usage("--hwq-compare"):
            return Judging(
                source,
                settings.fail_on,
                gate_settings(settings),
                allow_environment=settings.allow_env,
                # Where a device has no baseline there is nothing to judge, nor to judge it by.
                sentinel=settings.sentinel or None if source.cells else None,
            )

    def _judging(self, cell: CellBaseline) -> Judging:
        """Return the comparison for a cell's device; there may be none for another model."""
        device = cell.device
        if device not in self._judgings:
            source = None if self._named is None else self._named.of(device)
            if source is None:
                source = Source(f"{device}/{self._settings.compare}", "baseline", {})
            self._judgings[device] = self._judge_against(source)
            self.baseline |= source.cells
        return self._judgings[device]

    def _save(self, nodeid: str, record: RunRecord) -> None:
        try:
            path = self._store.add(self._settings.save, record, self._session)
            self._stored.add(path.parent.parent.name)
            self._kept_by.add(nodeid)
            if self._settings.save_records:
                keep_record(path.parent, record, self._folder)
        except RecordError as error:
            self._unsaved[nodeid] = f"measured, but not stored as a baseline: {error}"

    def _save_passed(self) -> None:
        """Store the cells that are no worse than the baseline, if both options were given."""
        if not (self._settings.save and self._settings.compare):
            return
        good = ("pass", "improvement", "no-baseline")
        bad = {
            judged.cell_id: judged.verdict.state
            for judgement in self._judgements or []
            for judged in judgement.verdicts
            if judged.verdict.state not in good
        }
        for record in self._records:
            nodeid = self._nodes.get(record.cell_id, "")
            refused = record.cell_id in bad or record.cell_id in self._refused
            if record.status == "ok" and not refused and nodeid not in self._failed:
                self._save(nodeid, record)

    def _command(self, nodeid: str, file: Path) -> str:
        """Return the command that compares this test alone, in the folder of this session.

        Its file is below that folder or, as the suite's of an installed package, at its own place.
        """
        here = self._config.invocation_params.dir
        test = f"{file.relative_to(here) if file.is_relative_to(here) else file}"
        test += "".join(nodeid.partition("::")[1:])
        given = []
        for option in OPTIONS:
            value = self._config.getoption(option.key)
            if option.flag and value is not None:
                given.append(option.command_line)
            elif value is not None:
                values = value if isinstance(value, list) else [value]
                given += [f"{option.command_line}={each}" for each in values]
        line = [Path(sys.executable).name, "-m", "pytest", test, *given]
        return redacted_command(line, session_secrets(self._config))


def _of_a_tail(judged: CellVerdict) -> bool:
    """Whether a verdict concerns the latency tail and has a ratio: something got slower."""
    return judged.figure in _TAILS and judged.verdict.main is not None


def _failed_report(nodeid: str, place: tuple[str, str], text: str) -> pytest.TestReport:
    """Return a failed report for a test without a function.

    Args:
        nodeid: its name in listings.
        place: file and name, for JUnit.
        text: why.

    """
    return pytest.TestReport(
        nodeid=nodeid,
        location=(place[0], None, place[1]),
        keywords={},
        outcome="failed",
        longrepr=text,
        when="call",
    )
