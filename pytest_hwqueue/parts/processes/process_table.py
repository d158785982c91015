"""What the kernel says of other processes: who descends from whom, who listens, who is contained.

A port says nothing of who answers there: a server that could not bind it, or never tried, leaves
its clients to a stranger. The kernel names each listening socket, and each process's sockets.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from pytest_hwqueue.data.errors import NotProven, translated

_PROC = Path("/proc")
_LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp has it
_SEE = "where it cannot be seen, no server is proven: mount /proc here, readable for this user"
_NAMESPACES = ("pid", "net")
_ALL_OF_IPV6 = IPv6Address("::")

Address = IPv4Address | IPv6Address


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
class Listeners:
    """Who accepts connections at an address.

    Attributes:
        own: ids of the processes of a service that do.
        others: all others, in words such as ``nginx (process 12)``.

    """

    own: frozenset[int]
    others: tuple[str, ...]


def listeners(host: str, port: int, root: int) -> Listeners:
    """Find who accepts connections at an address of this machine.

    Args:
        host: its name or address.
        port: its TCP port.
        root: process id of the service's guardian; what descends from it is the service's own.

    Raises:
        NotProven: if the host is another machine, or the kernel's tables cannot be read.

    """
    addresses = _own_addresses(host, port)
    owners = _listening(addresses, port)
    own = _holders(owners, processes_under(root))
    missing = owners.keys() - own.keys()
    others = _holders(missing, _all_processes()) if missing else {}
    if missing:
        # Since the first look at them it may have started more, or stopped listening.
        tree, still = {*processes_under(root)}, _listening(addresses, port)
        own |= {inode: pids & tree for inode, pids in others.items() if pids & tree}
        missing = (missing & still.keys()) - own.keys()
    return Listeners(
        frozenset(pid for pids in own.values() for pid in pids),
        tuple(sorted(_described(others.get(inode, set()), owners[inode]) for inode in missing)),
    )


def _described(pids: Collection[int], owner: int) -> str:
    """Return the program that holds a socket, or whose it is if no process with it is seen."""
    if not pids:
        user = f"user {owner}"
        with suppress(KeyError):
            user = pwd.getpwuid(owner).pw_name
        return f"a process of {user} that cannot be seen from here"
    name = "a program"
    with suppress(OSError):
        name = (_PROC / str(min(pids)) / "comm").read_text(errors="replace").strip()
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


def _listening(addresses: Collection[Address], port: int) -> dict[int, int]:
    """Return the sockets that listen at a port of any of these addresses, and their users' ids."""
    found: dict[int, int] = {}
    everywhere: set[int] = set()
    said = f"who listens on port {port} cannot be seen"
    for table in ("tcp", "tcp6"):
        path = _PROC / "self" / "net" / table
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
        for inode in _of_ipv6_alone(port) & everywhere:
            del found[inode]
    return found


# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_OF_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_MOST_OF_CONTROL = 15  # NLMSG_MIN_TYPE, below which the kernel ends an answer, or refuses
_SKV6ONLY = 11  # INET_DIAG_SKV6ONLY
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, process id
_QUESTION = struct.Struct("=BBBxIH46x")  # family, protocol, extensions, states, port
_ATTRIBUTES_AT = _HEADER.size + 72  # behind inet_diag_msg
_INODE_AT = _ATTRIBUTES_AT - 4
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_ANSWER_S = 1.0
_ANSWER_BYTES = 1 << 16


def _of_ipv6_alone(port: int) -> set[int]:
    """Return the sockets that listen at a port of IPv6, and get no connections of IPv4.

    None where the kernel does not say so (netlink may be forbidden, as by a container's filter of
    calls): who might be reached then counts as listening, which trusts nobody more.
    """
    states = 1 << int(_LISTENING, 16)
    question = _QUESTION.pack(
        socket.AF_INET6, socket.IPPROTO_TCP, 0, states, socket.htons(port)
    )  # fmt: skip
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_OF_ALL, 1, 0)
    found: set[int] = set()
    with (
        suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel,
    ):
        kernel.settimeout(_ANSWER_S)
        kernel.sendto(header + question, (0, 0))
        while _take_answer(kernel.recv(_ANSWER_BYTES), found):
            pass
    return found


def _take_answer(answer: bytes, found: set[int]) -> bool:
    """Add the sockets of one answer that are of IPv6 alone; return whether another follows."""
    at = 0
    while at < len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if kind <= _MOST_OF_CONTROL:
            return False
        attribute, end = at + _ATTRIBUTES_AT, at + length
        while attribute + _ATTRIBUTE.size < end:
            size, name = _ATTRIBUTE.unpack_from(answer, attribute)
            if name == _SKV6ONLY and answer[attribute + _ATTRIBUTE.size]:
                found.add(int.from_bytes(answer[at + _INODE_AT :][:4], sys.byteorder))
            attribute += _aligned(size)
        at += _aligned(length)
    return True


def _aligned(length: int) -> int:
    """Return the length of a part of a message with what fills it up to words of 32 bits."""
    return max(4, (length + 3) & ~3)


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


def _all_processes() -> list[int]:
    with translated(NotProven, "which processes there are cannot be seen", OSError, remedy=_SEE):
        return [int(each) for each in os.listdir(_PROC) if each.isdecimal()]


def _holders(inodes: Collection[int], pids: Iterable[int]) -> dict[int, set[int]]:
    """Return which of some processes hold each socket; those that none of them has are left out.

    Processes of other users have none that could be seen.
    """
    links: Mapping[str, int] = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, set[int]] = {}
    for pid in pids:
        folder = _PROC / str(pid) / "fd"
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for descriptor in os.listdir(folder):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if (inode := links.get(os.readlink(folder / descriptor))) is not None:
                        found.setdefault(inode, set()).add(pid)
    return found
