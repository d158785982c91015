"""What other packages and projects add: examples/extension, built and installed, and reports."""

from __future__ import annotations

import csv
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pytest_hwqueue import read_record
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.options.suite import plugin_name, pytest_environment
from pytest_hwqueue.parts.processes.starting import ForkServer, worker_environment
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, ahead
from tests.acceptance.inner import ROOT, plain_environment
from tests.parts.workloads.cells import make, simulated_timeline

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

EXTENSION = ROOT / "examples/extension"
SIMULATED = ("--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=5")


class Example:
    """Runs Python where the example is importable; its workers are forked from a server."""

    def __init__(self, environment: dict[str, str], descriptor: int) -> None:
        self._environment, self._descriptor = environment, descriptor

    def python(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=self._environment,
            pass_fds=(self._descriptor,), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def hwq(self, folder: Path, *arguments: str) -> str:
        done = self.python(folder, "-m", "pytest_hwqueue", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """The example, built as its pyproject.toml says and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--no-build-isolation", "--target", str(folder),
               str(EXTENSION)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    path = f"{ROOT}{os.pathsep}{folder}"
    environment = pytest_environment({**plain_environment(), "PYTHONPATH": path})
    server = ForkServer(worker_environment(environment), ahead())
    with server.handing_over() as (variable, (descriptor,)):
        yield Example({**environment, **variable}, descriptor)
    server.close()


@pytest.fixture
def installed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process find the example as one that is installed."""
    points = (EXTENSION / "pyproject.toml").read_text().partition('[project.entry-points."')[2]
    info = tmp_path / "hwq_example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hwq-example\nVersion: 1.0\n")
    text = re.sub(r'\[project\.entry-points\."(.+)"\]', r"[\1]", f'[project.entry-points."{points}')
    (info / "entry_points.txt").write_text(text.replace('"', ""))
    for folder in (tmp_path, EXTENSION):
        monkeypatch.syspath_prepend(folder)
    cores = os.sched_getaffinity(0)
    _search_again()
    yield
    _search_again()
    # Its device keeps to one.
    os.sched_setaffinity(0, cores)


def _search_again() -> None:
    for registry in (WORKLOADS, KINDS):
        registry.__dict__.pop("added", None)


@pytest.mark.usefixtures("installed_here")
def test_its_workload_is_listed_and_measured_on_its_device_in_this_process(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    listed = CliRunner().invoke(main, ["list", "--verbose"]).output
    assert "\nrelay\na vector passed through all streams by events: what" in listed
    run_in_process(
        str(EXTENSION / "tests"), f"--rootdir={pytester.path}", "--hwq-device=onecore",
        "--hwq-streams=2,4", "--hwq-iterations=368",
    ).assert_outcomes(passed=2)  # fmt: skip
    (report,) = pytester.path.glob(".hwqueue/*/records.csv")
    rows = csv.DictReader(report.read_text().splitlines())
    assert [(row["cell"], row["status"]) for row in rows] == [
        (f"relay[onecore-s{streams}-native-eager]", "ok") for streams in (2, 4)
    ]


@pytest.mark.slow
def test_its_workload_is_listed_and_measured_on_its_device(
    example: Example, tmp_path: Path
) -> None:
    listed = example.hwq(tmp_path, "list", "--verbose")
    assert "\nrelay\na vector passed through all streams by events: what" in listed
    assert "2–64 streams, 8 recommended" in listed
    options = ("--streams=2,4", "--elements=16", "--iterations=5", "--dispatch=eager")
    example.hwq(tmp_path, "run", "relay", "--device=onecore", *options)
    (report,) = tmp_path.glob(".hwqueue/*/records.csv")
    rows = csv.DictReader(report.read_text().splitlines())
    assert [(row["cell"], row["status"]) for row in rows] == [
        (f"relay[onecore-s{streams}-native-eager-elements=16]", "ok") for streams in (2, 4)
    ]
    for path in tmp_path.glob(".hwqueue/*/relay*.json"):
        found = read_record(path).fingerprint
        assert found is not None
        assert found.hard["device_kind"] == "onecore"
        assert str(found.hard["device_name"]).startswith("one core of ")


def test_its_workload_runs_on_a_simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXTENSION)
    workload = importlib.import_module("hwq_example.workload").Relay
    kernels = simulated_timeline(make(workload), 4).kernels
    assert {kernel.stream for kernel in kernels} == set(range(4))


# tests/parts/schedulers/test_added.py has a session under an installed package's scheduler.
@pytest.mark.slow
def test_its_test_measures_under_its_scheduler_and_its_noise(
    example: Example, tmp_path: Path
) -> None:
    tests = EXTENSION / "tests"
    done = example.python(
        tmp_path, "-m", "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", str(tests),
        f"--rootdir={tmp_path}", "--hwq-device=cpu", "--hwq-streams=2",
        "--hwq-iterations=368", "--hwq-scheduler=patient", "--hwq-noise=memory",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    noises = {}
    for path in tmp_path.glob(".hwqueue/*/relay*.json"):
        record = read_record(path)
        assert record.cell_id.startswith("relay[cpu-s2-patient-eager")
        assert record.cell.parameters.keys() == {"elements"}
        assert record.scheduler_proof is not None
        assert record.scheduler_proof.evidence == "OMP_WAIT_POLICY=passive in all processes"
        assert record.noise is not None
        noises[record.noise.noise] = record.noise.neighbours
    assert noises.keys() == {"none", "memory"}
    (neighbour,) = noises["memory"]
    assert len(neighbour.commands) == len(os.sched_getaffinity(0))
    assert neighbour.notes == ["64 MiB a process"]


# In this process: tests/data/test_extensions.py and tests/parts/schedulers/test_added.py.
@pytest.mark.slow
def test_what_is_not_there_is_refused_with_what_is(example: Example, tmp_path: Path) -> None:
    suite = f"'-p', {plugin_name()!r}, {str(ROOT / 'benchmarks')!r}, '--hwq-device=cpu', "
    code = f"import pytest, sys\nfor each in sys.argv[1:]: print(pytest.main([{suite}each]))"
    asked = {"workload=rely": "relay", "scheduler=impatient": "patient",
             "noise=memories": "memory", "device=twocores": "onecore"}  # fmt: skip
    done = example.python(tmp_path, "-c", code, *(f"--hwq-{each}" for each in asked))
    assert re.findall(r"^\d$", done.stdout, re.MULTILINE) == ["4"] * 4
    for name in asked.values():
        assert re.search(rf"\b{name}\b", done.stdout + done.stderr)


def test_a_package_that_cannot_be_used_is_named_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    info = tmp_path / "broken_package-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[pytest_hwqueue.reports]\nbad = no_such_module\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", "run", "large_gemm_only", "--device=sim:h200"],
        env=plain_environment(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode in (2, 4), said
    point = "entry point bad = no_such_module of pytest_hwqueue.reports"
    assert f"broken-package 2.0: {point} cannot be" in said
    assert "No module named 'no_such_module'" in said
    assert {path.name for path in tmp_path.glob(".hwqueue/*/*.json")} <= {"session.json"}


CONFTEST = """
from pytest_hwqueue import HwqError

def pytest_hwqueue_report(config, folder, records, judgements):
    assert (folder / "session.json").is_file()
    # Ours goes the same way, and before.
    assert "test_mine" in (config.invocation_params.dir / "all.md").read_text()
    lines = sorted(record.cell_id for record in records) + [each.baseline for each in judgements]
    with open(config.invocation_params.dir / "mine.txt", "a") as file:
        print(*lines, file=file)
    {more}
"""
MINE = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_mine(hwq, size):
    import torch

    hwq.measure(lambda: torch.ones(size))

def test_nothing():
    pass
"""
CELLS = "".join(f" test_mine.py::test_mine[sim:h200-s1-native-eager-{n}]" for n in (1, 2)).strip()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", None),
        ("raise HwqError('the disk is full')", "hwqueue: the disk is full"),
        ("1 / 0", "hwqueue: a report failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_project_reports_in_its_conftest(
    pytester: pytest.Pytester, run_in_process: RunInProcess, more: str, said: str | None
) -> None:
    pytester.makeconftest(CONFTEST.format(more=more))
    pytester.makepyfile(test_mine=MINE)
    # A session that measures nothing reports nothing.
    run_in_process(*SIMULATED, "--hwq-markdown=all.md", "-k", "nothing").assert_outcomes(
        passed=1, deselected=2
    )
    assert not (pytester.path / "mine.txt").exists()
    result = run_in_process(*SIMULATED, "--hwq-markdown=all.md")
    result.assert_outcomes(passed=3)
    assert (pytester.path / "mine.txt").read_text() == f"{CELLS}\n"
    if said:
        result.stdout.fnmatch_lines([f"*{said}"])
    else:
        result.stdout.no_fnmatch_line("*report failed*")


@pytest.mark.slow
def test_workers_of_xdist_report_together(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makeconftest(CONFTEST.format(more=""))
    pytester.makepyfile(test_mine=MINE)
    result = sessions.result(pytester.path, "-n2", *SIMULATED, "--hwq-markdown=all.md")
    result.assert_outcomes(passed=3)
    assert (pytester.path / "mine.txt").read_text() == f"{CELLS}\n"
