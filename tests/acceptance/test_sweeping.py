"""Sweeps: what is drawn at the end."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.document import drawing, scaling

if TYPE_CHECKING:
    from tests.conftest import RunInProcess


def test_a_sweep_writes_tables_and_plots_next_to_its_records(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(
        test_mine="""
        def test_mine(hwq, hwq_streams):
            def work():
                assert hwq_streams != 4

            hwq.measure(work, work={"calls": hwq_streams})
        """
    )
    done = run_in_process(
        "--hwq-scaling", "--hwq-device=cpu",
        "--hwq-streams=1,2,4", "--hwq-iterations=60", "--hwq-max-time=2", "--hwq-warmup=2",
        "--hwq-json=all.json",
    )  # fmt: skip
    done.assert_outcomes(passed=2, failed=1)
    (folder,) = (pytester.path / ".hwqueue").glob("2*/sweep")
    plot = folder / "test_mine.py::test_mine.svg"
    done.stdout.fnmatch_lines(["Weak scaling of test_mine*over streams*"])
    done.stdout.fnmatch_lines([f"scaling: {folder}/scaling.txt", f"plot: {plot}"])
    assert "test_mine over streams" in (folder / "scaling.txt").read_text()
    assert "calls/s" in "".join(ElementTree.fromstring(plot.read_text()).itertext())
    scaling = json.loads((pytester.path / "all.json").read_text())["scaling"]
    assert [point["streams"] for point in scaling[0]["scaling"]["points"]] == [1, 2]


def test_without_vl_convert_the_tables_are_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_record: Any
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    found = [
        make_record(
            seed=n, parts={"streams": n}, status="failed" if n == 4 else "ok",
            work_per_iteration={"products": n},
        )
        for n in (1, 2, 4)
    ]  # fmt: skip
    found.append(make_record("moe"))

    lines = scaling.write_scaling(tmp_path, found)

    assert lines == [
        f"scaling: {tmp_path}/scaling.txt", drawing.INSTALL,
        "moe: no scaling, measured at 1 count of streams",
    ]  # fmt: skip
    assert "hetero_kernels over streams" in (tmp_path / "scaling.txt").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["scaling.txt"]
