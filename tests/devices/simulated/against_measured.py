"""Compare what the simulated H200 predicts of co-located tenants with what one H200 measured.

    python -m tests.devices.simulated.against_measured [--write] [SCENARIO ...]

Every co-location under baselines/nvidia-h200/co-location is simulated as its record plans it, and
both are put into the table of `hwq which`. ``--write`` replaces the tables of docs/simulated.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_hwqueue.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.scenarios.file import Scenario, read_scenario
from pytest_hwqueue.scenarios.planned_runs import Case, cases
from pytest_hwqueue.schedulers.syntax import SchedulerPaths, opened_or_not
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, plan_from_json
from pytest_hwqueue.which.file import WhichCase, WhichFigure, WhichFile, WhichTenant
from pytest_hwqueue.which.runs import entries, read_runs
from pytest_hwqueue.which.table import table

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "baselines" / "nvidia-h200" / "co-location"
SCENARIOS = ROOT / "benchmarks" / "scenarios"
PAGE = ROOT / "docs" / "simulated.md"
DEVICE = "sim:h200"
WITHIN = 0.25
_LEAST_REQUESTS = 20
BEGIN, END = "<!-- tests.devices.simulated.against_measured -->", "<!-- end -->"

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


@dataclass(frozen=True)
class Row:
    """One figure of one tenant, measured and simulated.

    Attributes:
        scenario: its name.
        case: scheduler and placement, or ``solo`` and a tenant.
        tenant: whose figure it is.
        figure: ``P50``, ``P99`` or ``rate``.
        unit: of both values.
        measured: of all sessions together.
        sessions: that of each.
        simulated: the prediction.
        fitted: the parameter that was chosen by this very figure; empty if it was held back.

    """

    scenario: str
    case: str
    tenant: str
    figure: str
    unit: str
    measured: float
    sessions: tuple[float, ...]
    simulated: float
    fitted: str

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured

    @property
    def near(self) -> bool:
        """Whether both are within a quarter of each other."""
        return 1 - WITHIN <= self.ratio <= 1 + WITHIN


@dataclass(frozen=True)
class Verdict:
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


@dataclass(frozen=True)
class Comparison:
    """All rows and verdicts, and the cases for which the model has nothing."""

    rows: list[Row]
    verdicts: list[Verdict]
    not_modelled: list[str]


def compare(names: Sequence[str] = (), records: Path = RECORDS) -> Comparison:
    """Simulate what was measured of scenarios (all if none is named), and compare.

    Raises:
        RecordError: if a record is damaged, or does not fit its scenario file.

    """
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    not_modelled: list[str] = []
    for file in sorted(SCENARIOS.glob("*.hwq.yaml")):
        scenario = read_scenario(file)
        if names and scenario.name not in names:
            continue
        folders = [folder for folder in sorted(records.iterdir()) if _plans(scenario, folder)]
        if not folders:
            continue
        print(f"simulating {scenario.name}", file=sys.stderr)
        with TemporaryDirectory() as simulated_in:
            simulate_plans(folders, scenario, Path(simulated_in))
            measured = _table(scenario, folders)
            simulated = _table(scenario, [Path(simulated_in)])
        seen: set[tuple[str, ...]] = set()
        for case in measured.cases:
            other = next(each for each in simulated.cases if each.id == case.id)
            if case.status != "ok":
                continue
            if other.status != "ok":
                not_modelled.append(f"{scenario.name} {case.id}")
                continue
            # A tenant alone stands in the tables of several variants.
            if tuple(case.records) not in seen:
                rows += _rows(scenario, measured, case, other)
            seen.add(tuple(case.records))
            for goal, predicted in zip(case.goals, other.goals, strict=True):
                verdicts.append(
                    Verdict(scenario.name, case.id, goal.goal, goal.verdict, predicted.verdict)
                )
    return Comparison(rows, verdicts, not_modelled)


def simulate_plans(folders: Iterable[Path], scenario: Scenario, into: Path) -> None:
    """Simulate each co-location of a scenario once, for as long as it was measured at most."""
    plans: dict[str, Colocation] = {}
    for folder in folders:
        for record in _plans(scenario, folder):
            plan = replace(plan_from_json(record.plan), device=DEVICE, folder=str(SCENARIOS))
            known = plans.get(plan.id)
            if known is None or plan.duration_s > known.duration_s:
                plans[plan.id] = plan
    for plan in plans.values():
        mode = opened_or_not(plan.scheduler, SchedulerPaths())
        colocate(plan, mode, lambda *_: None, into)


def _plans(scenario: Scenario, folder: Path) -> list[ColocationRecord]:
    """Return the records of a scenario's co-locations in a folder."""
    found = []
    for path in sorted(folder.glob(f"{scenario.name}*_*.json")):
        record = read_colocation(path)
        if record.plan["name"].partition(".")[0] == scenario.name:
            found.append(record)
    return found


