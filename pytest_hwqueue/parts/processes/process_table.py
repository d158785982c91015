"""What the kernel says of other processes: which run, who descends, who listens, is contained.

A port or a path says nothing of who answers there: a server that could not bind it, or never
tried, leaves its clients to a stranger. The kernel names each listening socket, and each process's
sockets.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.parts.devices.conditions import started_with
from pytest_hwqueue.parts.processes.sock_diag import of_ipv6_alone, of_unix_file

_PROC = Path("/proc")
_LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp has it
_SEE = "where it cannot be seen, no server is proven: mount /proc here, readable for this user"
_NAMESPACES = ("pid", "net")
_ALL_OF_IPV6 = IPv6Address("::")

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class RunningProgram:
    """A program that runs on this machine.

    Attributes:
        name: its own, or as it was called.
        pid: of its process.
        arguments: all but its name.
        environment: what it was started with; None if that is another user's to see.

    """

    name: str
    pid: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None

    def __str__(self) -> str:
        """Return its name and process id."""
        return f"{self.name}, process {self.pid}"


Programs = Callable[[Collection[str]], list[RunningProgram]]
"""Finds the programs of some names that run, as `running_programs` does."""


def running_programs(names: Collection[str]) -> list[RunningProgram]:
    """Return the programs of these names that run on this machine and have not ended."""
    import psutil

    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        own, command = process.info["name"], process.info["cmdline"] or [""]
        for name in {own, Path(command[0]).name} & {*names}:
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                # What has ended and is not waited for yet has a name.
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    environment = _environment(process.pid)
                    found.append(RunningProgram(name, process.pid, tuple(command[1:]), environment))
    return found


def _environment(pid: int) -> dict[str, str] | None:
    try:
        return started_with(_PROC / str(pid)) or None
    except PermissionError:
        return None


def processes_under(pid: int) -> list[int]:
    """Return a process's descendants, such as those of a service's guardian."""
    import psutil

    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_contained(pid: int) -> bool:
    """Whether a process has process ids or a network of its own, as one in a container does.

    False if it has ended.

    Raises:
        NotProven: if it may not be looked at.

    """
    said = f"whether process {pid} is in a container cannot be seen"
    with (
        suppress(FileNotFoundError, ProcessLookupError),
        translated(NotProven, said, PermissionError, remedy=_SEE),
    ):
        return any(
            os.readlink(_PROC / str(pid) / "ns" / each) != os.readlink(_PROC / "self" / "ns" / each)
            for each in _NAMESPACES
        )
    return False


@dataclass(frozen=True)
class TcpPort:
    """A TCP port of a host, by its name or address."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as messages name it."""
        return f"port {self.port} of {self.host}"

    def sockets(self, proc: Path = _PROC) -> dict[int, int]:
        """Return the sockets that listen there, and their users' ids.

        Raises:
            NotProven: if the host is another machine, or the kernel's tables cannot be read.

        """
        return _listening(_own_addresses(self.host, self.port), self.port, proc)


@dataclass(frozen=True)
class UnixSocket:
    """A unix socket, by its absolute path."""

    path: Path

    def __str__(self) -> str:
        """Return it as messages name it."""
        return f"the unix socket {self.path}"

    def sockets(self, proc: Path = _PROC) -> dict[int, int]:
        """Return the sockets that listen where this file is, and its user's id; none if it is not.

        They are known by the file itself; where the kernel does not say of which file a socket is
        (`sock_diag` forbidden, or a file system whose files have other numbers inside), by name.

        Raises:
            NotProven: if it is no socket, may not be looked at, or the table cannot be read.

        """
        said = f"who listens on {self} cannot be seen"
        try:
            with translated(NotProven, said, PermissionError):
                file = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        if not stat.S_ISSOCK(file.st_mode):
            raise NotProven(f"{self.path} is no socket: remove it, or name another path")
        inodes = of_unix_file(file) or _listening_by_name(self.path, file, said, proc)
        return dict.fromkeys(inodes, file.st_uid)


Place = TcpPort | UnixSocket
"""Where a server listens."""


@dataclass(frozen=True)
class Listeners:
    """Who accepts connections at a place.

    Attributes:
        own: ids of the processes of a service that do.
        others: all others, in words such as ``nginx (process 12)``.

    """

    own: frozenset[int]
    others: tuple[str, ...]


def listeners(at: Place, root: int, proc: Path = _PROC) -> Listeners:
    """Find who accepts connections at a place of this machine.

    Args:
        at: the place.
        root: process id of the service's guardian; what descends from it is the service's own.
        proc: where the kernel shows its tables, and processes.

    Raises:
        NotProven: if it is of another machine, or the kernel's tables cannot be read.

    """
    owners = at.sockets(proc)
    own = _holders(owners, processes_under(root), proc)
    missing = owners.keys() - own.keys()
    others = _holders(missing, _all_processes(proc), proc) if missing else {}
    if missing:
        # Since the first look at them it may have started more, or stopped listening.
        tree, still = {*processes_under(root)}, at.sockets(proc)
        own |= {inode: pids & tree for inode, pids in others.items() if pids & tree}
        missing = (missing & still.keys()) - own.keys()
    return Listeners(
        frozenset(pid for pids in own.values() for pid in pids),
        tuple(
            sorted(_described(others.get(inode, set()), owners[inode], proc) for inode in missing)
        ),
    )


