"""Where an answer's figures come from: the device, the command and the code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.run import Repeatable
from pytest_hwqueue.data.records.tenants import ColocationRecord


class Origin(Repeatable):
    """Where the figures of a scenario's windows come from."""

    scenario: str
    description: str
    complete: bool = Field(description="false: interrupted before all was measured")
    device: str = Field(description="label, such as cuda; empty if nothing was measured")
    simulated: bool = Field(description="whether all figures are a model's, and none measured")
    seed: int | None
    fingerprint: Fingerprint | None

    @property
    def device_name(self) -> str:
        """Name of the device, or its label if the name is not known."""
        if self.fingerprint is None:
            return self.device
        return str(self.fingerprint.hard.get("device_name", self.device))


def origin_of(records: Sequence[ColocationRecord]) -> dict[str, Any]:
    """Return what an `Origin` says of windows: command and code of the first that was measured."""
    first = min(records, key=lambda record: record.started, default=None)
    return {
        "device": "" if first is None else first.device,
        "simulated": any(record.simulated for record in records),
        "seed": first and first.seed,
        "command": "" if first is None else first.command,
        "version": first and first.version,
        "git_commit": first and first.git_commit,
        "git_dirty": first and first.git_dirty,
        "fingerprint": next((each.fingerprint for each in records if each.fingerprint), None),
    }
