"""``hwq trace``: a cell's id says how it is measured, and the files are named at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import Result

from pytest_hwqueue.answers.trace.command import words_of_cell
from pytest_hwqueue.data.records.cell import Cell
from pytest_hwqueue.parts.devices.launches import PICTURES
from tests.cli.conftest import Launched, hwq


def trace(*arguments: str) -> Result:
    return hwq("trace", *arguments)


@pytest.mark.parametrize(("device", "scheduler", "sync_mode", "variant", "more"), [
    ("cpu", "native", "per_iteration", "", []),
    ("cuda:1", "stream-priority", "per_iteration", "", []),
    ("sim:h200", "native", "end_only", "", ["--sync-mode=end_only"]),
    ("cuda", "native", "per_iteration cold", "", ["--cache=cold"]),
    ("cuda", "native", "per_iteration cold", "small", ["--cache=cold", "--size=small"]),
    ("cpu", "native", "none", "2ranks-small", ["--sync-mode=none", "--ranks=2", "--size=small"]),
    ("cuda", "xsched:threshold=4", "per_iteration", "mm_dim=64-epsilon=1e-3",
     ["--param=mm_dim=64", "--param=epsilon=1e-3"]),
])  # fmt: skip
def test_a_cells_id_is_its_workload_and_options(
    device: str, scheduler: str, sync_mode: str, variant: str, more: list[str]
) -> None:
    sync_mode, _, cache = sync_mode.partition(" ")
    cell = Cell(
        name="hetero_kernels", device=device, streams=16, scheduler=scheduler, dispatch="graph",
        sync_mode=sync_mode, cache="cold" if cache else "hot", size="tiny", variant=variant,
    )  # fmt: skip
    assert words_of_cell(cell.id) == (
        "hetero_kernels",
        [f"--device={device}", "--streams=16", f"--scheduler={scheduler}", "--dispatch=graph",
         *more],
    )  # fmt: skip


def test_options_win_over_the_id(launched: Launched) -> None:
    result = trace("moe[cpu-s8-native-eager]", "--streams", "4", "--csv", "--", "-x")
    assert result.exit_code == 0, result.output
    assert set(launched.plugin_options) == {
        "--hwq-workload=moe", "--hwq-device=cpu", "--hwq-streams=4", "--hwq-scheduler=native",
        "--hwq-dispatch=eager", "--hwq-iterations=400",
    }  # fmt: skip
    assert launched.command[-1] == "-x"
    assert launched.environment[PICTURES] == "csv"


def test_the_files_are_named(launched: Launched, tmp_path: Path) -> None:
    old = tmp_path / "trace-old.json"
    old.write_text("{}", encoding="utf-8")
    os.utime(old, (1, 1))

    def writes(command: list[str], environment: dict[str, str]) -> int:
        for name in ("trace-new.json", "trace-new.csv", "other.json"):
            (tmp_path / name).write_text("{}", encoding="utf-8")
        return 0

    launched.runs = writes
    result = trace("moe", "--profile-dir", str(tmp_path))
    assert launched.environment[PICTURES] != "csv"
    assert f"trace: {tmp_path / 'trace-new.json'} (open in Perfetto" in result.output
    assert f"events: {tmp_path / 'trace-new.csv'}" in result.output
    assert "old.json" not in result.output
    assert "other.json" not in result.output
    # The other name of the command says too if there is none.
    launched.runs = None
    none = hwq("profile", "moe", "--profile-dir", str(tmp_path / "none"))
    assert "no trace was written" in none.output


def test_a_recording_without_a_report_is_named(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the nsys in Nsight Compute's folder leaves it on an H200."""
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def writes(command: list[str], environment: dict[str, str]) -> int:
        (tmp_path / "moe-s8.qdstrm").write_bytes(b"")
        return 0

    launched.runs = writes
    said = trace("moe", "--tool", "nsys", "--device", "cpu", "--profile-dir", str(tmp_path)).output
    assert f"{tmp_path / 'moe-s8.qdstrm'} was: what nsys recorded" in said
