"""Tenants that are servers, in real processes on the CPU: measured, proven, and gone at the end."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, read_colocation
from pytest_hwqueue.engine.cell.attempt import RunDraft
from pytest_hwqueue.engine.tenants import server_processes
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.open_loop import invalid_reason, overloaded_reason
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.processes.services import free_port
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
    parse_scheduler,
)
from tests.conftest import slow
from tests.engine.tenants.conftest import server_of_tests
from tests.parts.schedulers.conftest import library
from tests.parts.schedulers.processes import has_ended, needs_compiler, wait_for

__all__ = ["library"]

pytestmark = pytest.mark.usefixtures("own_leases")
MISBEHAVING = Path(__file__).with_name("misbehaving.py")
EXAMPLES = Path(__file__).parents[3] / "examples"
_LIMITS = Limits(ready_s=60, finish_s=60)


class Watched(Native):
    """The native mode, which also notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(parse_scheduler("native"), SchedulerPaths())
        self.proven: list[dict[str, int]] = []
        self.variables: list[str] = []

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        return {"HWQ_TEST_TENANT": tenant.name}

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        self.proven.append(dict(pids))
        self.variables += [
            psutil.Process(pid).environ().get("HWQ_TEST_TENANT", "") for pid in pids.values()
        ]
        return super().proof(pids, inside)


class ByEnvironment(Watched):
    """A mode that needs its tenants' environment, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = parse_scheduler("xsched")

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> None:
        return None


def misbehaving(mode: str, seconds: float = 0.0, **changed: Any) -> Server:
    command = ("{python}", "-S", str(MISBEHAVING), "{port}", mode, str(seconds))
    fields = {"url": "http://127.0.0.1:{port}/", "command": command, "stop_s": 5.0, **changed}
    return Server(**fields)


def run(
    folder: Path, server: Server, scheduler: Scheduler | None = None, **changed: Any
) -> ColocationRecord:
    arrival = changed.pop("arrival", "constant: 50/s")
    concurrency = changed.pop("concurrency", 4)
    progress = changed.pop("progress", quiet)
    tenant = Tenant("high", server=server, arrival=arrival, concurrency=concurrency)
    plan = Colocation(
        "served",
        (tenant,),
        **{"duration_s": 0.6, "warmup_s": 0.1, "folder": str(folder), **changed},
    )
    if not server.headers:
        assert TypeAdapter(Colocation).validate_python(to_jsonable_python(plan)) == plan
    mode = Watched() if scheduler is None else scheduler
    record = TenantSet(mode, progress, folder, limits=_LIMITS, server=server_of_tests()).once(
        replace(plan, scheduler=mode.mode)
    )
    (path,) = folder.glob("*.json")
    assert read_colocation(path) == record
    return record


def quiet(stage: str, done: int, planned: int) -> None:
    """Show no progress."""


def measured(record: ColocationRecord) -> TenantResult:
    """Return the tenant's result; only a machine that is late or busy makes the run invalid."""
    (tenant,) = record.tenants
    times_ns = tenant.latency_ns
    p99_ms = float(np.quantile(times_ns, 0.99)) / 1e6 if times_ns else math.inf
    late = invalid_reason(tenant.lateness, p99_ms)
    if tenant.server is not None:
        late = late or overloaded_reason(tenant.server.generator_busy)
    assert record.status == ("ok" if late is None else "invalid"), record.reason
    return tenant


def server_logs(folder: Path) -> list[Path]:
    return [*folder.glob("served*/server-high.log")]


def log_of(folder: Path) -> str:
    (log,) = server_logs(folder)
    return log.read_text()


def started(folder: Path, what: str = "begins") -> int:
    """Return the process that a server said it is or has started, or another number of its."""
    found = re.search(rf"{what} (\d+)", log_of(folder))
    assert found is not None, log_of(folder)
    return int(found[1])


def given_port(folder: Path) -> int:
    """Wait for a server that is being started to say which port it was given; return that."""
    wait_for(lambda: "given" in "".join(map(Path.read_text, server_logs(folder))), "its port")
    return started(folder, "given")


