"""XSched as a mode: what tenants are started with, and that only what was asked for is proven."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.processes import services
from pytest_hwqueue.parts.processes.process_table import RunningProgram
from pytest_hwqueue.parts.processes.services import ServiceFailed
from pytest_hwqueue.parts.schedulers import inside_evidence
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    CELL,
    Scheduler,
    SchedulerPaths,
    open_scheduler,
    tenant_requests,
)
from pytest_hwqueue.parts.schedulers.xsched_server import (
    XQueue,
    XQueueSettings,
    parse_queues,
    parse_report,
    refuse_other,
    serve,
)
from pytest_hwqueue.plugin.worker.services import SchedulerServices
from tests.torch_builds import built_for

from .processes import has_ended, needs_compiler, program, wait_for
from .xserver import XSERVER, queue

LOW_AND_HIGH = tenant_requests([Tenant("low", "resnet18"), Tenant("high", "resnet18", priority=10)])
PIDS = {"low": 301, "high": 302}
LOW, HIGH = queue(301), queue(302, handle=2)
DRIVER = "/usr/lib/libcuda.so.580.65.06"
REAL_QUEUES = SchedulerPaths().queues


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The real driver, which without one is a file that the loader would find; no CUDA, no HIP."""
    for name in ("XSCHED_ROOT", "XSCHED_POLICY", "HWQ_XSERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    built_for(monkeypatch)
    drivers = tmp_path / "drivers"
    drivers.mkdir()
    (drivers / "libcuda.so.1").write_text("no ELF")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    inside_evidence.cuda_driver.cache_clear()
    inside_evidence.hip_runtime.cache_clear()
    yield str(inside_evidence.cuda_driver(tmp_path / "root" / "lib"))
    inside_evidence.cuda_driver.cache_clear()
    inside_evidence.hip_runtime.cache_clear()


@pytest.fixture
def hip_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A build of torch for HIP, and ROCm's runtime."""
    built_for(monkeypatch, hip="7.0")
    runtime = tmp_path / "rocm" / "lib" / "libamdhip64.so.7"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    return str(runtime)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An installation of XSched."""
    root = tmp_path / "root"
    program(root / "bin" / "xserver", XSERVER)
    (root / "lib").mkdir()
    for library in ("shimcuda", "halcuda", "shimhip", "halhip", "preempt"):
        (root / "lib" / f"lib{library}.so").touch()
    (root / "lib" / "libcuda.so.1").symlink_to("libshimcuda.so")
    return root


def opened(text: str, root: Path | None) -> Scheduler:
    return open_scheduler(text, SchedulerPaths() if root is None else alone(root))


def alone(root: Path) -> SchedulerPaths:
    """This installation, on a machine without a queue (or with those of a file) and an xserver."""
    return SchedulerPaths(root, queues=root.parent / "queues", programs=lambda names: [])


def inside(root: Path, **changed: Any) -> dict[str, InsideEvidence]:
    maps = [f"{root}/lib/libshimcuda.so", f"{root}/lib/libpreempt.so", DRIVER]
    evidence = InsideEvidence(**{"maps": maps, "stream_priorities": [0], **changed})
    return dict.fromkeys(PIDS, evidence)


def answer(root: Path, *queues: dict[str, Any], processes: tuple[int, ...] = (301, 302)) -> None:
    """Let xserver answer with these XQueues from now on."""
    report = {"processes": [{"pid": pid} for pid in processes], "xqueues": queues}
    (root / "new.json").write_text(json.dumps(report))
    (root / "new.json").rename(root / "answer.json")


@pytest.mark.parametrize(
    ("text", "auto", "settings"),
    [
        ("xsched", "ON", ("1", "16", "8")),
        ("xsched:threshold=1", "ON", ("1", "1", "1")),
        ("xsched:level=3,threshold=4,batch=4", "ON", ("3", "4", "4")),
        ("xsched:auto=off", "OFF", ("1", "16", "8")),
    ],
)
def test_what_tenants_are_started_with(
    root: Path, driver: str, text: str, auto: str, settings: tuple[str, ...]
) -> None:
    mine = os.environ["LD_LIBRARY_PATH"]
    mode = opened(text, root)
    assert mode.placements == {"processes"}
    with mode.services(root / "logs"):
        low, high = (mode.environment(tenant) for tenant in LOW_AND_HIGH)
    assert low.pop("HWQ_XSERVER_PORT") == high.pop("HWQ_XSERVER_PORT")
    # The most urgent is never held up, and keeps what XSched does by itself.
    for found, priority, own in ((low, "0", settings), (high, "10", ("1", "16", "8"))):
        names = ("LEVEL", "THRESHOLD", "BATCH_SIZE", "PRIORITY")
        assert found == {
            # What the user has in it stays behind the shim.
            "LD_LIBRARY_PATH": f"{root}/lib:{mine}", "XSCHED_ROOT": str(root),
            "XSCHED_CUDA_LIB": driver, "CUXTRA_CUDA_LIB": driver, "XSCHED_SCHEDULER": "GLB",
            "XSCHED_AUTO_XQUEUE": auto,
            **{f"XSCHED_AUTO_XQUEUE_{n}": v for n, v in zip(names, (*own, priority), strict=True)},
            **({"XSCHED_CUDA_LV3_IMPL": "TSG"} if own[0] == "3" else {}),
        }  # fmt: skip
    # Of equals nobody is.
    assert not any(
        each.most_urgent
        for each in tenant_requests(
            [Tenant("a", "resnet18", priority=1), Tenant("b", "resnet18", priority=1)]
        )
    )
    with pytest.raises(RuntimeError, match="while xserver runs"):
        mode.environment(CELL)


def test_hip_is_preloaded_before_torchs_own_runtime(
    root: Path, hip_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    mode = opened("xsched", root)
    assert mode.unavailable("hip", LOW_AND_HIGH) is None
    with mode.services(root / "logs"):
        given = mode.environment(CELL)
        monkeypatch.setenv("LD_PRELOAD", "/lib/libjemalloc.so:/lib/b.so")
        beside = mode.environment(CELL)
    assert given["LD_PRELOAD"] == str(root / "lib" / "libshimhip.so")
    assert beside["LD_PRELOAD"] == f"{given['LD_PRELOAD']}:/lib/libjemalloc.so:/lib/b.so"
    assert given["XSCHED_HIP_LIB"] == hip_runtime
    assert "XSCHED_CUDA_LIB" not in given


def prove(
    text: str, root: Path, *queues: dict[str, Any], watched: Any = (), **changed: Any
) -> Proof:
    """Prove it by a last answer of these XQueues, after those that were watched."""
    mode = opened(text, root)
    with mode.services(root / "logs"):
        for tenant in LOW_AND_HIGH:
            mode.environment(tenant)
        for seen, times in watched:
            answer(root, *seen)
            for _ in range(times):
                mode.observe(PIDS)
        answer(root, *queues, processes=(301, 302) if queues or not watched else ())
        return mode.proof(PIDS, inside(root, **changed))


def test_it_is_proven_by_shim_driver_and_xqueues(root: Path) -> None:
    proof = prove("xsched:threshold=1", root, queue(301, threshold=1, batch=1), HIGH)
    assert proof.mode == "xsched:threshold=1"
    assert "low has 1 of level 1, threshold 1, batch 1" in proof.evidence
    assert "high has 1 of level 1, threshold 16, batch 8" in proof.evidence
    # Nothing was watched, so nothing is said of the effect.
    assert (proof.device_priorities, proof.effective, proof.counts) == ((0, 0), None, {})
    # Level 2 where the GPU has it.
    prove("xsched:level=2", root, queue(301, level=2), HIGH, capability=[7, 0])
    # XQueues seen before count after a tenant has ended.
    assert "low has 1" in prove("xsched", root, watched=[((LOW, HIGH), 1)]).evidence


@pytest.mark.parametrize(
    ("text", "queues", "changed", "said"),
    [
        ("xsched", (LOW, HIGH), {"maps": [DRIVER]},
         rf"tenant low \(process 301\) has {DRIVER} mapped and not .*libshimcuda.so: nothing is "),
        ("xsched", (LOW, HIGH), {"maps": []}, "has no libcuda.so mapped and not .*libshimcuda.so"),
        ("xsched", (LOW, HIGH), {"maps": ["{root}/lib/libshimcuda.so"]},
         r"and no real libcuda\.so"),
        ("xsched", (LOW,), {}, r"tenant high \(process 302\) is connected .* has no XQueue"),
        ("xsched:auto=off", (), {}, r"tenant low .* no XQueue.* default stream, or .* is off"),
        ("xsched:threshold=4", (queue(301, threshold=8, batch=2), HIGH), {},
         "has an XQueue of level 1, threshold 8, batch 2; requested was level 1, threshold 4"),
        ("xsched:level=3", (LOW, HIGH), {}, "XQueue of level 1, .* requested was level 3"),
        ("xsched", (LOW, queue(301, handle=5, batch=4), HIGH), {}, "threshold 16, batch 4; "),
        ("xsched:level=2", (queue(301, level=2), HIGH), {"capability": [9, 0]},
         "compute capability 9.0, for which XSched has no level 2"),
    ],
)  # fmt: skip
def test_it_is_not_proven_without(
    root: Path, text: str, queues: tuple[Any, ...], changed: Any, said: str
) -> None:
    if "maps" in changed:
        changed = {"maps": [path.format(root=root) for path in changed["maps"]]}
    with pytest.raises(NotProven, match=said):
        prove(text, root, *queues, **changed)


def test_one_that_schedules_itself_is_named_and_nothing_is_left_of_another_run(root: Path) -> None:
    mode = opened("xsched", root)
    with mode.services(root / "logs"):
        answer(root, LOW, HIGH)
        mode.observe(PIDS)
    with mode.services(root / "logs"):
        answer(root, processes=())
        alone = inside(root, output="[XSCHED INFO] using app-managed scheduler\n")
        with pytest.raises(NotProven, match=r"not connected .* app-managed scheduler: nobody's"):
            mode.proof(PIDS, alone)


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_the_library_alone_is_started_without_server_priority_or_xqueue(
    root: Path, driver: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    more = {"XSCHED_CUDA_LIB": driver, "CUXTRA_CUDA_LIB": driver}
    if kind == "hip":
        runtime = request.getfixturevalue("hip_runtime")
        more = {"XSCHED_HIP_LIB": runtime, "LD_PRELOAD": f"{root}/lib/libshimhip.so"}
    # It needs none, and equal priorities are as good as others.
    (root / "bin" / "xserver").unlink()
    alone = opened("xsched-app", root)
    equals = tenant_requests(
        [Tenant("a", "resnet18", priority=1), Tenant("b", "resnet18", priority=1)]
    )
    mine = os.environ["LD_LIBRARY_PATH"]
    assert alone.unavailable(kind, equals) is None
    assert alone.placements == {"processes", "threads"}
    with alone.services(root / "logs"):
        for tenant in LOW_AND_HIGH:
            assert alone.environment(tenant) == {
                "LD_LIBRARY_PATH": f"{root}/lib:{mine}", "XSCHED_ROOT": str(root),
                "XSCHED_SCHEDULER": "APP", "XSCHED_AUTO_XQUEUE": "OFF", **more,
            }  # fmt: skip
    assert "has no bin/xserver" in (opened("xsched", root).unavailable(kind, LOW_AND_HIGH) or "")
    monkeypatch.setenv("XSCHED_POLICY", "HPF")
    reason = alone.unavailable(kind, equals) or ""
    assert reason.endswith("with which a process schedules itself alone; unset it")
    assert "needs an accelerator" in (alone.unavailable("cpu", equals) or "")


def test_of_the_library_alone_is_proven_what_can_be_seen(root: Path) -> None:
    mode = opened("xsched-app", root)
    quiet = mode.proof(PIDS, inside(root))
    assert quiet.evidence == (
        "shim and real driver mapped in all tenants, started as app-managed with XQueues off: "
        "no scheduler was seen (XQueues neither: only an xserver tells of them); written "
        "'app-managed scheduler': by none"
    )
    assert (quiet.device_priorities, quiet.effective, quiet.counts) == ((0, 0), None, {})
    app = inside(root, output="[XSCHED INFO] using app-managed scheduler\n")
    assert mode.proof(PIDS, app).evidence.endswith("'app-managed scheduler': low, high")
    for changed, said in (
        ({"maps": [DRIVER]}, rf"tenant low \(process 301\) has {DRIVER} mapped and not .*shimcuda"),
        ({"maps": [f"{root}/lib/libshimcuda.so"]}, r"and no real libcuda\.so"),
        ({"output": "[XSCHED INFO] using global scheduler\n"},
         "wrote that it uses the global scheduler, which is another mode"),
        ({"output": "[XSCHED INFO] using local scheduler with policy HPF\n"},
         "wrote that it uses the local scheduler, which is another mode"),
    ):  # fmt: skip
        with pytest.raises(NotProven, match=said):
            mode.proof(PIDS, inside(root, **changed))


def test_the_effect_is_counted_while_tenants_run(root: Path) -> None:
    held = queue(301, ready=True, suspended=True), queue(302, handle=2, ready=True)
    free = queue(301, ready=True), HIGH
    # Suspended without work to do, or another's: neither is held up.
    idle = (
        queue(301, suspended=True), queue(302, handle=2, ready=True), queue(302, handle=3),
        queue(999, ready=True, suspended=True),
    )  # fmt: skip
    proof = prove("xsched", root, *idle, watched=[(held, 3), (free, 4), (idle, 2)])
    assert proof.effective is True
    assert proof.counts == {
        "samples": 9,
        "low XQueue 0 ready suspended": 3,
        "low XQueue 0 ready": 4,
        "low XQueue 0 idle suspended": 2,
        "high XQueue 0 ready": 5,
        "high XQueue 0 idle": 4,
        "high XQueues never seen with work": 1,
        "low ready and suspended while high ready": 3,
    }
    reverse = queue(301, ready=True), queue(302, handle=2, ready=True, suspended=True)
    proof = prove("xsched", root, *reverse, watched=[(reverse, 1)])
    assert proof.effective is False
    assert "never seen held up" in proof.evidence
    assert proof.counts["high ready and suspended while low ready"] == 1
    # Nobody competed while it was looked at: that says nothing of the effect.
    alone = queue(301, ready=True), HIGH
    proof = prove("xsched", root, *alone, watched=[(alone, 5)])
    assert proof.effective is None
    assert "held up" not in proof.evidence


def test_a_window_is_proven_by_what_was_seen_for_it(root: Path) -> None:
    held = queue(301, ready=True, suspended=True), queue(302, handle=2, ready=True)
    free = queue(301, ready=True), queue(302, handle=2, ready=True)
    mode = opened("xsched", root)
    with mode.services(root / "logs"):
        for tenant in LOW_AND_HIGH:
            mode.environment(tenant)
        proofs = []
        for seen in (held, free):
            mode.begin_window()
            answer(root, *seen)
            mode.observe(PIDS)
            proofs.append(mode.proof(PIDS, inside(root)))
    assert [proof.effective for proof in proofs] == [True, False]
    assert [proof.counts["samples"] for proof in proofs] == [1, 1]


def test_xserver_is_not_asked_while_a_cell_is_measured(root: Path) -> None:
    services = SchedulerServices("xsched", SchedulerPaths(xsched_root=root), root / "logs")
    try:
        asked = root / "connections"
        before = int(asked.read_text())
        for _ in range(20):
            services.check()
        assert int(asked.read_text()) == before
        # Once it is measured.
        assert services.problem(301) == ""
        assert int(asked.read_text()) == before + 1
        os.kill(int((root / "pid").read_text()), signal.SIGKILL)
        assert "died by SIGKILL" in services.problem(301)
    finally:
        services.close()


def test_an_xserver_killed_midway_is_an_error_for_whoever_looks(root: Path) -> None:
    mode = opened("xsched", root)
    with mode.services(root / "logs"):
        answer(root, LOW, HIGH)
        mode.observe(PIDS)
        os.kill(int((root / "pid").read_text()), signal.SIGKILL)
        proof = partial(mode.proof, PIDS, inside(root))
        for look in (lambda: mode.observe(PIDS), proof, mode.check):
            with pytest.raises(ServiceFailed, match=r"xserver \(process \d+\) died by SIGKILL"):
                look()


def test_a_process_proves_itself_by_its_own_environment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, in_worker = opened("xsched:threshold=4", root), opened("xsched:threshold=4", root)
    cell, evidence = {CELL.name: os.getpid()}, {CELL.name: inside(root)["low"]}
    with pytest.raises(NotProven, match="was not started under it"):
        in_worker.proof(cell, evidence)
    with started.services(root / "logs"):
        for name, value in started.environment(CELL).items():
            monkeypatch.setenv(name, value)
        answer(root, queue(os.getpid(), threshold=4, batch=2), processes=(os.getpid(),))
        proof = opened("xsched:threshold=4", None).proof(cell, evidence)
    assert "cell has 1 of level 1, threshold 4, batch 2" in proof.evidence


def test_what_an_installation_lacks_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(installed: Path | None = root) -> str:
        return opened("xsched", installed).unavailable("cuda", LOW_AND_HIGH) or "nothing"

    assert "by --hwq-xsched-root or XSCHED_ROOT" in reason(None)
    monkeypatch.setenv("XSCHED_ROOT", str(root))
    assert reason() == reason(None) == "nothing"
    monkeypatch.setenv("XSCHED_POLICY", "HPF")
    assert "XSCHED_POLICY is set" in reason()
    monkeypatch.delenv("XSCHED_POLICY")
    (root / "bin" / "xserver").chmod(0o644)
    assert "is not executable" in reason() or os.getuid() == 0
    (root / "lib" / "libcuda.so.1").unlink()
    (root / "lib" / "libpreempt.so").unlink()
    assert "has no lib/libcuda.so.1, lib/libpreempt.so; build and install" in reason()


@needs_compiler
def test_the_driver_is_the_one_the_loader_would_load(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "driver" / "libcuda.so.580.1"
    real.parent.mkdir()
    subprocess.run(["cc", "-shared", "-x", "c", "-o", real, "-"], input=b"int cuInit;", check=True)
    (real.parent / "libcuda.so.1").symlink_to(real.name)
    # The user has put the shim first: it is never taken for the real one.
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{root}/lib:{real.parent}")
    assert inside_evidence.cuda_driver(root / "lib", tmp_path) == real


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="a driver is installed")
def test_a_driver_that_cannot_be_loaded_is_looked_for_by_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root / "lib"))
    inside_evidence.cuda_driver.cache_clear()
    assert "the real libcuda.so was not found" in str(
        opened("xsched", root).unavailable("cuda", LOW_AND_HIGH)
    )
    containers = tmp_path / "containers"
    assert inside_evidence.cuda_driver(root / "lib", containers) is None
    inside_evidence.cuda_driver.cache_clear()
    containers.mkdir()
    (real := containers / "libcuda.so.1").write_text("no ELF")
    assert inside_evidence.cuda_driver(root / "lib", containers) == real


def test_the_hip_runtime_is_torchs_own_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "rocm" / "lib" / "libamdhip64.so.7"
    own = tmp_path / "torch" / "lib" / "libamdhip64.so"
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    torch = SimpleNamespace(submodule_search_locations=[str(own.parents[1])])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: torch)
    assert inside_evidence.hip_runtime() is None
    for runtime in (system, own):
        runtime.parent.mkdir(parents=True)
        runtime.touch()
        inside_evidence.hip_runtime.cache_clear()
        assert inside_evidence.hip_runtime() == runtime
    inside_evidence.hip_runtime.cache_clear()


def table(*rows: tuple[int, int]) -> str:
    """Text of /proc/sysvipc/msg with queues of these keys and identifiers."""
    lines = (f"{key:>10} {identifier:>10}   666 0 0 0 0 0 0\n" for key, identifier in rows)
    return "       key      msqid perms cbytes qnum lspid lrpid uid gid ...\n" + "".join(lines)


def test_another_server_is_looked_for_by_its_name(root: Path) -> None:
    def programs(names: Collection[str]) -> list[RunningProgram]:
        return [RunningProgram("xserver", 4711, (), None)] if "xserver" in names else []

    machine = replace(alone(root), programs=programs)
    machine.queues.write_text(table((1, 7)))
    with pytest.raises(ServiceFailed, match="kill -INT 4711"), serve(root, "HPF", root, machine):
        pytest.fail("two servers")


def test_a_living_server_is_refused_and_no_other_queue() -> None:
    with pytest.raises(ServiceFailed, match=r"^(?!.*ipcrm).*kill -INT 4711"):
        refuse_other(table((1, 7)), [4711])
    for text in ("", table(), table((16120, 5), (11, 1))):
        refuse_other(text, [])


def test_a_report_keeps_handles_of_64_bits() -> None:
    handle = 4537471537448846801
    report = parse_report(json.dumps({
        "processes": [{"cmdline": "a", "pid": 16120}, {"cmdline": "b", "pid": 16121}],
        "xqueues": [queue(16120, handle=handle, ready=True, suspended=True, threshold=4, batch=2)],
    }))  # fmt: skip
    assert report.processes == {16120, 16121}
    assert report.queues == (XQueue(16120, handle, XQueueSettings(1, 4, 2), True, True),)
    for text in ("", "not JSON", "[]", '{"processes": [], "xqueues": [{"pid": 1}]}'):
        with pytest.raises(NotProven, match=r"not in the format of XSched 1\.2"):
            parse_report(text)


def test_it_is_ready_when_it_answers_and_is_stopped_by_sigint(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No proxy of the environment is asked.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(root, "CFS", tmp_path / "logs", alone(root)) as server:
        assert server.policy() == 10
        before = int((root / "connections").read_text())
        assert server.report().queues == server.report().queues == ()
        # A connection that is kept alive would answer a hundred times slower.
        assert int((root / "connections").read_text()) == before + 2
        server.check()
    assert has_ended(int((root / "pid").read_text()))
    log = (tmp_path / "logs" / "xserver.log").read_text()
    assert "[stopping by SIGINT]" in log
    assert "stopped by SIGINT" in log


_ENDS = "print('invalid policy name HPF')\nraise SystemExit(1)\n"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "root/policy",
            "3",
            r"started with policy HPF \(number 1\), and answers with policy number 3",
        ),
        # So does the real one where its port is taken.
        ("root/mute", "", "runs, but did not answer over HTTP"),
        ("root/bin/xserver", _ENDS, "(?s)exited with status 1.*invalid policy name"),
        ("queues", table((16120, 5), (1, 7)), "scheduled by nobody.*ipcrm -Q 1$"),
    ],
)
def test_one_that_is_not_ours_or_does_not_serve_is_refused_and_ended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str,
    content: str, said: str,
) -> None:  # fmt: skip
    if file == "root/mute":
        monkeypatch.setattr(services, "_READY_S", 0.3)
    if file == "root/bin/xserver":
        program(tmp_path / file, content)
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ServiceFailed, match=said), serve(root, "HPF", tmp_path, alone(root)):
        pytest.fail("it serves nobody")
    pid = root / "pid"
    assert not pid.exists() or (file != "queues" and has_ended(int(pid.read_text())))


def test_anothers_answers_are_not_taken_for_those_of_one_without_its_port(
    root: Path, tmp_path: Path
) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"policy": 1}')

    strangers: list[HTTPServer] = []

    def answer_instead() -> None:
        wait_for(lambda: (root / "port").exists() and (root / "port").read_text(), "its port")
        strangers.append(HTTPServer(("127.0.0.1", int((root / "port").read_text())), Answers))
        strangers[0].serve_forever()

    # As the real one does without its port, it lives on.
    (root / "mute").touch()
    answering = threading.Thread(target=answer_instead)
    answering.start()
    said = rf"xserver: on port \d+ .* \(process {os.getpid()}\), which it has not started"
    try:
        with pytest.raises(NotProven, match=said), serve(root, "HPF", tmp_path, alone(root)):
            pytest.fail("it serves nobody")
    finally:
        strangers[0].shutdown()
        answering.join()
        strangers[0].server_close()


def test_one_whose_port_is_shared_proves_nothing(root: Path) -> None:
    mode = opened("xsched", root)
    with mode.services(root / "logs"), socket.socket() as joining:
        port = int(mode.environment(CELL)["HWQ_XSERVER_PORT"])
        joining.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        joining.bind(("127.0.0.1", port))
        joining.listen()
        with pytest.raises(NotProven, match=rf"\(process {os.getpid()}\) too, which it has not"):
            mode.proof(PIDS, inside(root))


def test_the_queue_of_a_dead_client_is_removed_and_no_other(root: Path, tmp_path: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    create, permissions = 0o1000, 0o600
    client = subprocess.Popen([sys.executable, "-c", ""])
    client.wait()
    # The keys are process ids, of our own processes: nobody else's.
    keys = (client.pid, os.getpid())
    made = [library.msgget(key, create | permissions) for key in keys]
    if -1 in made:
        pytest.skip(f"this machine gives no System V queues: {os.strerror(ctypes.get_errno())}")
    # Of the machine's queues only these.
    queues = parse_queues(REAL_QUEUES.read_text())
    alone(root).queues.write_text(table(*((key, queues[key]) for key in keys)))
    report = {"processes": [{"pid": key} for key in keys], "xqueues": []}
    (root / "answer.json").write_text(json.dumps(report))
    try:
        with serve(root, "HPF", tmp_path, alone(root)) as server:
            server.report()
        left = parse_queues(REAL_QUEUES.read_text())
        assert left.keys() & {*keys} == {os.getpid()}
    finally:
        for identifier in made:
            library.msgctl(identifier, 0, None)
