"""The plugin as users see it: real pytest sessions with real worker processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pytest_hwqueue.processes import fork_loop
from pytest_hwqueue.suite import plugin_name

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

SUITE = Path(__file__).parents[2] / "benchmarks"
FAST = ("--hwq-iterations=20", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=cpu")


@pytest.fixture(autouse=True)
def _package_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner sessions find the package whether or not it is installed."""
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parent))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


def arguments(*more: str) -> list[str]:
    """Arguments of an inner session."""
    return ["-p", plugin_name(), *FAST, *more]


def session(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_three_lines_measure_own_code(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(
        """
        def test_mine(hwq, hwq_streams):
            hwq.measure(lambda: sum(range(100)), streams=hwq_streams)
        """
    )
    result = sessions.result(
        pytester.path,
        *arguments("--hwq-streams=1,2", "--hwq-json=out/session.json", "--strict-markers", "-v"),
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*test_mine?cpu-s1-native-eager? PASSED*", "*test_mine?cpu-s2-native-eager? PASSED*"]
    )
    written = session(pytester.path / "out" / "session.json")
    assert written["schema"] == "pytest-hwqueue/session/1"
    assert [record["cell"] for record in written["records"]] == [
        "test_three_lines_measure_own_code.py::test_mine[cpu-s1-native-eager]",
        "test_three_lines_measure_own_code.py::test_mine[cpu-s2-native-eager]",
    ]
    for record in written["records"]:
        assert record["status"] == "ok"
        assert len(record["samples"]["host_ns"]) == record["iterations"] == 20
        assert record["metrics"]["latency"]["p50"] > 0
        assert record["metrics"]["latency"]["p99"] is None
        assert "needs at least 368" in record["metrics"]["latency"]["refused"]["p99"]
        assert record["fingerprint"]["hard"]["device_kind"] == "cpu"
    folders = list((pytester.path / ".hwqueue").glob("2*"))
    assert len(folders) == 1
    assert len(list(folders[0].glob("test_three*.json"))) == 2


def test_bounds_on_latency_pass_or_fail_with_the_reason(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        """
        def test_bounded(hwq):
            hwq.measure(lambda: None).assert_p50("10 s")

        def test_missed(hwq):
            hwq.measure(lambda: sum(range(10000))).assert_p50("1 ns")

        def test_refused(hwq):
            hwq.measure(lambda: None).assert_p99("10 s")

        def test_compared(hwq):
            assert hwq.measure(lambda: None).metrics.latency.p99 < 12.0

        def test_without_unit(hwq):
            hwq.measure(lambda: None).assert_p99("12")
        """
    )
    result = sessions.result(pytester.path, *arguments("--hwq-streams=1", "--hwq-json=s.json"))
    result.assert_outcomes(passed=1, failed=4)
    refused = "P99 of *[[]cpu-s1-native-eager] is refused: needs at least 368 samples, has 20*"
    result.stdout.fnmatch_lines(
        [
            "E*BoundMissed: P50 of *::test_missed[[]cpu-*] is * (n = 20), not below 1 ns*",
            f"E*RefusedFigure: {refused}raise --hwq-samples*",
            f"E*RefusedFigure: {refused}",
            "E*BadBound: '12' is not a bound on latency*",
        ]
    )
    result.stdout.no_fnmatch_line("*TypeError*")
    records = session(pytester.path / "s.json")["records"]
    assert {record["status"] for record in records} == {"ok"}
    assert {record["metrics"]["latency"]["p99"] for record in records} == {None}


def test_the_suite_measures_three_workloads(pytester: pytest.Pytester, sessions: Sessions) -> None:
    result = sessions.result(
        pytester.path,
        *arguments(
            str(SUITE), "-m", "P0", "--hwq-streams=1,2", "--hwq-json=s.json", "--hwq-profile"
        ),
    )
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*hetero_kernels takes 2 to 128 streams*"])
    records = session(pytester.path / "s.json")["records"]
    assert {record["setting"]["name"] for record in records} == {
        "hetero_kernels",
        "tiny_kernel_stress",
        "large_gemm_only",
    }
    for record in records:
        assert record["status"] == "ok"
        metrics = record["metrics"]
        assert metrics["timeline"]["streams_used"] == record["setting"]["streams"]
        assert metrics["memory_bytes"]["process_peak"] > 0
        assert metrics["throughput"][0]["value"] > 0
        for part in ("queue_switch", "ready_to_start"):
            for comparison in ("overhead", "other_stream_before"):
                found = metrics[part][comparison]
                assert found["difference"] is None
                assert "streams are threads" in found["refused"]["difference"]
                assert found["first"]["negative"] == found["second"]["negative"] == 0
    hetero = next(r for r in records if r["setting"]["name"] == "hetero_kernels")
    # The other tag is the latency that the cell is judged by.
    assert hetero["primary"] == {"name": "small", "per": "launch"}
    assert set(hetero["metrics"]["tags"]) == {"large"}
    assert hetero["samples"]["references_ns"]["small_alone"]
    for trace in (pytester.path / "hwq-profiles").iterdir():
        assert json.loads(trace.read_text())["traceEvents"]


def test_every_failure_costs_one_cell_only(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(
        """
        import os, signal, sys, time
        import pytest

        def test_before(hwq):
            hwq.measure(lambda: None)

        def test_crash(hwq):
            print("last words", file=sys.__stderr__, flush=True)
            hwq.measure(lambda: os.kill(os.getpid(), signal.SIGSEGV))

        def test_hang(hwq):
            hwq.measure(lambda: time.sleep(3600))

        def test_device_error(hwq):
            def broken():
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            hwq.measure(broken)

        def test_out_of_memory(hwq):
            import torch
            def greedy():
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
            hwq.measure(greedy)

        def test_own_assertion(hwq):
            print("seen in the report")
            assert hwq.measure(lambda: None).metrics.latency.p50 < 0

        def test_skipped(hwq):
            pytest.skip("on purpose")

        @pytest.mark.xfail(strict=True)
        def test_expected_to_fail(hwq):
            assert False

        def test_after(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = sessions.result(
        pytester.path,
        *arguments("--hwq-streams=1", "--hwq-timeout=4", "--hwq-json=s.json", "--junitxml=j.xml"),
    )
    result.assert_outcomes(passed=2, failed=5, skipped=1, xfailed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*the worker process died by SIGSEGV*",
            "*last words*",
            "*not finished within 4 s (--hwq-timeout), in stage warm-up*",
            "*line 12 in <lambda>*",
            "*device error: CUDA error: an illegal memory access*",
            "*out of memory: CUDA out of memory*use a smaller --hwq-size*",
            "*seen in the report*",
        ]
    )
    statuses = {
        record["setting"]["name"].rpartition("::")[2]: record["status"]
        for record in session(pytester.path / "s.json")["records"]
    }
    assert statuses == {
        "test_before": "ok",
        "test_crash": "failed",
        "test_hang": "timeout",
        "test_device_error": "failed",
        "test_out_of_memory": "failed",
        "test_own_assertion": "ok",
        "test_after": "ok",
    }
    suite = ElementTree.parse(pytester.path / "j.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("9", "5")
    assert not _workers_of(pytester.path)


def test_tests_in_worker_and_session_share_nothing_but_order(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        """
        import os, warnings
        import pytest

        @pytest.fixture(scope="module")
        def place():
            yield os.getpid()
            with open("torn_down", "a") as file:
                file.write("x")

        def test_plain(place):
            assert os.getpid() == place

        @pytest.mark.parametrize("size", [1, 2])
        def test_measured(hwq, place, size):
            warnings.warn("a warning of the test", UserWarning)
            assert os.getpid() == place
            hwq.measure(lambda: None, name="first")
            hwq.measure(lambda: None, name="second")

        def test_plain_again(place):
            assert os.getpid() == place
        """,
        test_other="def test_last(): pass",
    )
    result = sessions.result(pytester.path, *arguments("--hwq-streams=1", "--hwq-json=s.json"))
    result.assert_outcomes(passed=5, warnings=2)
    cells = [record["cell"] for record in session(pytester.path / "s.json")["records"]]
    name = "test_tests_in_worker_and_session_share_nothing_but_order.py::test_measured"
    assert cells == [
        f"{name}::first[cpu-s1-native-eager-1]",
        f"{name}::second[cpu-s1-native-eager-1]",
        f"{name}::first[cpu-s1-native-eager-2]",
        f"{name}::second[cpu-s1-native-eager-2]",
    ]
    # Each of the two processes has made the fixture and torn it down.
    assert len((pytester.path / "torn_down").read_text()) >= 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--hwq-streams=0", "*--hwq-streams: '0' is not valid; give a count from 1 to 1024*"),
        ("--hwq-device=cuda:7", "*--hwq-device: 'cuda:7' is not valid; visible here: *"),
        ("--hwq-workload=nope", "*--hwq-workload: no workload 'nope'; there are hetero_kernels*"),
        ("--hwq-param=large_gemm_only.nope=1", "*the parameters are large_gemm_only: mm_dim*"),
        ("--hwq-streams=1000", "*nothing to measure: *hetero_kernels takes 2 to 128 streams*"),
        ("--hwq-dir=a_file/records", "*--hwq-dir: cannot write records*"),
        *(
            pytest.param(option, message, marks=pytest.mark.slow)
            for option, message in [
                ("--hwq-streams=1,x", "*--hwq-streams: 'x' is not valid*"),
                (
                    "--hwq-device=tpu",
                    "*--hwq-device: 'tpu' is not valid; choose from auto, cpu, cuda*",
                ),
                ("--hwq-size=huge", "*--hwq-size: 'huge' is not valid; choose from auto, tiny*"),
                ("--hwq-max-time=-1", "*--hwq-max-time: '-1' is not valid; give seconds*"),
                (
                    "--hwq-sync-mode=sometimes",
                    "*--hwq-sync-mode: 'sometimes' is not valid*per_iteration*",
                ),
                (
                    "--hwq-param=nope=1",
                    "*--hwq-param: 'nope=1' is not valid; the parameters are*mm_dim*",
                ),
                ("--hwq-param=nope.mm_dim=1", "*--hwq-param: 'nope.mm_dim=1' is not valid;*"),
                ("--hwq-param=hetero_kernels.mm_dim=big", "*hetero_kernels.mm_dim='big'*integer*"),
                ("--hwq-param=mm_dim", "*--hwq-param: 'mm_dim' is not valid; give NAME=VALUE*"),
                (
                    "--hwq-dispatch=graph",
                    "*nothing to measure: graph dispatch needs an accelerator*",
                ),
                (
                    "--hwq-scheduler=stream-priority",
                    "*nothing to measure: *; stream-priority needs an accelerator: the CPU's*",
                ),
                ("--hwq-json=a_file/out.json", "*--hwq-json: cannot write*"),
            ]
        ),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    pytester: pytest.Pytester, run_in_process: RunInProcess, option: str, message: str
) -> None:
    (pytester.path / "a_file").write_text("")
    result = run_in_process(*arguments(str(SUITE), option))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert not list(pytester.path.glob("**/worker-*.log"))


def test_a_record_that_cannot_be_written_is_not_lost(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_small(hwq):
            hwq.measure(lambda: None, name="small")
        """
    )

    def limit_file_size() -> None:
        # Every file ends here, as on a disk that is full: Python sees an OSError.
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments("--hwq-streams=1", "-p", "no:cacheprovider")],
        cwd=pytester.path, capture_output=True, text=True, preexec_fn=limit_file_size, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "measured, but its record was not written" in done.stdout
    assert "File too large" in done.stdout
    # Measured all the same: the figures stand in the table.
    assert "test_small" in done.stdout.partition("hardware queues")[2]
    folder = next((pytester.path / ".hwqueue").glob("2*"))
    assert not list(folder.glob("*.tmp"))
    assert session(folder / "session.json")["records"] == []


def _start(pytester: pytest.Pytester) -> subprocess.Popen[str]:
    pytester.makepyfile(
        """
        import pathlib, time

        def test_first(hwq):
            hwq.measure(lambda: None)

        def test_second(hwq):
            pathlib.Path("second_runs").touch()
            hwq.measure(lambda: time.sleep(3600))

        def test_third(hwq):
            hwq.measure(lambda: None)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments("--hwq-streams=1", "--hwq-json=s.json")],
        cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (pytester.path / "second_runs").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    return process


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


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(pytester: pytest.Pytester) -> None:
    process = _start(pytester)
    assert len(_workers_of(pytester.path)) == 3
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    written = session(pytester.path / "s.json")
    assert written["session"]["interrupted"] is True
    assert [record["status"] for record in written["records"]] == ["ok", "failed"]
    assert "interrupted" in written["records"][1]["reason"]
    assert "hardware queues" in output
    assert not _workers_of(pytester.path)


def test_a_killed_session_keeps_what_was_measured_and_leaves_no_process(
    pytester: pytest.Pytester,
) -> None:
    process = _start(pytester)
    workers = _workers_of(pytester.path)
    assert len(workers) == 3
    process.kill()
    process.communicate(timeout=60)
    psutil.wait_procs(workers, timeout=30)
    assert not _workers_of(pytester.path)
    folder = next((pytester.path / ".hwqueue").glob("2*"))
    records = [session(path) for path in folder.glob("test_*.json")]
    assert [record["status"] for record in records] == ["ok"]


@pytest.mark.slow
def test_works_beside_xdist(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        test_a="def test_a(hwq): hwq.measure(lambda: None)",
        test_b="def test_b(hwq): hwq.measure(lambda: None)",
    )
    result = sessions.result(
        pytester.path, *arguments("--hwq-streams=1", "-n2", "--hwq-json=s.json")
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*hardware queues*", "*test_a*"])
    records = session(pytester.path / "s.json")["records"]
    assert sorted(record["setting"]["name"] for record in records) == [
        "test_a.py::test_a",
        "test_b.py::test_b",
    ]
    spans = sorted((record["started"], record["duration_s"]) for record in records)
    from datetime import datetime, timedelta

    first_end = datetime.fromisoformat(spans[0][0]) + timedelta(seconds=spans[0][1])
    # The lease lets one process measure at a time (a record's times are rounded to 1 ms).
    assert datetime.fromisoformat(spans[1][0]) >= first_end - timedelta(milliseconds=2)


def test_samples_reach_pytest_benchmark_to_the_bit(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    result = sessions.result(
        pytester.path,
        *arguments(
            "--hwq-streams=1", "--hwq-json=s.json", "--benchmark-only", "--benchmark-json=b.json"
        ),
    )
    result.assert_outcomes(passed=1)
    record = session(pytester.path / "s.json")["records"][0]
    benchmark = session(pytester.path / "b.json")["benchmarks"][0]
    assert benchmark["stats"]["data"] == [ns / 1e9 for ns in record["samples"]["host_ns"]]


@pytest.mark.slow
def test_works_without_pytest_benchmark(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    result = sessions.result(pytester.path, *arguments("--hwq-streams=1", "-p", "no:benchmark"))
    result.assert_outcomes(passed=1)


def test_measures_in_its_own_process_when_told_to(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pathlib

        def test_mine(hwq):
            hwq.measure(lambda: None)
            pathlib.Path("pid").write_text(str(os.getpid()))
        """
    )
    result = pytester.runpytest_inprocess(
        *arguments("--hwq-streams=1", "--hwq-isolation=none", "--hwq-json=s.json")
    )
    result.assert_outcomes(passed=1)
    assert session(pytester.path / "s.json")["records"][0]["status"] == "ok"
    assert (pytester.path / "pid").read_text() == str(os.getpid())


def test_collecting_starts_nothing(pytester: pytest.Pytester, sessions: Sessions) -> None:
    result = sessions.result(pytester.path, *arguments(str(SUITE), "--collect-only", "-q"))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_tiny_kernel_stress?cpu-s16-native-eager?"])
    assert not (pytester.path / ".hwqueue").exists()


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ((), ""),
        (("--hwq-param=mm_dim=32", "--hwq-size=small"), "-small-mm_dim=32"),
        (("--hwq-param=hetero_kernels.mm_dim=32", "--hwq-sync-mode=none"), "-none"),
    ],
)
def test_a_tests_id_names_its_cell_as_far_as_it_is_known(
    run_in_process: RunInProcess, given: tuple[str, ...], end: str
) -> None:
    chosen = arguments(str(SUITE), "--collect-only", "-q", "--hwq-workload=large_gemm_only,moe")
    result = run_in_process(*chosen, *given)
    result.stdout.fnmatch_lines([f"*test_large_gemm_only?cpu-s4-native-eager{end}?"])
    sync = end if end == "-none" else ""
    size = "-small" if "small" in end else ""
    result.stdout.fnmatch_lines([f"*test_moe?cpu-s*-native-eager{sync}-2ranks{size}?"])


