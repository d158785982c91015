"""What a session knows of a workload before it is imported is what the workload itself says."""

from __future__ import annotations

import pytest

from pytest_hwqueue.workloads.registry import WORKLOADS, ahead, workload_class


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


@pytest.mark.parametrize(
    ("device", "imported"),
    [
        ("cuda:1", "pytest_hwqueue.devices.kernel_trace:import_compiler"),
        ("auto", "pytest_hwqueue.devices.kernel_trace:import_compiler"),
        ("sim:h200", "importlib:import_module"),
        ("cpu", None),
        ("", None),
    ],
)
def test_a_fork_server_imports_the_compiler_where_each_process_would(
    device: str, imported: str | None
) -> None:
    besides = {place for place, _ in ahead(marks=("P0",), device=device)}
    besides -= {"pytest_hwqueue.workloads.registry:workload_class"}
    assert besides == ({imported} if imported else set())
