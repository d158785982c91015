"""What other packages and projects add: examples/extension, built and installed, and reports."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue import read_record
from pytest_hwqueue.processes.starting import ForkServer, worker_environment
from pytest_hwqueue.suite import plugin_name, pytest_environment
from pytest_hwqueue.workloads.registry import ahead

if TYPE_CHECKING:
    from tests.conftest import Sessions

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extension"
FAST = ("--device=cpu", "--streams=2", "--iterations=5", "--max-time=1")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built as its pyproject.toml says and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--no-build-isolation", "--target", str(folder), str(EXAMPLE)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Example:
    """A folder to measure in, with the example importable; its workers are forked from a server."""

    def __init__(self, folder: Path, environment: Mapping[str, str], descriptor: int) -> None:
        self.folder, self._environment, self._descriptor = folder, environment, descriptor

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self._environment,
            pass_fds=(self._descriptor,), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def hwq(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return self.python("-m", "pytest_hwqueue", *arguments)


@pytest.fixture(scope="module")
def lent(installed: Path) -> Iterator[tuple[dict[str, str], int]]:
    """The environment in which the example is importable, and the server for it."""
    environment = pytest_environment(
        {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("HWQ_", "PYTEST_"))
            },
            "PYTHONPATH": f"{ROOT}{os.pathsep}{installed}",
        }
    )
    server = ForkServer(
        worker_environment(pytest_environment(environment)), ahead(device="sim:h200")
    )
    with server.handing_over() as (variable, (descriptor,)):
        yield {**environment, **variable}, descriptor
    server.close()


@pytest.fixture
def example(lent: tuple[dict[str, str], int], tmp_path: Path) -> Example:
    return Example(tmp_path, *lent)


def hwq(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_its_workload_is_listed(example: Example) -> None:
    done = example.hwq("list", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "relay: a vector passed through all streams by events" in done.stdout
    assert "2–64 streams, 8 recommended" in done.stdout


def test_its_workload_is_measured_on_a_simulated_device(example: Example) -> None:
    done = example.hwq(
        "run", "relay", "--device=sim:h200", "--streams=2,4", "--elements=16",
        "--iterations=5", "--dispatch=eager",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = example.folder.glob(".hwqueue/*/records.csv")
    rows = list(csv.DictReader(report.read_text().splitlines()))
    assert [row["cell"] for row in rows] == [
        f"relay[sim:h200-s{streams}-native-eager-elements=16]" for streams in (2, 4)
    ]
    assert {row["status"] for row in rows} == {"ok"}


def test_its_device_is_measured_and_is_no_other(example: Example) -> None:
    done = example.hwq("run", "relay", "--device=onecore", "--streams=2", "--iterations=5")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = example.folder.glob(".hwqueue/*/relay*.json")
    record = read_record(path)
    assert record.cell_id == "relay[onecore-s2-native-eager]"
    assert record.fingerprint is not None
    assert record.fingerprint.hard["device_kind"] == "onecore"
    assert str(record.fingerprint.hard["device_name"]).startswith("one core of ")


def test_under_its_scheduler_and_its_noise(example: Example) -> None:
    done = example.hwq("run", "relay", *FAST, "--scheduler=patient", "--noise=memory")
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = example.folder.glob(".hwqueue/*/records.csv")
    records = {}
    for path in report.parent.glob("relay*.json"):
        record = read_record(path)
        assert record.noise is not None
        records[record.noise.noise] = record
    quiet, noisy = records["none"], records["memory"]
    for record in (quiet, noisy):
        assert record.cell.scheduler == "patient"
        assert record.scheduler_proof is not None
        assert record.scheduler_proof.evidence == "OMP_WAIT_POLICY=passive in all processes"
    assert noisy.noise is not None
    (neighbour,) = noisy.noise.neighbours
    assert len(neighbour.commands) == len(os.sched_getaffinity(0))
    assert neighbour.notes == ["64 MiB a process"]


def test_a_test_of_ones_own_measures_it(example: Example) -> None:
    (example.folder / "test_mine.py").write_text(
        "import pytest\n"
        "@pytest.mark.hwq_workload('relay')\n"
        "def test_relay(hwq):\n"
        "    assert hwq.run().cell.parameters == {'elements': 65536}\n"
    )
    done = example.python(
        "-m", "pytest", "-p", plugin_name(), "--hwq-device=sim:h200", "--hwq-iterations=5",
        "--hwq-workload=relay",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (report,) = example.folder.glob(".hwqueue/*/records.csv")
    assert "relay[sim:h200-s8-native-graph]" in report.read_text()


def test_what_is_not_there_is_refused_with_what_is(example: Example) -> None:
    for arguments, there in (
        (("run", "rely"), "relay"),
        (("run", "relay", "--scheduler=impatient"), "patient"),
        (("run", "relay", "--device=cpu", "--noise=memories"), "memory"),
        (("run", "relay", "--device=twocores"), "onecore"),
    ):
        done = example.hwq(*arguments)
        assert done.returncode == 4
        assert there in done.stdout + done.stderr


def broken(folder: Path, group: str, name: str) -> None:
    info = folder / "broken_package-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = no_such_module\n")


@pytest.mark.parametrize(
    ("group", "arguments"),
    [
        ("pytest_hwqueue.workloads", ("run", "bad", "--device=sim:h200")),
        ("pytest_hwqueue.reports", ("run", "large_gemm_only", "--device=sim:h200")),
        ("pytest_hwqueue.noises", ("run", "large_gemm_only", "--device=cpu", "--noise=bad")),
    ],
)
def test_a_package_that_cannot_be_used_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, arguments: tuple[str, ...]
) -> None:
    broken(tmp_path, group, "bad")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    done = hwq(tmp_path, *arguments)
    assert done.returncode in (2, 4), done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert f"broken-package 2.0: entry point bad = no_such_module of {group} cannot be" in said
    assert "No module named 'no_such_module'" in said
    assert {path.name for path in tmp_path.glob(".hwqueue/*/*.json")} <= {"session.json"}


CONFTEST = """
from pytest_hwqueue import ReportFailed

