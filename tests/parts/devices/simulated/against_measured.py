"""Compare what the simulated H200 predicts of co-located tenants with what one H200 measured.

    python -m tests.parts.devices.simulated.against_measured [--write] [SCENARIO ...]

Every co-location under baselines/nvidia-h200/co-location is simulated as its record plans it, and
both are put into the table of `hwq which`. ``--write`` replaces the tables of
docs/evidence/simulated.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pytest_hwqueue.answers.which.file import WhichCase, WhichFile
from pytest_hwqueue.answers.which.runs import entries, read_runs
from pytest_hwqueue.answers.which.table import table
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.engine.scenarios.file import Scenario, read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import cases
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, opened_or_not

from .calibration import printed

ROOT = Path(__file__).resolve().parents[4]
RECORDS = ROOT / "baselines" / "nvidia-h200" / "co-location"
SCENARIOS = ROOT / "benchmarks" / "scenarios"
PAGE = ROOT / "docs" / "evidence" / "simulated.md"
DEVICE = "sim:h200"
WITHIN = 0.25
_LEAST_REQUESTS = 20
_FIELDS = {"P50": "p50_ms", "P99": "p99_ms", "rate": "throughput_items_per_s"}
BEGIN = "<!-- tests.parts.devices.simulated.against_measured -->"
# Not that of what tools/results_pages.py rebuilds.
END = "<!-- until here -->"

# What a parameter of the profile, or the order of XSched's batches, was chosen by: scenario, case
# and tenant as patterns, figures, and what was chosen. All other rows were held back.
_FITTED = (
    ("standard_load", "solo low", "low", ("P50", "rate"), "module_call_ns"),
    ("*_load", "solo high", "high", ("P50",), "cold_factor"),
    ("solo", "*native", "high", ("P50",), "cold_factor"),
    ("high_load", "solo high", "high", ("P99",), "request_spread"),
    ("solo", "*native", "high", ("P99",), "request_spread"),
    ("bert_multi_priority", "alone-*", "first", ("P50", "rate"), "halved_tile_efficiency"),
    ("bert_multi_priority", "*-solo *", "*", ("P50", "rate"), "halved_tile_efficiency"),
    ("standard_load", "xsched:*=1", "low", ("P50", "rate"), "preemption_round_trip_ns"),
    ("high_load", "mps", "high", ("P50", "P99"), "layout_least_elements"),
    ("high_load", "xsched:*=4", "high", ("P50", "P99"), "batches"),
)


class Row(NamedTuple):
    """One figure of one tenant, measured and simulated.

    Attributes:
        scenario: its name.
        case: scheduler and placement, or ``solo`` and a tenant.
        tenant: whose figure it is.
        figure: ``P50``, ``P99`` or ``rate``.
        unit: of all values.
        measured: of all sessions together.
        sessions: that of each.
        simulated: the prediction.

    """

    scenario: str
    case: str
    tenant: str
    figure: str
    unit: str
    measured: float
    sessions: list[float]
    simulated: float

    @property
    def near(self) -> bool:
        """Whether both are within a quarter of each other."""
        return 1 - WITHIN <= self.simulated / self.measured <= 1 + WITHIN

    @property
    def fitted(self) -> str:
        """The parameter that was chosen by this very figure; empty if it was held back."""
        for *patterns, figures, what in _FITTED:
            if self.figure in figures and all(map(fnmatch, self[:3], patterns)):
                return what
        return ""


class Verdict(NamedTuple):
    """A goal's verdict, measured and simulated."""

    scenario: str
    case: str
    goal: str
    measured: str
    simulated: str

    @property
    def flipped(self) -> bool:
        """Whether one says met and the other missed."""
        return {self.measured, self.simulated} == {"met", "missed"}


class Comparison(NamedTuple):
    """All rows and verdicts, and the cases for which the model has nothing."""

    rows: list[Row]
    verdicts: list[Verdict]
    not_modelled: list[str]


def compare(names: Sequence[str] = ()) -> Comparison:
    """Simulate what was measured of scenarios (all if none is named), and compare.

    Raises:
        RecordError: if a record is damaged, or does not fit its scenario file.

    """
    found = Comparison([], [], [])
    for scenario in map(read_scenario, sorted(SCENARIOS.glob("*.hwq.yaml"))):
        folders = [folder for folder in sorted(RECORDS.iterdir()) if _plans(scenario, folder)]
        if (names and scenario.name not in names) or not folders:
            continue
        print(f"simulating {scenario.name}", file=sys.stderr)
        with TemporaryDirectory() as simulated_in:
            simulate_plans(folders, scenario, Path(simulated_in))
            measured = _table(scenario, folders)
            simulated = {case.id: case for case in _table(scenario, [Path(simulated_in)]).cases}
        seen: set[tuple[str, ...]] = set()
        for case in measured.cases:
            other = simulated[case.id]
            if case.status != "ok":
                continue
            if other.status != "ok":
                found.not_modelled.append(f"{scenario.name} {case.id}")
                continue
            # A tenant alone stands in the tables of several variants.
            if tuple(case.records) not in seen:
                found.rows.extend(_rows(scenario, measured, case, other))
            seen.add(tuple(case.records))
            for goal, predicted in zip(case.goals, other.goals, strict=True):
                both = goal.verdict, predicted.verdict
                found.verdicts.append(Verdict(scenario.name, case.id, goal.goal, *both))
    return found