def test_it_is_started_loaded_proven_for_each_process_and_ended(tmp_path: Path) -> None:
    scheduler = Watched()
    record = run(tmp_path, misbehaving("forks"), scheduler)
    tenant = measured(record)
    assert (tenant.issued, tenant.completed, tenant.failed, tenant.unserved) == (30, 30, 0, 0)
    assert tenant.server is not None
    assert tenant.server.origin == "command"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", tenant.server.url)
    assert 1 <= tenant.server.most_at_once <= (tenant.server.connections or 0) <= 4
    # The command forks: the process that works is proven, too.
    pids = {pid for each in scheduler.proven for pid in each.values()}
    assert pids == {started(tmp_path), started(tmp_path, "worker")}
    assert set(scheduler.variables) == {"high"}
    assert record.proof is not None
    assert re.search(r"server of high: seen in processes \[\d+", record.proof.evidence)
    assert all(has_ended(pid) for pid in pids)
    assert record.notes == []


def test_one_that_lives_on_serves_each_window_its_own_load(tmp_path: Path) -> None:
    scheduler = Watched()
    tenants = [
        Tenant("high", server=misbehaving("well"), arrival=f"constant: {rate}/s", concurrency=4)
        for rate in (50, 25)
    ]
    plans = [
        Colocation("served", (tenant,), duration_s=0.6, warmup_s=0.1, seed=seed, work_seed=0,
                   folder=str(tmp_path))
        for seed, tenant in enumerate(tenants)
    ]  # fmt: skip
    with TenantSet(scheduler, quiet, tmp_path, _LIMITS, server=server_of_tests()) as living:
        first = living.window(plans[0])
        assert living.can_serve(plans[1])
        second = living.window(plans[1], run=2)
    assert [measured(record).issued for record in (first, second)] == [30, 15]
    # The same process, proven after each window, and gone with the set.
    assert scheduler.proven == [{"high": started(tmp_path)}] * 2
    assert has_ended(started(tmp_path))
    assert first.tenants_started == second.tenants_started


# Each process of a server is proven above, a preloaded library in tests/parts/schedulers.
@pytest.mark.slow
@needs_compiler
def test_under_a_preloaded_scheduler_every_process_has_its_library(
    tmp_path: Path, library: Path
) -> None:
    described = tmp_path / "schedulers"
    described.mkdir()
    (described / "tiny.yaml").write_text(
        f"preload: [{library}]\nproof: {{maps: 'libtiny.so$', output: '^tiny scheduler'}}\n"
    )
    mode = open_scheduler("preload:tiny", SchedulerPaths(preloads=(described,)))
    record = run(tmp_path, misbehaving("forks"), mode)
    measured(record)
    assert record.proof is not None
    assert "libtiny" in record.proof.evidence
    # The process that was started has it, and the one that works dropped it.
    bare = tmp_path / "bare"
    bare.mkdir()
    refused = run(bare, misbehaving("forks-bare"), mode)
    assert (refused.status, refused.proof) == ("failed", None)
    worker = started(bare, "worker")
    assert f"tenant high (process {worker}) does not have {library} mapped" in refused.reason


def test_only_processes_that_have_the_driver_mapped_work_on_the_device(tmp_path: Path) -> None:
    tenant = Tenant("high", server=misbehaving("well"))
    plan = Colocation("served", (tenant,), device="cuda", folder=str(tmp_path))
    servers = server_processes.ServerProcesses(plan, Watched(), RunDraft("start"))
    said = "none of its 1 processes has libcuda.so mapped, so that none works on cuda"
    with servers.running(tmp_path):
        wait_for(lambda: "begins" in (tmp_path / "server-high.log").read_text(), "its start")
        with pytest.raises(NotProven, match=said):
            servers.workers()


