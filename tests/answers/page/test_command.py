"""``hwq report``: what it writes and refuses; the option of a session writes the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

# Before `pytester` remembers which modules there are: it takes others away, and this one can be
# initialised only once.
import vl_convert  # noqa: F401
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.records.cell import write_record
from tests.answers.conftest import make
from tests.conftest import RunInProcess

MEASURED = """
    def test_gemm(hwq):
        hwq.run("large_gemm_only")
"""


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_the_newest_session_or_a_folder_becomes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HWQ_DIR", raising=False)
    folder = tmp_path / ".hwqueue" / "20260101T000000-1"
    write_record(folder, make())
    (folder / "session.json").write_text("{}")
    for arguments in ((), (folder, "-o", "named.html")):
        done = report(*arguments)
        assert done.exit_code == 0, done.output
    for name in ("report.html", "named.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "1 cell measured; nothing was compared with a baseline." in text


def test_a_baseline_is_compared_and_drawn_behind(tmp_path: Path) -> None:
    for number in range(1, 6):
        write_record(tmp_path / "old", make(run=number, seed=number))
        write_record(tmp_path / "new", make(run=number, seed=number, median_ns=2_500_000))
    file = tmp_path / "report.html"
    done = report(tmp_path / "new", "-o", file, "--baseline", tmp_path / "old")
    assert done.exit_code == 0, done.output
    text = file.read_text(encoding="utf-8")
    assert f"Worse than {tmp_path / 'old'}: P99 of tiny_kernel_stress[" in text
    assert f"Against {tmp_path / 'old'}: 1 regression" in text
    _, _, chart = text.partition('data-chart="Distribution"></div><script type="application/json">')
    drawn = json.loads(chart.partition("</script>")[0])
    behind, *_, pooled = drawn["layer"][0]["data"]["values"]
    assert behind["legend"] == f"baseline {tmp_path / 'old'}"
    assert behind["n"] == 5000
    assert behind["ns"][-1] < pooled["ns"][0]


def test_a_session_writes_its_report(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(MEASURED)
    result = run_in_process(
        "--hwq-device=sim:h200", "--hwq-streams=2", "--hwq-iterations=20",
        "--hwq-report=out/report.html",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    text = (pytester.path / "out" / "report.html").read_text(encoding="utf-8")
    assert "large_gemm_only" in text
    assert "Figures marked so are a model" in text


SWEPT = """
    def test_convoy(hwq):
        hwq.run("hetero_kernels")
"""
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


# That charts are exported stands below; their text and marks in tests/data/document/test_charts.py.
@pytest.mark.slow
def test_charts_are_exported_one_picture_each(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(SWEPT)
    settings = ("--hwq-device=sim:h200", "--hwq-streams=2,4", "--hwq-iterations=20")
    run_in_process(*settings, "--hwq-dir=runs", "--hwq-causes=always").assert_outcomes(passed=2)
    folder = pytester.path / "figures"
    done = report(pytester.path / "runs", "--export", folder)
    assert done.exit_code == 0, done.output
    names = sorted(file.stem for file in folder.glob("*.svg"))
    assert names == sorted(file.stem for file in folder.glob("*.png"))
    assert f"{folder}: {len(names)} charts, each as SVG and PNG\n" in done.output
    # A sweep's chart is one, whichever of its cells shows it.
    scaling = [name for name in names if "Throughput" in name]
    assert scaling == ["Weak-scaling-of-hetero_kernels-over-streams-Throughput-over-streams"]
    shown = {"Distribution", "Samples-in-order", "requests-while-traced"}
    assert {f"hetero_kernels-sim-h200-s2-native-eager-{each}" for each in shown} <= {*names}
    for name in names:
        svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert "var(--" not in svg
        assert "SIMULATED" in svg
        png = (folder / f"{name}.png").read_bytes()
        assert png.startswith(PNG)
        assert 2000 < int.from_bytes(png[16:20], "big") < 4000
    traced = folder / "hetero_kernels-sim-h200-s2-native-eager-requests-while-traced.svg"
    text = traced.read_text(encoding="utf-8")
    for said in (
        "hetero_kernels[sim:h200-s2-native-eager]",
        "the first ",
        "large aten.mm",
        "stream 1",
    ):
        assert f">{said}" in text
    assert "NaN" not in text
    # Nobody can move a picture: what starts behind its edge is not in the file.
    assert text.count('aria-roledescription="bar"') + text.count("<path") < 3000


def test_cells_of_one_name_are_exported_under_their_sessions(tmp_path: Path) -> None:
    for number, session in enumerate(("old", "new")):
        write_record(tmp_path / "runs" / session, make(seed=number))
    done = report(
        tmp_path / "runs", "-o", tmp_path / "report.html", "--export", tmp_path / "figures"
    )
    assert done.exit_code == 0, done.output
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert len(names) == 8
    for session in ("old", "new"):
        (drawn,) = (name for name in names if name.endswith(f"-session-{session}-Distribution.svg"))
        assert f", session {session}<" in (tmp_path / "figures" / drawn).read_text("utf-8")


def test_a_folder_for_charts_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path / "new", make())
    (tmp_path / "taken").touch()
    file = tmp_path / "report.html"
    done = report(tmp_path / "new", "-o", file, "--export", tmp_path / "taken")
    assert done.exit_code == 4
    assert "--export" in done.output
    assert not file.exists()


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(MEASURED)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = run_in_process("--hwq-device=sim:h200", "--hwq-report=report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--hwq-report: the report needs jinja2 and vl-convert-python*'pytest-hwqueue[[]report]'*"]
    )
    assert not (pytester.path / ".hwqueue").exists()