def simulate_plans(folders: Iterable[Path], scenario: Scenario, into: Path) -> None:
    """Simulate each co-location of a scenario once, for as long as it was measured at most."""
    plans: dict[str, Colocation] = {}
    for folder in folders:
        for record in _plans(scenario, folder):
            plan = replace(record.plan, device=DEVICE, folder=str(SCENARIOS))
            known = plans.get(plan.id)
            if known is None or plan.duration_s > known.duration_s:
                plans[plan.id] = plan
    for plan in plans.values():
        mode = opened_or_not(plan.scheduler, SchedulerPaths())
        TenantSet(mode, lambda *_: None, into).once(plan)


def _plans(scenario: Scenario, folder: Path) -> list[ColocationRecord]:
    """Return the records of a scenario's co-locations in a folder."""
    found = map(read_colocation, sorted(folder.glob(f"{scenario.name}*_*.json")))
    return [each for each in found if each.plan.name.partition(".")[0] == scenario.name]


def _table(scenario: Scenario, folders: Sequence[Path]) -> WhichFile:
    wanted = cases(scenario)
    return table(entries(wanted), read_runs(wanted, folders))


def _rows(
    scenario: Scenario, measured: WhichFile, case: WhichCase, simulated: WhichCase
) -> Iterator[Row]:
    variant = next((each for each in scenario.variants if each.name == case.variant), None)
    closed = {each.name: each.arrival == "closed" for each in scenario.tenants_of(variant)}
    of_sessions = [
        each
        for session in measured.sessions
        for each in session.cases
        if each.id == case.id and each.status == "ok"
    ]
    for tenant in case.tenants:
        for figure in ("P50", "rate" if closed[tenant.name] else "P99"):
            was, predicted, *sessions = (
                getattr(each.tenant(tenant.name), _FIELDS[figure])
                for each in (case, simulated, *of_sessions)
            )
            # A P99 of too few requests was refused; a rate of a handful says as little.
            if was.value is None or predicted.value is None or was.n < _LEAST_REQUESTS:
                continue
            each_was = [each.value for each in sessions if each.value is not None]
            unit = f"{tenant.unit}/s" if figure == "rate" else "ms"
            yield Row(scenario.name, case.id, tenant.name, figure, unit, was.value, each_was,
                      predicted.value)  # fmt: skip


def markdown(found: Comparison) -> str:
    """Return the tables of docs/evidence/simulated.md."""
    lines = [
        "| scenario | case | tenant | figure | measured | by session | simulated | ratio | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found.rows:
        remarks = [f"fitted: {row.fitted}"] * bool(row.fitted) + ["**off**"] * (not row.near)
        spread = ", ".join(map(printed, row.sessions))
        lines.append(
            f"| {row.scenario} | {row.case} | {row.tenant} | {row.figure}, {row.unit} | "
            f"{printed(row.measured)} | {spread} | {printed(row.simulated)} | "
            f"{row.simulated / row.measured:.2f} | {'; '.join(remarks)} |"
        )
    held = [row for row in found.rows if not row.fitted]
    both = [each for each in found.verdicts if "undecided" not in (each.measured, each.simulated)]
    lines += [
        "",
        f"{len(found.rows)} rows, {len(found.rows) - len(held)} of them fitted. Of the "
        f"{len(held)} held back {sum(row.near for row in held)} are within 25 %.",
        "",
        f"{len(found.verdicts)} verdicts, of which {len(both)} are decided on both sides and "
        f"{sum(each.flipped for each in both)} flip. Those that differ:",
        "",
        "| scenario | case | goal | measured | simulated | |",
        "|---|---|---|---|---|---|",
    ]
    for each in found.verdicts:
        if each.measured != each.simulated:
            told = " | ".join(each).replace("<", "\\<")
            lines.append(f"| {told} | {'**flipped**' if each.flipped else ''} |")
    if found.not_modelled:
        lines += ["", f"Not modelled: {', '.join(found.not_modelled)}."]
    return "\n".join(lines)


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("scenarios", nargs="*", help="only these; all without")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    text = markdown(compare(given.scenarios))
    print(text)
    if given.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
