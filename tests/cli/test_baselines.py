"""hwq compare, diff and baseline: what they print, write and refuse, and how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from pydantic import VERSION

import pytest_hwqueue
from pytest_hwqueue.baselines.cell_file import write_cell
from pytest_hwqueue.baselines.runs import CellBaseline, cell_of_record
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.cli.options import comparison_status
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.records.cell import (
    Metrics,
    RunRecord,
    SessionInfo,
    session_text,
    write_record,
)
from pytest_hwqueue.records.files import cell_file_name
from pytest_hwqueue.reports.judgement_file import json_schema
from pytest_hwqueue.settings.options import OPTIONS
from pytest_hwqueue.verdicts import judging
from pytest_hwqueue.verdicts.judging import Judgement
from tests.baselines.run_with import with_p99

DEVICE = "nvidia-h200"
ROOT = Path(pytest_hwqueue.__file__).parents[1]
SCHEMA = ROOT / "pytest_hwqueue/schemas/judgement.schema.json"
MakeRecord = Callable[..., RunRecord]
Put = Callable[..., None]

UPDATE = """\
judgement.schema.json is not the schema of the code. Where the change is meant, run in the root:
python -c 'import json; from pathlib import Path; from pytest_hwqueue.reports import judgement_file
path = Path("pytest_hwqueue/schemas/judgement.schema.json")
text = json.dumps(judgement_file.json_schema(), indent=2, ensure_ascii=False)
path.write_text(text + "\\n", encoding="utf-8")'
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def hwq(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        main, arguments, prog_name="hwq", env={"COLUMNS": "200"}, input=answer
    )


def compare(*arguments: str) -> Result:
    return hwq("compare", "--baseline", "main", "--test", "new", *arguments)


@pytest.fixture
def put(make_record: MakeRecord, tmp_path: Path) -> Put:
    """Stores a cell: its runs' P99 are ``factors`` times 10 ms, each from a session of its own."""

    def store(
        baseline: str,
        cell: str,
        factors: Sequence[float],
        *,
        sessions: Sequence[str] = (),
        n: int = 1000,
        **differs: Any,
    ) -> None:
        plain = cell_of_record(make_record(cell, 1, n=n, **differs), "s")
        runs = tuple(
            replace(
                with_p99(plain.runs[0], round(1e7 * factor)),
                session=sessions[number] if sessions else f"{baseline}-{number}",
                when=f"2026-02-{number + 1:02}T08:00:00.000+00:00",
            )
            for number, factor in enumerate(factors)
        )
        folder = tmp_path / "baselines" / plain.device / baseline
        path = folder / cell_file_name(plain.header.cell.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_cell(path, CellBaseline(plain.header, runs))

    return store


def noisy(runs: int, seed: int, times: float = 1.0, sd: float = 0.01) -> list[float]:
    return [times * float(x) for x in np.exp(np.random.default_rng(seed).normal(0, sd, runs))]


def cell_id(name: str) -> str:
    return f"{name}[cuda-s8-native-eager]"


def session_file(path: Path, records: Sequence[RunRecord], session: str = "s") -> Path:
    info = SessionInfo(id=session, started="2026-01-01", command="", version="0", settings={})
    path.write_text(session_text(info, list(records), []))
    return path


# --- compare ---------------------------------------------------------------------------------


def test_unchanged_runs_pass(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))

    result = compare()

    assert result.exit_code == 0, result.output
    assert f"Against {DEVICE}/main: 1 pass" in result.output
    assert "Conditions that differ" not in result.output


