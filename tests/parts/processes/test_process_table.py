"""Who listens at an address, by the kernel's tables, and who is in a container."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.parts.processes.process_table import (
    TcpPort,
    UnixSocket,
    is_contained,
    listeners,
    processes_under,
    running_programs,
)
from pytest_hwqueue.parts.processes.services import free_port
from tests.parts.schedulers.processes import has_ended, program, wait_for

# Of what descends from the parent, this process is one; of what descends from itself, it is none.
OURS, STRANGE = os.getppid(), os.getpid()
UNSHARE = shutil.which("unshare") or "unshare"


@contextmanager
def listening(
    host: str, port: int = 0, backlog: int = 1, *, ipv6_alone: bool = False
) -> Iterator[int]:
    """Listen at an address, at a port of one's own or, if it is given, beside others; yield it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, bool(port))
        try:
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_alone)
            listener.bind((host, port))
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        if backlog:
            listener.listen(backlog)
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("at", "host", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "::1", False),
        ("::", "127.0.0.1", True),
        ("::", "::1", True),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
    ],
)
def test_those_are_found_that_a_client_of_the_address_reaches(
    at: str, host: str, *, reached: bool
) -> None:
    if "::1" in (at, host) and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with listening(at) as port:
        own, strange = (listeners(TcpPort(host, port), root) for root in (OURS, STRANGE))
    assert own.own == ({os.getpid()} if reached else set())
    assert own.others == ()
    assert strange.own == set()
    assert len(strange.others) == reached
    for each in strange.others:
        assert re.fullmatch(rf".+ \(process {os.getpid()}\)", each)


@pytest.mark.parametrize(
    ("host", "reached"), [("127.0.0.1", False), ("0.0.0.0", False), ("::1", True), ("::", True)]
)
def test_one_of_ipv6_alone_is_not_reached_by_ipv4(host: str, *, reached: bool) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with listening("::", ipv6_alone=True) as port:
        assert bool(listeners(TcpPort(host, port), OURS).own) == reached
        # Of two at one port, one may be of all addresses.
        with listening("0.0.0.0", port):
            assert len(listeners(TcpPort(host, port), STRANGE).others) == 1


@pytest.fixture(params=["asked", "forbidden"])
def netlink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "forbidden":
        monkeypatch.setattr(socket, "AF_NETLINK", 9999)  # no family of sockets
    return str(request.param)


@pytest.mark.parametrize("netlink", ["forbidden"], indirect=True)
@pytest.mark.usefixtures("netlink")
def test_where_netlink_is_forbidden_all_of_ipv6_counts_as_listening() -> None:
    with listening("::", ipv6_alone=True) as port:
        assert listeners(TcpPort("127.0.0.1", port), OURS).own == {os.getpid()}


def test_a_port_that_is_only_bound_has_no_listener() -> None:
    with listening("127.0.0.1", backlog=0) as port:
        assert listeners(TcpPort("127.0.0.1", port), STRANGE).others == ()


_SHARES = """
import socket, sys, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
time.sleep(600)
"""


def test_a_stranger_that_shares_the_port_is_named_beside_ours() -> None:
    with listening("127.0.0.1", free_port()) as port:
        child = subprocess.Popen([sys.executable, "-S", "-c", _SHARES, str(port)])
        try:
            wait_for(lambda: bool(listeners(TcpPort("127.0.0.1", port), STRANGE).own), "the child")
            found = listeners(TcpPort("127.0.0.1", port), STRANGE)
        finally:
            child.kill()
            child.wait()
    assert found.own == {child.pid}
    (other,) = found.others
    assert f"(process {os.getpid()})" in other


def test_one_that_cannot_be_seen_is_a_stranger(tmp_path: Path) -> None:
    # The kernel's tables, and none of its processes.
    (tmp_path / "self").symlink_to("/proc/self")
    with listening("127.0.0.1") as port:
        (other,) = listeners(TcpPort("127.0.0.1", port), STRANGE, tmp_path).others
    assert other.startswith("a process of ")
    assert other.endswith(" that cannot be seen from here")


def test_where_the_tables_are_missing_that_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotProven, match=r"who listens on port 1 cannot be seen.*mount /proc here"):
        listeners(TcpPort("127.0.0.1", 1), OURS, tmp_path)


