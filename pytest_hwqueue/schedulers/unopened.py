"""A mode that cannot be opened fails its own cases, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.mode import Proof, Scheduler, SchedulerPaths, TenantRequest
from pytest_hwqueue.schedulers.syntax import open_scheduler


class UnopenedMode(Scheduler):
    """Stands in for a mode whose description is missing or wrong.

    Attributes:
        reason: why it could not be opened.

    """

    def __init__(self, text: str, reason: str) -> None:
        self.mode = text
        self.reason = reason

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why it could not be opened."""
        return self.reason

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, object]) -> Proof:
        """Refuse: nothing runs under it."""
        raise NotImplementedError(self.reason)


def opened_or_not(text: str, paths: SchedulerPaths) -> Scheduler:
    """Open a mode; return an `UnopenedMode` if that fails."""
    try:
        return open_scheduler(text, paths)
    except BadScheduler as error:
        return UnopenedMode(text, str(error))


def unopened(modes: Iterable[str], paths: SchedulerPaths) -> dict[str, str]:
    """Return the modes that cannot be opened, and why."""
    opened = {text: opened_or_not(text, paths) for text in modes}
    return {text: mode.reason for text, mode in opened.items() if isinstance(mode, UnopenedMode)}