def test_a_regression_ends_with_1_and_diff_says_the_same(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("main", "b", noisy(10, 2))
    put("new", "a", noisy(15, 3, 1.2))
    put("new", "b", noisy(15, 4))

    result = compare()

    assert result.exit_code == 1
    assert "1 regression, 1 pass" in result.output
    for name in ("compare", "diff"):
        same = hwq(name, "main", f"{DEVICE}/new")
        assert (same.exit_code, same.output) == (1, result.output)


def test_a_small_change_is_no_regression_unless_asked(put: Put) -> None:
    put("main", "a", noisy(10, 1, sd=0.002))
    put("new", "a", noisy(15, 3, 1.04, sd=0.002))

    assert compare().exit_code == 0
    assert compare("--min-effect", "2%").exit_code == 1


def test_the_rate_and_tau_are_those_of_the_options(put: Put) -> None:
    put("main", "a", noisy(10, 1, sd=0.005))
    put("new", "a", noisy(15, 3, 1.08, sd=0.005))

    assert compare().exit_code == 1
    assert compare("--tau", "10%").exit_code == 0
    assert compare("--rate", "0.0000001%").exit_code == 0


def test_another_driver_is_incomparable_unless_allowed(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2), hard={"driver_major": 590})

    result = compare()

    line = f"driver_major: 580 → 590 ({cell_id('a')}; compared only with --allow-env)"
    assert result.exit_code == 2
    assert "1 incomparable" in result.output
    assert line in result.output
    assert "--hwq-" not in result.output
    allowed = compare("--allow-env")
    assert allowed.exit_code == 0
    assert "1 pass" in allowed.output
    assert line in allowed.output
    # Nothing was judged, which is never green; with another cell that is, the policy holds.
    nothing = compare("--on-incomparable", "warn")
    assert nothing.exit_code == 2
    assert "no cell was judged" in nothing.output
    put("main", "b", noisy(10, 3))
    put("new", "b", noisy(2, 4))
    assert compare("--on-incomparable", "warn").exit_code == 0


def test_another_measurement_is_never_compared_and_every_field_is_named(put: Put) -> None:
    parts = {"parameters": {"mm_dim": 8192, "shape": [1, 2]}}
    for name in "ab":
        put("main", name, noisy(10, 1))
        put("new", name, noisy(2, 2), parts=parts, hard={"mig_slice": "1g"})

    result = compare("--allow-env")

    assert result.exit_code == 2
    assert "parameter.mm_dim: 4096 → 8192 (2 cells; another measurement" in result.output
    assert "mig_slice: none → 1g (2 cells; another measurement" in result.output


def test_soft_differences_are_listed_and_do_not_matter(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2), soft={"host_name": "second"})

    result = compare()

    assert result.exit_code == 0
    assert "host_name first / second" in result.output


def test_missing_and_extra_cells_are_listed_and_fail_only_where_asked(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("main", "gone", noisy(10, 1))
    put("new", "a", noisy(2, 2))
    put("new", "fresh", noisy(2, 2))

    result = compare()

    assert result.exit_code == 0
    assert cell_id("gone") in result.output
    assert cell_id("fresh") in result.output
    assert "1 missing" in result.output
    assert compare("--on-missing", "fail").exit_code == 3
    assert compare("--on-no-baseline", "fail").exit_code == 3
    assert compare("--on-inconclusive", "fail").exit_code == 0


def test_what_looks_worse_with_too_few_runs_fails_only_where_asked(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2, 1.3))

    result = compare()

    assert result.exit_code == 0
    assert "1 inconclusive" in result.output
    assert compare("--on-inconclusive", "fail").exit_code == 3


def test_figures_that_no_common_cell_has_are_refused(put: Put) -> None:
    put("main", "a", noisy(10, 1), metrics=Metrics())
    put("main", "b", noisy(10, 1))
    put("new", "a", noisy(2, 2))

    assert compare().exit_code == 0
    refused(compare("--fail-on", "convoy_ratio"), "that is in both", "a figure convoy_ratio")


def test_the_environment_sets_options_too(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2, 1.3))
    monkeypatch.setenv("HWQ_ON_INCONCLUSIVE", "fail")

    assert compare().exit_code == 3
    assert compare("--on-inconclusive", "warn").exit_code == 0


ALL_FAIL = dict.fromkeys(("inconclusive", "no-baseline", "incomparable", "missing"), "fail")


@pytest.mark.parametrize(("found", "status"), [
    (("pass", "improvement"), 0),
    (("no-baseline",), 3),
    (("inconclusive", "incomparable"), 2),
    (("incomparable", "regression", "inconclusive"), 1),
])  # fmt: skip
def test_the_gravest_finding_decides(found: tuple[str, ...], status: int) -> None:
    class Found(Judgement):
        def count(self, state: str) -> int:
            return int(state in found)

        @property
        def judged(self) -> bool:
            return True

    judgement = Found("main", (), (), None, 1, GateSettings())

    assert comparison_status(judgement, ALL_FAIL) == status
    warned = comparison_status(judgement, dict.fromkeys(ALL_FAIL, "warn"))
    assert warned == (1 if "regression" in found else 0)


