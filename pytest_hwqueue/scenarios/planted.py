"""Plants the faults of ``--hwq-fault`` in a scenario's tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_hwqueue.faults.specification import Fault
from pytest_hwqueue.tenancy.spec import Colocation

LATE = "late-generator"


def planted(plan: Colocation, faults: Sequence[Fault], first: str) -> Colocation:
    """Return a plan with faults in its tenants.

    Args:
        plan: of any of a scenario's runs, its references too.
        faults: a late generator goes to every tenant that has one, the others to the first tenant.
        first: name of the scenario's first tenant.

    """
    tenants = []
    for tenant in plan.tenants:
        own = tuple(
            str(fault)
            for fault in faults
            if (tenant.arrival != "closed" if fault.name == LATE else tenant.name == first)
        )
        tenants.append(replace(tenant, faults=own))
    return replace(plan, tenants=tuple(tenants))