def test_a_process_that_may_not_be_looked_at_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, log: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(server_processes, "gather_outside", refuse)
    record = run(tmp_path, misbehaving("well"))
    assert (record.status, record.proof) == ("failed", None)
    assert re.match(
        r"the server of tenant high: process \d+ may not be looked at: .*Permission denied",
        record.reason,
    )


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (replace(misbehaving("well"), command=("no-such-program", "{port}")), "no-such-program"),
        (Server("http://127.0.0.1:9/"), "http://127.0.0.1:9/ was not ready: "),
        slow(misbehaving("refuses"), "the model is missing"),
        slow(misbehaving("silent", ready_s=0.5), "was not ready within 0.5 s: Conn"),
        slow(misbehaving("well", ready="/", ready_s=0.5, status=404), "status 200, not 404: ok"),
        slow(misbehaving("fails"), "the first request to http"),
        (misbehaving("hangs", timeout_s=0.5), "no whole answer within 0.5 s"),
        slow(misbehaving("goes-into-background"), "exited with status 0 while it was needed"),
        slow(misbehaving("dies", 0.4), "exited with status 3 while it was needed"),
        (misbehaving("fails", 0.4), "status 500, not 200: no such model"),
    ],
)
def test_a_server_that_goes_wrong_ends_in_one_readable_record(
    tmp_path: Path, server: Server, said: str
) -> None:
    # The window begins half a second after the warm-up, which takes a tenth of one.
    record = run(tmp_path, server, warmup_s=0.0, duration_s=1.5)
    assert record.status == "failed"
    assert said in record.reason
    # What ended the run is no further cause of it.
    assert record.reason.count("its last lines") <= 1
    assert "Traceback" not in record.reason + record.tenants[0].last_output
    if str(MISBEHAVING) in server.command:
        assert has_ended(started(tmp_path))


def test_failures_in_the_window_count_and_are_not_dropped(tmp_path: Path) -> None:
    server = misbehaving("hangs-each-third", timeout_s=0.6)
    record = run(tmp_path, server, duration_s=2.2, concurrency=2)
    tenant = measured(record)
    assert tenant.issued == 110
    assert tenant.completed
    assert tenant.failed
    assert tenant.completed + tenant.failed + (tenant.unserved or 0) == 110
    assert {each.reason for each in tenant.failures} == {"no whole answer within 0.6 s"}


def test_a_log_that_cannot_be_rewritten_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, known: Collection[str]) -> None:
        assert "hidden" in known
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server_processes, "remove_known", full)
    record = run(tmp_path, misbehaving("well", headers={"X-Mine": "hidden"}), duration_s=0.2)
    said = "may hold secrets of servers, since it cannot be rewritten (No space left on device)"
    assert record.notes == [
        f"{name}.log {said}: remove it" for name in ("server-high", "tenant-high")
    ]
    # Who else reads the folder reads no secret.
    (log,) = tmp_path.rglob("server-high.log")
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("secret", ["hidden", ""])
def test_while_a_log_may_hold_secrets_no_other_user_gets_at_it(tmp_path: Path, secret: str) -> None:
    modes = []
    (tmp_path / "plain").mkdir()
    plain = stat.S_IMODE((tmp_path / "plain").stat().st_mode)

    def look(stage: str, done: int, planned: int) -> None:
        (log,) = tmp_path.rglob("server-high.log")
        modes.append(stat.S_IMODE(log.parent.stat().st_mode))

    server = misbehaving("well", headers={"X-Mine": secret})
    run(tmp_path, server, duration_s=0.2, progress=look)
    assert set(modes) == {0o700 if secret else plain}
    (log,) = tmp_path.rglob("server-high.log")
    assert stat.S_IMODE(log.parent.stat().st_mode) == plain


@pytest.mark.parametrize(
    ("mode", "who"), [slow("stubborn", "begins"), ("leaves-children", "child")]
)
def test_who_is_deaf_to_sigterm_is_killed(tmp_path: Path, mode: str, who: str) -> None:
    record = run(tmp_path, misbehaving(mode, stop_s=0.5), duration_s=0.2)
    assert measured(record).completed
    noted = "did not end within 0.5 s of SIGTERM, and was killed" in " ".join(record.notes)
    assert noted or mode != "stubborn"
    assert has_ended(started(tmp_path, who))


@contextmanager
def outside(mode: str = "well", port: int | None = None) -> Iterator[tuple[int, int]]:
    """Run a server that somebody else has started; yield its port and process id."""
    port = port or free_port()
    with outside_at(str(port), socket.AF_INET, ("127.0.0.1", port), mode) as pid:
        yield port, pid


@contextmanager
def outside_at(place: str, family: int, address: Any, mode: str = "well") -> Iterator[int]:
    """Run such a server at a port or unix socket; yield its process id."""
    process = subprocess.Popen([sys.executable, "-S", str(MISBEHAVING), place, mode])

    def answers() -> bool:
        with socket.socket(family) as asking:
            return asking.connect_ex(address) == 0

    try:
        wait_for(answers, "the server")
        yield process.pid
        # Nothing here ends it.
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_one_that_runs_already_is_not_ours_and_nothing_is_proven(tmp_path: Path) -> None:
    with outside("well") as (port, _):
        url = f"http://127.0.0.1:{port}/"
        record = run(tmp_path, Server(url))
    tenant = measured(record)
    assert tenant.completed == 30
    assert tenant.server is not None
    assert (tenant.server.origin, record.proof) == ("url", None)
    (note,) = record.notes
    assert "the server of tenant high is not ours: it ran already, so under which " in note
    assert url in note