def _described(pids: Collection[int], owner: int, proc: Path) -> str:
    """Return the program that holds a socket, or whose it is if no process with it is seen."""
    if not pids:
        user = f"user {owner}"
        with suppress(KeyError):
            user = pwd.getpwuid(owner).pw_name
        return f"a process of {user} that cannot be seen from here"
    name = "a program"
    with suppress(OSError):
        name = (proc / str(min(pids)) / "comm").read_text(errors="replace").strip()
    return f"{name} (process {min(pids)})"


def _own_addresses(host: str, port: int) -> set[Address]:
    """Return the addresses of this machine that a client of a host connects to."""
    with translated(NotProven, f"{host} has no address", OSError, UnicodeError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    own, foreign = set(), set()
    for family, _, _, _, at in found:
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        address = _plain(ip_address(str(at[0]).partition("%")[0]))
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((at[0], 0, *at[2:]))
            own.add(_reached(address))
        except OSError:
            # Loopback without IPv6: nobody connects there.
            if not address.is_loopback:
                foreign.add(address)
    if foreign or not own:
        raise NotProven(
            f"{host} ({', '.join(sorted(map(str, foreign)))}) is not this machine, so that nothing "
            "started here listens there"
        )
    return own


def _plain(address: Address) -> Address:
    """Return an address of IPv4 as such, also where IPv6 has mapped it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _reached(address: Address) -> Address:
    """Return where a connection to an address arrives: to none in particular, at loopback."""
    if not address.is_unspecified:
        return address
    return ip_address("127.0.0.1" if address.version == 4 else "::1")


def _listening(addresses: Collection[Address], port: int, proc: Path) -> dict[int, int]:
    """Return the sockets that listen at a port of any of these addresses, and their users' ids."""
    found: dict[int, int] = {}
    everywhere: set[int] = set()
    said = f"who listens on port {port} cannot be seen"
    for table in ("tcp", "tcp6"):
        path = proc / "self" / "net" / table
        with translated(NotProven, said, OSError, remedy=_SEE):
            if table == "tcp6" and not path.exists():  # a kernel without IPv6
                continue
            lines = path.read_text("ascii").splitlines()[1:]
        for line in lines:
            fields = line.split()
            local, _, number = fields[1].partition(":")
            if fields[3] == _LISTENING and int(number, 16) == port:
                at = _parsed(local)
                if any(_accepts(at, address) for address in addresses):
                    found[int(fields[9])] = int(fields[7])
                    if at == _ALL_OF_IPV6:
                        everywhere.add(int(fields[9]))
    # All of IPv6 has all of IPv4 too, unless it was told not to, which the tables do not say.
    if everywhere and all(address.version == 4 for address in addresses):
        # Where the kernel does not say so, who might be reached counts, which trusts nobody more.
        for inode in of_ipv6_alone(port) & everywhere:
            del found[inode]
    return found


_ACCEPTS = 0x10000  # __SO_ACCEPTCON, as /proc/net/unix has it
_NAME_AT = 7  # its columns before: address, references, protocol, flags, type, state, inode


def _listening_by_name(path: Path, file: os.stat_result, said: str, proc: Path) -> set[int]:
    """Return the sockets that listen, and were bound to a name of this file.

    A relative one is of a folder that the table does not say: any that the path may end in counts.
    """
    with translated(NotProven, said, OSError, remedy=_SEE):
        lines = (proc / "self" / "net" / "unix").read_text(errors="surrogateescape").splitlines()
    found = set()
    for fields in (line.split(maxsplit=_NAME_AT) for line in lines[1:]):
        if len(fields) > _NAME_AT and int(fields[3], 16) & _ACCEPTS:
            name = Path(os.path.normpath(fields[_NAME_AT]))
            with suppress(OSError):
                same = os.path.samestat(name.stat(), file) if name.is_absolute() else (
                    path.parts[-len(name.parts) :] == name.parts
                )  # fmt: skip
                if same:
                    found.add(int(fields[6]))
    return found


def _parsed(text: str) -> Address:
    """Return an address of the kernel's table: words of 32 bits in this machine's order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return _plain(ip_address(packed))


def _accepts(at: Address, address: Address) -> bool:
    """Whether a socket that listens at one address gets connections to another."""
    if at.is_unspecified:
        return at.version == 6 or address.version == 4
    return at == address


def _all_processes(proc: Path) -> list[int]:
    with translated(NotProven, "which processes there are cannot be seen", OSError, remedy=_SEE):
        return [int(each) for each in os.listdir(proc) if each.isdecimal()]


def _holders(inodes: Collection[int], pids: Iterable[int], proc: Path) -> dict[int, set[int]]:
    """Return which of some processes hold each socket; those that none of them has are left out.

    Processes of other users have none that could be seen.
    """
    links: Mapping[str, int] = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, set[int]] = {}
    for pid in pids:
        folder = proc / str(pid) / "fd"
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for descriptor in os.listdir(folder):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if (inode := links.get(os.readlink(folder / descriptor))) is not None:
                        found.setdefault(inode, set()).add(pid)
    return found
