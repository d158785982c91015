"""Which tests the gate asks to be run once more, and which runs it compares with."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.answers.page import render
from pytest_hwqueue.judge.baselines.runs import CellBaseline
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.plugin.keys import session_secrets
from pytest_hwqueue.plugin.regression import Regression
from pytest_hwqueue.plugin.session import command_line

if TYPE_CHECKING:
    from tests.conftest import RunInProcess


@pytest.mark.parametrize(
    ("convicts", "against", "asked"), [(False, "", 1), (True, "", 0), (True, "HEAD", 1)]
)
def test_a_session_that_fails_asks_for_no_more_runs_unless_they_confirm(
    convicts: bool, against: str, asked: int
) -> None:
    gate: Any = object.__new__(Regression)
    gate._judgings = {
        "first": SimpleNamespace(convicts=convicts, wanted=list),
        "second": SimpleNamespace(convicts=False, wanted=lambda: ["cell"]),
    }
    gate._settings = SimpleNamespace(against=against)
    gate._unmeasured, gate._asked, gate._runs = {}, {}, Counter(cell=2)
    gate._nodes = {"cell": "test_mine.py::test_mine"}
    assert gate.wanted() == ["test_mine.py::test_mine"] * asked
    # It was not run since.
    assert gate.wanted() == []


def test_commands_that_repeat_a_session_or_a_test_have_no_secrets(tmp_path: Path) -> None:
    """By name, and what a scenario of the session has by value."""
    given = ("--token", "hid den", "API_KEY=hid den", "-k", "its-v4lue")
    config: Any = SimpleNamespace(
        invocation_params=SimpleNamespace(args=given, dir=tmp_path), stash=pytest.Stash(),
        getoption={"hwq_setup": "its-v4lue --token hidden"}.get,
    )  # fmt: skip
    session_secrets(config).add("its-v4lue")
    python = Path(sys.executable).name
    assert shlex.split(command_line(config)) == [
        python, "-m", "pytest", "--token", "<redacted>", "API_KEY=<redacted>", "-k", "<redacted>"
    ]  # fmt: skip
    gate: Any = object.__new__(Regression)
    gate._config = config
    assert shlex.split(gate._command("test_mine.py::test_mine", tmp_path / "test_mine.py")) == [
        python, "-m", "pytest", "test_mine.py::test_mine",
        "--hwq-setup=<redacted> --token <redacted>",
    ]  # fmt: skip


def test_a_page_draws_the_baseline_compared_with_and_none_of_the_runs_it_gains(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        "def test_mine(hwq, hwq_device): hwq.measure(hwq_device.kernel_of(10_000), streams=1)"
    )
    drawn: list[list[int]] = []
    page_of = render.page_of

    def noted(*arguments: Any, baseline: Mapping[str, CellBaseline], **named: Any) -> render.Page:
        drawn.append([len(cell.runs) for cell in baseline.values()])
        return page_of(*arguments, baseline=baseline, **named)

    monkeypatch.setattr(render, "page_of", noted)
    monkeypatch.setattr(render, "write_page", lambda *_: None)
    options = (
        "--hwq-device=sim:h200", "--hwq-iterations=40", "--hwq-save=main", "--hwq-runs=2",
        "--hwq-fail-on=p50", "--hwq-isolation=process",
    )  # fmt: skip
    assert run_in_process(*options).ret == 0
    run_in_process(*options, "--hwq-compare=main", "--hwq-report=report.html")
    assert drawn == [[2]]
    (stored,) = Store(pytester.path / "baselines").read("main", "sim-h200").values()
    assert len(stored.runs) == 4
    # That of another model is not compared with, though its cells have the same ids.
    device = pytester.path / "baselines" / "sim-h200"
    device.rename(device.with_name("sim-b200"))
    run_in_process(*options, "--hwq-compare=main", "--hwq-report=report.html")
    assert drawn == [[2], []]