@pytest.mark.parametrize("raced", [True, False])
def test_a_stranger_on_the_port_is_not_measured(tmp_path: Path, *, raced: bool) -> None:
    with ExitStack() as stack:
        if raced:
            # It comes between our look for a free port and a server that is slow to listen.
            coming = stack.enter_context(ThreadPoolExecutor()).submit(
                lambda: stack.enter_context(outside(port=given_port(tmp_path)))
            )
            record = run(tmp_path, misbehaving("silent"))
            port, pid = coming.result()
        else:
            # It was there before a command whose URL names the port.
            port, pid = stack.enter_context(outside())
            record = run(tmp_path, misbehaving("silent", url=f"http://127.0.0.1:{port}/"))
    assert (record.status, record.proof) == ("failed", None)
    assert (record.tenants[0].issued, record.tenants[0].server) == (None, None)
    said = (
        rf"the server of tenant high: on port {port} of 127\.0\.0\.1 listens .+ \(process {pid}\)"
    )
    assert re.search(rf"{said}, which it has not started; write \{{port\}} into", record.reason)


def test_a_stranger_that_is_never_ready_is_named_as_the_cause(tmp_path: Path) -> None:
    with outside("fails") as (port, pid):
        url = f"http://127.0.0.1:{port}/"
        record = run(tmp_path, misbehaving("silent", url=url, ready="/", ready_s=0.3))
    assert f"(process {pid}), which it has not started" in record.reason
    assert "was not ready within 0.3 s: it answered with status 500" in record.reason


@pytest.mark.parametrize(
    ("mode", "said"),
    [("well", "which it has not started"), ("silent", "none of its processes listens on port")],
)
def test_another_program_that_says_that_it_is_ready_is_refused(
    tmp_path: Path, mode: str, said: str
) -> None:
    with outside("well") as (port, _):
        record = run(tmp_path, misbehaving(mode, ready=f"http://127.0.0.1:{port}/"))
    assert record.status == "failed"
    assert said in record.reason


def test_a_stranger_that_joins_in_the_window_is_found_after_it(
    tmp_path: Path,
) -> None:
    with socket.socket() as joining:
        joining.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

        def join(stage: str, done: int, planned: int) -> None:
            if stage == "measure" and not joining.getsockname()[1]:
                joining.bind(("127.0.0.1", given_port(tmp_path)))
                joining.listen()

        record = run(tmp_path, misbehaving("shares", timeout_s=0.5), progress=join)
    tenant = record.tenants[0]
    assert tenant.issued == 30
    assert tenant.server is not None
    assert tenant.server.origin is None
    assert (record.status, record.proof) == ("failed", None)
    said = rf"listens .+ \(process {os.getpid()}\) too, which it has not started"
    assert re.search(said, record.reason)


def test_one_in_a_container_is_not_ours(tmp_path: Path) -> None:
    inside = ("unshare", "--user", "--pid", "--fork")
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this machine gives no namespaces")
    server = misbehaving("well", stop_s=0.5)
    server = replace(server, command=(*inside, *server.command))
    record = run(tmp_path, server)
    tenant = measured(record)
    assert tenant.completed == 30
    assert tenant.server is not None
    assert (tenant.server.origin, record.proof) == ("container", None)
    assert any("is not ours: it runs in a container" in note for note in record.notes)
    # A mode that works through its environment has changed nothing.
    bare = tmp_path / "bare"
    bare.mkdir()
    refused = run(bare, server, ByEnvironment())
    assert refused.status == "failed"
    assert refused.reason.endswith(" changed nothing: no tenant is ours")


def at_socket(mode: str, path: str = "{socket}", **changed: Any) -> Server:
    command = ("{python}", "-S", str(MISBEHAVING), "{socket}", mode)
    return misbehaving(mode, command=command, socket=path, url="http://localhost/", **changed)


