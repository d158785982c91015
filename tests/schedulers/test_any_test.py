"""Any test under any scheduler: real sessions whose workers are started for a scheduler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pytest_hwqueue.suite import plugin_name

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

from .processes import has_ended, needs_compiler, program, wait_for

_ROOT = Path(__file__).parents[2]

# Says that it runs in a file of its own, and that it was asked to end in its log.
_SERVER = """
import os, pathlib, signal, sys, time
def leave(number, frame):
    print("left by", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, leave)
with open(pathlib.Path(__file__).with_name("pids"), "a") as file:
    file.write(f"{os.getpid()}\\n")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _package_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner sessions find the package whether or not it is installed."""
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """Where the descriptions are; ``served`` is one with a service."""
    folder = pytester.path / "schedulers"
    program(folder / "server", _SERVER)
    service = {"command": ["./server"], "stop": "INT", "ready": "^ready"}
    describe(folder, "served", services=[service], proof={"maps": "libtorch"})
    return folder


def describe(folder: Path, name: str, **fields: Any) -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))


def arguments(*more: str) -> list[str]:
    """Arguments of an inner session."""
    return [
        "-p", plugin_name(), "--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=20",
        "--hwq-warmup=2", "--hwq-preloads=schedulers", "--hwq-json=s.json", *more,
    ]  # fmt: skip


def records(pytester: pytest.Pytester) -> dict[str, list[dict[str, Any]]]:
    """The records, by test and scheduler."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads((pytester.path / "s.json").read_text())["records"]:
        name = record["setting"]["name"].partition("::")[2]
        found.setdefault(f"{name} {record['setting']['scheduler']}", []).append(record)
    return found


def served_pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


@needs_compiler
def test_own_tests_are_measured_where_the_scheduler_is_proven(
    pytester: pytest.Pytester, folder: Path, library: Path
) -> None:
    foreign = bytearray(library.read_bytes())
    # The machine in the ELF header: SPARC, on which these tests do not run.
    foreign[18:20] = (2).to_bytes(2, sys.byteorder)
    (folder / "libforeign.so").write_bytes(bytes(foreign))
    shutil.copy(_ROOT / "examples" / "schedulers" / "tiny.yaml", folder)
    shutil.copy(library, folder)
    describe(folder, "absent", preload=["./libabsent.so"], proof={"maps": "."})
    describe(folder, "foreign", preload=["./libforeign.so"], proof={"maps": "."})
    describe(folder, "dead", environment={"PYTHONHOME": "/nowhere"}, proof={"maps": "."})
    describe(folder, "unserved", services=[{"command": ["./no"]}], proof={"maps": "."})
    pytester.makepyfile(
        """
        import ctypes, os

        def measure(hwq, scheduler):
            assert hasattr(ctypes.CDLL(None), "tiny_answer") == (scheduler == "preload:tiny")
            with open("workers", "a") as file:
                file.write(f"{scheduler} {os.getpid()}\\n")
            hwq.measure(lambda: sum(range(100)))

        def test_first(hwq, hwq_scheduler):
            measure(hwq, hwq_scheduler.mode)

        def test_second(hwq, hwq_scheduler):
            measure(hwq, hwq_scheduler.mode)
        """
    )
    names = ("tiny", "absent", "foreign", "dead", "unserved")
    modes = ",".join(["native", *(f"preload:{name}" for name in names), "mps", "xsched:level=1"])
    result = pytester.runpytest_subprocess(*arguments(f"--hwq-scheduler={modes}", "-rs", "-v"))
    result.assert_outcomes(passed=4, failed=8, skipped=4)
    result.stdout.fnmatch_lines(
        [
            "the worker process exited with status 1: *test_first?cpu-s1-preload:dead-eager?",
            "no could not be started: *preload:unserved-eager?",
            "*mps needs an NVIDIA GPU; on cpu there is no MPS*",
            "*xsched:level=1 needs an accelerator: XSched schedules CUDA or HIP streams*",
        ]
    )
    found = records(pytester)
    assert {name: [record["status"] for record in runs] for name, runs in found.items()} == {
        f"{test} {scheduler}": [status]
        for test in ("test_first", "test_second")
        for scheduler, status in (
            ("native", "ok"), ("preload:tiny", "ok"), ("preload:absent", "failed"),
            ("preload:foreign", "failed"),
        )
    }  # fmt: skip
    (measured,) = found["test_first preload:tiny"]
    assert measured["scheduler_proof"]["mode"] == "preload:tiny"
    assert r"mapped 'libtiny\\.so$', written '^tiny" in measured["scheduler_proof"]["evidence"]
    assert len(measured["samples"]["host_ns"]) == 20
    for name, cause in (
        ("absent", "cannot be read: No such file"),
        ("foreign", "another architecture (ELF machine 2, 64 bits)"),
    ):
        (refused,) = found[f"test_second preload:{name}"]
        assert cause in refused["reason"]
        assert refused["scheduler_proof"] is None
        assert refused["samples"] is None
    workers = Counter((pytester.path / "workers").read_text().splitlines())
    # One worker for each scheduler, which serves both tests.
    assert sorted(workers.values()) == [2, 2, 2, 2]


