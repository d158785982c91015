"""A fault is planted in the scenario's first tenant, and in no other."""

from __future__ import annotations

from pathlib import Path

from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.measurer import Measurer, RunSettings
from pytest_hwqueue.engine.scenarios.planned_runs import SessionPlan, cases, own_run
from pytest_hwqueue.options.suite import suite_path
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths


def test_the_first_tenant_has_the_fault(tmp_path: Path) -> None:
    scenario = read_scenario(suite_path() / "scenarios" / "high_load.hwq.yaml")
    settings = RunSettings(
        SessionPlan("cpu", "tiny", tmp_path), 1.0, 1.0, SchedulerPaths(), tmp_path, "",
        Provenance(), faults=("slower:50",),
    )  # fmt: skip
    measurer = Measurer(scenario, settings, lambda *_: None, lambda _: None)
    peaks = {tenant.name: 10.0 for tenant in scenario.tenants}
    plan = measurer.plan(own_run(cases(scenario)[0]), peaks, 1.0, 1)
    faults = {tenant.name: tenant.faults for tenant in plan.tenants}
    assert faults.pop(scenario.tenants[0].name) == ("slower:50",)
    assert set(faults.values()) == {()}
