"""Scenario files as users run them: real pytest sessions, simulated devices, real tenants."""

from __future__ import annotations

import json
import os
import re
import shutil
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
from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.interference import priority_effect
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.engine.scenarios.runs import ATTEMPTS
from pytest_hwqueue.engine.tenants import colocation
from pytest_hwqueue.engine.tenants import colocation_run as tenancy_run
from pytest_hwqueue.engine.tenants import simulated_tenants as simulated
from pytest_hwqueue.engine.tenants import tenant as tenant_module
from pytest_hwqueue.options.suite import plugin_name
from pytest_hwqueue.parts.schedulers.declaration import NATIVE, SCHEDULERS
from pytest_hwqueue.parts.workloads.tenants.shapes import MISSING_TRANSFORMERS
from pytest_hwqueue.plugin import scenario_items
from tests.conftest import PYTEST

SUITE = Path(__file__).parents[2] / "benchmarks"
BUILT_IN = sorted((SUITE / "scenarios").glob("*.hwq.yaml"))
SOLO = SUITE / "scenarios" / "solo.hwq.yaml"
EXAMPLE = SUITE.parent / "examples" / "own_function.hwq.yaml"
TRACED = ("--hwq-device=sim:h200", "--hwq-size=small", "--hwq-max-time=1")
# Missed goals without the time that their causes take.
SIMULATED = (*TRACED, "--hwq-causes=never")
HOST = ("--hwq-device=cpu",)
STARTS_LATER = """\
name: late
duration: 1s
tenants:
  - {name: high, workload: tiny_kernel_stress, arrival: "constant: 50/s"}
  - {name: low, workload: tiny_kernel_stress, start: 500ms}
goals: [high.p50 <= 5 x solo]
"""
PLACEMENTS = "{processes: [native], threads: [native]}"


class Session:
    """What came of a pytest session."""

    def __init__(self, status: int, output: str, folder: Path) -> None:
        self.status = status
        self.output = output
        self.folder = folder
        file = folder / "session.json"
        loaded = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        found = loaded.get("colocations", ())
        self.records = [ColocationRecord.model_validate(each) for each in found]

    def traced(self) -> list[ColocationRecord]:
        """The records of traced runs, which stand apart from the measured ones."""
        return [read_colocation(path) for path in self.folder.glob("*/scenarios/traced/*.json")]


Run = Callable[..., Session]


@pytest.fixture(autouse=True)
def _own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other sessions on this machine do not hold these tests up."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("leases"))
    yield
    tempfile.tempdir = before


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lent_server: None,
) -> Run:
    """Run pytest in this process, where torch is loaded already, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    number = 0

    def run(*arguments: object) -> Session:
        nonlocal number
        number += 1
        # Sessions of one process that begin in the same second have the same name.
        folder = tmp_path / f"session-{number}"
        plain = [
            "-p", plugin_name(), "-p", "no:cacheprovider", "-p", "no:faulthandler",
            f"--rootdir={tmp_path}", "--import-mode=importlib", "--strict-markers",
            f"--hwq-json={folder}/session.json", f"--hwq-dir={folder}",
        ]  # fmt: skip
        status = int(pytest.main([*plain, *map(str, arguments)]))
        return Session(status, "".join(capsys.readouterr()), folder)

    return run


def write(
    folder: Path, *goals: str, schedulers: str = "[native]", arrival: str = "closed",
    duration: str = "300ms", placed: dict[str, list[str]] | None = None,
    urgent: str = "workload: tiny_kernel_stress, parameters: {rounds: 2}", more: str = "",
    name: str = "mine", mm_dim: int = 128,
) -> Path:  # fmt: skip
    """Write a scenario of two small tenants; its goals may be given by placement instead."""
    file = folder / f"{name}.hwq.yaml"
    file.write_text(
        f"name: {name}\nduration: {duration}\nwarmup: 100ms\nschedulers: {schedulers}\ntenants:\n"
        f'  - {{name: urgent, {urgent}, arrival: "{arrival}", priority: 1}}\n'
        f"  - {{name: greedy, workload: large_gemm_only, parameters: {{mm_dim: {mm_dim}}}}}\n"
        f"goals: {json.dumps(placed or goals)}\n{more}",
        encoding="utf-8",
    )
    return file


def write_own(
    folder: Path, name: str, source: str, *goals: str, more: str = "", **given: Any
) -> Path:
    """Write such a scenario whose urgent tenant is a function in a module of the same name."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return write(folder, *goals, name=name, urgent=f'function: "{name}:make"{more}', **given)


