"""What a session knows of a workload before it is imported is what the workload itself says."""

from __future__ import annotations

import pytest

from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class


@pytest.mark.parametrize("name", WORKLOADS)
def test_declaration_agrees_with_the_class(name: str) -> None:
    declared, found = WORKLOADS[name], workload_class(name)
    fields = ("name", "family", "mark", "stream_range", "collective", "no_graph")
    assert {field: getattr(declared, field) for field in fields} == {
        field: getattr(found, field) for field in fields
    }
    # A sample of the primary latency is timed by a tag of its name, or of its requests' launches.
    if found.primary.per == "launch":
        assert found.primary.name in found.tags
