"""Any test under any scheduler: real sessions whose workers are started for a scheduler."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import PYTEST

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

from .conftest import EXAMPLES
from .processes import SERVER, has_ended, needs_compiler, program, served_pids, wait_for


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """Where the descriptions are; ``served`` is one with a service."""
    folder = pytester.path / "schedulers"
    program(folder / "server", SERVER)
    service = {"command": ["./server"], "stop": "INT", "ready": "^ready"}
    describe(folder, "served", services=[service], proof={"maps": "libtorch"})
    return folder


def describe(folder: Path, name: str, **fields: Any) -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"proof": {"maps": "."}, **fields}))


def arguments(*more: str) -> list[str]:
    """Arguments of an inner session."""
    return [
        "--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=20", "--hwq-warmup=2",
        "--hwq-preloads=schedulers", "--hwq-json=s.json", *more,
    ]  # fmt: skip


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """A session's records, by scheduler."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads((folder / "s.json").read_text())["records"]:
        found.setdefault(record["setting"]["scheduler"].rpartition(":")[2], []).append(record)
    return found


@needs_compiler
def test_tests_are_measured_only_where_the_scheduler_is_proven(
    pytester: pytest.Pytester, sessions: Sessions, folder: Path, library: Path
) -> None:
    shutil.copy(EXAMPLES / "tiny.yaml", folder)
    shutil.copy(library, folder)
    describe(folder, "absent", preload=["./libabsent.so"])
    describe(folder, "dead", environment={"PYTHONHOME": "/nowhere"})
    describe(folder, "unserved", services=[{"command": ["./no"]}])
    pytester.makepyfile(
        """
        import ctypes, os, pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_mine(hwq, hwq_scheduler, number):
            has_library = hasattr(ctypes.CDLL(None), "tiny_answer")
            assert has_library == (hwq_scheduler.mode == "preload:tiny")
            with open("workers", "a") as file:
                file.write(f"{os.getpid()}\\n")
            hwq.measure(lambda: sum(range(100)))
        """
    )
    preloads = [f"preload:{name}" for name in ("tiny", "absent", "dead", "unserved", "tini")]
    modes = ",".join(["native", *preloads, "mps", "xsched:level=1"])
    result = sessions.result(
        pytester.path, *arguments("--hwq-isolation=process", f"--hwq-scheduler={modes}", "-rs")
    )
    result.assert_outcomes(passed=4, failed=8, skipped=4)
    result.stdout.fnmatch_lines_random(
        [
            "*the worker process exited with status 1: *preload:dead-eager-1?",
            "*no could not be started: *preload:unserved-eager-1?",
            "*preload:tini: there is no tini.yaml in the folders of*",
            "*mps needs an NVIDIA GPU; on cpu there is no MPS*",
            "*xsched:level=1 needs an accelerator: XSched schedules CUDA or HIP streams*",
        ]
    )
    by_mode = records(pytester.path)
    statuses = {mode: [each["status"] for each in runs] for mode, runs in by_mode.items()}
    assert statuses == {"native": ["ok"] * 2, "tiny": ["ok"] * 2, "absent": ["failed"] * 2}
    proof = by_mode["tiny"][0]["scheduler_proof"]
    assert proof["mode"] == "preload:tiny"
    assert r"mapped 'libtiny\\.so$', written '^tiny" in proof["evidence"]
    refused = by_mode["absent"][1]
    assert "cannot be read: No such file" in refused["reason"]
    assert (refused["scheduler_proof"], refused["samples"]) == (None, None)
    # One worker for each scheduler serves both tests.
    workers = Counter((pytester.path / "workers").read_text().split())
    assert list(workers.values()) == [2, 2, 2]


@needs_compiler
def test_a_preload_of_the_users_stays_and_is_a_condition(
    pytester: pytest.Pytester, sessions: Sessions, folder: Path, library: Path
) -> None:
    users = pytester.path / "libusers.so"
    shutil.copy(library, users)
    shutil.copy(library, folder)
    describe(folder, "tiny", preload=["./libtiny.so"])
    pytester.makepyfile("def test_mine(hwq):\n    hwq.measure(lambda: sum(range(100)))")
    given = arguments("--hwq-isolation=process")
    both = [*given, "--hwq-scheduler=native,preload:tiny"]
    result = sessions.result(pytester.path, *both, LD_PRELOAD=f"{users}:{pytester.path}/libgone.so")
    result.assert_outcomes(passed=2)
    with_users = {mode: runs[0] for mode, runs in records(pytester.path).items()}
    assert {mode: each["fingerprint"]["hard"]["preload"] for mode, each in with_users.items()} == {
        "native": "libusers.so", "tiny": "libtiny.so, libusers.so",
    }  # fmt: skip
    assert with_users["native"]["fingerprint"]["soft"]["preload_ignored"] == "libgone.so"
    # And without one.
    sessions.result(pytester.path, *given).assert_outcomes(passed=1)
    (without,) = records(pytester.path)["native"]
    assert without["fingerprint"]["hard"]["preload"] == "none"