def test_another_machine_is_refused() -> None:
    # Of a network that is kept for documentation (RFC 5737).
    with pytest.raises(NotProven, match=r"192\.0\.2\.1 .* is not this machine"):
        listeners(TcpPort("192.0.2.1", 80), OURS)


@contextmanager
def listening_at(name: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        yield


@pytest.mark.usefixtures("netlink")
@pytest.mark.parametrize("bound", ["absolute", "relative", "linked"])
def test_a_unix_socket_is_known_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    # Of its own: a relative name of another process's tests would count, too.
    name = f"s{os.getpid()}"
    path = tmp_path / "folder" / name
    names = {
        "absolute": str(path),
        "relative": f"./folder/{name}",
        "linked": str(tmp_path / "link" / name),
    }
    with listening_at(names[bound]), listening_at(str(tmp_path / name)):
        own, strange = (listeners(UnixSocket(path), root) for root in (OURS, STRANGE))
    assert own.own == {os.getpid()}
    assert own.others == ()
    assert strange.own == set()
    (other,) = strange.others
    assert re.fullmatch(rf".+ \(process {os.getpid()}\)", other)
    # What is left over when nobody listens any more is nobody's.
    assert path.is_socket()
    assert listeners(UnixSocket(path), OURS).own == set()


def test_who_took_the_name_of_a_unix_socket_listens_there(tmp_path: Path) -> None:
    path, other = tmp_path / "s", tmp_path / "other"
    child = subprocess.Popen([sys.executable, "-S", "-c", _LISTENS_AT, str(other)])
    try:
        wait_for(lambda: bool(listeners(UnixSocket(other), STRANGE).own), "the child")
        with listening_at(str(path)):
            # By name both would listen there, or this process alone.
            other.rename(path)
            found = listeners(UnixSocket(path), STRANGE)
    finally:
        child.kill()
        child.wait()
    assert found.own == {child.pid}
    assert found.others == ()


_LISTENS_AT = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
time.sleep(600)
"""


def test_at_a_path_without_a_socket_nobody_listens_and_another_file_is_refused(
    tmp_path: Path,
) -> None:
    assert listeners(UnixSocket(tmp_path / "none" / "s"), OURS).own == set()
    with pytest.raises(NotProven, match=r"is no socket: remove it, or name another path"):
        listeners(UnixSocket(tmp_path), OURS)


@pytest.mark.parametrize("namespace", ["--pid", "--net"])
def test_a_process_with_a_namespace_of_its_own_is_in_a_container(namespace: str) -> None:
    command = [UNSHARE, "--user", namespace, "--fork"]
    if not Path(UNSHARE).exists() or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("this machine gives no namespaces")
    with subprocess.Popen([*command, "cat"], stdin=subprocess.PIPE) as process:
        wait_for(lambda: any(map(is_contained, processes_under(process.pid))), "its namespace")
        (child,) = processes_under(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert not is_contained(os.getpid())
    # It has ended.
    assert not is_contained(child)


@pytest.mark.parametrize("called", ["hwq-test-itself", "/usr/bin/hwq-test-renamed-by-itself"])
def test_a_program_that_runs_is_found_by_its_own_name_or_as_it_is_called(
    tmp_path: Path, called: str
) -> None:
    # The kernel keeps 15 letters of a program's own.
    own = program(tmp_path / "hwq-test-itself", "import time\ntime.sleep(600)\n")
    command: list[str | Path] = [own, "-d"]
    executable = None
    if called.startswith("/"):
        command, executable = [called, "600"], shutil.which("sleep")
    name = Path(called).name
    with subprocess.Popen(command, executable=executable, env={"OF": "it"}) as process:
        try:
            # Popen returns while it is being loaded.
            wait_for(lambda: running_programs([name]), "the program to be seen")
            (found,) = running_programs([name, "hwq-test-another"])
            assert (found.name, found.pid) == (name, process.pid)
            assert found.arguments[-1] == command[-1]
            assert found.environment == {"OF": "it"}
            assert running_programs(["hwq-test-another"]) == []
        finally:
            process.kill()
        # It has ended, and nobody has waited for it.
        wait_for(lambda: has_ended(process.pid), "its end")
        assert running_programs([name]) == []
