"""``hwq fleet merge`` on the records of real sessions of a simulated device."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.fleet import check
from pytest_hwqueue.answers.fleet.check import Place, write_check
from pytest_hwqueue.answers.fleet.collected import checked_gpus, collect, set_damaged_aside
from pytest_hwqueue.answers.fleet.verdicts import judge_fleet
from pytest_hwqueue.cli.main import main

if TYPE_CHECKING:
    from tests.conftest import Sessions

SUITE = Path(__file__).parents[3] / "benchmarks"


def hwq(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, sessions: Sessions) -> Path:
    """The records of a GPU."""
    folder = tmp_path_factory.mktemp("measured")
    done = sessions.run(
        folder, str(SUITE), "--hwq-workload=large_gemm_only", "--hwq-device=sim:h200",
        "--hwq-size=tiny", "--hwq-runs=4", "--hwq-max-time=0.02", "--hwq-dir=.",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def fleet_of(folder: Path, gpus: int, measured: Path) -> list[Path]:
    """Every GPU has the same figures."""
    copies = [folder / "node" / f"gpu{number}" for number in range(gpus)]
    for copy in copies:
        shutil.copytree(measured, copy)
    return copies


def slow_down(gpu: Path, factor: float) -> None:
    for path in gpu.glob("*/large_gemm_only*.json"):
        record = json.loads(path.read_text())
        for rate in record["metrics"]["throughput"]:
            rate["value"] /= factor
            rate["low"] = rate["high"] = None
        path.write_text(json.dumps(record))


TELEMETRY = dict.fromkeys(
    ("when_ns", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"), 1
)


def change(gpu: Path, part: str, field: str, value: object) -> None:
    for path in gpu.glob("*/large_gemm_only*.json"):
        record = json.loads(path.read_text())
        within = record["fingerprint"] if part == "soft" else record
        within[part][field] = value
        path.write_text(json.dumps(record))


def throttled(*reasons: str) -> list[dict[str, object]]:
    return [{"first_sample": 1, "end_sample": 3, "reasons": reasons}]


def test_what_a_driver_reports_is_a_fault_where_no_healthy_gpu_has_it(
    tmp_path: Path, measured: Path
) -> None:
    gpus = fleet_of(tmp_path, 7, measured)
    change(gpus[1], "soft", "ecc_uncorrected_errors", 2)
    change(gpus[2], "soft", "row_remapping", "pending")
    change(gpus[3], "telemetry", "throttled", throttled("hardware_thermal", "power_cap"))
    change(gpus[4], "telemetry", "throttled", throttled("power_cap"))
    change(gpus[4], "telemetry", "samples", [{**TELEMETRY, "xid_errors": [43]}])
    change(gpus[6], "telemetry", "samples", [{**TELEMETRY, "xid_errors": [43, 79]}])
    change(gpus[5], "soft", "nvlinks_active", 17)
    for gpu in (*gpus[:5], gpus[6]):
        change(gpu, "soft", "nvlinks_active", 18)
    found = {gpu.device: gpu for gpu in judge_fleet(collect([tmp_path])[0]).gpus}
    assert {name: (gpu.verdict, gpu.reasons) for name, gpu in found.items()} == {
        "gpu0": ("ok", ()),
        "gpu1": ("faulty", ("2 uncorrected ECC errors since its driver was loaded",)),
        "gpu2": ("faulty", ("remapping of its memory's rows: pending",)),
        "gpu3": ("faulty", ("slowed down while it was measured: hardware_thermal",)),
        "gpu4": ("ok", ()),
        "gpu5": ("different", ("nvlinks_active is 17, usually 18",)),
        "gpu6": ("faulty", ("Xid while it was measured: 79",)),
    }


def test_a_slow_and_an_unreachable_gpu_are_named(tmp_path: Path, measured: Path) -> None:
    gpus = fleet_of(tmp_path / "fleet", 6, measured)
    healthy = hwq("fleet", "merge", tmp_path / "fleet")
    assert healthy.exit_code == 0, healthy.output
    assert "6 GPUs: 6 ok; 0 named" in healthy.stdout
    slow_down(gpus[2], 1.05)
    lost = tmp_path / "fleet" / "node" / "gpu6"
    place = Place("node", "gpu6", "cuda:6")
    write_check(lost, place, 1.0, "the session ended with status 1")
    out = tmp_path / "out.json"
    named = hwq("fleet", "merge", tmp_path / "fleet", "--json", out, "--drain", "slurm",
                "--html", tmp_path / "fleet.html")  # fmt: skip
    assert named.exit_code == 1, named.output
    verdicts = {gpu["device"]: gpu["verdict"] for gpu in json.loads(out.read_text())["gpus"]}
    assert {name: found for name, found in verdicts.items() if found != "ok"} == {
        "gpu2": "slow", "gpu6": "unreachable",
    }  # fmt: skip
    page = (tmp_path / "fleet.html").read_text()
    assert "2 of 7 GPUs named: node/gpu6 is unreachable among others." in page
    assert "Nodes and GPUs" in page
    assert named.stdout.count("scontrol update nodename=node state=drain") == 1


@pytest.mark.usefixtures("no_process_is_left")
def test_a_session_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.2)
    (found,) = check.check_devices([("sim-h200-0", "sim:h200")], tmp_path, [])
    assert (found.status, found.reason) == ("unreachable", "the session took more than 0.2 s")
    ((gpu,), _) = collect([tmp_path])
    assert gpu.unreachable == found.reason


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    refused = hwq("fleet", "merge", tmp_path)
    assert refused.exit_code == 4
    assert "neither session.json nor check.json" in refused.stderr


@pytest.mark.parametrize(
    ("device", "said"),
    [("cpu", "a cluster's are all, or simulated ones"), ("sim:h2000", "h2000")],
)
def test_a_device_that_no_cluster_has_is_refused_before_ray_starts(
    tmp_path: Path, device: str, said: str
) -> None:
    refused = hwq("fleet", "run", "--device", device, "--out", tmp_path / "out")
    assert (refused.exit_code, said in refused.stderr) == (4, True), refused.stderr


def test_a_page_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    arguments = ("fleet", "check", "--device", "sim:h200", "--out", tmp_path / "out")
    refused = hwq(*arguments, "--html", tmp_path / "fleet.html")
    assert (refused.exit_code, "the report needs jinja2" in refused.stderr) == (4, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damaged", ["check.json", "session.json", "record"])
def test_a_gpu_with_a_damaged_file_is_refused_alone(
    tmp_path: Path, measured: Path, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = fleet_of(tmp_path, 8, measured)
    for gpu in gpus:
        write_check(gpu, Place("node", gpu.name, "sim:h200"), 1.0)
    pattern = {"session.json": "*/session.json", "record": "*/large*.json"}.get(damaged, damaged)
    path = sorted(gpus[2].glob(pattern))[0]
    path.write_bytes(b"")
    result = hwq("fleet", "merge", tmp_path, "--json", tmp_path / "fleet.json")
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "fleet.json").read_text())
    verdicts = {gpu["device"]: gpu["verdict"] for gpu in found["gpus"]}
    assert verdicts["gpu2"] == "unreachable"
    assert {verdicts[f"gpu{number}"] for number in (0, 1, 3, 4, 5, 6, 7)} == {"ok"}
    (reasons,) = (gpu["reasons"] for gpu in found["gpus"] if gpu["device"] == "gpu2")
    assert str(path) in str(reasons)
    # What `--resume` does: it says what is damaged, measures it again, and then it is no part.
    capsys.readouterr()
    set_damaged_aside(tmp_path)
    done = set(checked_gpus(tmp_path))
    assert done == {("node", f"gpu{number}") for number in (0, 1, 3, 4, 5, 6, 7)}
    said = capsys.readouterr().err
    assert str(path) in said
    assert ("the GPU is measured again" in said) == (damaged != "check.json")
    write_check(gpus[2], Place("node", "gpu2", "sim:h200"), 1.0)
    if damaged != "check.json":
        shutil.copytree(measured / next(measured.glob("*/session.json")).parent, gpus[2] / "anew")
    assert {gpu.unreachable for gpu in collect([tmp_path])[0]} == {""}
    assert len(checked_gpus(tmp_path)) == 8