def _table(scenario: Scenario, folders: Sequence[Path]) -> WhichFile:
    wanted: list[Case] = cases(scenario)
    return table(scenario, entries(scenario, wanted), read_runs(scenario, wanted, folders))


def _rows(
    scenario: Scenario, measured: WhichFile, case: WhichCase, simulated: WhichCase
) -> Iterator[Row]:
    for tenant in case.tenants:
        variant = next((each for each in scenario.variants if each.name == case.variant), None)
        spec = next(each for each in scenario.tenants_of(variant) if each.name == tenant.name)
        of_sessions = [
            each.tenant(tenant.name)
            for session in measured.sessions
            for each in session.cases
            if each.id == case.id and each.status == "ok"
        ]
        second = "rate" if spec.arrival.text == "closed" else "P99"
        for figure in ("P50", second):
            was = _figure(tenant, figure)
            predicted = _figure(simulated.tenant(tenant.name), figure)
            # A P99 of too few requests was refused; a rate of a handful says as little.
            if was.value is None or predicted.value is None or was.n < _LEAST_REQUESTS:
                continue
            each_was = [_figure(each, figure).value for each in of_sessions]
            yield Row(
                scenario.name, case.id, tenant.name, figure,
                f"{tenant.unit}/s" if figure == "rate" else "ms",
                was.value, tuple(each for each in each_was if each is not None), predicted.value,
                _fitted(scenario.name, case.id, tenant.name, figure),
            )  # fmt: skip


def _fitted(scenario: str, case: str, tenant: str, figure: str) -> str:
    for *patterns, figures, what in _FITTED:
        named = zip((scenario, case, tenant), patterns, strict=True)
        if figure in figures and all(fnmatch(name, pattern) for name, pattern in named):
            return what
    return ""


def _figure(tenant: WhichTenant, figure: str) -> WhichFigure:
    return {
        "P50": tenant.p50_ms,
        "P99": tenant.p99_ms,
        "rate": tenant.throughput_items_per_s,
    }[figure]


def markdown(found: Comparison) -> str:
    """Return the tables of docs/simulated.md."""
    lines = [
        "| scenario | case | tenant | figure | measured | by session | simulated | ratio | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found.rows:
        remark = f"fitted: {row.fitted}" if row.fitted else ""
        if not row.near:
            remark += f"{'; ' if remark else ''}**off**"
        spread = ", ".join(_printed(each) for each in row.sessions)
        lines.append(
            f"| {row.scenario} | {row.case} | {row.tenant} | {row.figure}, {row.unit} | "
            f"{_printed(row.measured)} | {spread} | {_printed(row.simulated)} | "
            f"{row.ratio:.2f} | {remark} |"
        )
    held = [row for row in found.rows if not row.fitted]
    near = sum(row.near for row in held)
    both = [each for each in found.verdicts if "undecided" not in (each.measured, each.simulated)]
    lines += [
        "",
        f"{len(found.rows)} rows, {len(found.rows) - len(held)} of them fitted. Of the "
        f"{len(held)} held back {near} are within 25 %.",
        "",
        f"{len(found.verdicts)} verdicts, of which {len(both)} are decided on both sides and "
        f"{sum(each.flipped for each in both)} flip. Those that differ:",
        "",
        "| scenario | case | goal | measured | simulated | |",
        "|---|---|---|---|---|---|",
    ]
    for each in found.verdicts:
        if each.measured != each.simulated:
            lines.append(
                f"| {each.scenario} | {each.case} | {each.goal.replace('<', chr(92) + '<')} | "
                f"{each.measured} | {each.simulated} | {'**flipped**' if each.flipped else ''} |"
            )
    if found.not_modelled:
        lines += ["", f"Not modelled: {', '.join(found.not_modelled)}."]
    return "\n".join(lines)


def _printed(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("scenarios", nargs="*", help="only these; all without")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    text = markdown(compare(given.scenarios))
    print(text)
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
