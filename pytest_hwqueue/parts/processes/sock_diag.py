"""What the kernel says of sockets when it is asked (`sock_diag`), where its tables in /proc do not.

Netlink may be forbidden, as by a container's filter of calls. Then nothing is said.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

# Of linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and linux/unix_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_OF_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_MOST_OF_CONTROL = 15  # NLMSG_MIN_TYPE, below which the kernel ends an answer, or refuses
_LISTEN = 1 << 10  # TCP_LISTEN, also of unix sockets
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, process id
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_ANSWER_S = 1.0
_ANSWER_BYTES = 1 << 16

_OF_INET = struct.Struct("=BBBxIH46x")  # family, protocol, extensions, states, port
_INET_BYTES, _INET_INODE_AT = 72, 68  # of inet_diag_msg
_SKV6ONLY = 11  # INET_DIAG_SKV6ONLY

_OF_UNIX = struct.Struct("=BxxxIIIII")  # family, states, inode, what to show, cookie
_UNIX_BYTES, _UNIX_INODE_AT = 16, 4  # of unix_diag_msg
_SHOW_VFS, _VFS = 2, 1  # UDIAG_SHOW_VFS, UNIX_DIAG_VFS
_FILE = struct.Struct("=II")  # inode, device
_MAJOR_BITS = 20  # the kernel's own form of a device, which stat's is not


def of_ipv6_alone(port: int) -> set[int]:
    """Return the sockets that listen at a port of IPv6, and get no connections of IPv4."""
    question = _OF_INET.pack(
        socket.AF_INET6, socket.IPPROTO_TCP, 0, _LISTEN, socket.htons(port)
    )  # fmt: skip
    return {
        _number(message[_INET_INODE_AT:])
        for message, attributes in _sockets(question, _INET_BYTES)
        if attributes.get(_SKV6ONLY, b"\0")[0]
    }


def of_unix_file(file: os.stat_result) -> set[int]:
    """Return the sockets that listen where a unix socket's file is, whatever its name is now."""
    question = _OF_UNIX.pack(socket.AF_UNIX, _LISTEN, 0, _SHOW_VFS, 0xFFFFFFFF, 0xFFFFFFFF)
    device = os.major(file.st_dev) << _MAJOR_BITS | os.minor(file.st_dev)
    wanted = _FILE.pack(file.st_ino & 0xFFFFFFFF, device)
    return {
        _number(message[_UNIX_INODE_AT:])
        for message, attributes in _sockets(question, _UNIX_BYTES)
        if attributes.get(_VFS) == wanted
    }


def _sockets(question: bytes, message_bytes: int) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Yield what the kernel says of each socket: a message of fixed length, and attributes."""
    length = _HEADER.size + len(question)
    header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_OF_ALL, 1, 0)
    with (
        suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel,
    ):
        kernel.settimeout(_ANSWER_S)
        kernel.sendto(header + question, (0, 0))
        while True:
            answer = kernel.recv(_ANSWER_BYTES)
            while answer:
                length, kind, *_ = _HEADER.unpack_from(answer)
                if kind <= _MOST_OF_CONTROL:
                    return
                body = answer[_HEADER.size : length]
                yield body[:message_bytes], _attributes(body[message_bytes:])
                answer = answer[_aligned(length) :]


def _attributes(rest: bytes) -> dict[int, bytes]:
    found = {}
    while len(rest) > _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        found[kind] = rest[_ATTRIBUTE.size : size]
        rest = rest[_aligned(size) :]
    return found


def _aligned(length: int) -> int:
    """Return the length of a part of a message with what fills it up to words of 32 bits."""
    return max(4, (length + 3) & ~3)


def _number(message: bytes) -> int:
    return int.from_bytes(message[:4], sys.byteorder)