def test_one_at_a_unix_socket_is_proven_and_its_new_socket_is_gone(
    tmp_path: Path, temporary_files_in: Callable[[Path], None]
) -> None:
    # Shorter than that of a test: sockets have short paths.
    with tempfile.TemporaryDirectory() as temporary:
        temporary_files_in(Path(temporary))
        record = run(tmp_path, at_socket("forks"))
        assert not [*Path(temporary).glob("hwq-*/socket")]
    tenant = measured(record)
    assert (tenant.issued, tenant.completed, tenant.failed) == (30, 30, 0)
    assert tenant.server is not None
    assert (tenant.server.origin, tenant.server.url) == ("command", "http://localhost/")
    assert 1 <= tenant.server.most_at_once <= (tenant.server.connections or 0) <= 4
    assert record.proof is not None
    assert record.notes == []


def test_where_temporary_files_have_long_names_no_socket_is_made(
    tmp_path: Path, temporary_files_in: Callable[[Path], None]
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    temporary_files_in(long)
    record = run(tmp_path, at_socket("well"))
    assert record.status == "failed"
    assert "is longer than the 107 bytes of a unix socket's path: set TMPDIR to " in record.reason


def test_a_named_socket_is_in_the_scenarios_folder_and_one_left_over_is_the_servers(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    record = run(tmp_path, at_socket("well", "./s"))
    assert measured(record).completed == 30
    assert record.plan.servers["high"].socket == "./s"


def test_one_that_runs_already_at_a_unix_socket_is_not_ours(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with outside_at(path, socket.AF_UNIX, path):
        record = run(tmp_path, Server("http://localhost/", socket="s"))
    tenant = measured(record)
    assert tenant.completed == 30
    assert tenant.server is not None
    assert (tenant.server.origin, record.proof) == ("url", None)


def test_a_socket_at_which_nobody_listens_is_named(tmp_path: Path) -> None:
    record = run(tmp_path, Server("http://localhost/", socket="s"))
    assert record.status == "failed"
    assert f"http://localhost/ on the unix socket {tmp_path / 's'} was not ready: " in record.reason


def test_a_stranger_at_the_unix_socket_is_not_measured(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with outside_at(path, socket.AF_UNIX, path) as pid:
        record = run(tmp_path, at_socket("silent", "s"))
    assert (record.status, record.proof) == ("failed", None)
    said = rf"on the unix socket {path} listens .+ \(process {pid}\), which it has not started; "
    assert re.search(rf"{said}write \{{socket\}} into the command for a new one", record.reason)


def test_a_stranger_that_takes_the_unix_socket_in_the_window_is_found_after_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as taking:

        def take(stage: str, done: int, planned: int) -> None:
            if stage == "measure" and not taking.getsockname():
                path.unlink()
                taking.bind(str(path))
                taking.listen()

        record = run(tmp_path, at_socket("well", "s", timeout_s=0.5), progress=take)
    assert (record.status, record.proof) == ("failed", None)
    assert f"(process {os.getpid()}), which it has not started" in record.reason


_OWNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.engine.tenants.test_server_tenants import at_socket, run
run(Path(sys.argv[2]), at_socket("leaves-children"), duration_s=600.0)
"""


# As in test_colocation.py; what a server has started ends with it above.
@pytest.mark.slow
def test_nothing_is_left_where_the_session_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    # Shorter than that of a test: sockets have short paths.
    with tempfile.TemporaryDirectory() as temporary:
        owner = subprocess.Popen(
            [sys.executable, "-c", _OWNER, root, str(tmp_path)],
            env={**os.environ, "TMPDIR": temporary},
        )
        wait_for(lambda: [*tmp_path.glob("served*/tenant-high.log")], "the tenant")
        wait_for(lambda: "child" in log_of(tmp_path), "the server's child")
        wait_for(lambda: [*Path(temporary).glob("hwq-*/socket")], "the server's socket")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        for what in ("begins", "child"):
            pid = started(tmp_path, what)
            wait_for(lambda pid=pid: has_ended(pid), f"the end of {what} {pid}")  # type: ignore[misc]
        wait_for(lambda: not [*Path(temporary).glob("hwq-*")], "the end of temporary folders")


def test_a_limit_of_the_generators_own_makes_the_run_invalid(tmp_path: Path) -> None:
    record = run(tmp_path, misbehaving("streams", 0.3, protocol="openai", timeout_s=30.0))
    assert record.status == "invalid", record.reason
    assert "the load generator's own limit was reached: an event has more than" in record.reason
