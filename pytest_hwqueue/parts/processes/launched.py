"""This process's rank, as torchrun and other launchers tell it, and messages to the other ranks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from pytest_hwqueue.data.errors import BadOption, NotProven, translated

if TYPE_CHECKING:
    import socket

    from torch.distributed import Store  # type: ignore[attr-defined]


_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_CONNECT_S = 60.0
# What a rank sees when another one has gone: it follows from a failure and is none of its own.
_FOLLOWS = re.compile(
    r"closed by peer|reset by peer|remote process exited|Broken pipe|another rank", re.IGNORECASE
)


class LaunchedRank(NamedTuple):
    """One of ``size`` processes started together.

    Attributes:
        rank: number among all of them, from 0.
        size: how many there are.
        local_rank: number among those on this host.
        local_size: how many there are on this host.
        address: host of the store through which they meet.
        port: of that store.
        store_exists: whether the launcher hosts that store; if not, rank 0 does.

    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    store_exists: bool


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return this process's rank, or None if no launcher started it with others.

    The variables are those of torch.distributed's ``env://`` initialisation, with torchrun's
    ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and ``TORCHELASTIC_USE_AGENT_STORE``.

    Raises:
        BadOption: naming the variable that does not hold a number.

    """
    if any(name not in environment for name in _NEEDED):
        return None
    size = _number(environment, "WORLD_SIZE")
    if size == 1:
        return None
    rank = _number(environment, "RANK")
    if rank >= size:
        raise BadOption("environment variable RANK", str(rank), f"WORLD_SIZE is {size}")
    return LaunchedRank(
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", rank),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size),
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        store_exists=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise BadOption(f"environment variable {name}", text, "the launcher gives a whole number")
    return int(text)


LOOPBACK = "127.0.0.1"


def place_on_this_host(rank: int, size: int, port: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `launched_rank` reads, of a rank whose whole group is on this host.

    Args:
        rank: its number.
        size: how many there are.
        port: of the store in which they meet.
        given: the environment; an interface that it names for gloo or NCCL stays.

    """
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # All of it stays on this machine.
        **{name: given.get(name, "lo") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")},
    }


_HOSTED: list[Store] = []


def host_store(listener: socket.socket) -> None:
    """Host a store behind a listening socket, until this process ends.

    Torch's own way to a store listens on every interface, whatever address it is given; and a store
    has no password.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listener.getsockname()
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, multi_tenant=True,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    # It would end with the last reference to it.
    _HOSTED.append(store)


def connect(launched: LaunchedRank, prefix: str, *, keep: bool = False) -> Store:
    """Connect to the store hosted by the launcher, or by rank 0 if the launcher hosts none.

    Args:
        launched: this process's rank.
        prefix: of the keys of one cell.
        keep: whether this process hosts the store if it is rank 0 and the launcher does not.

    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        launched.address,
        launched.port,
        is_master=keep and launched.rank == 0 and not launched.store_exists,
        wait_for_workers=False,
        timeout=timedelta(seconds=_CONNECT_S),
    )
    return PrefixStore(prefix, store)


def measured_by_ranks(launched: LaunchedRank, what: str, pid: int) -> list[int]:
    """Tell rank 0 which process measures for this rank; return those of all, by rank.

    The others do not wait, and get their own alone.

    Args:
        launched: this session's rank; all are on this host.
        what: they begin together, unique in this session.
        pid: of this rank's process.

    Raises:
        NotProven: if a rank does not come within a minute.

    """
    store = connect(launched, f"measured/{what}")
    store.set(str(launched.rank), str(pid))
    if launched.rank > 0:
        return [pid]
    ranks = [str(rank) for rank in range(launched.size)]
    with translated(
        NotProven, f"not all ranks came to {what} within {_CONNECT_S:g} s", RuntimeError
    ):
        store.wait(ranks, timedelta(seconds=_CONNECT_S))
    return [int(store.get(rank)) for rank in ranks]


def tell_failure(store: Store, rank: int, reason: str, detail: str = "") -> None:
    """Report to the other ranks that this one has failed; a rank's first report counts."""
    text = json.dumps({"time": time.time(), "reason": reason, "detail": detail})
    store.compare_set(f"failed/{rank}", "", text)


def failures(store: Store, size: int) -> list[tuple[int, str, str]]:
    """Return the ranks that have failed so far: rank, reason, last output.

    In order of failure; ranks that only saw another one fail come last.
    """
    found = []
    for rank in range(size):
        key = f"failed/{rank}"
        if store.check([key]):
            entry = json.loads(store.get(key))
            reason = str(entry["reason"])
            follows = _FOLLOWS.search(reason) is not None
            found.append((follows, float(entry["time"]), rank, reason, str(entry["detail"])))
    return [(rank, reason, detail) for _, _, rank, reason, detail in sorted(found)]


def in_words(failed: list[tuple[int, str, str]]) -> tuple[str, str]:
    """Return one line on what happened, first failure first, and all ranks' last output."""
    reason = "; ".join(f"rank {rank}: {reason}" for rank, reason, _ in failed)
    detail = "\n".join(f"rank {rank}:\n{detail}" for rank, _, detail in failed if detail)
    return reason, detail
