"""``env:NAME=VALUE``: native scheduling in processes started with variables of the driver's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.devices.conditions import started_with
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, refuse_interceptors
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, TenantRequest, shared_by_mps

_MODULE_LOADING = "CUDA_MODULE_LOADING"


class Environment(Scheduler):
    """The driver's own scheduling, in processes that have variables of their own."""

    placements = frozenset(TenantPlacement)

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Require a variable."""
        if self.spec.parameters:
            return None
        return f"{self.mode} sets nothing: name a variable, such as env:{_MODULE_LOADING}=EAGER"

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the variables, for each tenant alike."""
        return dict(self.spec.parameters)

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require the variables in what each process was started with, and the effect if it shows.

        Only of CUDA_MODULE_LOADING does a driver tell what it made of it.
        """
        refuse_interceptors(self.mode, inside)
        shared = shared_by_mps(self.mode, inside)
        for name, pid in pids.items():
            started_with = _environment_of(self.mode, name, pid)
            for variable, value in self.spec.parameters.items():
                if started_with.get(variable) != value:
                    raise NotProven(
                        f"{self.mode}: tenant {name} (process {pid}) was started with "
                        f"{variable} {started_with.get(variable, 'unset')!r}"
                    )
        said = f"set in what {', '.join(pids)} was started with"
        if effect := self._effect(inside):
            said += f"; {effect}"
        return Proof(self.mode, f"{said}{shared}", self.seen_priorities(inside))

    def _effect(self, inside: Mapping[str, InsideEvidence]) -> str:
        """Return what the driver says of a variable's effect; raise NotProven if it ignored it."""
        asked = self.spec.parameters.get(_MODULE_LOADING, "").lower()
        told = {name: each.module_loading for name, each in inside.items() if each.module_loading}
        if not asked or not told:
            return "nothing tells the effect"
        # DEFAULT is what the driver chooses.
        for name, loading in told.items():
            if asked in ("eager", "lazy") and loading != asked:
                raise NotProven(
                    f"{self.mode}: the driver says that tenant {name} loads modules {loading}: "
                    f"something set {_MODULE_LOADING} again before CUDA was initialised"
                )
        return f"the driver loads modules {', '.join(dict.fromkeys(told.values()))}"


def _environment_of(mode: str, name: str, pid: int) -> dict[str, str]:
    said = f"{mode}: what tenant {name} (process {pid}) was started with cannot be read"
    with translated(NotProven, said, OSError):
        return started_with(Path(f"/proc/{pid}"))
