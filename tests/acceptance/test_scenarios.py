"""Scenario files as users run them: real pytest sessions, simulated devices, real tenants."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.metrics.interference import priority_effect
from pytest_hwqueue.plugin import selection
from pytest_hwqueue.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.records.timelines import Kept
from pytest_hwqueue.schedulers.declaration import NATIVE, SCHEDULERS
from pytest_hwqueue.suite import plugin_name
from pytest_hwqueue.tenancy import colocation, simulated
from pytest_hwqueue.tenancy import run as tenancy_run
from pytest_hwqueue.tenancy.spec import Colocation
from pytest_hwqueue.tenancy.tenant_processes import FoundOfTenants
from pytest_hwqueue.workloads.tenants.shapes import MISSING_TRANSFORMERS

SUITE = Path(__file__).parents[2] / "benchmarks"
BUILT_IN = sorted((SUITE / "scenarios").glob("*.hwq.yaml"))
TRACED = ("--hwq-device=sim:h200", "--hwq-size=small", "--hwq-max-time=1")
# Missed goals without the time that their causes take.
SIMULATED = (*TRACED, "--hwq-causes=never")
HOST = ("--hwq-device=cpu",)

MINE = """\
name: mine
duration: {duration}
warmup: 100ms
schedulers: {schedulers}
tenants:
  - {{name: urgent, workload: tiny_kernel_stress, parameters: {{rounds: 2}},
     arrival: "{arrival}", priority: 1}}
  - {{name: greedy, workload: large_gemm_only, parameters: {{mm_dim: 128}}}}
goals: {goals}
"""


class Session:
    """What came of a pytest session."""

    def __init__(self, status: int, output: str, file: Path) -> None:
        self.status = status
        self.output = output
        self.records: list[ColocationRecord] = []
        if file.exists():
            loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            self.records = [ColocationRecord.model_validate(each) for each in loaded["colocations"]]


Run = Callable[..., Session]


@pytest.fixture(autouse=True)
def _own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other sessions on this machine do not hold these tests up."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("leases"))
    yield
    tempfile.tempdir = before


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run pytest in this process, where torch is loaded already, in a folder of its own."""
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parent))
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)

    number = 0

    def run(*arguments: object) -> Session:
        nonlocal number
        number += 1
        # Sessions of one process that begin in the same second have the same name.
        folder = tmp_path / f"session-{number}"
        file = folder / "session.json"
        plain = [
            "-p", plugin_name(), "-p", "no:cacheprovider", "-p", "no:faulthandler",
            f"--rootdir={tmp_path}", "--import-mode=importlib", "--strict-markers",
            f"--hwq-json={file}", f"--hwq-dir={folder}",
        ]  # fmt: skip
        status = int(pytest.main([*plain, *map(str, arguments)]))
        return Session(status, "".join(capsys.readouterr()), file)

    return run


def write(
    folder: Path, *goals: str, schedulers: str = "[native]", arrival: str = "closed",
    duration: str = "300ms", placed: dict[str, list[str]] | None = None,
) -> Path:  # fmt: skip
    """Write a scenario of two small tenants; its goals may be given by placement instead."""
    file = folder / "mine.hwq.yaml"
    text = MINE.format(
        goals=json.dumps(placed or goals), schedulers=schedulers, arrival=arrival, duration=duration
    )
    file.write_text(text, encoding="utf-8")
    return file


def write_own(folder: Path, source: str, *goals: str, **given: Any) -> Path:
    """Write such a scenario whose urgent tenant is a function of its own."""
    (folder / "faulty.py").write_text(source, encoding="utf-8")
    file = write(folder, *goals, **given)
    text = file.read_text(encoding="utf-8")
    own = "workload: tiny_kernel_stress, parameters: {rounds: 2}", 'function: "faulty:make"'
    file.write_text(text.replace(*own), encoding="utf-8")
    return file


