"""``green-context``: a share of the multiprocessors for each tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.devices import green_contexts
from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.schedulers.declaration import SchedulerSpec
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, refuse_interceptors
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    shared_by_mps,
)

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


def name_of_group(groups: Mapping[str, int], group: int) -> str:
    """Return the name of a group, for messages."""
    names = list(groups)
    return names[group] if group < len(names) else REST


class GreenContext(Scheduler):
    """Each named tenant has multiprocessors of its own; the others share what is left.

    A single test names its most urgent streams ``urgent``, and all others ``cell``.
    """

    # A context's streams, and what is left for the others, belong to one process.
    placements = frozenset({TenantPlacement.THREADS})

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        named = {n: each for n, each in spec.parameters.items() if n != "queues"}
        self._groups = {name: int(count) for name, count in named.items()}
        asked = spec.value("queues")
        number = 0 if asked == "apart" else int(asked) if asked.isdecimal() else None
        self._queues: int | None = number

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Require groups, of known tenants."""
        cell = next((tenant for tenant in tenants if tenant.urgency), None)
        names = [CELL, URGENT] if cell is not None else [tenant.name for tenant in tenants]
        if not self._groups:
            return (
                f"{self.mode} would change nothing: nobody has multiprocessors of their own; name "
                f"a tenant and how many, such as green-context:{names[0]}=32"
            )
        if unknown := self.unknown(names):
            alone = f" ({URGENT}: a single test's most urgent streams; {CELL}: all others)"
            return unknown + (alone if cell is not None else "")
        if cell is not None and URGENT in self._groups and len(set(cell.urgency)) == 1:
            return (
                f"{self.mode}: no stream's work is more urgent than another's; {CELL}=N limits all "
                "streams of a test"
            )
        return None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why CUDA cannot split a GPU so; AMD's masks show that when they are set."""
        if device_kind != "cuda":
            if self._queues is None:
                return None
            return f"{self.mode}: queues are given to CUDA's green contexts alone; leave out queues"
        partitions = [
            self.partition(tenant, urgency)
            for tenant in tenants
            for urgency in tenant.urgency or (tenant.priority,)
        ]
        others = any(partition.group == len(self._groups) for partition in partitions)
        reason = green_contexts.why_not(
            tuple(self._groups.values()), others=others, queues=self._queues is not None
        )
        return reason and f"{self.mode}: {reason}"

    def partition(self, tenant: TenantRequest, urgency: int) -> Partition:
        """Return the tenant's group, or that of a single test's stream."""
        name = tenant.name
        if tenant.urgency:
            urgent = min(tenant.urgency) < urgency == max(tenant.urgency)
            name = URGENT if urgent and URGENT in self._groups else CELL
        return partition_of(self._groups, name)._replace(queues=self._queues)

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require that streams ran on all multiprocessors of their group, and on no others.

        The groups have the requested sizes and share none.
        """
        if len(set(pids.values())) > 1:
            raise NotProven(
                f"{self.mode}: the tenants live in several processes, and groups are one process's "
                "own; place them in threads"
            )
        refuse_interceptors(self.mode, inside)
        shared = shared_by_mps(self.mode, inside)
        ran_on: dict[int, set[int]] = {}
        queues: dict[str, int] = {}
        for name, evidence in inside.items():
            for group, size, numbers in zip(
                evidence.asked_groups, evidence.group_sizes, evidence.ran_on, strict=True
            ):
                self._check_size(name, group, size, numbers)
                ran_on.setdefault(group, set()).update(numbers)
            if self._queues is not None:
                queues.update(self._own_queues(name, evidence))
        if not ran_on:
            raise NotProven(f"{self.mode}: no stream was opened in a group")
        by_name = {name_of_group(self._groups, group): ran_on[group] for group in sorted(ran_on)}
        for (one, on_one), (other, on_other) in combinations(by_name.items(), 2):
            if on_one & on_other:
                raise NotProven(
                    f"{self.mode}: streams of {one} and of {other} both ran on multiprocessors "
                    f"{_ranges(on_one & on_other)}"
                )
        said = "; ".join(
            f"{name}: {len(numbers)} ({_ranges(numbers)})" for name, numbers in by_name.items()
        )
        if queues:
            # Whether it had enough of them the driver does not tell.
            each = "; ".join(f"{name}: for {number} streams" for name, number in queues.items())
            said += f"; configured to have queues of their own where possible: {each}"
        return Proof(
            self.mode,
            f"multiprocessors that kernels ran on, as many as each context has: {said}{shared}",
            self.seen_priorities(inside),
            counts={f"multiprocessors seen by {name}": len(each) for name, each in by_name.items()},
        )

    def _own_queues(self, name: str, evidence: InsideEvidence) -> dict[str, int]:
        """Return for how many streams at once each group of a tenant has queues of its own."""
        found = {}
        for group, number in zip(evidence.asked_groups, evidence.group_queues, strict=True):
            if number is None or self._queues not in (0, number):
                wanted = "queues of its own"
                wanted += f" for {self._queues} streams at once" if self._queues else ""
                read = "shares them with all" if number is None else f"has them for {number}"
                raise NotProven(
                    f"{self.mode}: a stream of {name}, in the group of "
                    f"{name_of_group(self._groups, group)}, should have {wanted}, and its "
                    f"context {read}"
                )
            found[name_of_group(self._groups, group)] = number
        return found

    def _check_size(self, name: str, group: int, size: int, numbers: Sequence[int]) -> None:
        whose = f"a stream of {name}, in the group of {name_of_group(self._groups, group)},"
        asked = dict(enumerate(self._groups.values())).get(group)
        if asked not in (None, size) or not size:
            wanted = "some" if asked is None else asked
            raise NotProven(
                f"{self.mode}: {whose} should have {wanted} multiprocessors, not {size}"
            )
        if len(numbers) != size:
            raise NotProven(
                f"{self.mode}: {whose} has {size} multiprocessors and ran on {len(numbers)} "
                f"({_ranges(numbers)})"
            )


def _ranges(numbers: Sequence[int] | set[int]) -> str:
    """Return numbers as ranges, such as ``0-15, 18``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found) or "none"