def test_what_dies_costs_its_test_only(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(
        """
        import os, signal
        from pathlib import Path
        import psutil

        def test_before(hwq):
            hwq.measure(lambda: None)

        def test_crash(hwq):
            hwq.measure(lambda: os.kill(os.getpid(), signal.SIGSEGV))

        def test_after(hwq):
            hwq.measure(lambda: None)

        def test_service(hwq):
            pids = Path("schedulers/pids").read_text().split()
            assert len(pids) == 1
            server = psutil.Process(int(pids[0]))
            guardian = server.parent()

            def end():
                if server.is_running():
                    server.kill()
                try:
                    while guardian.status() != psutil.STATUS_ZOMBIE:
                        pass
                except psutil.NoSuchProcess:
                    return

            hwq.measure(end)

        def test_last(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = pytester.runpytest_subprocess(*arguments("--hwq-scheduler=preload:served"))
    result.assert_outcomes(passed=3, failed=2)
    found = {name.split()[0]: record for name, (record,) in records(pytester).items()}
    assert {name: record["status"] for name, record in found.items()} == {
        "test_before": "ok", "test_crash": "failed", "test_after": "ok",
        "test_service": "failed", "test_last": "ok",
    }  # fmt: skip
    assert found["test_crash"]["reason"] == "the worker process died by SIGSEGV"
    assert "died by SIGKILL while it was needed" in found["test_service"]["reason"]
    (session,) = (pytester.path / ".hwqueue").glob("2*")
    for record in (found["test_before"], found["test_last"]):
        (note,) = [note for note in record["notes"] if note.startswith("logs of preload:served")]
        logs = session / note.partition("in ")[2].partition("/")[0]
        assert (logs / "served-0.log").exists()
    pids = served_pids(folder)
    assert len(pids) == 2
    assert all(map(has_ended, pids))
    assert "left by SIGINT" in (logs / "served-0.log").read_text()


@pytest.mark.slow
def test_each_run_gets_its_environment(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(
        """
        import os

        def test_mine(hwq, hwq_scheduler):
            with open("workers", "a") as file:
                file.write(f"{os.getpid()}\\n")
            hwq.measure(lambda: None)
        """
    )
    result = pytester.runpytest_subprocess(
        *arguments("--hwq-scheduler=preload:served,native", "--hwq-runs=2")
    )
    result.assert_outcomes(passed=2)
    found = records(pytester)
    assert [record["run"] for record in found["test_mine preload:served"]] == [1, 2]
    assert [record["run"] for record in found["test_mine native"]] == [1, 2]
    assert len(set((pytester.path / "workers").read_text().split())) == 4
    assert len(set(served_pids(folder))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_services_end_with_the_session(
    pytester: pytest.Pytester, folder: Path, number: signal.Signals
) -> None:
    pytester.makepyfile(
        """
        import os, time

        def test_hang(hwq):
            with open("worker", "w") as file:
                file.write(str(os.getpid()))
            hwq.measure(lambda: time.sleep(3600))
        """
    )
    session = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments("--hwq-scheduler=preload:served")],
        cwd=pytester.path, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    worker = pytester.path / "worker"
    wait_for(lambda: worker.exists() and worker.read_text(), "the worker")
    session.send_signal(number)
    session.wait()
    wait_for(lambda: has_ended(int(worker.read_text())), "the worker's end")
    (pid,) = served_pids(folder)
    wait_for(lambda: has_ended(pid), "the service's end")
    (log,) = pytester.path.glob(".hwqueue/*/scheduler-1/served-0.log")
    assert "left by SIGINT" in log.read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--hwq-scheduler=native,xsched:level=9"], "xsched: level=9 is not valid; give a whole"),
        (["--hwq-scheduler=preload:tini"], "there is no tini.yaml in the folders of"),
        (["--hwq-scheduler=mps,xsched"], "nothing to measure: mps needs an NVIDIA GPU"),
        (["--hwq-scheduler=native,preload:served", "--hwq-isolation=none"],
         "preload:served cannot be followed here: it needs a process started for it"),
        (["--hwq-scheduler=preload:served", "-n1"], "leave out xdist's -n"),
        (["--hwq-scheduler=preload:served", "--hwq-device=sim:h200"],
         "nothing to measure: preload:served: a simulated device"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(
    pytester: pytest.Pytester,
    run_in_process: RunInProcess,
    folder: Path,
    more: list[str],
    said: str,
) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    result = run_in_process(*arguments("--hwq-isolation=process", *more))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert not (folder / "pids").exists()


def test_a_mode_that_cannot_be_opened_fails_its_own_cells_alone(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    result = run_in_process(
        *arguments("--hwq-isolation=process", "--hwq-scheduler=native,preload:tini")
    )
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*preload:tini: there is no tini.yaml in the folders of*"])


@pytest.mark.parametrize("selection", [[], ["--hwq-workload=large_gemm_only,tiny_kernel_stress"]])
def test_tests_of_a_scheduler_follow_one_another(
    pytester: pytest.Pytester, run_in_process: RunInProcess, folder: Path, selection: list[str]
) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_nothing():
            pass

        @pytest.mark.hwq_workload("large_gemm_only")
        def test_first(hwq):
            hwq.run()

        @pytest.mark.hwq_workload("tiny_kernel_stress")
        def test_second(hwq):
            hwq.run()
        """
    )
    modes = ("--hwq-isolation=process", "--hwq-scheduler=native,preload:served")
    result = run_in_process(*arguments(*modes, "--collect-only", "-q", *selection))
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    nothing = [] if selection else ["test_nothing"]
    assert names == nothing + [
        f"{test}[cpu-s1-{scheduler}-eager]"
        for scheduler in ("native", "preload:served")
        for test in ("test_first", "test_second")
    ]
