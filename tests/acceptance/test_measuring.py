"""The plugin as users see it: real pytest sessions with real worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest

from pytest_hwqueue.parts.processes import fork_loop
from tests.conftest import PYTEST

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

SUITE = Path(__file__).parents[2] / "benchmarks"
FAST = ("--hwq-iterations=20", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=cpu")


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


class MeasuredRun(NamedTuple):
    """A session that has ended, and its folder."""

    folder: Path
    result: pytest.RunResult

    @property
    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = loaded(self.folder / "s.json")["records"]
        return found

    def of(self, file: str) -> list[dict[str, Any]]:
        """The records of one file's tests."""
        return [record for record in self.records if record["cell"].startswith(file)]


@pytest.fixture
def here(pytester: pytest.Pytester, run_in_process: RunInProcess) -> Callable[..., MeasuredRun]:
    """Measures in this process, where torch is loaded already."""

    def run(*arguments: str) -> MeasuredRun:
        return MeasuredRun(pytester.path, run_in_process(*FAST, "--hwq-json=s.json", *arguments))

    return run


LINES = """
def test_mine(hwq, hwq_streams):
    hwq.measure(lambda: sum(range(100)), streams=hwq_streams)
"""


def test_three_lines_measure_own_code(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "test_lines.py").write_text(LINES)
    result = sessions.result(
        tmp_path, *FAST, "--hwq-streams=1,2", "--hwq-json=out/session.json", "--strict-markers",
        "-v", "--benchmark-only", "--benchmark-json=b.json",
    )  # fmt: skip
    result.assert_outcomes(passed=2)
    cells = [f"test_lines.py::test_mine[cpu-s{streams}-native-eager]" for streams in (1, 2)]
    for cell in cells:
        assert f"{cell} PASSED" in result.stdout.str()
    written = loaded(tmp_path / "out" / "session.json")
    assert written["schema"] == "pytest-hwqueue/session/2"
    assert [record["cell"] for record in written["records"]] == cells
    for record in written["records"]:
        assert record["status"] == "ok"
        assert len(record["samples"]["host_ns"]) == record["iterations"] == 20
        latency = record["metrics"]["latency"]
        assert latency["p50"]["value"] > 0
        assert latency["p99"]["value"] is None
        assert "1000 independent ones suffice" in latency["p99"]["refused"]
        assert record["fingerprint"]["hard"]["device_kind"] == "cpu"
    (folder,) = (tmp_path / ".hwqueue").glob("2*")
    assert len(list(folder.glob("test_lines*.json"))) == 2
    # pytest-benchmark has the same samples, to the bit.
    assert [each["stats"]["data"] for each in loaded(tmp_path / "b.json")["benchmarks"]] == [
        [ns / 1e9 for ns in record["samples"]["host_ns"]] for record in written["records"]
    ]


BOUNDS = """
def test_bounded(hwq): hwq.measure(lambda: None).assert_p50("10 s")
def test_missed(hwq): hwq.measure(lambda: sum(range(10000))).assert_p50("1 ns")
def test_refused(hwq): hwq.measure(lambda: None).assert_p99("10 s")
def test_compared(hwq): assert hwq.measure(lambda: None).metrics.latency.p99 < 12.0
def test_without_unit(hwq): hwq.measure(lambda: None).assert_p99("12")
"""
FAILURES = """
import os, pytest, signal, sys, time, torch
def raises(error):
    raise error
def test_before(hwq): hwq.measure(lambda: None)
def test_crash(hwq):
    print("last words", file=sys.__stderr__, flush=True)
    hwq.measure(lambda: os.kill(os.getpid(), signal.SIGSEGV))
def test_hang(hwq):
    hwq.measure(lambda: time.sleep(3600))
def test_device_error(hwq):
    hwq.measure(lambda: raises(RuntimeError("CUDA error: an illegal memory access")))
def test_out_of_memory(hwq):
    hwq.measure(lambda: raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")))
def test_own_assertion(hwq):
    print("seen in the report")
    assert hwq.measure(lambda: None).metrics.latency.p50 < 0
def test_skipped(hwq): pytest.skip("on purpose")
@pytest.mark.xfail(strict=True)
def test_expected_to_fail(hwq): assert False
def test_after(hwq): hwq.measure(lambda: None)
"""
SHARED = """
import os, pytest, warnings
@pytest.fixture(scope="module")
def place():
    yield os.getpid()
    print("x", end="", file=open("torn_down", "a"))
def test_plain(place): assert os.getpid() == place
@pytest.mark.parametrize("size", [1, 2])
def test_measured(hwq, place, size):
    warnings.warn("a warning of the test", UserWarning)
    assert os.getpid() == place
    for name in ("first", "second"):
        hwq.measure(lambda: None, name=name)
def test_plain_again(place): assert os.getpid() == place
"""


