"""What `hwq list` and help say of parameters."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_hwqueue.options.listing import facts_of, parameters_of
from pytest_hwqueue.parts.workloads.latency_sensitive.large_gemm_only import LargeGemmOnly
from pytest_hwqueue.parts.workloads.workload import Parameters


class DeclaredFigures(Parameters):
    mm_dim: int = Field(1, ge=1, lt=9, description="rows")
    share: float = Field(0.5, gt=0, le=1)
    groups: str | None = None
    limit: int | None = Field(None, ge=1)
    async_op: bool = False


class Listed(LargeGemmOnly):
    parameter_model = DeclaredFigures
    sizes: ClassVar = {"tiny": {"mm_dim": 2}, "small": {"mm_dim": 4}, "full": {"mm_dim": 8}}


class Collective(Listed):
    collective = True


def test_types_bounds_and_defaults_and_whether_several_processes_are_needed() -> None:
    rows = parameters_of(Listed)
    assert [(row.name, row.type, row.by_size) for row in rows] == [
        ("mm_dim", "int ≥ 1 < 9", "tiny 2, small 4, full 8"),
        ("share", "float > 0 ≤ 1", "default 0.5"),
        ("groups", "str", "default not set"),
        ("limit", "int ≥ 1", "default not set"),
        ("async_op", "bool", "default False"),
    ]
    for listed in (Listed, Collective):
        facts = "; ".join(facts_of(listed))
        assert ("several processes" in facts) is listed.collective is not ("one process" in facts)
