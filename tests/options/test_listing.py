"""What `hwq list` and help say of parameters."""

from __future__ import annotations

import pytest
from pydantic import Field

from pytest_hwqueue.options.listing import facts_of, parameters_of
from pytest_hwqueue.parts.workloads.latency_sensitive.large_gemm_only import LargeGemmOnly
from pytest_hwqueue.parts.workloads.workload import Parameters


class Declared(Parameters):
    mm_dim: int = Field(1, ge=1, lt=9, description="rows")
    share: float = Field(0.5, gt=0, le=1)
    groups: str | None = None
    limit: int | None = Field(None, ge=1)
    async_op: bool = False


def test_types_bounds_and_defaults_and_whether_several_processes_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LargeGemmOnly, "parameter_model", Declared)
    sizes = {"tiny": {"mm_dim": 2}, "small": {"mm_dim": 4}, "full": {"mm_dim": 8}}
    monkeypatch.setattr(LargeGemmOnly, "sizes", sizes)
    rows = parameters_of(LargeGemmOnly)
    assert [(row.name, row.type, row.by_size) for row in rows] == [
        ("mm_dim", "int ≥ 1 < 9", "tiny 2, small 4, full 8"),
        ("share", "float > 0 ≤ 1", "default 0.5"),
        ("groups", "str", "default not set"),
        ("limit", "int ≥ 1", "default not set"),
        ("async_op", "bool", "default False"),
    ]
    for collective in (False, True):
        monkeypatch.setattr(LargeGemmOnly, "collective", collective)
        facts = "; ".join(facts_of(LargeGemmOnly))
        assert ("several processes" in facts) is collective is not ("one process" in facts)
