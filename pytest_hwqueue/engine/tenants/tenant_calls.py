"""What a tenant's process and the one that runs it tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.plan import Colocation, Server
from pytest_hwqueue.data.records.tenants import TenantResult
from pytest_hwqueue.engine.cell.attempt import Problem
from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.processes.remote import one_way
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence


@dataclass(frozen=True)
class Start:
    """What a process is to run.

    Attributes:
        plan: of all tenants, for their first window.
        tenants: names of those in this process.
        stream_priorities: of each tenant of the plan, in the device's own numbers.
        partitions: where each tenant's kernels run; None for everywhere.
        servers: each tenant's, its port and socket filled in.
        trace: folder for each tenant's trace; None to trace nothing.

    """

    plan: Colocation
    tenants: tuple[str, ...]
    stream_priorities: Mapping[str, int]
    partitions: Mapping[str, Partition | None]
    servers: Mapping[str, Server]
    trace: Path | None


@dataclass(frozen=True)
class NextWindow:
    """What tenants that are set up are to serve next.

    Attributes:
        plan: of all tenants; all but arrivals, seed and length is that of their first window.
        looked_at: whether they show the times of their requests while they serve.

    """

    plan: Colocation
    looked_at: bool


@dataclass(frozen=True)
class Ready:
    """What a tenant tells once it is warm.

    Attributes:
        evidence: of the scheduler mode; None of one that only generates load.
        longest_ns: longest window that it can serve; shorter than planned if its trace would not
            hold more.
        shown: descriptors of its `looks.ShownTimes`, of this window alone.
        fingerprint: of the device and its process; None of one that only generates load.

    """

    evidence: InsideEvidence | None
    longest_ns: int
    shown: Sequence[int] = ()
    fingerprint: Fingerprint | None = None


class TenantCalls:
    """What a tenant tells, each in its own name. It goes on at once, and hears of no error."""

    @one_way
    def entered(self, tenant: str, stage: str) -> None:
        """It is in another stage now."""

    @one_way
    def set_up(self, tenant: str) -> None:
        """It is set up: the priority probe may begin, or the first window's warm-up."""

    @one_way
    def ready(self, tenant: str, ready: Ready) -> None:
        """It is warm, and waits for the window."""

    @one_way
    def served(self, tenant: str, result: TenantResult) -> None:
        """Its window is over."""

    @one_way
    def failed(
        self, tenant: str, stage: str, status: Problem, reason: str, served: TenantResult | None
    ) -> None:
        """It has failed, or its window is invalid, once it had served so much."""
