"""hwq which from beginning to end: on the model of a device, on the CPU, and as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.data.records.tenants import ColocationRecord, write_colocation
from pytest_hwqueue.engine.scenarios.measurer import Measurer
from tests.answers.which.conftest import SCENARIO, case, hwq, interrupt
from tests.conftest import slow

SIMULATED = ("--device", "sim:h200", "--size", "tiny", "--duration", "1s", "--until=end")


@pytest.fixture(scope="module", name="simulated")
def simulated_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A whole session on the model of a device; some modes are no part of it."""
    folder = tmp_path_factory.mktemp("simulated")
    file = folder / "mix.hwq.yaml"
    modes = 'processes: [native, mps-partition, "preload:no_such"]'
    text = SCENARIO.replace(SCENARIO[SCENARIO.index("  processes:") :].splitlines()[0][2:], modes)
    file.write_text(text)
    return folder, hwq(
        file, *SIMULATED, "--dir", folder / "all", "--json", folder / "w.json", "--markdown",
        folder / "w.md", "--svg", folder / "w.svg",
    )  # fmt: skip


def test_a_session_measures_in_turn_and_says_that_it_is_simulated(
    simulated: tuple[Path, Result],
) -> None:
    folder, result = simulated
    # A mode that was asked for could not be opened.
    assert result.exit_code == 4, result.output
    assert "not measured: preload:no_such: there is no no_such.yaml" in result.stderr
    found = WhichFile.model_validate_json((folder / "w.json").read_bytes())
    assert (found.device, found.simulated, found.complete) == ("sim:h200", True, True)
    runs = [line.split()[3] for line in result.stderr.splitlines() if "[sim:h200" in line]
    measured = [run for run in runs if runs.count(run) == 2]
    assert measured == list(reversed(measured))
    assert len(set(measured)) == 5
    texts = [" ".join(text.split()) for text in (result.stdout, (folder / "w.md").read_text())]
    assert "SIMULATED" in (folder / "w.svg").read_text()
    for text in texts:
        assert "Simulated, not measured." in text
    # What ran, once for each tenant above the table.
    ran = "low: resnet50 (tiny), batch 8, images of 3×32×32, fp32 without TF32,"
    assert [text.count(ran) for text in texts] == [1, 1]
    assert case(found, "threads-stream-priority").tenant("high").issued == 20
    # Modes that cannot be had stand in the table.
    for name, reason, status in (
        ("mps-partition", "share", "skipped"), ("preload:no_such", "no_such", "failed"),
    ):  # fmt: skip
        lacking = case(found, name)
        assert (lacking.status, reason in lacking.reason) == (status, True)
        assert f"{status.upper()}: {lacking.reason[:40]}" in texts[0]
    assert found.choices[0].without_figures == ["mps-partition", "preload:no_such"]