def write_noisy(folder: Path, *goals: str) -> Path:
    """Write such a scenario with a neighbour that burns a core."""
    script = "import sys\nprint('burning', flush=True)\nwhile True: pass"
    burns = f"command: {json.dumps([sys.executable, '-c', script])}\nready: ^burning\n"
    (folder / "burns.yaml").write_text(burns, encoding="utf-8")
    return write(folder, *goals, more="noise: [burns.yaml]\n")


def write_test(folder: Path) -> None:
    """Write a test that measures nothing."""
    (folder / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")


def hwq(*arguments: object) -> tuple[int, str]:
    """Run the command; return its exit status and output."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    return result.exit_code, result.output


def test_scenarios_run_only_if_asked_for(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "suite" / "scenarios"
    folder.mkdir(parents=True)
    file = write(folder)
    write_test(folder.parent)
    told = "1 scenario file not run: name a file or its folder, or give -m scenario"
    for given, asked in (
        ([folder.parent], False), ([folder], True), ([file], True),
        ([folder.parent, "-m", "scenario"], True),
    ):  # fmt: skip
        found = run(*given, "--hwq-device=sim:h200", "--collect-only", "-q")
        assert ("mine.hwq.yaml::native" in found.output) == asked
        assert (told in found.output) != asked


def test_what_stands_beside_a_named_file_is_no_scenario_left_out(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    file = write(folder)
    for name in ("one", "two"):
        shutil.copy(file, folder / f"{name}.hwq.yaml")
    (folder / "tests").mkdir()
    write_test(folder / "tests")
    shutil.copy(file, folder / "tests" / "three.hwq.yaml")
    for given, told in (
        ([file], 0), ([file, folder / "tests"], 0), ([f"{file}::native"], 0),
        ([folder / "tests" / "test_other.py"], 0), ([tmp_path], 1),
    ):  # fmt: skip
        found = run(*given, "--hwq-device=sim:h200", "--collect-only", "-q")
        assert found.output.count("not run: name a file") == told, found.output
        assert ("4 scenario files not run" in found.output) == bool(told)


LONG = ("batch_sweep", "bert_multi_priority", "bert_study", "fixed_priority", "standard_load")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in (file.name.partition(".")[0] for file in BUILT_IN)
    ],
)
def test_the_suites_scenarios_on_a_simulated_device(run: Run, name: str) -> None:
    """Everything is measured or has its reason, and goals alone decide what fails."""
    file = SUITE / "scenarios" / f"{name}.hwq.yaml"
    session = run(file, *SIMULATED, f"--hwq-max-time={1 if name == 'high_load' else 0.3}")
    assert session.status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), session.output
    assert session.records
    for record in session.records:
        assert record.simulated
        assert record.status in ("ok", "skipped"), record.reason
        if record.status == "skipped":
            assert "the simulator does not model" in record.reason
        else:
            assert all(tenant.completed for tenant in record.tenants)
    lines = session.output.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    missed = {line.split(": missed: ")[0] for line in lines if ": missed: " in line}
    assert len(failed) == len(missed)
    assert (session.status == pytest.ExitCode.OK) == (not missed)
    if name == "high_load":
        for verdict in (
            # Without priorities between kernels the urgent model waits for the whole big batch.
            "mps: missed: high.p99 < 10 ms",
            "threads-native: missed: high.attainment >= 99%",
            # Twenty requests cannot show a P99, however fast they were.
            "mps-priority: undecided: high.p99 < 10 ms",
            "native: met: low.throughput >= 80% of native",
        ):
            assert len([line for line in lines if f"::{verdict} (" in line]) == 1, verdict


def test_a_missed_goal_says_why_requests_were_slow(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "urgent.p99 < 1 us", "greedy.p50 < 1 s", arrival="poisson: 1000/s")
    missed = run(file, *TRACED, "--junitxml=junit.xml")
    assert missed.status == pytest.ExitCode.TESTS_FAILED
    junit = ElementTree.parse(tmp_path / "junit.xml")
    (failure,) = junit.iter("failure")
    assert str(failure.get("message")).startswith("missed: urgent.p99 < 1 us (")
    told = str(failure.text).splitlines()
    assert [line.partition(" ")[0] for line in told] == ["missed:", "met:", "urgent:"]
    assert re.match(
        r"urgent: causes of the slowest 1 % in a traced run of its own \(\d+ requests, level none\)"
        r": \d+ % (queued behind its tenant's earlier requests|time slice: greedy had)", told[-1]
    ), told  # fmt: skip
    properties = [(each.get("name"), each.get("value")) for each in junit.iter("property")]
    assert ("hwq_causes", told[-1]) in properties
    assert f"mine.hwq.yaml::native: {told[-1]}" in missed.output
    # Apart from what was measured, and longer: of 368 requests and some.
    assert [record.traced for record in missed.records] == [False]
    (record,) = missed.traced()
    assert record.traced
    assert record.duration_s == 1.0
    found = record.tenant("urgent").causes
    assert found is not None
    assert found.requests == record.tenant("urgent").completed


def test_a_verdict_stands_without_its_causes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulate(*tenants: Any, traced: bool, **looks: Any) -> None:
        if traced:
            raise DeviceError("the tracer broke")
        simulated.simulate(*tenants, **looks)

    monkeypatch.setattr(colocation, "simulate", simulate)
    missed = run(write(tmp_path, "urgent.p50 < 1 us"), *TRACED)
    assert missed.status == pytest.ExitCode.TESTS_FAILED
    assert "missed: urgent.p50 < 1 us (" in missed.output
    assert "causes are not known: the traced run was failed: the tracer broke" in missed.output


def test_goals_on_the_device_are_judged_by_a_traced_window(run: Run, tmp_path: Path) -> None:
    file = write(
        tmp_path, "device.busy > 50%", "greedy.busy < 10%", "urgent.wait_p50 < 50 ms",
        "urgent.p50 < 1 s", schedulers=PLACEMENTS, arrival="poisson: 1000/s", mm_dim=4096,
    )  # fmt: skip
    session = run(file, *TRACED, "--hwq-causes=never")
    assert session.status == pytest.ExitCode.TESTS_FAILED
    lines = [line for line in session.output.splitlines() if "mine.hwq.yaml::" in line]
    for test, verdict in (
        ("threads-native", "met: device.busy > 50% ("),
        ("threads-native", "missed: greedy.busy < 10% ("),
        ("threads-native", "met: urgent.wait_p50 < 50 ms ("),
        # Processes take turns here: that is no failure, and no success.
        ("native", "undecided: device.busy > 50% (not observable where tenants take turns"),
        ("native", "met: urgent.p50 < 1 s ("),
    ):  # fmt: skip
        assert any(f"mine.hwq.yaml::{test}: {verdict}" in line for line in lines), lines
    assert [line.split()[1] for line in lines if line.startswith("FAILED")] == [
        "mine.hwq.yaml::threads-native"
    ]
    (record,) = session.traced()
    assert (record.placement, record.duration_s) == ("threads", 0.3)
    # Each run of several judges a traced window of its own.
    met = write(tmp_path, "device.busy > 1%", schedulers="{threads: [native]}", name="met")
    twice = run(met, *TRACED, "--hwq-runs=2")
    assert twice.status == pytest.ExitCode.OK, twice.output
    assert len(twice.traced()) == 2


def test_how_threads_use_the_cpu_is_judged_too(run: Run, tmp_path: Path) -> None:
    file = write(
        tmp_path, "device.busy <= 100%", "greedy.busy <= 100%", "urgent.wait_p50 < 60 s",
        "device.switches >= 0/s", schedulers="{threads: [native]}",
    )  # fmt: skip
    session = run(file, *HOST, "--hwq-causes=never")
    assert session.status == pytest.ExitCode.OK, session.output
    assert session.output.count("threads-native: met: ") == 4, session.output
    (record,) = session.traced()
    use = record.device_use
    assert use is not None
    assert use.reason == ""
    window_ns = record.duration_s * 1e9
    assert 0 < sum(use.tenants["greedy"].busy_ns) <= sum(use.busy_ns) <= window_ns
    for tenant in record.tenants:
        waits = use.tenants[tenant.name].waits_ns
        assert len(waits) == tenant.completed
        assert min(waits) >= 0


def test_goals_decide_the_outcome_and_noise_needs_a_real_device(run: Run, tmp_path: Path) -> None:
    file = write_noisy(tmp_path, "urgent.p50 < 1 s", "greedy.p999 < 1 s")
    write_test(tmp_path)
    session = run(tmp_path, *TRACED, "-rs")
    always = run(file, *TRACED, "--hwq-causes=always")
    for found in session, always:
        assert found.status == pytest.ExitCode.OK
        # Of goals that were met, and of what is not decided, only on request.
        assert (": urgent: causes of the slowest" in found.output) == (found is always)
        assert len(found.traced()) == (found is always)
    for told in (
        "2 passed, 1 skipped", "a simulated device does not use", "met: urgent.p50 < 1 s",
        "goals of scenarios (simulated: sim:h200)", "undecided: greedy.p999 < 1 s", "records: ",
    ):  # fmt: skip
        assert told in session.output
    strict = run(file, *SIMULATED, "--hwq-on=inconclusive:fail")
    assert strict.status == pytest.ExitCode.TESTS_FAILED
    assert "causes" not in strict.output
    assert strict.traced() == []
    status, output = hwq("which", file, "--device=sim:h200")
    assert (status, "compares schedulers in the quiet" in output) == (4, True)


def test_goals_of_a_placement_and_a_mode_that_cannot_be_opened_fail_their_own_test_alone(
    run: Run, tmp_path: Path
) -> None:
    file = write(
        tmp_path,
        schedulers='{processes: [native, "preload:nope"], threads: [native]}',
        placed={"all": ["urgent.p50 < 1 s"], "threads": ["urgent.p50 < 1 us"]},
        duration="100ms",
    )
    session = run(file, *TRACED, "-rA")
    assert session.status == pytest.ExitCode.TESTS_FAILED
    outcomes = re.findall(r"^([A-Z]+) \S+::([\w:-]+)", session.output, re.MULTILINE)
    assert sorted(set(outcomes)) == [
        ("FAILED", "preload:nope"), ("FAILED", "threads-native"), ("PASSED", "native"),
    ]  # fmt: skip
    assert "preload:nope: there is no nope.yaml" in session.output
    assert "Traceback" not in session.output
    # Causes are those of the goals that were missed there.
    assert "threads-native: urgent: causes of" in session.output
    assert {
        (record.placement, record.scheduler): (record.status, [*record.plan.goals])
        for record in session.records
    } == {
        ("processes", "native"): ("ok", ["urgent.p50 < 1 s"]),
        ("processes", "preload:nope"): ("failed", ["urgent.p50 < 1 s"]),
        ("threads", "native"): ("ok", ["urgent.p50 < 1 s", "urgent.p50 < 1 us"]),
    }


@pytest.mark.slow
def test_tests_are_listed_and_chosen(run: Run, tmp_path: Path) -> None:
    xsched = "xsched:level=1,threshold=1"
    modes = f'{{processes: [native, mps-priority, "{xsched}"], threads: [native]}}'
    file = write(tmp_path, "urgent.p50 < 1 us", schedulers=modes)
    listed = run(file, "--collect-only", "-q")
    assert listed.status == pytest.ExitCode.OK
    assert [line for line in listed.output.splitlines() if "::" in line] == [
        f"mine.hwq.yaml::{case}" for case in ("native", "mps-priority", xsched, "threads-native")
    ]
    assert not listed.folder.exists()
    for arguments, measured in (
        (["--hwq-scheduler=xsched,mps-priority"], ["mps-priority", xsched]),
        ([f"--hwq-scheduler={xsched}"], [xsched]),
        (["-k", "threads"], ["native"]),
        (["-x"], ["native"]),
        (["-m", "scenario", "-k", "mps"], ["mps-priority"]),
    ):
        found = run(file, *SIMULATED, *arguments).records
        assert [record.scheduler for record in found] == measured
    nothing = run(file, *SIMULATED, "--hwq-scheduler=mps")
    assert nothing.status == pytest.ExitCode.USAGE_ERROR
    assert "--hwq-scheduler=mps: no test was selected that measures" in nothing.output
    assert run(file, "-m", "P0").status == pytest.ExitCode.NO_TESTS_COLLECTED


def test_tenants_are_stored_and_held_against_a_baseline(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, schedulers="[native, mps-priority]", duration="100ms")
    saved = run(file, *SIMULATED, "--hwq-save=main", "--hwq-runs=3")
    assert saved.status == pytest.ExitCode.OK, saved.output
    assert "stored in sim-h200/main: 4 cells" in saved.output
    # Three runs of both tests; in each also of the two tenants alone.
    names = [record.plan.name for record in saved.records]
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


def test_what_would_measure_nothing_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = write(tmp_path)
    write_test(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "late").mkdir()
    late = tmp_path / "late" / "late.hwq.yaml"
    late.write_text(STARTS_LATER, encoding="utf-8")
    lacking = "has no folder resnet18"
    refused: list[tuple[list[object], str]] = [
        ([mine, "--hwq-device=cuda:99"], "visible here"),
        ([mine, *SIMULATED, "--hwq-priority=P0"], "--hwq-priority: is for cells of work"),
        ([tmp_path, *SIMULATED, "--hwq-priority=P0"], "no test was selected that measures"),
        ([mine, *SIMULATED, "--hwq-fault=slower:5"], "be planted in simulated tenants"),
        ([SOLO, *SIMULATED, "--hwq-weights=weights"], lacking),
        ([late, *SIMULATED], "tenant low starts 0.5 s after the window begins, and the window is"),
    ]
    for arguments, reason in refused:
        session = run(*arguments)
        assert session.status == pytest.ExitCode.USAGE_ERROR, session.output
        assert reason in " ".join(session.output.split())
        assert session.records == []
    status, output = hwq("which", SOLO, "--device=sim:h200", "--weights=weights")
    assert (status, lacking in output) == (4, True)
    # Each of two windows is as short as that.
    for command in (
        ["which", late, "--duration=1s"], ["capacity", late, "--tenant=high", "--window=500ms"],
    ):  # fmt: skip
        status, output = hwq(*command, "--device=sim:h200")
        assert (status, "the window is 0.5 s long: give a longer" in output) == (4, True), output
    counting = tmp_path / "late" / "counting.hwq.yaml"
    counting.write_text(STARTS_LATER.replace("start: 500ms", "requests: 5"), encoding="utf-8")
    status, output = hwq("capacity", counting, "--tenant=high", "--device=sim:h200")
    assert (status, "tenant low counts its requests, and a search sets" in output) == (4, True)
    # There, and not what it should be: who loads it says so.
    (tmp_path / "weights" / "resnet18").mkdir()
    empty = run(SOLO, *SIMULATED, "--hwq-weights=weights", "-x")
    assert empty.status == pytest.ExitCode.TESTS_FAILED
    assert "config.json cannot be read" in empty.output
    monkeypatch.setitem(sys.modules, "transformers", None)
    alone = run(SOLO, *SIMULATED)
    both = run(SOLO, "test_other.py", "-rs")
    assert (alone.status, both.status) == (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.OK)
    assert MISSING_TRANSFORMERS in alone.output
    assert MISSING_TRANSFORMERS in both.output
    assert re.search(r"1 passed, \d+ skipped", both.output)


def test_a_wrong_file_is_an_error_with_field_and_line(run: Run, tmp_path: Path) -> None:
    good = write(tmp_path)
    status, output = hwq("scenario", "check", good, *BUILT_IN)
    assert (status, f"{good}: native\n" in output) == (0, True)
    unseen = good.rename(tmp_path / "mine.yaml")
    wrong = write(tmp_path, "urgnt.p50 < 1 s")
    told = f"{wrong}:8: goals[0]: there is no tenant 'urgnt'; did you mean urgent?"
    session = run(tmp_path)
    assert session.status == pytest.ExitCode.INTERRUPTED
    assert told in session.output
    status, output = hwq("scenario", "check", unseen, wrong)
    assert (status, told in output) == (1, True)
    assert "its name must end in .hwq.yaml" in output
    assert hwq("scenario", "check")[0] == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_scenario_beside_a_noise(run: Run, tmp_path: Path) -> None:
    session = run(write_noisy(tmp_path, "urgent.p50 < 10 s"), *HOST)
    assert session.status == pytest.ExitCode.OK, session.output
    found = [(each.run, each.noise.status) for each in session.records if each.noise is not None]
    # Two rounds, forth and back.
    assert found == [(1, "quiet"), (1, "applied"), (2, "applied"), (2, "quiet")]
    ids = ["mine[cpu-processes-native]", "mine[cpu-processes-native-beside-burns]"]
    assert list(dict.fromkeys(each.id for each in session.records)) == ids
    for told in (
        ": met: urgent.p50 < 10 s", "tenants together waited for a core",
        "mine.urgent[cpu-s1-native-eager-processes] under ",
        "mine.greedy[cpu-s1-native-eager-processes] under ",
    ):  # fmt: skip
        assert told in session.output


@pytest.mark.slow
def test_workers_of_xdist_bring_records_and_goals(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    file = write(tmp_path, "greedy.throughput >= 50% of native", schedulers=PLACEMENTS)
    session = run(file, *SIMULATED, "-n2")
    assert session.status == pytest.ExitCode.OK, session.output
    assert session.output.count(": met: greedy.throughput >= 50% of native") == 2
    assert {record.placement for record in session.records} == {"processes", "threads"}


SLEEPS = "import time\ndef make(*, device, streams, seed): return lambda: time.sleep(0.005)\n"
DIES = "import os\ndef make(**_): return os.abort\n"
# The module is imported where the tenant runs, and makes its every sleep end late.
LATE = """
from pytest_hwqueue.parts.devices.host import HostDevice
sleep_until_ns = HostDevice.sleep_until_ns
HostDevice.sleep_until_ns = lambda self, when_ns: sleep_until_ns(self, when_ns + 25_000_000)
def make(**_): return lambda: None
"""


def test_a_window_ends_once_its_goals_are_decided(run: Run, tmp_path: Path) -> None:
    goals = ("urgent.p99 < 1 us", "greedy.throughput >= 80% of native")
    file = write(tmp_path, *goals, arrival="constant: 400/s", duration="8s", mm_dim=4096)
    asked = (file, "--hwq-device=sim:h200", "--hwq-size=full", "--hwq-causes=never")
    early, figures = run(*asked, "--hwq-until=decided"), run(*asked)
    whole = run(*asked, "--hwq-until=end")
    for session in (early, figures, whole):
        assert session.status == pytest.ExitCode.TESTS_FAILED
        assert "urgent.p99 < 1 us (207" in session.output
    assert [record.duration_s for record in early.records] == [1.0]
    # 1,000 requests at 400/s, at a look.
    assert [record.duration_s for record in figures.records] == [4.0]
    assert [record.duration_s for record in whole.records] == [8.0]


@pytest.mark.usefixtures("no_process_is_left")
def test_real_tenants_are_measured_or_fail_their_test_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files in one session: own functions that sleep, and that die."""
    monkeypatch.setitem(SCHEDULERS.built_in, "native", NATIVE._replace(by_priority=True))
    effect = priority_effect(
        ("urgent", "greedy"), [399_000] * 6, [400_000] * 6,
        alone_ns=20_000, load_ns=400_000, requests=10,
    )  # fmt: skip
    monkeypatch.setattr(tenancy_run, "probe_priority", lambda *_: effect)
    files = [
        write_own(
            tmp_path, "sleeps", SLEEPS, "greedy.throughput >= 0.001% of native",
            more=", concurrency: 4",
            schedulers="{processes: [native, stream-priority], threads: [native]}",
        ),
        write_own(tmp_path, "dies", DIES),
    ]  # fmt: skip
    session = run(*files, *HOST, "-rs", "--hwq-until=end")
    assert session.status == pytest.ExitCode.TESTS_FAILED, session.output
    for told in (
        "1 failed, 2 passed, 1 skipped", "stream-priority needs an accelerator",
        "sleeps.hwq.yaml::native: priority not proven: urgent small kernels took",
        "is failed: tenant urgent died by SIGABRT", "last output of tenant urgent:",
    ):  # fmt: skip
        assert told in session.output
    folder = tmp_path / session.output.split("records: ")[1].splitlines()[0]
    assert len(list((folder / "scenarios").glob("*.json"))) == len(session.records)
    of: dict[str, list[ColocationRecord]] = {}
    for record in session.records:
        of.setdefault(record.plan.name, []).append(record)

    measured = [record for record in of["sleeps"] if record.status == "ok"]
    # Two rounds, forth and back.
    assert [(record.placement, record.run) for record in measured] == [
        ("processes", 1), ("threads", 1), ("threads", 2), ("processes", 2),
    ]  # fmt: skip
    for record in measured:
        assert not record.simulated
        assert record.proof is not None
        assert record.proof.priority == effect
        assert any("priority not proven" in note for note in record.notes)
        assert record.duration_s == 0.15
        for tenant in record.tenants:
            assert tenant.completed
            assert tenant.counters is not None
            assert tenant.counters.launches >= tenant.counters.iterations > 0
        urgent = record.tenant("urgent")
        assert urgent.failed == 0
        assert min(urgent.latency_ns) >= 5_000_000

    assert [record.status for record in of["dies"]] == ["failed"]


# tests/answers/which/test_sessions.py has windows that stay invalid, tests/engine the lateness.
@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_real_tenants_that_come_late_fail_their_test(run: Run, tmp_path: Path) -> None:
    file = write_own(tmp_path, "late", LATE, "urgent.p50 < 10 s", arrival="constant: 20/s")
    session = run(file, *HOST, "--hwq-until=end")
    assert session.status == pytest.ExitCode.TESTS_FAILED, session.output
    assert "is invalid: tenant urgent: the generator was late" in session.output
    assert [record.status for record in session.records] == ["invalid"] * ATTEMPTS
    late = session.records[-1]
    assert late.reason.startswith("tenant urgent: the generator was late")
    lateness = late.tenant("urgent").lateness
    assert lateness is not None
    assert lateness.p50_us >= 20_000
    # The goal alone would have been met: late is not slow.
    assert "met: urgent" not in session.output


# As in tests/engine/tenants; a session with cells is interrupted in test_measuring.py.
@pytest.mark.slow
@pytest.mark.usefixtures("run")
def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    write(tmp_path, duration="600s")
    command = [
        *PYTEST, "-p", "no:cacheprovider", *HOST, "--hwq-size=full", "mine.hwq.yaml",
        "--hwq-json=session.json",
    ]  # fmt: skip
    quiet = subprocess.DEVNULL
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob(".hwqueue/*/scenarios/*/tenant-*.log"))) < 2:
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tenants = psutil.Process(parent.pid).children(recursive=True)
    assert tenants
    parent.send_signal(signal.SIGINT)
    assert parent.wait(60) == pytest.ExitCode.INTERRUPTED
    assert psutil.wait_procs(tenants, timeout=30)[1] == []
    session = json.loads((tmp_path / "session.json").read_text(encoding="utf-8"))
    assert session["session"]["interrupted"]
    (record,) = session["colocations"]
    assert record["reason"] == "interrupted before it was measured"