@pytest.fixture(scope="module")
def measured(sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    """A session of three files: of bounds, of failures, and of tests that share a fixture."""
    folder = tmp_path_factory.mktemp("measured")
    for name, text in (("bounds", BOUNDS), ("failures", FAILURES), ("shared", SHARED)):
        (folder / f"test_{name}.py").write_text(text)
    given = ("--hwq-streams=1", "--hwq-timeout=2", "--hwq-json=s.json", "--junitxml=j.xml")
    return MeasuredRun(folder, sessions.result(folder, *FAST, *given))


def test_bounds_on_latency_pass_or_fail_with_the_reason(measured: MeasuredRun) -> None:
    refused = (
        "P99 of *[[]cpu-s1-native-eager] is refused: has 20 samples; 1000 independent ones suffice*"
    )
    measured.result.stdout.fnmatch_lines(
        [
            "E*BoundMissed: P50 of *::test_missed[[]cpu-*] is * (n = 20), not below 1 ns*",
            f"E*RefusedFigure: {refused}raise --hwq-samples*",
            f"E*RefusedFigure: {refused}",
            "E*BadInput: '12' is not a bound on latency*",
        ]
    )
    measured.result.stdout.no_fnmatch_line("*TypeError*")
    records = measured.of("test_bounds.py")
    assert {record["status"] for record in records} == {"ok"}
    assert {record["metrics"]["latency"]["p99"]["value"] for record in records} == {None}


def test_every_failure_costs_one_cell_only(measured: MeasuredRun) -> None:
    # Two in the file of bounds, and four that share a fixture.
    measured.result.assert_outcomes(passed=7, failed=9, skipped=1, xfailed=1, warnings=2)
    assert measured.result.ret == pytest.ExitCode.TESTS_FAILED
    measured.result.stdout.fnmatch_lines(
        [
            "*the worker process died by SIGSEGV*", "*last words*",
            "*not finished within 2 s (--hwq-timeout), in stage warm-up*", "*line 10 in <lambda>*",
            "*device error: CUDA error: an illegal memory access*",
            "*out of memory: CUDA out of memory*use a smaller --hwq-size*", "*seen in the report*",
        ]
    )  # fmt: skip
    names = ("before", "crash", "hang", "device_error", "out_of_memory", "own_assertion", "after")
    statuses = ("ok", "failed", "timeout", "failed", "failed", "ok", "ok")
    records = measured.of("test_failures.py")
    assert [record["status"] for record in records] == list(statuses)
    assert [record["setting"]["name"].rpartition("::test_")[2] for record in records] == [*names]
    suite = ElementTree.parse(measured.folder / "j.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("18", "9")
    assert not _workers_of(measured.folder)


def test_tests_in_worker_and_session_share_nothing_but_order(measured: MeasuredRun) -> None:
    assert [record["cell"] for record in measured.of("test_shared.py")] == [
        f"test_shared.py::test_measured::{name}[cpu-s1-native-eager-{size}]"
        for size in (1, 2)
        for name in ("first", "second")
    ]
    # Each of the two processes has made the fixture and torn it down.
    assert len((measured.folder / "torn_down").read_text()) >= 2


def test_the_suite_measures_three_workloads(sessions: Sessions, tmp_path: Path) -> None:
    chosen = (str(SUITE), "-m", "P0", "--hwq-streams=1,2", "--hwq-json=s.json", "--hwq-profile")
    measured = MeasuredRun(tmp_path, sessions.result(tmp_path, *FAST, *chosen))
    measured.result.assert_outcomes(passed=5, skipped=1)
    measured.result.stdout.fnmatch_lines(["*hetero_kernels takes 2 to 128 streams*"])
    names = {record["setting"]["name"] for record in measured.records}
    assert names == {"hetero_kernels", "tiny_kernel_stress", "large_gemm_only"}
    for record in measured.records:
        assert record["status"] == "ok"
        metrics = record["metrics"]
        assert metrics["timeline"]["streams_used"] == record["setting"]["streams"]
        assert metrics["memory_bytes"]["process_peak"] > 0
        assert metrics["throughput"][0]["value"] > 0
        for part in ("queue_switch", "ready_to_start"):
            for comparison in ("overhead", "other_stream_before"):
                found = metrics[part][comparison]
                assert found["difference"]["value"] is None
                assert "streams are threads" in found["difference"]["refused"]
                assert found["first"]["negative"] == found["second"]["negative"] == 0
    (hetero,) = measured.of("hetero_kernels")
    # The other tag is the latency that the cell is judged by.
    assert hetero["primary"] == {"name": "small", "per": "launch"}
    assert set(hetero["metrics"]["tags"]) == {"large"}
    assert hetero["samples"]["references_ns"]["small_alone"]
    for trace in (tmp_path / "hwq-profiles").iterdir():
        assert loaded(trace)["traceEvents"]


# Values that no option takes are refused in tests/options.
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("streams=0", "--hwq-streams: '0' is not valid; give a count from 1 to 1024*"),
        ("device=cuda:7", "--hwq-device: 'cuda:7' is not valid; visible here: *"),
        ("workload=nope", "--hwq-workload: no workload 'nope'; there are hetero_kernels*"),
        ("param=large_gemm_only.nope=1", "*the parameters are large_gemm_only: mm_dim*"),
        ("param=nope=1", "--hwq-param: 'nope=1' is not valid; the parameters are*mm_dim*"),
        ("param=nope.mm_dim=1", "--hwq-param: 'nope.mm_dim=1' is not valid;*"),
        ("param=hetero_kernels.mm_dim=big", "*hetero_kernels.mm_dim='big'*integer*"),
        ("streams=1000", "nothing to measure: *hetero_kernels takes 2 to 128 streams*"),
        ("dispatch=graph", "nothing to measure: graph dispatch needs an accelerator*"),
        ("scheduler=stream-priority", "nothing to measure: *; stream-priority needs an acc*"),
        ("stream=8", "there is no option --hwq-stream; did you mean --hwq-streams?*"),
        ("dir=a_file/records", "--hwq-dir: cannot write records*"),
        ("json=a_file/out.json", "--hwq-json: cannot write*"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    pytester: pytest.Pytester, run_in_process: RunInProcess, option: str, message: str
) -> None:
    (pytester.path / "a_file").write_text("")
    result = run_in_process(*FAST, str(SUITE), f"--hwq-{option}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}"])
    assert not list(pytester.path.glob("**/worker-*.log"))


def test_a_record_that_cannot_be_written_is_not_lost(
    pytester: pytest.Pytester,
    run_in_process: RunInProcess,
    smaller_files: Callable[[int], AbstractContextManager[None]],
) -> None:
    pytester.makepyfile(test_small=LINES)
    # Every file ends here, as on a disk that is full: Python sees an OSError.
    with smaller_files(6000):
        result = run_in_process(*FAST, "--hwq-streams=1", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    output = result.stdout.str()
    assert "measured, but its record was not written" in output
    assert "File too large" in output
    # Measured all the same: the figures stand in the table.
    assert "test_small" in output.partition("hardware queues")[2]
    (folder,) = (pytester.path / ".hwqueue").glob("2*")
    assert not list(folder.glob("*.tmp"))
    assert loaded(folder / "session.json")["records"] == []


INTERRUPTED = """
import pathlib, time
def runs():
    time.sleep(1)  # so that the session knows of the cell, however busy the machine
    pathlib.Path("second_runs").touch()
    time.sleep(3600)
def test_first(hwq): hwq.measure(lambda: None)
def test_second(hwq): hwq.measure(runs)
def test_third(hwq): hwq.measure(lambda: None)
"""


def _workers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            # The server of forked workers, its keeper, and workers, which show its command line.
            command = " ".join(process.cmdline())
            if process.cwd() == str(folder) and fork_loop.__name__ in command:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


# Sessions are killed in tests/torture too.
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_a_session_that_is_ended_keeps_what_was_measured_and_leaves_no_process(
    sessions: Sessions, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "test_it.py").write_text(INTERRUPTED)
    process = subprocess.Popen(
        [*PYTEST, *FAST, "--hwq-streams=1", "--hwq-json=s.json"],
        cwd=tmp_path, env=sessions.environment,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "second_runs").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    workers = _workers_of(tmp_path)
    assert len(workers) == 3
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        psutil.wait_procs(workers, timeout=30)
    assert not _workers_of(tmp_path)
    (file,) = (tmp_path / ".hwqueue").glob("2*/test_*first*.json")
    assert loaded(file)["status"] == "ok"
    if number == signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        written = loaded(tmp_path / "s.json")
        assert written["session"]["interrupted"] is True
        assert [record["status"] for record in written["records"]] == ["ok", "failed"]
        assert "interrupted" in written["records"][1]["reason"]
        assert "hardware queues" in output


@pytest.mark.slow
def test_works_beside_xdist(sessions: Sessions, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(LINES)
    given = (*FAST, "--hwq-streams=1", "-n2", "--hwq-json=s.json")
    measured = MeasuredRun(tmp_path, sessions.result(tmp_path, *given))
    measured.result.assert_outcomes(passed=2)
    measured.result.stdout.fnmatch_lines(
        ["*hardware queues*", "*test_a*", "xdist's processes took turns on cpu: *"]
    )
    records = sorted(measured.records, key=lambda record: str(record["started"]))
    files = {record["setting"]["name"].partition(":")[0] for record in records}
    assert files == {"test_a.py", "test_b.py"}
    first, second = (datetime.fromisoformat(record["started"]) for record in records)
    # The lease lets one process measure at a time (a record's times are rounded to 1 ms).
    assert second >= first + timedelta(seconds=records[0]["duration_s"], milliseconds=-2)
    simulated = sessions.result(tmp_path, *given, "--hwq-device=sim:h200")
    simulated.stdout.no_fnmatch_line("*took turns*")


def test_measures_in_its_own_process_when_told_to_and_without_pytest_benchmark(
    pytester: pytest.Pytester, here: Callable[..., MeasuredRun]
) -> None:
    pytester.makepyfile(
        """
        import os, pathlib
        def test_mine(hwq):
            hwq.measure(lambda: pathlib.Path("pid").write_text(str(os.getpid())))
        """
    )
    measured = here("--hwq-streams=1", "-p", "no:benchmark")
    measured.result.assert_outcomes(passed=1)
    assert measured.records[0]["status"] == "ok"
    assert (pytester.path / "pid").read_text() == str(os.getpid())


def test_what_follows_a_profiler_is_measured_in_a_fresh_process(
    sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import os, pathlib, pytest
from pytest_hwqueue.parts.devices.host import HostDevice
@pytest.mark.parametrize("profiled", [False, True, False])
def test_mine(hwq, profiled):
    with open("pids", "a") as file:
        print(os.getpid(), file=file)
    HostDevice.profiled = profiled  # as after a timeline that CUPTI does not leave
    hwq.measure(lambda: None)
"""
    )
    sessions.result(tmp_path, *FAST, "--hwq-streams=1").assert_outcomes(passed=3)
    first, second, third = (tmp_path / "pids").read_text().split()
    assert first == second != third


def test_a_tests_id_names_its_cell_as_far_as_it_is_known_and_collecting_starts_nothing(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile("def test_plain(): pass")
    collect = partial(run_in_process, *FAST, str(SUITE), ".", "--collect-only", "-q")
    both = "--hwq-workload=large_gemm_only,moe"
    for given, gemm, moe in (
        ([both], "", "-2ranks"),
        ([both, "--hwq-param=mm_dim=32", "--hwq-size=small"], "-small-mm_dim=32", "-2ranks-small"),
        (
            [both, "--hwq-param=hetero_kernels.mm_dim=32", "--hwq-sync-mode=none"],
            "-none", "-none-2ranks",
        ),
    ):  # fmt: skip
        result = collect(*given)
        result.stdout.fnmatch_lines([f"*test_large_gemm_only?cpu-s4-native-eager{gemm}?"])
        result.stdout.fnmatch_lines([f"*test_moe?cpu-s*-native-eager{moe}?"])
        for other in ("*test_plain*", "*test_hetero*"):
            result.stdout.no_fnmatch_line(other)
    everything = collect()
    assert everything.ret == pytest.ExitCode.OK
    everything.stdout.fnmatch_lines(["*test_tiny_kernel_stress?cpu-s16-native-eager?"])
    chosen = collect("--hwq-workload=large_gemm_only", "--hwq-priority=P0,P1").stdout
    chosen.fnmatch_lines(["*test_large_gemm_only?cpu-s4-native-eager?"])
    nothing = collect("--hwq-workload=large_gemm_only", "--hwq-priority=P3")
    assert nothing.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (pytester.path / ".hwqueue").exists()


def test_ids_of_tests_and_cells_agree_and_streams_are_no_more_than_cores(
    pytester: pytest.Pytester, here: Callable[..., MeasuredRun]
) -> None:
    pytester.makepyfile(
        test_own="""
        import pytest
        @pytest.mark.parametrize("size", [1, 2])
        def test_mine(hwq, size): hwq.measure(lambda: None)
        @pytest.mark.parametrize("hwq_dispatch", ["eager"], indirect=True)
        def test_dispatch(hwq): hwq.measure(lambda: None)
        """
    )
    own = here("--hwq-sync-mode=end_only", "--junitxml=junit.xml")
    own.result.assert_outcomes(passed=3)
    # Nothing is waited for, so nothing has a latency, nor is anything called one.
    own.result.stdout.fnmatch_lines(["pace, not latency: *"])
    own.result.stdout.no_fnmatch_line("latency of: *")
    properties = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert ".pace_p50_ms" in properties
    assert ".latency_p50_ms" not in properties
    cell = f"[cpu-s{min(8, len(os.sched_getaffinity(0)))}-native-eager-end_only"
    assert [record["cell"] for record in own.records] == [
        f"test_own.py::test_mine{cell}-1]", f"test_own.py::test_mine{cell}-2]",
        f"test_own.py::test_dispatch{cell}]",
    ]  # fmt: skip
    for record in own.records[:2]:
        assert record["nodeid"] == record["cell"]
    (record,) = here(
        str(SUITE), "--hwq-workload=large_gemm_only", "--hwq-streams=1", "--hwq-param=mm_dim=32",
        "--hwq-sync-mode=end_only", "--hwq-seed=7",
    ).records  # fmt: skip
    assert record["cell"] == "large_gemm_only[cpu-s1-native-eager-end_only-mm_dim=32]"
    assert record["nodeid"].endswith("::test_" + record["cell"])
    assert record["setting"]["parameters"] == {"mm_dim": 32, "dtype": "fp32"}
    assert record["seed"] == 7
    assert record["samples"]["host_ns"] == []
    assert len(record["samples"]["pace_ns"]) == 20


def test_a_lean_run_has_latency_and_throughput_alone(here: Callable[..., MeasuredRun]) -> None:
    cell = (str(SUITE), "--hwq-workload=hetero_kernels", "--hwq-device=sim:h200", "--hwq-size=tiny",
            "--hwq-streams=8")  # fmt: skip
    (whole,), (lean,) = here(*cell).records, here(*cell, "--hwq-lean").records
    for record in (whole, lean):
        assert record["metrics"]["latency"]["p50"]["value"] > 0
        assert record["metrics"]["throughput"]
    assert [len(record["metrics"]["ratios"]) for record in (whole, lean)] == [2, 0]
    assert [record["metrics"]["timeline"] is None for record in (whole, lean)] == [False, True]
    assert "--hwq-lean" in lean["metrics"]["refused"]["ratios"]


HEAVY = ("torch", "numpy", "scipy", "pydantic", "rich")
PLAIN = f"import sys\ndef test_plain(): assert sys.modules.keys().isdisjoint({HEAVY!r})\n"


def test_importing_the_plugin_or_measuring_nothing_imports_nothing_heavy(
    sessions: Sessions, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest_hwqueue.plugin"],
        capture_output=True, text=True, check=True, env=sessions.environment,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pytest_hwqueue.plugin" in imported
    assert not [name for name in imported if name.partition(".")[0] in HEAVY]
    layers = {name.split(".")[1] for name in imported if name.startswith("pytest_hwqueue.")}
    assert layers == {"data", "options", "parts", "plugin"}
    (tmp_path / "test_it.py").write_text(PLAIN)
    output = sessions.anew(tmp_path, *FAST).stdout
    assert "1 passed" in output
    assert "hardware queues" not in output