def pytest_hwqueue_report(config, folder, records, judgements):
    assert (folder / "session.json").is_file()
    lines = [record.cell_id for record in records] + [each.baseline for each in judgements]
    (config.invocation_params.dir / "mine.txt").write_text("\\n".join(lines))
    {more}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", ""),
        ("raise ReportFailed('the disk is full')", "hwqueue: the disk is full"),
        ("1 / 0", "hwqueue: a report failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_project_reports_in_its_conftest(
    pytester: pytest.Pytester, sessions: Sessions, more: str, said: str
) -> None:
    pytester.makeconftest(CONFTEST.format(more=more))
    pytester.makepyfile(
        test_mine="""
        def test_mine(hwq):
            import torch

            hwq.measure(lambda: torch.ones(4))
        """
    )
    result = sessions.result(
        pytester.path, "--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=5",
        "--hwq-markdown=all.md",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    cell = "test_mine.py::test_mine[sim:h200-s1-native-eager]"
    assert (pytester.path / "mine.txt").read_text() == cell
    # Ours goes the same way, and before.
    assert "test_mine" in (pytester.path / "all.md").read_text()
    if said:
        result.stdout.fnmatch_lines([f"*{said}"])
    else:
        result.stdout.no_fnmatch_line("*report failed*")


@pytest.mark.slow
def test_workers_of_xdist_report_together(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_hwqueue_report(config, records):
            with open(config.invocation_params.dir / "mine.txt", "a") as file:
                print(*sorted(record.cell_id for record in records), file=file)
        """
    )
    pytester.makepyfile(
        test_mine="""
        import pytest

        @pytest.mark.parametrize("size", [1, 2])
        def test_mine(hwq, size):
            import torch

            hwq.measure(lambda: torch.ones(size))
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", plugin_name(), "-n2", "--hwq-device=sim:h200", "--hwq-streams=1",
        "--hwq-iterations=5",
    )  # fmt: skip
    result.assert_outcomes(passed=2)
    cells = [f"test_mine.py::test_mine[sim:h200-s1-native-eager-{size}]" for size in (1, 2)]
    assert (pytester.path / "mine.txt").read_text() == f"{' '.join(cells)}\n"


def test_a_session_that_measures_nothing_reports_nothing(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makeconftest(CONFTEST.format(more="1 / 0"))
    pytester.makepyfile(test_mine="def test_mine():\n    pass\n")
    result = sessions.result(pytester.path)
    result.assert_outcomes(passed=1)
    assert not (pytester.path / "mine.txt").exists()