def test_the_example_of_an_own_function_is_a_tenant_and_measured_by_a_test(run: Run) -> None:
    measured = run(
        EXAMPLE.with_name("test_own_code.py"), "-k", "prepared", "--hwq-device=sim:h200",
        "--hwq-streams=2", "--hwq-samples=400", "--hwq-isolation=none",
    )  # fmt: skip
    assert measured.status == pytest.ExitCode.OK, measured.output
    assert "1 passed" in measured.output
    session = run(EXAMPLE, *SIMULATED, "--hwq-max-time=0.2")
    assert session.status == pytest.ExitCode.OK, session.output
    assert [record.placement for record in session.records] == ["processes", "threads", "threads"]
    for record in session.records:
        own = record.tenant("own")
        assert own.work == "test_own_code:make_step with width=512"
        assert own.completed == own.issued
        assert record.plan.tenants[0].concurrency == 2


def test_a_function_that_cannot_be_imported_is_refused_before_anything_runs(
    run: Run, tmp_path: Path
) -> None:
    file = write_own(tmp_path, "own", "def make(**_): ...\nprint('hi')\n1 / 0\n")
    session = run(file, *HOST)
    assert session.status == pytest.ExitCode.USAGE_ERROR
    for told in (
        "own.hwq.yaml: tenant urgent: function: own:make: its module",
        'File "own.py", line 3, in <module>', "ZeroDivisionError: division by zero",
    ):  # fmt: skip
        assert told in session.output
    assert session.records == []
    assert run(file, *HOST, "--collect-only").status == pytest.ExitCode.OK


def test_what_measures_a_scenario_imports_no_aiohttp() -> None:
    # All that simulates or serves tenants, and what runs their tests.
    modules = (simulated, colocation, tenant_module, scenario_items)
    names = ", ".join(each.__name__ for each in modules)
    code = f"import sys; sys.modules['aiohttp'] = None; import {names}"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SUITE.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_what_has_no_server_needs_no_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "mine.hwq.yaml"
    file.write_text(
        "name: mine\nduration: 300ms\nwarmup: 100ms\nschedulers: [native]\n"
        "tenants: [{name: high, workload: tiny_kernel_stress}]\n"
        "goals: [high.p50 < 10s]\n"
    )
    script = "import sys; sys.modules['aiohttp'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(script)
    # What simulates tenants is imported, too.
    ended = subprocess.run(
        [*PYTEST, "-p", simulated.__name__, str(file), "--hwq-device=cpu"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SUITE.parent}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
