"""Reads this process's rank from the variables that torchrun and other launchers set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pytest_hwqueue.errors import BadOption

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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
