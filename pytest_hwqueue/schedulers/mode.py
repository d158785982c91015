"""The interface of scheduler modes: start services, configure tenants, prove activity.

A tenant is a process or thread that shares a device with others. A cell is a single tenant whose
streams may differ in urgency.
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
    from pytest_hwqueue.devices.compute_units import Partition
    from pytest_hwqueue.schedulers.declaration import SchedulerSpec
    from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence

PROCESSES, THREADS = "processes", "threads"


@dataclass(frozen=True)
class TenantRequest:
    """A tenant's request to the scheduler.

    Attributes:
        name: unique among the tenants.
        priority: 0 is normal, larger is more urgent.
        share: of the device's multiprocessors, above 0 and up to 1; None for all.
        most_urgent: whether no other tenant is more urgent, and some are less urgent.
        urgency: of each stream's work (0 normal), for a cell in any process; otherwise empty, and
            all streams have the tenant's priority.

    """

    name: str
    priority: int = 0
    share: float | None = None
    most_urgent: bool = False
    urgency: tuple[int, ...] = ()


def tenant_requests(tenants: Iterable[tuple[str, int, float | None]]) -> list[TenantRequest]:
    """Return the requests of tenants that run together, from name, priority and share."""
    tenants = list(tenants)
    priorities = [priority for _, priority, _ in tenants]
    return [
        TenantRequest(name, priority, share, min(priorities) < priority == max(priorities))
        for name, priority, share in tenants
    ]


@dataclass(frozen=True)
class SchedulerPaths:
    """Where the user installed or described what modes need.

    Attributes:
        xsched_root: XSched's installation (--hwq-xsched-root); if None, XSCHED_ROOT.
        preloads: folders of the descriptions of ``preload:NAME`` (--hwq-preloads).

    """

    xsched_root: Path | None = None
    preloads: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Proof:
    """Evidence that the mode is active, for the record.

    Attributes:
        mode: as requested.
        evidence: what was found, in words.
        device_priorities: of all streams, in the device's own numbers.
        effective: whether less urgent work was seen to be held back for more urgent work; None if
            that cannot be seen from outside, or was not looked for.
        counts: how often each observation was made, by name; counted in samples unless stated.

    """

    mode: str
    evidence: str
    device_priorities: tuple[int, ...]
    effective: bool | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Scheduler(ABC):
    """Base class of scheduler modes. A mode that cannot prove that it is active fails the run.

    By default a mode is always available, starts and sets nothing, and gives all streams normal
    priority; override what differs. Only `proof` has no default.

    For a single test, a mode with an environment is opened twice: in the session, which runs its
    services, and in the worker, which asks for the proof. Anything the worker must know goes
    through `environment`.

    Attributes:
        spec: the mode's declaration, and the parameters that the user gave.
        mode: its text, such as ``xsched:level=1``.
        paths: where the user installed or described what modes need.

    """

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        """Open the mode without starting anything or checking whether it is available.

        Raises:
            BadScheduler: if a file that the user named, such as a description, is wrong.

        """
        self.spec = spec
        self.mode = str(spec)
        self.paths = paths

    @property
    def placements(self) -> frozenset[str]:
        """Possible placements of tenants: ``processes``, ``threads`` (of one process), or both."""
        return frozenset({PROCESSES})

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why the mode cannot be used and what to do about it, or None.

        Asks the declaration, `pointless` and `missing`: override those.
        """
        declaration = self.spec.declaration
        if not declaration.serves(device_kind):
            return declaration.elsewhere.format(mode=self.mode, device=device_kind)
        reason = self.pointless(tenants)
        if reason is not None or not capabilities_of(device_kind).tenant_processes:
            return reason
        return self.missing(device_kind, tenants)

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why the mode has no effect on these tenants, or cannot serve them; or None."""
        return None

    def equal_priorities(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why ordering by priority has no effect, or None; for use in `pointless`.

        A single tenant is fine: measuring it shows the mode's overhead.
        """
        if len(tenants) > 1 and len({tenant.priority for tenant in tenants}) == 1:
            return (
                f"{self.mode} would change nothing: all tenants have priority "
                f"{tenants[0].priority}; give the urgent one a higher priority"
            )
        return None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return what this machine lacks or what blocks the mode, or None.

        Not called for simulated devices.
        """
        return None

    def services(self, folder: Path) -> AbstractContextManager[None]:
        """Start the mode's services and stop them again, logging into ``folder``.

        Use `run_service`: it also stops the service if this process is killed.

        Raises:
            ServiceFailed: if a service could not be started, or is blocked by another.

        """
        return nullcontext()

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return variables to add to a tenant's environment before its process starts.

        Called inside `services`. Tenants in threads share the first tenant's.
        """
        return {}

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Return each stream's priority (0 is normal, larger is more urgent) from its urgency.

        In a scenario, a stream's urgency is its tenant's priority.
        """
        return [0] * len(urgency)

    def partition(self, tenant: TenantRequest, urgency: int) -> Partition | None:
        """Return on which multiprocessors a tenant's streams run; None for all, with all others.

        A mode that returns a partition does so for every tenant, and needs a device that has
        `Capabilities.partitions`.

        Args:
            tenant: whose streams.
            urgency: of the stream's work, where a single test's streams differ.

        """
        return None

    def check(self) -> None:  # noqa: B027 - a mode without services has nothing to check
        """Check that the mode's services are alive; called from the tenants' start to their end.

        Raises:
            ServiceFailed: if one has ended.

        """

    def observe(self, pids: Mapping[str, int]) -> None:  # noqa: B027 - nor to see from outside
        """Sample the scheduler while the tenants (name to process id) run; takes under 1 ms.

        Raises:
            NotProven: if the scheduler does not answer.

        """

    @abstractmethod
    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Prove that the mode is active in all tenants, while they are alive.

        Args:
            pids: process id of each tenant, by name.
            inside: what each observed inside its own process, after its first work.

        Raises:
            NotProven: naming the tenant, what was expected and what was found.

        """
