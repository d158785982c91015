"""What a scheduler mode must do for tenants: several processes or threads on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_hwqueue.schedulers.evidence import InsideEvidence
    from pytest_hwqueue.schedulers.protocol import Proof

PROCESSES, THREADS = "processes", "threads"


@dataclass(frozen=True)
class TenantRequest:
    """What a tenant asks of the scheduler.

    Attributes:
        name: unique among the tenants.
        priority: 0 normal, larger more urgent.
        share: of the device's multiprocessors, above 0 and up to 1; None for all.
        most_urgent: whether all other tenants are less urgent or alike, and some are less.

    """

    name: str
    priority: int = 0
    share: float | None = None
    most_urgent: bool = False


def tenant_requests(tenants: Iterable[tuple[str, int, float | None]]) -> list[TenantRequest]:
    """Make the requests of tenants that run together, given name, priority and share of each."""
    tenants = list(tenants)
    priorities = [priority for _, priority, _ in tenants]
    return [
        TenantRequest(name, priority, share, min(priorities) < priority == max(priorities))
        for name, priority, share in tenants
    ]


@dataclass(frozen=True)
class Places:
    """Where the user has what modes need.

    Attributes:
        xsched_root: XSched's installation (--hwq-xsched-root); XSCHED_ROOT where None.
        preloads: folders of the descriptions of ``preload:NAME`` (--hwq-preloads).

    """

    xsched_root: Path | None = None
    preloads: tuple[Path, ...] = ()


class SchedulerMode(Protocol):
    """A way to start the processes and create the streams of tenants."""

    @property
    def text(self) -> str:
        """As on the command line."""

    @property
    def placements(self) -> frozenset[str]:
        """Where tenants may live under it: ``processes``, ``threads`` (of one process), or both."""

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Why the mode cannot be used, or would change nothing, and what to do; None if it can.

        On a simulated device only what the tenants ask for is judged: nothing needs to be
        installed.
        """

    def services(self, folder: Path) -> AbstractContextManager[None]:
        """Start what the mode needs and stop it again, logging into ``folder``.

        What was started also ends when this process dies, however it dies.

        Raises:
            ServiceFailed: if something could not be started, or is in the way.

        """

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Variables to add to a tenant's environment before its process starts.

        For tenants only, and inside `services`. With threads, that of any tenant is all's.
        """

    def stream_priority(self, priority: int) -> int:
        """Priority of a tenant's streams, given the tenant's."""

    def check(self) -> None:
        """See that what the mode needs still lives, from the start of the tenants to their end.

        Raises:
            ServiceFailed: if something has ended.

        """

    def observe(self, pids: Mapping[str, int]) -> None:
        """Take a sample while the tenants (name to process id) serve; takes below a millisecond.

        Raises:
            NotProven: if there is none to be had.

        """

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Show that the mode is active in all tenants; call it while they live.

        Raises:
            NotProven: if it is not, saying in which tenant, what was expected and what was seen.

        """


class ModeWithoutServices:
    """What a mode does that starts nothing and sets nothing."""

    def services(self, folder: Path) -> AbstractContextManager[None]:
        """Start nothing."""
        return _nothing()

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return nothing to set."""
        return {}

    def stream_priority(self, priority: int) -> int:
        """Return normal."""
        return 0

    def check(self) -> None:
        """Return: nothing was started."""

    def observe(self, pids: Mapping[str, int]) -> None:
        """Leave the tenants alone: there is nothing to see from outside."""


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def differing_priorities(mode: str, tenants: Sequence[TenantRequest]) -> str | None:
    """Say why a mode by priority would change nothing; None if it would, or for one tenant."""
    if len(tenants) > 1 and len({tenant.priority for tenant in tenants}) == 1:
        return (
            f"{mode} would change nothing: all tenants have priority {tenants[0].priority}; give "
            "the urgent one a higher priority"
        )
    return None
