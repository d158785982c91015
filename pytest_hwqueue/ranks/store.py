"""The ranks' messages outside their collectives: text, in torch's own store."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_hwqueue.ranks.launched import LaunchedRank

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_CONNECT_S = 60.0

# What a rank sees when another one has gone: it follows from a failure and is none of its own.
_FOLLOWS = re.compile(
    r"closed by peer|reset by peer|remote process exited|Broken pipe|another rank", re.IGNORECASE
)


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