@pytest.mark.parametrize("urgent_us", [25, pytest.param(399, marks=pytest.mark.slow)])
def test_a_priority_that_is_not_proven_stands_among_the_goals(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urgent_us: int
) -> None:
    monkeypatch.setitem(SCHEDULERS.built_in, "native", NATIVE._replace(by_priority=True))
    effect = priority_effect(
        "urgent", "greedy", [urgent_us * 1000] * 6, [400_000] * 6,
        alone_ns=20_000, load_ns=400_000, requests=10,
    )  # fmt: skip
    monkeypatch.setattr(tenancy_run, "probe_priority", lambda *_: effect)
    found = run(write(tmp_path), *HOST)
    (record,) = (each for each in found.records if len(each.tenants) == 2)
    assert record.status in ("ok", "invalid"), record.reason
    assert record.proof is not None
    assert record.proof.priority == effect
    told = "mine.hwq.yaml::native: priority not proven: urgent small kernels took"
    assert (told in found.output) == (urgent_us == 399)
    assert any("priority not proven" in note for note in record.notes) == (urgent_us == 399)


def test_scenarios_run_only_if_asked_for(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "suite" / "scenarios"
    folder.mkdir(parents=True)
    file = write(folder)
    (folder.parent / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")
    left_out = run(folder.parent, "--hwq-device=sim:h200", "--collect-only", "-q")
    assert "1 scenario file not run: name a file or its folder, or give -m scenario" in (
        left_out.output
    )
    assert "::native" not in left_out.output
    for asked in ([folder], [file], [folder.parent, "-m", "scenario"]):
        found = run(*asked, "--hwq-device=sim:h200", "--collect-only", "-q")
        assert "mine.hwq.yaml::native" in found.output
        assert "not run" not in found.output


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda file: file.name.partition(".")[0])
def test_the_suites_scenarios_on_a_simulated_device(run: Run, file: Path) -> None:
    """Everything is measured or has its reason, and goals alone decide what fails."""
    session = run(file, *SIMULATED, "--hwq-max-time=0.5")
    assert session.status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), session.output
    assert session.records
    for record in session.records:
        assert record.simulated
        assert record.status in ("ok", "skipped"), record.reason
        if record.status == "skipped":
            assert "is no part of the model of a device" in record.reason
        else:
            assert all(tenant.completed for tenant in record.tenants)
    failed = [line for line in session.output.splitlines() if line.startswith("FAILED")]
    missed = {
        line.split(": missed: ")[0] for line in session.output.splitlines() if ": missed: " in line
    }
    assert len(failed) == len(missed)
    assert (session.status == pytest.ExitCode.OK) == (not missed)


def test_the_model_tells_schedulers_apart(run: Run) -> None:
    session = run(SUITE / "scenarios" / "high_load.hwq.yaml", *SIMULATED)
    lines = session.output.splitlines()

    def verdict(case: str, goal: str) -> str:
        (line,) = (line for line in lines if f"::{case}: " in line and f": {goal} (" in line)
        return line.split(f"::{case}: ")[1].split(":")[0]

    # Without priorities between kernels the urgent model waits for the whole big batch.
    assert verdict("mps", "high.p99 < 10 ms") == "missed"
    assert verdict("threads-native", "high.attainment >= 99%") == "missed"
    # Twenty requests cannot show a P99, however fast they were.
    assert verdict("mps-priority", "high.p99 < 10 ms") == "undecided"
    assert verdict("native", "low.throughput >= 80% of native") == "met"


def traced_records(session: Path) -> list[ColocationRecord]:
    """The records of traced runs, which stand apart from the measured ones."""
    return [read_colocation(path) for path in session.glob("*/scenarios/traced/*.json")]