def test_sessions_and_folders_of_records_are_sources(
    put: Put, make_record: MakeRecord, tmp_path: Path
) -> None:
    p99_ns = make_record("a", 1, n=1000).metrics.latency
    assert p99_ns is not None
    assert p99_ns.p99 is not None
    scale = 10 / p99_ns.p99
    put("main", "a", noisy(10, 1), scale=scale)
    records = [
        make_record("a", 1, n=1000, scale=scale, started=f"2026-03-01T00:00:0{number}")
        for number in range(2)
    ]
    failed = make_record("b", 1, status="failed", reason="out of memory", samples=None)
    put("main", "b", noisy(10, 1))
    path = session_file(tmp_path / "all.json", [*records, failed])
    folder = tmp_path / "records"
    for record in (*records, failed):
        write_record(folder, record)

    for source in (str(path), str(folder)):
        result = hwq("compare", "main", source)
        assert result.exit_code == 0, result.output
        assert "1 pass, 1 missing" in result.output
        assert "failed: out of memory" in result.output


def test_the_verdicts_are_written_as_json_by_the_published_schema(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("main", "gone", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2), soft={"host_name": "second"}, hard={"driver_major": 590})

    result = compare("--allow-env", "--json", "out/all.json", "--fail-on", "p99,throughput")

    assert result.exit_code == 1
    found = json.loads(Path("out/all.json").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    assert found["exit_status"] == 1
    assert found["baseline"] == f"{DEVICE}/main"
    assert found["test"] == f"{DEVICE}/new"
    assert found["counts"]["regression"] == 1
    assert found["missing"] == [{"cell": cell_id("gone"), "reason": "not measured"}]
    first = found["verdicts"][0]
    assert (first["cell"], first["figure"], first["state"]) == (cell_id("a"), "p99", "regression")
    assert first["ratio"] == pytest.approx(1.2, rel=0.02)
    assert len(first["baseline"]) == 10
    assert first["looks"][-1]["decision"] == "convicted"
    fields = {each["field"]: (each["kind"], each["test"]) for each in first["differences"]}
    assert fields["driver_major"] == ("environment", [590])
    assert fields["host_name"] == ("soft", ["second"])


def test_a_file_that_cannot_be_written_hides_no_verdict(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2))
    Path("file").touch()

    refused(compare("--json", "file/all.json"), "1 regression", "cannot write file/all.json")


@pytest.mark.skipif(
    tuple(map(int, VERSION.split(".")[:2])) < (2, 14),
    reason="pydantic before 2.14 writes some fields of a schema another way",
)
def test_the_published_schema_is_that_of_the_code() -> None:
    if json.loads(SCHEMA.read_text()) != json_schema():
        pytest.fail(UPDATE, pytrace=False)


def test_the_verdicts_are_written_as_markdown(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2))

    assert compare("--markdown", "all.md").exit_code == 1
    assert "regression" in Path("all.md").read_text()