def test_ids_of_ones_own_tests_and_cells_agree_and_streams_are_no_more_than_cores(
    pytester: pytest.Pytester,
    sessions: Sessions,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("size", [1, 2])
        def test_mine(hwq, size):
            hwq.measure(lambda: None)

        @pytest.mark.parametrize("hwq_dispatch", ["eager"], indirect=True)
        def test_dispatch(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = sessions.result(
        pytester.path, *arguments("--hwq-json=s.json", "--hwq-sync-mode=end_only")
    )
    result.assert_outcomes(passed=3)
    streams = min(8, len(os.sched_getaffinity(0)))
    records = session(pytester.path / "s.json")["records"]
    file = "test_ids_of_ones_own_tests_and_cells_agree_and_streams_are_no_more_than_cores.py"
    assert [record["cell"] for record in records] == [
        f"{file}::test_mine[cpu-s{streams}-native-eager-end_only-1]",
        f"{file}::test_mine[cpu-s{streams}-native-eager-end_only-2]",
        f"{file}::test_dispatch[cpu-s{streams}-native-eager-end_only]",
    ]
    mine = [record for record in records if "test_mine" in record["cell"]]
    assert [record["nodeid"] for record in mine] == [record["cell"] for record in mine]


@pytest.mark.slow
def test_priority_and_workload_select(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile("def test_plain(): pass")
    chosen = arguments(str(SUITE), ".", "--collect-only", "-q", "--hwq-workload=large_gemm_only")
    result = sessions.result(pytester.path, *chosen, "--hwq-priority=P0,P1")
    result.stdout.fnmatch_lines(["*test_large_gemm_only?cpu-s4-native-eager?"])
    result.stdout.no_fnmatch_line("*test_plain*")
    result.stdout.no_fnmatch_line("*test_hetero*")
    assert sessions.result(pytester.path, *chosen, "--hwq-priority=P3").ret == 5


@pytest.mark.slow
def test_parameters_name_the_cell(pytester: pytest.Pytester, sessions: Sessions) -> None:
    result = sessions.result(
        pytester.path, *arguments(
            str(SUITE), "--hwq-workload=large_gemm_only", "--hwq-streams=1", "--hwq-json=s.json",
            "--hwq-param=mm_dim=32", "--hwq-sync-mode=end_only", "--hwq-seed=7",
        )
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    record = session(pytester.path / "s.json")["records"][0]
    assert record["cell"] == "large_gemm_only[cpu-s1-native-eager-end_only-mm_dim=32]"
    assert record["nodeid"].endswith("::test_" + record["cell"])
    assert record["setting"]["parameters"] == {"mm_dim": 32, "dtype": "fp32"}
    assert record["seed"] == 7
    assert record["samples"]["host_ns"] == []
    assert len(record["samples"]["device_ns"]) == 20


HEAVY = ("torch", "numpy", "scipy", "pydantic", "rich")


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest_hwqueue.plugin"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pytest_hwqueue.plugin" in imported
    assert not [name for name in imported if name.partition(".")[0] in HEAVY]
    rooms = {name.split(".")[1] for name in imported if name.startswith("pytest_hwqueue.")}
    assert rooms == {"errors", "plugin", "settings", "workloads"}


def test_a_session_that_measures_nothing_imports_nothing_heavy(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_plain():
            assert not [name for name in {HEAVY!r} if name in sys.modules]
        """
    )
    result = sessions.result(pytester.path, *arguments())
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*hardware queues*")