@needs_compiler
def test_native_is_no_name_for_a_scheduler_that_the_user_preloads(
    pytester: pytest.Pytester, sessions: Sessions, library: Path
) -> None:
    shim = pytester.path / "libshimhip.so"
    shutil.copy(library, shim)
    pytester.makepyfile("def test_mine(hwq):\n    hwq.measure(lambda: sum(range(100)))")
    given = arguments("--hwq-isolation=process")
    result = sessions.result(pytester.path, *given, LD_PRELOAD=str(shim))
    result.assert_outcomes(failed=1)
    (record,) = records(pytester.path)["native"]
    assert record["status"] == "failed"
    assert f"native: tenant cell has {shim} mapped, so XSched stands between" in record["reason"]
    assert "choose the scheduler xsched" in record["reason"]


def test_what_dies_costs_its_test_only(
    pytester: pytest.Pytester, sessions: Sessions, folder: Path
) -> None:
    pytester.makepyfile(
        """
        import os, signal
        from pathlib import Path
        import psutil

        def test_crash(hwq):
            hwq.measure(lambda: os.kill(os.getpid(), signal.SIGSEGV))

        def test_service(hwq):
            (pid,) = Path("schedulers/pids").read_text().split()
            server = psutil.Process(int(pid))
            guardian = server.parent()

            def end():
                if server.is_running():
                    server.kill()
                psutil.wait_procs([guardian])

            hwq.measure(end)

        def test_last(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = sessions.result(pytester.path, *arguments("--hwq-scheduler=preload:served"))
    result.assert_outcomes(passed=1, failed=2)
    crash, service, last = records(pytester.path)["served"]
    assert crash["reason"] == "the worker process died by SIGSEGV"
    assert "died by SIGKILL while it was needed" in service["reason"]
    (note,) = [each for each in last["notes"] if each.startswith("logs of preload:served")]
    (session,) = (pytester.path / ".hwqueue").glob("2*")
    log = session / note.partition("in ")[2].partition("/")[0] / "served-0.log"
    assert "left by SIGINT" in log.read_text()
    assert [has_ended(pid) for pid in served_pids(folder)] == [True, True]


@pytest.mark.slow
def test_each_run_gets_its_environment(
    pytester: pytest.Pytester, sessions: Sessions, folder: Path
) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    result = sessions.result(
        pytester.path, *arguments("--hwq-scheduler=preload:served,native", "--hwq-runs=2")
    )
    result.assert_outcomes(passed=2)
    runs = {mode: [each["run"] for each in of] for mode, of in records(pytester.path).items()}
    assert runs == {"served": [1, 2], "native": [1, 2]}
    assert len(set(served_pids(folder))) == 2


# tests/acceptance/test_measuring.py interrupts a session, too.
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_services_end_with_the_session(
    pytester: pytest.Pytester, sessions: Sessions, folder: Path, number: signal.Signals
) -> None:
    pytester.makepyfile(
        """
        import os, pathlib, time

        def test_hang(hwq):
            pathlib.Path("worker").write_text(str(os.getpid()))
            hwq.measure(lambda: time.sleep(3600))
        """
    )
    session = subprocess.Popen(
        [*PYTEST, *arguments("--hwq-scheduler=preload:served")],
        cwd=pytester.path, env=sessions.environment, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    worker = pytester.path / "worker"
    wait_for(lambda: worker.exists() and worker.read_text(), "the worker")
    session.send_signal(number)
    session.wait()
    started = [int(worker.read_text()), *served_pids(folder)]
    wait_for(lambda: all(map(has_ended, started)), "the end of what it has started")
    (log,) = pytester.path.glob(".hwqueue/*/scheduler-1/served-0.log")
    assert "left by SIGINT" in log.read_text()


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ("native,xsched:level=9", "level: '9' is not valid; give a whole"),
        ("preload:tini", "there is no tini.yaml in the folders of"),
        ("mps,xsched", "nothing to measure: mps needs an NVIDIA GPU"),
        ("native,preload:served --hwq-isolation=none",
         "preload:served cannot be followed here: it needs a process started for it"),
        ("preload:served -n1", "leave out xdist's -n"),
        ("preload:served --hwq-device=sim:h200",
         "nothing to measure: the simulator does not model preload:served"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(
    pytester: pytest.Pytester, run_in_process: RunInProcess, folder: Path, modes: str, said: str
) -> None:
    pytester.makepyfile("def test_mine(hwq): hwq.measure(lambda: None)")
    given = f"--hwq-isolation=process --hwq-scheduler={modes}".split()
    result = run_in_process(*arguments(*given))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert not (folder / "pids").exists()


def test_tests_of_a_scheduler_follow_one_another(
    pytester: pytest.Pytester, run_in_process: RunInProcess, folder: Path
) -> None:
    pytester.makepyfile("def test_nothing(): pass\ndef test_a(hwq): pass\ndef test_b(hwq): pass")
    modes = ("--hwq-isolation=process", "--hwq-scheduler=native,preload:served")
    result = run_in_process(*arguments(*modes, "--collect-only", "-q"))
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert names == ["test_nothing"] + [
        f"{test}[cpu-s1-{scheduler}-eager]"
        for scheduler in ("native", "preload:served")
        for test in ("test_a", "test_b")
    ]