def test_the_summary_of_a_job_on_github_gets_the_verdicts_too(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")

    assert compare().exit_code == 1
    assert "regression" in Path("summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder.md")
    refused(compare(), "no/such/folder.md")


# --- what is refused -------------------------------------------------------------------------


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    for text in says:
        assert text in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("arguments", "says"), [
    (("compare", "--baseline", "main"), "name two sides"),
    (("compare", "main", "--test", "new"), "name two sides"),
    (("compare", "main", "new", "third"), "name two sides"),
    (("compare",), "name two sides"),
    (("compare", "main", "new", "--rate", "2"), "--rate: '2' is not valid"),
    (("compare", "main", "new", "--rate", "30%"), "screen"),
    (("compare", "main", "new", "--on-missing", "cry"), "choose from pass, warn, fail"),
    (("compare", "main", "new", "--fail-on", "p98"), "nvidia-h200/main has a figure 'p98'"),
    (("compare", "main", "new", "--fail-on", ","), "--fail-on: ',' is not valid"),
    (("compare", "main", "new", "--fail-on", "other_ratio"), "has a figure 'other_ratio'"),
    (("compare", "main", "new", "--sentinel", "fixed"), "--sentinel: 'fixed' is no cell of"),
    (("compare", "main", "new", "--json", "main.txt/x"), "main.txt"),
    (("compare", "main", "new", "--markdown", "main.txt/x"), "main.txt"),
    (("compare", "main", "nothing"), "'nothing' is neither a baseline nor a file nor a folder"),
    (("compare", "nothing", "new"), "nvidia-h200/main, nvidia-h200/new"),
    (("compare", "main", "empty"), "neither records (*.json) nor cells (*.jsonl)"),
    (("compare", "main", "main.txt"), "main.txt is not a session file"),
    (("compare", "main", "other"), "name is a in the baseline and c here"),
    (("baseline",), "Commands:"),
    (("baseline", "no-such"), "No such command"),
    (("baseline", "show"), "Missing argument"),
    (("baseline", "show", "nothing"), "there are nvidia-h200/main"),
    (("baseline", "show", "nvidia-h100/main"), "there is no baseline 'main' for nvidia-h100"),
    (("baseline", "show", "../main"), "'..' is not the folder of a device"),
    (("baseline", "show", "main", "--fail-on", "p98"), "no cell has a figure 'p98'"),
    (("baseline", "show", "main", "b"), "has no cell 'b'; its cells are:\n  a["),
    (("baseline", "history", "nothing"), "no baseline 'nothing'"),
    (("baseline", "accept", "main", "--from", "new"), "--reason"),
    (("baseline", "accept", "main", "--from", "new", "--reason", " "), "needs a reason"),
    (("baseline", "accept", "main", "--from", "main", "--reason", "x"), "the baseline itself"),
    (("baseline", "accept", "main", "--from", "new", "--reason", "x", "--cell", "b"),
     "nvidia-h200/new has no cell 'b'"),
    (("baseline", "accept", "nvidia-h100/main", "--from", "new", "--reason", "x"),
     "no cell of nvidia-h100; it has cells of nvidia-h200"),
    (("baseline", "accept", "ma in", "--from", "new", "--reason", "x"), "cannot name a baseline"),
    (("baseline", "prune", "main", "--keep", "0"), "--keep"),
    (("baseline", "prune", "nothing", "--keep", "5"), "no baseline 'nothing'"),
    (("baseline", "calibrate"), "Missing argument"),
    (("baseline", "calibrate", "main"), "no session has two runs"),
    (("baseline", "calibrate", "main"), "hwq run P0 --runs 3 --save aa"),
    (("baseline", "calibrate", "main", "--fail-on", "p98"), "no cell has a figure 'p98'"),
])  # fmt: skip
def test_wrong_input_ends_with_2(put: Put, arguments: tuple[str, ...], says: str) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))
    put("other", "c", noisy(2, 2))
    Path("main.txt").write_text("no JSON")
    Path("empty").mkdir()

    refused(hwq(*arguments), says)


@pytest.mark.parametrize("arguments", [
    ("compare", "main", "new"), ("compare", "new", "main"), ("baseline", "list"),
    ("baseline", "show", "main"), ("baseline", "history", "main"),
    ("baseline", "prune", "main", "--keep", "1"), ("baseline", "calibrate", "main"),
    ("baseline", "accept", "new", "--from", "main", "--reason", "x"),
])  # fmt: skip
def test_a_damaged_file_is_named(put: Put, arguments: tuple[str, ...]) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))
    (path,) = (Path("baselines") / DEVICE / "main").glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-10])

    refused(hwq(*arguments), str(path), "is damaged", "restore it from version control")


def test_a_session_without_good_cells_is_refused(
    put: Put, make_record: MakeRecord, tmp_path: Path
) -> None:
    put("main", "a", noisy(10, 1))
    failed = make_record("a", 1, status="failed", reason="out of memory", samples=None)
    path = session_file(tmp_path / "all.json", [failed])

    refused(hwq("compare", "main", str(path)), "nothing to compare")
    accepted = hwq("baseline", "accept", "main", "--from", str(path), "--reason", "x")
    refused(accepted, "no cell that went well")


