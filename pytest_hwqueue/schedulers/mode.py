"""What a scheduler mode does: how it starts tenants, and how it proves that it is active.

A tenant is a process or a thread that shares a device with others. A cell, a test measured by
itself, is one tenant whose streams may differ in urgency.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.kinds import capabilities_of

if TYPE_CHECKING:
    from pytest_hwqueue.schedulers.declaration import SchedulerSpec
    from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence

PROCESSES, THREADS = "processes", "threads"


@dataclass(frozen=True)
class TenantRequest:
    """What a tenant asks of the scheduler.

    Attributes:
        name: unique among the tenants.
        priority: 0 normal, larger more urgent.
        share: of the device's multiprocessors, above 0 and up to 1; None for all.
        most_urgent: whether all other tenants are less urgent or alike, and some are less.
        urgency: what the work of each stream deserves, 0 normal, in a cell without an environment
            of its own; otherwise empty: the priority is that of all streams.

    """

    name: str
    priority: int = 0
    share: float | None = None
    most_urgent: bool = False
    urgency: tuple[int, ...] = ()


def tenant_requests(tenants: Iterable[tuple[str, int, float | None]]) -> list[TenantRequest]:
    """Make the requests of tenants that run together, given name, priority and share of each."""
    tenants = list(tenants)
    priorities = [priority for _, priority, _ in tenants]
    return [
        TenantRequest(name, priority, share, min(priorities) < priority == max(priorities))
        for name, priority, share in tenants
    ]


@dataclass(frozen=True)
class SchedulerPaths:
    """Where the user has what modes need.

    Attributes:
        xsched_root: XSched's installation (--hwq-xsched-root); XSCHED_ROOT where None.
        preloads: folders of the descriptions of ``preload:NAME`` (--hwq-preloads).

    """

    xsched_root: Path | None = None
    preloads: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Proof:
    """Evidence that the mode is active, for the record.

    Attributes:
        mode: as it was asked for.
        evidence: what was seen, in words.
        device_priorities: of all streams, in the device's own numbers.
        effective: whether less urgent work was seen to be held up for more urgent work; None
            where that cannot be seen from outside, or was not looked for.
        counts: how often what was seen, by name; of samples where not said otherwise.

    """

    mode: str
    evidence: str
    device_priorities: tuple[int, ...]
    effective: bool | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Scheduler(ABC):
    """A scheduler mode, open; every mode proves that it is active, or the result is an error.

    A mode overrides what it does: by default it starts nothing, sets nothing, gives all streams
    normal priority and can always be had. Only `proof` has no default.

    For a single test a mode with an environment is opened twice: where its services run, and in
    the worker, where its proof is asked for; what the second must know of the first goes through
    `environment`.

    Attributes:
        spec: the mode's declaration, and the parameters that were asked for.
        mode: the same as text, such as ``xsched:level=1``.
        paths: where the user has what modes need.

    """

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        """Open the mode; nothing is started, and whether it can be had is not looked at.

        Raises:
            BadScheduler: if what was asked for cannot be read, such as a description.

        """
        self.spec = spec
        self.mode = str(spec)
        self.paths = paths

    @property
    def placements(self) -> frozenset[str]:
        """Where tenants may live under it: ``processes``, ``threads`` (of one process), or both."""
        return frozenset({PROCESSES})

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Why the mode cannot be used, or would change nothing, and what to do; None if it can.

        Modes say so through their declaration, `pointless` and `missing`. Under a simulated device
        nothing needs to be installed.
        """
        declaration = self.spec.declaration
        if declaration.devices is not None and device_kind not in declaration.devices:
            return declaration.elsewhere.format(mode=self.mode, device=device_kind)
        reason = self.pointless(tenants)
        if reason is not None or not capabilities_of(device_kind).tenant_processes:
            return reason
        return self.missing(device_kind, tenants)

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Why the mode cannot do what these tenants ask for, or would change nothing for them."""
        return None

    def equal_priorities(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Say, for `pointless`, that a mode by priority has nothing to order; None if it has.

        A tenant alone is measured: what is seen then is what the mode costs.
        """
        if len(tenants) > 1 and len({tenant.priority for tenant in tenants}) == 1:
            return (
                f"{self.mode} would change nothing: all tenants have priority "
                f"{tenants[0].priority}; give the urgent one a higher priority"
            )
        return None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """What this machine lacks, or has that is in the way; never asked of a simulated device."""
        return None

    def services(self, folder: Path) -> AbstractContextManager[None]:
        """Start what the mode needs and stop it again, logging into ``folder``.

        What was started also ends when this process dies, however it dies: start it by
        `run_service`.

        Raises:
            ServiceFailed: if something could not be started, or is in the way.

        """
        return nullcontext()

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Variables to add to a tenant's environment before its process starts.

        For tenants only, and inside `services`. With threads, that of any tenant is all's.
        """
        return {}

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Priority of each stream (0 normal, larger more urgent), given what its work deserves.

        A tenant's streams all deserve the tenant's priority.
        """
        return [0] * len(urgency)

    def check(self) -> None:  # noqa: B027 - a mode without services has nothing to check
        """See that what the mode needs still lives, from the start of the tenants to their end.

        Raises:
            ServiceFailed: if something has ended.

        """

    def observe(self, pids: Mapping[str, int]) -> None:  # noqa: B027 - nor to see from outside
        """Take a sample while the tenants (name to process id) serve; takes below a millisecond.

        Raises:
            NotProven: if there is none to be had.

        """

    @abstractmethod
    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Show that the mode is active in all tenants; called while they live.

        Args:
            pids: process id of each tenant, by name.
            inside: what each has seen inside its own process, after its first work.

        Raises:
            NotProven: if it is not, saying in which tenant, what was expected and what was seen.

        """
