"""Which group of the multiprocessors a tenant, or a stream of a single test, is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.devices.partitions import Partition

# How a single test names its streams: those whose work it declares most urgent, and all (others).
CELL, URGENT = "cell", "urgent"
REST = "the others"


def partition_of(groups: Mapping[str, int], name: str) -> Partition:
    """Return a tenant's own group, or what the groups leave.

    Args:
        groups: multiprocessors by the name of whoever is given them, in the order of the split.
        name: of the tenant.

    """
    names = list(groups)
    group = names.index(name) if name in groups else len(names)
    return Partition(tuple(groups.values()), group)


def name_of_stream(groups: Mapping[str, int], urgency: Sequence[int], mine: int) -> str:
    """Return under which name a single test's stream is looked up.

    Args:
        groups: as for `partition_of`.
        urgency: of the work of all the test's streams.
        mine: of this stream's.

    """
    urgent = min(urgency) < mine == max(urgency)
    return URGENT if urgent and URGENT in groups else CELL


def name_of_group(groups: Mapping[str, int], group: int) -> str:
    """Return the name of a group, for messages."""
    names = list(groups)
    return names[group] if group < len(names) else REST
