"""What ``hwq certify`` measures, as a scenario: a victim alone and beside a stressor, by resource.

Victim and stressor are one workload on one resource: who takes most of it feels most of what
another one takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_hwqueue.data.errors import BadOption, within
from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.metrics.numbers import listed
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.resources import RESOURCES, Resource
from pytest_hwqueue.engine.scenarios.file import Scenario, parse_scenario
from pytest_hwqueue.parts.schedulers.declaration import NATIVE, IsolationClaims, SchedulerSpec
from pytest_hwqueue.parts.schedulers.syntax import parse_entry, split_entries

NAME = "certify"
VICTIM, STRESSOR = "victim", "stressor"
WORKLOAD = "stress"
P99 = 0.99
PRODUCTS: Resource = "multiprocessors"
"""By the rate of these a share of the multiprocessors is seen."""

_ARRIVAL_PER_S = 100.0
# A Poisson process needs more than the mean time for its requests.
_ROOM = 1.25
# A small product has blocks enough for several multiprocessors: one of a single block may find
# room beside kernels that fill the device.
_URGENT = {"resource": PRODUCTS, "mm_dim": 512, "depth": 1}
# A generator may be late by a fifth of what is asked of its tenant (`open_loop.LATENESS_SHARE`).
_LEAST_DEADLINE_MS = 1.0

_THREADS = f"{TenantPlacement.THREADS}-"
# Clocks rise and memory is touched within it; iterations last milliseconds.
_WARMUP = "300ms"


class PlacedMode(NamedTuple):
    """A scheduler mode, and where tenants are under it."""

    placement: TenantPlacement
    spec: SchedulerSpec

    def __str__(self) -> str:
        """As on the command line, such as ``threads-green-context:victim=64``."""
        return f"{_THREADS * (self.placement == TenantPlacement.THREADS)}{self.spec}"

    @property
    def claims(self) -> IsolationClaims:
        """What it does for tenants by its own account."""
        return self.spec.declaration.claims

    @property
    def alone(self) -> str:
        """The mode where the victim is alone: what is the stressor's own is not given."""
        return str(self.spec.without(STRESSOR))

    @property
    def native(self) -> bool:
        """Whether it is what other modes are compared with."""
        return self.spec.declaration.name == NATIVE.name


@dataclass(frozen=True)
class CertifyPlan:
    """What is measured.

    Attributes:
        mode: the one in question.
        resources: of these a victim is measured alone and beside a stressor.
        claimed: those that the mode is held to keep apart: they are measured under native, too.
        window_s: length of each window.
        rounds: windows of each kind.
        waits_ms: what an urgent kernel is to wait at most beside products; None to measure none.

    """

    mode: PlacedMode
    resources: Sequence[Resource]
    claimed: Collection[Resource]
    window_s: float
    rounds: int
    waits_ms: float | None = None

    @property
    def all_s(self) -> float:
        """How long all windows take together, without starts."""
        return self.rounds * self.window_s * len(self._variants())

    def scenario(self, folder: Path) -> tuple[Scenario, str]:
        """Return the scenario, and its text; ``folder`` is where it stands."""
        import yaml

        fields = {
            "name": NAME,
            "description": "a victim alone, and beside a stressor of the same resource",
            "duration": f"{self.window_s:.3f}s",
            "warmup": _WARMUP,
            "schedulers": {str(self.mode.placement): [str(self.mode.spec)]},
            "tenants": [
                # Modes that order tenants by priority need some.
                {"name": name, "workload": WORKLOAD, "arrival": "closed", "priority": priority}
                for name, priority in ((VICTIM, 1), (STRESSOR, 0))
            ],
            "variants": self._variants(),
        }
        text = yaml.safe_dump(fields, sort_keys=False, width=100)
        return parse_scenario(text, folder / f"{NAME}.hwq.yaml"), text

    def _variants(self) -> list[dict[str, Any]]:
        """Return a variant for each kind of window."""
        found = []
        for resource in self.resources:
            found += self._of(resource, "", self.mode.alone, None)
            compared = resource in self.claimed
            shared = resource == PRODUCTS and self.mode.claims.share is not None
            if (compared or shared) and not self.mode.native:
                both = self._of(resource, "_native", NATIVE.name, NATIVE.name)
                found += both if compared else both[:1]
        return [*found, *self._waits()]

    def _waits(self) -> list[dict[str, Any]]:
        """Return the variants of an urgent victim, alone and beside products that never pause."""
        if self.waits_ms is None:
            return []
        alone, beside = self._of(PRODUCTS, "", self.mode.alone, None)
        for name, variant in (("waits_alone", alone), ("waits_beside", beside)):
            variant["name"] = name
            variant["set"][VICTIM] = {
                "parameters": dict(_URGENT),
                "arrival": f"poisson: {_ARRIVAL_PER_S:g}/s",
                "requests": minimum_samples(P99),
                "deadline_ms": max(_LEAST_DEADLINE_MS, self.waits_ms),
            }
        return [alone, beside]

    def _of(
        self, resource: Resource, suffix: str, alone: str, beside: str | None
    ) -> list[dict[str, Any]]:
        """Return the victim's variant alone, and that beside the stressor; None for the mode."""
        place = str(self.mode.placement)
        by_itself = {
            "name": f"{resource}_alone{suffix}", "only": [VICTIM], "set": _stress(resource, VICTIM),
            "schedulers": {place: [alone]},
        }  # fmt: skip
        together: dict[str, Any] = {
            "name": f"{resource}_beside{suffix}", "set": _stress(resource, VICTIM, STRESSOR)
        }  # fmt: skip
        if beside is not None:
            together["schedulers"] = {place: [beside]}
        return [by_itself, together]


def least_window_s() -> float:
    """Return the shortest window that has a P99 of an urgent kernel's wait."""
    return _ROOM * minimum_samples(P99) / _ARRIVAL_PER_S


def _stress(resource: Resource, *tenants: str) -> dict[str, Any]:
    # Each has its own: YAML would point from one to the other.
    return {tenant: {"parameters": {"resource": resource}} for tenant in tenants}


def read_mode(text: str) -> PlacedMode:
    """Read a mode, with its placement before it as `hwq which --schedulers` takes it.

    Raises:
        BadOption: if it is not one mode, or does not say what the tenants are given.
        BadInput: if there is no such mode, or it has no such parameters.

    """
    with within("MODE"):
        entries = split_entries(text)
        mode = text.removeprefix(_THREADS)
        specs = parse_entry(mode) if len(entries) == 1 else ()
    if len(specs) != 1:
        raise BadOption("MODE", text, "give one mode: a certificate is of one")
    placement = TenantPlacement.PROCESSES if mode == text else TenantPlacement.THREADS
    found = PlacedMode(placement, specs[0])
    if found.claims.share is not None:
        given, named = found.spec.tenants, found.spec.declaration.named
        assert named is not None
        if VICTIM not in given or {*given} - {VICTIM, STRESSOR}:
            raise BadOption(
                "MODE", text,
                f"the tenants are called {VICTIM} and {STRESSOR}: write "
                f"{_THREADS * (mode != text)}{found.spec.declaration.name}:"
                f"{VICTIM}={named.default}",
            )  # fmt: skip
    return found


def read_resources(option: str, text: str) -> list[Resource]:
    """Read names of resources, such as ``multiprocessors,memory``, in their own order."""
    names = {part.strip() for part in text.split(",") if part.strip()}
    for name in sorted(names.difference(RESOURCES)) or ([] if names else [text]):
        raise BadOption(option, name, f"choose from {listed(RESOURCES)}")
    return [each for each in RESOURCES if each in names]