def test_a_name_of_several_devices_is_refused_with_both_names(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("main", "a", noisy(10, 1), hard={"device_name": "NVIDIA H100"})

    both = "write nvidia-h100/main or nvidia-h200/main"
    refused(hwq("compare", "main", "main"), both)
    for command in (("show",), ("history",), ("prune", "--keep", "1")):
        refused(hwq("baseline", command[0], "main", *command[1:]), both)
    refused(hwq("baseline", "calibrate", "main"), both)


def test_a_value_in_the_environment_is_refused_with_its_name(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWQ_TAU", "much")

    refused(compare(), "environment variable HWQ_TAU: 'much' is not valid")


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_nothing_but_a_regression_ends_with_1(
    put: Put, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))

    def breaks(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(judging, "compare_sources", breaks)
    result = compare()

    assert result.exit_code == 2
    assert ("RuntimeError: broken" in result.output) == isinstance(error, RuntimeError)


# --- baseline --------------------------------------------------------------------------------


def rows(result: Result) -> list[list[str]]:
    lines = (line for line in result.output.splitlines() if line.startswith("│"))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_list_without_baselines_says_how_to_store_one() -> None:
    result = hwq("baseline", "list", "--baselines", "elsewhere")

    assert result.exit_code == 0
    assert result.output == "no baseline in elsewhere: `hwq run --save NAME` stores one\n"


def test_list_counts_cells_runs_and_sessions(put: Put) -> None:
    put("main", "a", noisy(3, 1), sessions="xxy")
    put("main", "b", noisy(2, 1), sessions="xz")
    put("main", "a", noisy(4, 1), hard={"device_name": "NVIDIA H100"})

    result = hwq("baseline", "list")

    assert result.exit_code == 0
    assert rows(result) == [
        ["nvidia-h100", "main", "1", "4", "4", "2026-02-04 08:00"],
        ["nvidia-h200", "main", "2", "2–3", "3", "2026-02-03 08:00"],
    ]


def test_show_tells_what_each_cell_can_find(put: Put) -> None:
    factors = noisy(10, 1, sd=0.03)
    put("main", "a", factors)
    put("main", "b", noisy(2, 1))
    put("main", "c", noisy(10, 1, sd=0.001), sessions="x" * 10)

    result = hwq("baseline", "show", "main", "--detect", "1%")

    assert result.exit_code == 0
    a, b, c = rows(result)
    assert a[:4] == [cell_id("a"), "P99", "10", "10"]
    assert a[4] == f"{10 * np.exp(np.mean(np.log(factors))):.3g} ms"
    assert a[5] == f"{100 * np.std(np.log(factors), ddof=1):.2f} %"
    assert a[6].startswith("≥ +")
    assert "for +1 %" in a[7]
    assert b[6] == "—"
    assert "record 5" in b[7]
    assert "all 10 runs come from one session" in c[7]


def test_show_of_other_figures(put: Put) -> None:
    put("main", "a", noisy(10, 1), n=40)

    result = hwq("baseline", "show", "main", "--fail-on", "small.p50,throughput,p99")

    assert result.exit_code == 0, result.output
    small, throughput, latency = rows(result)
    assert small[1] == "P50 of small"
    assert small[4].endswith("µs")
    assert throughput[1] == "throughput"
    assert throughput[6].startswith("≤ -")
    assert latency[1] == "P90"  # of 40 samples


def test_show_says_why_a_cell_cannot_be_compared(put: Put) -> None:
    put("main", "a", [1.0, 0.0])
    put("main", "b", [1.0, 1.0], n=20)

    zero, short = rows(hwq("baseline", "show", "main"))

    assert "is 0: the clock is too coarse" in zero[7]
    assert "needs 299 samples in every run, one has 20" in short[7]
    assert zero[4] == short[6] == "—"


def test_show_of_a_cell_lists_every_run(put: Put) -> None:
    put("main", "a", [1.0, 1.5], sessions=["monday", "friday"])

    result = hwq("baseline", "show", "main", cell_id("a"))

    assert result.exit_code == 0
    first, second = rows(result)
    assert first[:5] == ["1", "monday", "2026-02-01 08:00", "000000000", "1000"]
    assert second[1] == "friday"
    assert (float(first[8]), float(second[8])) == (10.0, 15.0)
    assert "mm_dim = 4096" in result.output
    assert "driver_major = 580" in result.output


def test_accept_moves_a_baseline_keeps_the_anchor_and_the_history(put: Put) -> None:
    put("main", "a", [1.0] * 5)
    put("main", "b", [1.0] * 5)
    put("step", "a", [1.1] * 5)
    put("step", "b", [1.1] * 5)
    put("leap", "a", [1.21] * 2)

    moved = hwq("baseline", "accept", "main", "--from", "step", "--reason", "new allocator")
    again = hwq("baseline", "accept", "main", "--from", "leap", "--reason", "and a driver")

    assert moved.exit_code == 0, moved.output
    assert rows(moved)[0] == [cell_id("a"), "+10.0 %", "+10.0 %"]
    assert rows(moved)[-1] == ["median", "+10.0 %", "+10.0 %"]
    assert again.exit_code == 0, again.output
    assert rows(again) == [[cell_id("a"), "+10.0 %", "+21.0 %"]]
    assert "1 cell with fewer than 5 runs" in again.output
    history = hwq("baseline", "history", "main")
    first, second = rows(history)
    assert first[2:] == ["2", "+10.0 %", "+10.0 %", "", "new allocator"]
    assert second[1:] == ["000000000", "1", "+10.0 %", "+21.0 %", "", "and a driver"]
    assert f"farthest: {cell_id('a')} +21.0 %" in history.output
    store = Store(Path("baselines"))
    assert len(store.read("main", DEVICE).cells[cell_id("a")].runs) == 2
    assert store.anchor("main", DEVICE).cells[cell_id("a")].runs[0].p99_ns == 10_000_000


def test_accept_of_one_cell_leaves_the_others(put: Put) -> None:
    for name in "ab":
        put("main", name, [1.0] * 5)
        put("new", name, [1.1] * 5)

    hwq("baseline", "accept", "main", "--from", "new", "--reason", "x", "--cell", cell_id("b"))

    cells = Store(Path("baselines")).read("main", DEVICE).cells
    assert cells[cell_id("a")].runs[0].p99_ns == 10_000_000
    assert cells[cell_id("b")].runs[0].p99_ns == 11_000_000


def test_accept_makes_a_new_baseline_of_a_session(make_record: MakeRecord, tmp_path: Path) -> None:
    failed = make_record("b", 1, status="failed", reason="out of memory", samples=None)
    path = session_file(tmp_path / "all.json", [make_record("a", 1), failed])

    result = hwq("baseline", "accept", "main", "--from", str(path), "--reason", "first")

    assert result.exit_code == 0, result.output
    assert f"left out: {cell_id('b')}: failed: out of memory" in result.output
    assert rows(result) == [[cell_id("a"), "—", "+0.0 %"]]
    assert list(Store(Path("baselines")).read("main", DEVICE).cells) == [cell_id("a")]


def test_accept_of_several_devices_wants_to_know_which(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    other = make_record("b", 1, hard={"device_name": "NVIDIA H100"})
    path = session_file(tmp_path / "all.json", [make_record("a", 1), other])
    arguments = ("--from", str(path), "--reason", "x")

    both = "several devices: write nvidia-h100/main or nvidia-h200/main"
    refused(hwq("baseline", "accept", "main", *arguments), both)
    assert hwq("baseline", "accept", "nvidia-h100/main", *arguments).exit_code == 0

    assert Store(Path("baselines")).devices() == ["nvidia-h100"]


def test_accept_refuses_planted_faults(make_record: MakeRecord, tmp_path: Path) -> None:
    path = session_file(tmp_path / "all.json", [make_record("a", 1, faults=["slower:10"])])

    result = hwq("baseline", "accept", "main", "--from", str(path), "--reason", "x")

    refused(result, "planted faults (slower:10)")
    refused(hwq("baseline", "calibrate", str(path)), "planted faults (slower:10)")


def test_history_of_a_baseline_that_never_moved(put: Put) -> None:
    put("main", "a", [1.0] * 5)

    result = hwq("baseline", "history", "main")

    assert result.exit_code == 0
    assert f"{DEVICE}/main was never moved" in result.output


@pytest.mark.parametrize(("more", "answer", "status", "left"), [
    (("--yes",), None, 0, 3),
    ((), "y\n", 0, 3),
    ((), "n\n", 2, 5),
    ((), "", 2, 5),
])  # fmt: skip
def test_prune_asks_before_it_removes(
    put: Put, more: tuple[str, ...], answer: str | None, status: int, left: int
) -> None:
    put("main", "a", [1.0, 1.1, 1.2, 1.3, 1.4])

    result = hwq("baseline", "prune", "main", "--keep", "3", *more, answer=answer)

    assert result.exit_code == status, result.output
    runs = Store(Path("baselines")).read("main", DEVICE).cells[cell_id("a")].runs
    assert len(runs) == left
    assert runs[-1].p99_ns == 14_000_000
    assert ("removed 2 runs" in result.output) == (status == 0)


def test_prune_of_what_is_short_enough_removes_nothing(put: Put) -> None:
    put("main", "a", [1.0] * 3)

    result = hwq("baseline", "prune", "main", "--keep", "3")

    assert result.exit_code == 0
    assert "nothing to remove" in result.output


def test_calibrate_finds_the_noise_that_was_planted(put: Put) -> None:
    generator = np.random.default_rng(7)
    sessions = [f"day-{number // 5}" for number in range(200)]
    for name in "abcd":
        of_session = np.repeat(generator.normal(0, 0.02, 40), 5)
        factors = np.exp(of_session + generator.normal(0, 0.03, 200))
        put("aa", name, [float(x) for x in factors[:200]], sessions=sessions)

    result = hwq("baseline", "calibrate", "aa")

    assert result.exit_code == 0, result.output
    for row in rows(result):
        run_sd, session_sd = (float(text.split()[0]) for text in row[3:5])
        low, high = map(float, re.findall(r"[\d.]+", row[3])[1:])
        assert row[1:3] == ["200", "40"]
        assert run_sd == pytest.approx(3.0, rel=0.15)
        assert session_sd == pytest.approx(2.0, rel=0.4)
        assert low < run_sd < high
    found = re.search(r"Recommended tau: ([\d.]+)%", result.output)
    assert found
    assert float(found[1]) == pytest.approx(2.0, rel=0.2)
    assert "hwq run P0" not in result.output


def test_calibrate_joins_sources_and_leaves_out_what_tells_nothing(put: Put) -> None:
    put("one", "a", noisy(3, 1), sessions="xxx")
    put("two", "a", noisy(3, 2), sessions="yyy")
    put("two", "b", noisy(1, 2))
    put("two", "c", [1.0, 0.0], sessions="yy")

    result = hwq("baseline", "calibrate", "one", "two", "two")

    assert result.exit_code == 0, result.output
    (row,) = rows(result)
    assert row[:3] == [cell_id("a"), "6", "2"]
    assert f"left out: {cell_id('b')}: no session has two runs" in result.output
    assert f"left out: {cell_id('c')}: a run has no P99 above 0" in result.output
    assert "hwq run P0 --runs 3 --save aa" in result.output


def test_calibrate_of_one_session_recommends_no_tau(put: Put) -> None:
    put("one", "a", noisy(3, 1), sessions="xxx")

    result = hwq("baseline", "calibrate", "one", "--fail-on", "p99,small.p50")

    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows(result)] == [f"{cell_id('a')} p99", f"{cell_id('a')} small.p50"]
    assert "there is no tau to recommend" in result.output
    assert "Recommended" not in result.output


def test_calibrate_refuses_runs_of_other_conditions(put: Put) -> None:
    put("one", "a", noisy(3, 1), sessions="xxx")
    put("two", "a", noisy(3, 1), sessions="yyy", hard={"driver_major": 590})

    refused(hwq("baseline", "calibrate", "one", "two"), f"{DEVICE}/two", "driver_major is 580")


# --- as a user runs it -----------------------------------------------------------------------


def real(*arguments: str, script: str = "main(prog_name='hwq')") -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return subprocess.Popen(
        [sys.executable, "-c", f"from pytest_hwqueue.cli.main import main; {script}", *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_process_ends_with_the_status(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2))

    process = real("compare", "--baseline", "main", "--test", "new")
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "1 regression" in output
    assert errors == ""


def test_a_reader_that_goes_away_does_not_change_the_status(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 3))
    process = real("compare", "main", "new")
    assert process.stdout is not None
    assert process.stderr is not None

    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (process.wait(60), errors) == (0, "")


def test_a_comparison_imports_no_torch(put: Put) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 3))
    script = "import sys\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules)"

    process = real("compare", "main", "new", script=f"\n{script}")
    output, errors = process.communicate(timeout=60)

    assert output.splitlines()[-1:] == ["False"], errors