def test_a_missed_goal_says_why_requests_were_slow(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgent.p99 < 1 us", "greedy.p50 < 1 s", arrival="poisson: 1000/s")
    missed = run(file, *TRACED, "--junitxml=junit.xml")
    assert missed.status == pytest.ExitCode.TESTS_FAILED
    failure, *_ = ElementTree.parse(tmp_path / "junit.xml").iter("failure")
    told = str(failure.text).splitlines()
    assert [line.partition(" ")[0] for line in told] == ["missed:", "met:", "urgent:"]
    assert re.match(
        r"urgent: causes of the slowest 1 % in a traced run of its own \(\d+ requests, level none\)"
        r": \d+ % (queued behind its tenant's earlier requests|time slice: greedy had)", told[-1]
    ), told  # fmt: skip
    properties = ElementTree.parse(tmp_path / "junit.xml").iter("property")
    assert told[-1] in [
        each.get("value") for each in properties if each.get("name") == "hwq_causes"
    ]
    assert f"mine.hwq.yaml::native: {told[-1]}" in missed.output
    # Apart from what was measured, and longer: of 368 requests and some.
    assert [record.traced for record in missed.records] == [False]
    (record,) = traced_records(tmp_path / "session-1")
    assert record.traced
    assert record.duration_s == 1.0
    found = record.tenant("urgent").causes
    assert found is not None
    assert found.requests == record.tenant("urgent").completed
    never = run(file, *TRACED, "--hwq-causes=never")
    assert never.status == pytest.ExitCode.TESTS_FAILED
    assert "causes" not in never.output
    assert traced_records(tmp_path / "session-2") == []


def test_a_goal_that_was_met_has_causes_only_on_request(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgent.p99 < 1 s", arrival="poisson: 2000/s")
    assert "causes" not in run(file, *TRACED).output
    assert traced_records(tmp_path / "session-1") == []
    always = run(file, *TRACED, "--hwq-causes=always")
    assert always.status == pytest.ExitCode.OK
    assert "mine.hwq.yaml::native: urgent: causes of the slowest" in always.output
    assert len(traced_records(tmp_path / "session-2")) == 1


def test_a_verdict_stands_without_its_causes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulate(plan: Colocation, found: FoundOfTenants, kept: Kept, *, traced: bool) -> None:
        if traced:
            raise DeviceError("the tracer broke")
        simulated.simulate(plan, found, kept)

    monkeypatch.setattr(colocation, "simulate", simulate)
    missed = run(write(tmp_path, "urgent.p50 < 1 us"), *TRACED)
    assert missed.status == pytest.ExitCode.TESTS_FAILED
    assert "missed: urgent.p50 < 1 us (" in missed.output
    assert "causes are not known: the traced run was failed: the tracer broke" in missed.output


def test_goals_decide_the_outcome(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgent.p50 < 1 s", "greedy.p999 < 1 s")
    session = run(file, *SIMULATED, "--hwq-device=sim:h200")
    assert session.status == pytest.ExitCode.OK
    assert "goals of scenarios (simulated: sim:h200)" in session.output
    assert "met: urgent.p50 < 1 s" in session.output
    assert "undecided: greedy.p999 < 1 s" in session.output
    assert "records: " in session.output
    strict = run(file, *SIMULATED, "--hwq-on-inconclusive=fail")
    assert strict.status == pytest.ExitCode.TESTS_FAILED
    missed = run(write(tmp_path, "urgent.p50 < 1 us"), *SIMULATED, "--junitxml=junit.xml")
    assert missed.status == pytest.ExitCode.TESTS_FAILED
    (failure,) = ElementTree.parse(tmp_path / "junit.xml").iter("failure")
    assert str(failure.get("message")).startswith("missed: urgent.p50 < 1 us (")


def test_goals_of_a_placement_are_asserted_there_alone(run: Run, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        schedulers="{processes: [native], threads: [native]}",
        placed={"all": ["urgent.p50 < 1 s"], "threads": ["urgent.p50 < 1 us"]},
    )
    session = run(file, *TRACED, "-rA")
    assert session.status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"^PASSED \S+::native$", session.output, re.MULTILINE)
    assert re.search(r"^FAILED \S+::threads-native\b", session.output, re.MULTILINE)
    # Causes are those of the goals that were missed there.
    assert "urgent: causes of" in session.output
    assert {record.placement: record.plan["goals"] for record in session.records} == {
        "processes": ["urgent.p50 < 1 s"],
        "threads": ["urgent.p50 < 1 s", "urgent.p50 < 1 us"],
    }


def test_a_mode_that_cannot_be_opened_fails_its_own_test_alone(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgent.p50 < 1 s", schedulers='{processes: [native, "preload:nope"]}')
    session = run(file, *SIMULATED)
    assert session.status == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in session.output
    assert "preload:nope: there is no nope.yaml" in session.output
    assert "Traceback" not in session.output
    assert {record.scheduler: record.status for record in session.records} == {
        "native": "ok", "preload:nope": "failed",
    }  # fmt: skip


@pytest.mark.slow
def test_tests_are_listed_and_chosen(run: Run, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "urgent.p50 < 1 us",
        schedulers='{processes: [native, mps-priority, "xsched:level=1,threshold=1"], '
        "threads: [native]}",
    )
    listed = run(file, "--collect-only", "-q")
    assert listed.status == pytest.ExitCode.OK
    assert [line for line in listed.output.splitlines() if "::" in line] == [
        f"mine.hwq.yaml::{case}"
        for case in ("native", "mps-priority", "xsched:level=1,threshold=1", "threads-native")
    ]
    assert not (tmp_path / "session-1").exists()

    def measured(*arguments: str) -> list[str]:
        return [record.scheduler for record in run(file, *SIMULATED, *arguments).records]

    assert measured("--hwq-scheduler=xsched,mps-priority") == [
        "mps-priority", "xsched:level=1,threshold=1",
    ]  # fmt: skip
    assert measured("--hwq-scheduler=xsched:level=1,threshold=1") == ["xsched:level=1,threshold=1"]
    assert measured("-k", "threads") == ["native"]
    assert measured("-x") == ["native"]
    assert measured("-m", "scenario", "-k", "mps") == ["mps-priority"]
    nothing = run(file, *SIMULATED, "--hwq-scheduler=mps")
    assert nothing.status == pytest.ExitCode.USAGE_ERROR
    assert "--hwq-scheduler=mps: no test was selected that measures" in nothing.output
    assert run(file, "-m", "P0").status == pytest.ExitCode.NO_TESTS_COLLECTED


def test_other_tests_run_beside_scenarios(run: Run, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")
    both = run(tmp_path, *SIMULATED)
    assert both.status == pytest.ExitCode.OK
    assert "2 passed" in both.output
    cells = run(tmp_path, *SIMULATED, "--hwq-priority=P0")
    assert "no test was selected that measures" in " ".join(cells.output.split())
    assert cells.records == []


def test_tenants_are_stored_and_held_against_a_baseline(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, schedulers="[native, mps-priority]")
    saved = run(file, *SIMULATED, "--hwq-save=main", "--hwq-runs=3")
    assert saved.status == pytest.ExitCode.OK, saved.output
    assert "stored in sim-h200/main: 4 cells" in saved.output
    # Three runs of both tests; in each also of the two tenants alone.
    names = [record.plan["name"] for record in saved.records]
    assert names.count("mine") == 6
    assert names.count("mine.solo_urgent") == names.count("mine.solo_greedy") == 3
    compared = (
        *SIMULATED, "--hwq-compare=main", "--hwq-fail-on=p50,solo.p50,native.p50,throughput"
    )  # fmt: skip
    again = run(file, *compared, "-v")
    assert again.status == pytest.ExitCode.OK, again.output
    for told in ("mine.urgent[", "mine.greedy[", "solo at P50", "native at P50", "throughput"):
        assert told in again.output
    text = file.read_text(encoding="utf-8").replace("mm_dim: 128", "mm_dim: 256")
    file.write_text(text, encoding="utf-8")
    changed = run(file, *compared)
    assert changed.status == pytest.ExitCode.TESTS_FAILED, changed.output
    assert "incomparable" in changed.output
    assert "parameter.greedy.parameters" in changed.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--hwq-device=cuda:99",), "visible here"),
        (("--hwq-device=sim:h200", "--hwq-priority=P0"), "--hwq-priority: is for cells of work"),
        (("--hwq-device=sim:h200", "--hwq-fault=slower:5"), "be planted in simulated tenants"),
    ],
)
def test_what_would_measure_nothing_is_refused(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    session = run(write(tmp_path), *arguments)
    assert session.status == pytest.ExitCode.USAGE_ERROR
    assert reason in session.output


def test_weights_are_taken_from_a_folder_for_each_model(run: Run, tmp_path: Path) -> None:
    solo = SUITE / "scenarios" / "solo.hwq.yaml"
    weights = tmp_path / "weights"
    weights.mkdir()
    lacking = run(solo, *SIMULATED, f"--hwq-weights={weights}")
    assert lacking.status == pytest.ExitCode.USAGE_ERROR
    assert "has no folder resnet18" in lacking.output
    arguments = ["which", str(solo), "--device=sim:h200", f"--weights={weights}"]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 4
    assert "has no folder resnet18" in refused.output
    # There, and not what it should be: who loads it says so.
    (weights / "resnet18").mkdir()
    empty = run(solo, *SIMULATED, f"--hwq-weights={weights}")
    assert empty.status == pytest.ExitCode.TESTS_FAILED
    assert "config.json is missing" in empty.output


def test_missing_models_are_named_with_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "find_spec", lambda name: None)
    session = run(SUITE / "scenarios" / "solo.hwq.yaml", *SIMULATED)
    assert session.status == pytest.ExitCode.USAGE_ERROR
    assert MISSING_TRANSFORMERS in session.output
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")
    both = run(SUITE / "scenarios" / "solo.hwq.yaml", tmp_path / "test_other.py", "-rs")
    assert both.status == pytest.ExitCode.OK
    assert re.search(r"1 passed, \d+ skipped", both.output)
    assert MISSING_TRANSFORMERS in both.output


def test_a_wrong_file_is_an_error_with_field_and_line(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgnt.p50 < 1 s")
    session = run(tmp_path)
    assert session.status == pytest.ExitCode.INTERRUPTED
    assert f"{file}:9: goals[0]: there is no tenant 'urgnt'; did you mean urgent?" in session.output


def test_the_command_checks_files(tmp_path: Path) -> None:
    good = write(tmp_path)
    checked = CliRunner().invoke(main, ["scenario", "check", str(good), *map(str, BUILT_IN)])
    assert checked.exit_code == 0
    assert f"{good}: native\n" in checked.output
    unseen = good.rename(tmp_path / "mine.yaml")
    wrong = write(tmp_path, "urgnt.p50 < 1 s")
    checked = CliRunner().invoke(main, ["scenario", "check", str(unseen), str(wrong)])
    assert checked.exit_code == 1
    assert "its name must end in .hwq.yaml" in checked.output
    assert f"{wrong}:9: goals[0]: there is no tenant 'urgnt'" in checked.output
    assert CliRunner().invoke(main, ["scenario", "check"]).exit_code == pytest.ExitCode.USAGE_ERROR


def test_real_tenants_in_processes_and_threads(run: Run, tmp_path: Path) -> None:
    schedulers = "{processes: [native, stream-priority], threads: [native]}"
    file = write(tmp_path, "greedy.throughput >= 0.001% of native", schedulers=schedulers)
    session = run(file, *HOST, "-rs")
    assert session.status == pytest.ExitCode.OK, session.output
    assert "2 passed, 1 skipped" in session.output
    assert "stream-priority needs an accelerator" in session.output
    measured = [record for record in session.records if record.status == "ok"]
    # Two rounds, forth and back.
    assert [(record.placement, record.run) for record in measured] == [
        ("processes", 1), ("threads", 1), ("threads", 2), ("processes", 2),
    ]  # fmt: skip
    for record in measured:
        assert not record.simulated
        assert record.proof is not None
        assert record.duration_s == 0.15
        assert all(tenant.completed for tenant in record.tenants)
        for tenant in record.tenants:
            assert tenant.counters is not None
            assert tenant.counters.launches >= tenant.counters.iterations > 0
    folder = tmp_path / session.output.split("records: ")[1].splitlines()[0]
    assert len(list((folder / "scenarios").glob("*.json"))) == len(session.records)


NOISY = "noise: [burns.yaml]\n"


def with_noise(file: Path) -> Path:
    """Let a scenario have a neighbour that burns a core."""
    script = "import sys\nprint('burning', flush=True)\nwhile True: pass"
    burns = f"command: {json.dumps([sys.executable, '-c', script])}\nready: ^burning\n"
    (file.parent / "burns.yaml").write_text(burns, encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8") + NOISY, encoding="utf-8")
    return file


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_scenario_beside_a_noise(run: Run, tmp_path: Path) -> None:
    session = run(with_noise(write(tmp_path, "urgent.p50 < 10 s")), *HOST)
    assert session.status == pytest.ExitCode.OK, session.output
    found = [(each.run, each.noise.status) for each in session.records if each.noise is not None]
    # Two rounds, forth and back.
    assert found == [(1, "quiet"), (1, "applied"), (2, "applied"), (2, "quiet")]
    ids = ["mine[cpu-processes-native]", "mine[cpu-processes-native-beside-burns]"]
    assert list(dict.fromkeys(each.id for each in session.records)) == ids
    assert ": met: urgent.p50 < 10 s" in session.output
    for tenant in ("urgent", "greedy"):
        assert f"mine.{tenant}[cpu-s1-native-eager-processes] under " in session.output
    assert "tenants together waited for a core" in session.output


def test_a_noise_beside_tenants_needs_a_real_device(run: Run, tmp_path: Path) -> None:
    file = with_noise(write(tmp_path))
    session = run(file, *SIMULATED, "-rs")
    assert "1 passed, 1 skipped" in session.output
    assert "a simulated device does not use" in session.output
    refused = CliRunner().invoke(main, ["which", str(file), "--device=sim:h200"])
    assert refused.exit_code == 4
    assert "compares schedulers in the quiet" in refused.output


@pytest.mark.usefixtures("no_process_is_left")
def test_a_tenant_that_dies_fails_its_test(run: Run, tmp_path: Path) -> None:
    file = write_own(tmp_path, "import os\n\ndef make(**_):\n    return os.abort\n")
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.TESTS_FAILED
    (record,) = session.records
    assert record.status == "failed"
    assert "is failed: tenant urgent died by SIGABRT" in session.output
    assert "last output of tenant urgent:" in session.output


@pytest.mark.slow
def test_workers_of_xdist_bring_records_and_goals(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    schedulers = "{processes: [native], threads: [native]}"
    file = write(tmp_path, "greedy.throughput >= 50% of native", schedulers=schedulers)
    session = run(file, *SIMULATED, "-n2")
    assert session.status == pytest.ExitCode.OK, session.output
    assert session.output.count(": met: greedy.throughput >= 50% of native") == 2
    assert {record.placement for record in session.records} == {"processes", "threads"}


LATE = """
from pytest_hwqueue.devices.host import HostDevice

sleep_until_ns = HostDevice.sleep_until_ns
HostDevice.sleep_until_ns = lambda self, when_ns: sleep_until_ns(self, when_ns + 25_000_000)

def make(**_):
    return lambda: None
"""


def test_a_late_generator_makes_the_record_invalid(run: Run, tmp_path: Path) -> None:
    # The module is imported where the tenant runs, and makes its every sleep end late.
    file = write_own(tmp_path, LATE, "urgent.p50 < 10 s", arrival="constant: 20/s")
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.TESTS_FAILED
    (record,) = session.records
    assert record.status == "invalid"
    assert record.reason.startswith("tenant urgent: the generator was late")
    lateness = record.tenant("urgent").lateness
    assert lateness is not None
    assert lateness.p50_us >= 20_000
    # The goal alone would have been met: late is not slow.
    assert "met:" not in session.output


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    write(tmp_path, duration="600s")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HWQ_", "PYTEST_XDIST_"))
    }
    command = [
        sys.executable, "-m", "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", *HOST,
        "--hwq-size=full", "mine.hwq.yaml", "--hwq-json=session.json",
    ]  # fmt: skip
    parent = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": str(SUITE.parent), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    logs = tmp_path / ".hwqueue"
    deadline = time.monotonic() + 120
    while len(list(logs.glob("*/scenarios/*/tenant-*.log"))) < 2:
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tenants = psutil.Process(parent.pid).children(recursive=True)
    assert tenants
    parent.send_signal(signal.SIGINT)
    assert parent.wait(60) == pytest.ExitCode.INTERRUPTED
    _, alive = psutil.wait_procs(tenants, timeout=30)
    assert alive == []
    session = json.loads((tmp_path / "session.json").read_text(encoding="utf-8"))
    assert session["session"]["interrupted"]
    (record,) = session["colocations"]
    assert record["reason"] == "interrupted before it was measured"


EXAMPLE = SUITE.parent / "examples" / "own_function.hwq.yaml"


def test_the_example_of_an_own_function(run: Run) -> None:
    session = run(EXAMPLE, *SIMULATED)
    assert session.status == pytest.ExitCode.OK, session.output
    assert [record.placement for record in session.records] == ["processes", "threads", "threads"]
    for record in session.records:
        own = record.tenant("own")
        assert own.work == "test_own_code:make_step with width=512"
        assert own.completed == own.issued
        assert record.plan["tenants"][0]["concurrency"] == 2


def test_the_function_of_a_tenant_is_measured_by_a_test(run: Run) -> None:
    test = EXAMPLE.with_name("test_own_code.py")
    session = run(test, "-k", "prepared", "--hwq-device=sim:h200", "--hwq-streams=2",
                  "--hwq-samples=400", "--hwq-isolation=none")  # fmt: skip
    assert session.status == pytest.ExitCode.OK, session.output
    assert "1 passed" in session.output


def test_a_function_that_cannot_be_imported_is_refused_before_anything_runs(
    run: Run, tmp_path: Path
) -> None:
    file = write(tmp_path)
    text = file.read_text().replace("workload: tiny_kernel_stress", "function: broken:make_step")
    file.write_text(text.replace("parameters: {rounds: 2},", ""))
    (tmp_path / "broken.py").write_text("def make_step(**_): ...\nprint('hi')\n1 / 0\n")
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.USAGE_ERROR
    assert "mine.hwq.yaml: tenant urgent: function: broken:make_step: its module" in session.output
    assert 'File "broken.py", line 3, in <module>' in session.output
    assert "ZeroDivisionError: division by zero" in session.output
    assert session.records == []
    assert run(file, *HOST, "--collect-only").status == pytest.ExitCode.OK


def test_own_functions_in_processes_and_threads(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own_code.py").write_text(
        "import time\n"
        "def make_step(*, device, streams, seed):\n"
        "    return lambda: time.sleep(0.005)\n"
    )
    file = write(tmp_path, schedulers="{processes: [native], threads: [native]}")
    text = file.read_text().replace(
        "workload: tiny_kernel_stress", "function: own_code:make_step, concurrency: 4"
    )
    file.write_text(text.replace("parameters: {rounds: 2},", ""))
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.OK, session.output
    assert [record.placement for record in session.records] == ["processes", "threads"]
    for record in session.records:
        urgent = record.tenant("urgent")
        assert urgent.failed == 0
        assert urgent.completed
        assert min(urgent.latency_ns) >= 5_000_000