def test_records_alone_give_the_same_table_and_plot(simulated: tuple[Path, Result]) -> None:
    folder, result = simulated
    (session,) = (folder / "all").iterdir()
    again = hwq(
        folder / "mix.hwq.yaml", "--from", session, "--json", folder / "again.json", "--svg",
        folder / "again.svg",
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    assert again.stdout == result.stdout
    first = (folder / "w.json").read_text()
    assert (folder / "again.json").read_text() == first == (session / "which.json").read_text()
    assert (folder / "again.svg").read_bytes() == (folder / "w.svg").read_bytes()


def small(folder: Path, schedulers: str, *tenants: str, goal: str = "t1.p50 < 1 s") -> Path:
    """A scenario of tiny tenants, t1 and so on, for 300 ms."""
    file = folder / "small.hwq.yaml"
    file.write_text(
        f"name: small\nduration: 300ms\nschedulers: {schedulers}\ntenants:\n"
        + "".join(
            f"  - {{name: t{number}, workload: tiny_kernel_stress{more}}}\n"
            for number, more in enumerate(tenants, 1)
        )
        + f"goals: [{goal}]\n",
        encoding="utf-8",
    )
    return file


DEVICE = ("--device", "sim:h200", "--size", "tiny")


def test_alternatives_of_an_entry_are_rows_of_their_own(tmp_path: Path) -> None:
    file = small(
        tmp_path,
        "['xsched:level=1,threshold=1|2|8']",
        ", priority: 1, arrival: 'poisson: 600/s'",
        "",
    )
    result = hwq(
        file, *DEVICE, "--dir", tmp_path / "all", "--rounds", "1", "--schedulers",
        "xsched:threshold=8|1,level=1", "--json", tmp_path / "w.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    modes = ["xsched:level=1,threshold=1", "xsched:level=1,threshold=8"]
    assert [each.id for each in found.cases if each.role == "case"] == modes
    # The higher threshold keeps less back.
    low, high = (case(found, mode).tenant("t2").throughput_items_per_s.value for mode in modes)
    assert 0 < (low or 0) < (high or 0)
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("xsched")]
    assert list(dict.fromkeys(rows)) == modes


def test_counted_requests_have_a_mean_and_its_spread_and_no_p99(tmp_path: Path) -> None:
    """As in a protocol of 20 requests, 10 ms apart, of three tasks at once."""
    tasks = [", arrival: 'closed: delay=10ms', requests: 20"] * 3
    file = small(tmp_path, "[native]", *tasks, goal="t1.p99 < 1 us")
    text = file.read_text(encoding="utf-8").replace("300ms", "60s\nci_duration: 60s")
    file.write_text(text, encoding="utf-8")
    result = hwq(file, *DEVICE, "--dir", tmp_path / "all", "--json", tmp_path / "w.json", "-v")
    assert result.exit_code == 0, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    native, alone = case(found, "native"), case(found, "solo t1")
    # Two rounds, each much shorter than its 30 s.
    assert [len(each.records) for each in (native, alone)] == [2, 2]
    assert 0 < native.window_s < 2
    for each in (*native.tenants, *alone.tenants):
        assert (each.issued, each.completed) == (40, 40)
        assert each.p99_ms.value is None
        assert "has 40 requests" in each.p99_ms.refused
        assert each.p99_by_s is None
        assert each.min_ms is not None
        assert each.variation is not None
        assert 0 < (each.variation.value or 0) < 1
        assert (each.min_ms.value or 0) < (each.mean_ms.value or 0) < (each.max_ms.value or 0)
    assert native.goals[0].decided_by_s is None
    assert "--duration" not in result.stdout
    assert re.search(r"variation .* min ", result.stdout)


def test_a_tenant_that_starts_later_says_so(tmp_path: Path) -> None:
    file = small(tmp_path, "[native]", ", arrival: 'constant: 100/s'", ", start: 100ms")
    result = hwq(file, *DEVICE, "--dir", tmp_path / "all", "--rounds", "1", "-v")
    assert result.exit_code == 0, result.output
    assert re.search(r"t2: .*tiny_kernel_stress.*, starts 0\.1 s later", result.stdout)


@pytest.mark.parametrize("attempts", [slow(2), 3, 4])
def test_an_invalid_window_is_measured_again_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """The table is of the valid one, also from the records alone."""
    file = small(tmp_path, "[native]", "")
    measure: Callable[..., tuple[ColocationRecord, Path]] = Measurer.__call__
    measured = []

    def late(*window: Any) -> tuple[ColocationRecord, Path]:
        record, path = measure(*window)
        measured.append(path)
        if len(measured) < attempts:
            record = record.model_copy(update={"status": "invalid", "reason": "1.04 ms late"})
            write_colocation(path, record)
        return record, path

    monkeypatch.setattr(Measurer, "__call__", late)
    result = hwq(file, *DEVICE, "--dir", tmp_path / "all", "--rounds", "1")
    assert len(measured) == min(attempts, 3)
    invalid = attempts > len(measured)
    assert (result.exit_code, "INVALID: 1.04 ms late" in result.stdout) == (invalid, invalid)
    assert hwq(file, "--from", measured[0].parent).stdout == result.stdout


def test_causes_stand_below_the_table_and_change_nothing_in_it(tmp_path: Path) -> None:
    tenants = [f", parameters: {{rounds: 2}}, arrival: 'poisson: {rate}/s'" for rate in (600, 300)]
    modes = "{processes: [native], threads: [native]}"
    file = small(tmp_path, modes, *tenants, goal="t1.p99 < 1 s")
    result = hwq(file, *DEVICE, "--dir", tmp_path / "all", "--causes")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    told = [line for line in lines if ": t1: causes of the slowest 1 %" in line]
    assert [line.partition(":")[0] for line in told] == ["native", "threads-native"]
    assert lines[-2:] == told
    (folder,) = (tmp_path / "all").iterdir()
    assert len(list((folder / "traced").glob("*.json"))) == 2
    assert hwq(file, "--from", folder).stdout.splitlines() == lines[:-2]
    refused = hwq(file, "--from", folder, "--causes")
    assert (refused.exit_code, "--causes" in refused.stderr) == (4, True)


# On a simulated device above; tests/parts/schedulers/test_xsched.py says why XSched is not there.
@pytest.mark.slow
def test_xsched_without_its_root_is_skipped_on_a_real_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XSCHED_ROOT", raising=False)
    file = small(tmp_path, '["xsched:level=1,threshold=1", mps-priority]', "")
    result = hwq(
        file, "--device", "cpu", "--duration", "300ms", "--rounds", "1", "--dir", tmp_path / "d",
        "--json", tmp_path / "w.json",
    )  # fmt: skip
    # Native came to figures, but only for comparison.
    assert result.exit_code == 1, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    native = case(found, "native")
    assert (native.role, native.status) == ("reference", "ok")
    assert native.proof is not None
    for name in ("xsched:level=1,threshold=1", "mps-priority"):
        assert case(found, name).status == "skipped"
        assert case(found, name).reason in " ".join(result.stdout.split())
    assert not found.simulated


def test_interrupted_it_prints_the_table_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = small(tmp_path, "[native, mps]", ", priority: 1", "")
    interrupt(monkeypatch, Measurer, "__call__", call=4)
    result = hwq(file, *DEVICE, "--dir", tmp_path / "d", "--json", tmp_path / "w.json")
    assert result.exit_code == 2
    assert_table_so_far(file, tmp_path, result.stdout)


def assert_table_so_far(file: Path, folder: Path, stdout: str) -> None:
    assert "INCOMPLETE: interrupted" in stdout
    assert "NOT MEASURED" in stdout
    found = json.loads((folder / "w.json").read_text())
    assert found["complete"] is False
    assert found["cases"][0]["status"] == "ok"
    (session,) = (folder / "d").iterdir()
    again = hwq(file, "--from", session)
    assert again.exit_code == 0
    assert "solo t1" in again.stdout


@pytest.mark.slow
def test_ctrl_c_prints_the_table_so_far(tmp_path: Path) -> None:
    file = small(tmp_path, "[native, mps]", ", priority: 1", "")
    command = [
        sys.executable, "-m", "pytest_hwqueue", "which", str(file), *SIMULATED, "--rounds", "50",
        "--duration", "5s", "--dir", str(tmp_path / "d"), "--json", str(tmp_path / "w.json"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "250"},
    )  # fmt: skip
    assert process.stderr is not None
    assert any("3/200" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert_table_so_far(file, tmp_path, stdout)


def test_a_mode_that_the_file_does_not_list_is_added(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    added = "mps,threads-native,xsched:level=1,mps-partition"
    result = hwq(file, *SIMULATED, "--schedulers", added, "--json", "w.json")
    assert result.exit_code == 0, result.stderr
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    # Without threads- in processes, and what the file lists of other modes is left out.
    names = [each.id for each in found.cases if each.role == "case"]
    assert names == ["mps", "threads-native", "xsched:level=1", "mps-partition"]
    assert case(found, "threads-native").tenant("high").issued == 20
    assert (case(found, "mps-partition").status, case(found, "mps").status) == ("skipped", "ok")


def test_a_server_is_no_thread_under_an_added_mode_either(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file.write_text(
        "name: served\ndescription: a server\nduration: 1s\ntenants:\n"
        "  - {name: web, arrival: closed,\n"
        "     server: {url: 'http://127.0.0.1:9', protocol: http}}\n"
    )
    result = hwq(file, "--device", "sim:h200", "--schedulers", "threads-native")
    assert result.exit_code == 4
    assert "threads-native: web is a server, which is a process" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--variant", "big"], 4, "--variant"),
        (["--schedulers", "mpz"], 4, "there is no scheduler mode 'mpz'"),
        (["--schedulers", "threads-natve"], 4, "did you mean native? there are"),
        (["--schedulers", "native,preload:none"], 4, "--schedulers: preload:none: "),
        (["--duration", "60"], 4, "such as 180s"),
        (["--rounds", "0"], 4, "--rounds"),
        (["--device", "sim:none"], 4, "--device"),
        (["--json", "no/such/folder/w.json"], 4, "there is no folder"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = hwq(file, "--device", "sim:h200", *arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert not (tmp_path / ".hwqueue").exists()
    file.write_text("name: bad\nduration: 1\n")
    wrong = hwq(file)
    assert (wrong.exit_code, f"{file.name}:2: duration" in wrong.stderr) == (4, True)
