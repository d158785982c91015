"""hwq compare and diff: what they print, write and refuse, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pytest_hwqueue.data.records.cell import write_record
from pytest_hwqueue.judge import judging
from pytest_hwqueue.judge.file import json_schema
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.options.of_commands import comparison_status
from tests.answers.stored import DEVICE, cell_id, noisy, put, session_file
from tests.cli.conftest import ROOT, assert_schema_is_the_codes, finished, hwq, real
from tests.conftest import make_record
from tests.stored_texts import assert_as_stored

SCHEMA = ROOT / "pytest_hwqueue/schemas/judgement.schema.json"


@pytest.fixture(autouse=True)
def _folder(no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put_main_and_new(**differs: Any) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(15, 3, 1.2), **differs)


COMPARED = {
    "main same": 0,
    "main worse": 1,
    "main driver": 2,
    "main driver --allow-env": 0,
    # Nothing was judged, which is never green; with another cell that is, the policy holds.
    "main driver --on incomparable:warn": 2,
    "two mixed --on incomparable:warn": 0,
    # Another measurement is never compared.
    "two other --allow-env": 2,
    # A run each has a change, and no verdict.
    "one single": 2,
    "two several": 0,
    "two several --on missing:fail": 3,
    "two several --on no-baseline:fail": 3,
    "two several --on inconclusive:fail": 0,
    "main unsure": 0,
    "main unsure --on inconclusive:fail": 3,
    # How small a change counts is said by options.
    "quiet up4": 0,
    "quiet up4 --min-effect 2%": 1,
    "quiet up4 --min-effect auto": 1,
    "main worse --min-effect auto": 1,
    "main up8": 1,
    "main up8 --tau 10%": 0,
    "main up8 --rate 0.0000001%": 0,
}


def test_what_is_printed_is_as_stored_and_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = {"parameters": {"mm_dim": 8192, "shape": [1, 2]}}
    put("main", "a", noisy(10, 1))
    put("quiet", "a", noisy(10, 1, sd=0.002))
    put("up4", "a", noisy(15, 3, 1.04, sd=0.002))
    put("up8", "a", noisy(15, 3, 1.08, sd=0.005))
    put("same", "a", noisy(2, 2), soft={"host_name": "second"})
    put("worse", "a", noisy(15, 3, 1.2))
    put("unsure", "a", noisy(2, 2, 1.3))
    put("driver", "a", noisy(2, 2), hard={"driver_major": 590})
    put("several", "a", noisy(2, 2))
    put("several", "fresh", noisy(2, 2))
    put("one", "a", noisy(1, 1))
    put("single", "a", noisy(1, 2, 1.1))
    for name in "ab":
        put("two", name, noisy(10, 1))
        put("other", name, noisy(2, 2), parts=other, hard={"mig_slice": "1g"})
    put("two", "gone", noisy(10, 1))
    put("mixed", "a", noisy(2, 2), hard={"driver_major": 590})
    put("mixed", "b", noisy(2, 4))
    shown = []
    for line, status in COMPARED.items():
        result = hwq("compare", *line.split())
        assert result.exit_code == status, f"{line}: {result.output}"
        assert "--hwq-" not in result.output
        shown.append(f"$ hwq compare {line}\n{result.output}")
    assert_as_stored(__file__, "compare.txt", "\n".join(shown))
    # Diff is another name, sides may be options, and options variables.
    monkeypatch.setenv("HWQ_ON", "inconclusive:fail")
    for words in (
        ("compare",),
        ("diff",),
        ("compare", "--on=inconclusive:fail", "--on", "inconclusive:warn"),
    ):
        again = hwq(*words, "--baseline", "main", "--test", f"{DEVICE}/unsure")
        assert again.exit_code == (0 if "warn" in words[-1] else 3)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_nothing_but_a_regression_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    put_main_and_new()

    def breaks(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(judging, "compare_sources", breaks)
    result = hwq("compare", "main", "new")
    assert result.exit_code == 2
    assert ("RuntimeError: broken" in result.output) == isinstance(error, RuntimeError)


@pytest.mark.parametrize(("found", "status"), [
    ("pass improvement", 0), ("no-baseline", 3), ("inconclusive incomparable", 2),
    ("incomparable regression inconclusive", 1),
])  # fmt: skip
def test_the_gravest_finding_decides(found: str, status: int) -> None:
    class Found(Judgement):
        judged = True

        def count(self, state: str) -> int:
            return int(state in found.split())

    judgement = Found("main", (), (), None, 1, GateSettings(), {})
    kinds = ("inconclusive", "no-baseline", "incomparable", "missing")
    assert comparison_status(judgement, dict.fromkeys(kinds, "fail")) == status
    warned = comparison_status(judgement, dict.fromkeys(kinds, "warn"))
    assert warned == (1 if "regression" in found else 0)


def test_sessions_and_folders_of_records_are_sources() -> None:
    latency = make_record("a", 1, n=1000).metrics.latency
    assert latency is not None
    assert latency.p99 is not None
    scale = 10 / latency.p99
    for cell in "ab":
        put("main", cell, noisy(10, 1), scale=scale)
    records = [
        make_record("a", 1, n=1000, scale=scale, started=f"2026-03-01T00:00:0{number}")
        for number in range(2)
    ]
    records.append(make_record("b", 1, status="failed", reason="out of memory", samples=None))
    for record in records:
        write_record(Path("records"), record)
    for source in (session_file(*records), "records"):
        result = hwq("compare", "main", source)
        assert result.exit_code == 0, result.output
        assert "1 pass, 1 missing" in result.output
        assert "failed: out of memory" in result.output


def test_the_verdicts_are_written_as_json_by_the_published_schema_and_as_markdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_main_and_new(soft={"host_name": "second"}, hard={"driver_major": 590})
    put("main", "gone", noisy(10, 1))
    # The summary of a job on GitHub.
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")

    result = hwq(
        "compare", "main", "new", "--allow-env", "--json", "out/all.json", "--markdown", "all.md",
        "--fail-on", "p99,throughput",
    )  # fmt: skip

    assert result.exit_code == 1
    for name in ("all.md", "summary.md"):
        assert "regression" in Path(name).read_text()
    found = json.loads(Path("out/all.json").read_text())
    # First: where it is to be written, the one before may not fit.
    assert_schema_is_the_codes("judgement.schema.json", json_schema())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    expected = {
        "exit_status": 1, "baseline": f"{DEVICE}/main", "test": f"{DEVICE}/new",
        "missing": [{"cell": cell_id("gone"), "reason": "not measured"}],
    }  # fmt: skip
    assert found == found | expected
    assert found["counts"]["regression"] == 1
    first = found["verdicts"][0]
    assert (first["cell"], first["figure"], first["state"]) == (cell_id("a"), "p99", "regression")
    assert first["ratio"] == pytest.approx(1.2, rel=0.02)
    assert len(first["baseline"]) == 10
    assert first["looks"][-1]["decision"] == "convicted"
    fields = {each["field"]: (each["kind"], each["test"]) for each in first["differences"]}
    assert fields["driver_major"] == ("environment", [590])
    assert fields["host_name"] == ("soft", ["second"])


def test_the_process_ends_with_the_status_and_imports_no_torch_whoever_reads() -> None:
    put_main_and_new()
    put("same", "a", noisy(2, 3))
    script = (
        "import sys\nfrom pytest_hwqueue.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    status, output, errors = finished(real("compare", "main", "new", script=script))
    assert (status, errors, output.splitlines()[-1]) == (1, "", "False")
    assert "1 regression" in output

    # A reader that goes away does not change the status.
    unread = real("compare", "main", "same")
    assert unread.stdout is not None
    assert unread.stderr is not None
    unread.stdout.close()
    errors = unread.stderr.read()
    unread.stderr.close()
    assert (unread.wait(60), errors) == (0, "")
