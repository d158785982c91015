"""What ``hwq preempt`` measures, as a scenario: an urgent tenant beside victims of every length."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.errors import BadOption, within
from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.metrics.numbers import duration
from pytest_hwqueue.data.metrics.straight_line import LEAST_PLACES
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.engine.scenarios.file import Scenario, parse_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun
from pytest_hwqueue.parts.schedulers.declaration import NATIVE
from pytest_hwqueue.parts.schedulers.syntax import parse_entry, parse_scheduler, split_entries

NAME = "preempt"
VICTIM, URGENT = "victim", "urgent"
WORKLOAD = "occupy"
DEFAULT_WAVES, MOST_WAVES = 4, 64
SHALLOW, DEEP = 1, 9
"""Depths of a victim alone: by their difference a kernel's length is free of the host's share."""

_LENGTH = re.compile(r"([0-9]+)\s*(us|µs|ms)")
_US = {"us": 1, "µs": 1, "ms": 1000}
# A shorter kernel is no longer than the launch of the next, a longer one is no kernel.
_SHORTEST_US, _LONGEST_US = 10, 1_000_000
# So many of what is in flight pass between two urgent requests, that few find one before them, and
# no fewer than these: one that follows at once finds the host and the device still awake.
_FLIGHTS_BETWEEN, _LEAST_GAP_US = 4, 10_000
# A Poisson process needs more than the mean time for its requests; beyond this the window is cut.
_ROOM = 1.25
# Alone its requests are all alike: their median takes no more.
_OF_VICTIM = 50
_LONGEST_WINDOW_S = 3600.0
# A generator may be late by a fifth of what is asked of its tenant (`open_loop.LATENESS_SHARE`).
_LEAST_DEADLINE_MS = 1.0


@dataclass(frozen=True)
class PreemptPlan:
    """What is measured.

    Attributes:
        schedulers: modes by placement.
        lengths_us: of the victim's kernels.
        waves: of their blocks; 0 is a single block.
        depths: how many of them the victim enqueues at once.
        requests: of the urgent tenant in each window.
        rounds: windows of each victim under each mode.

    """

    schedulers: Mapping[TenantPlacement, Sequence[str]]
    lengths_us: Sequence[int]
    waves: Sequence[int]
    depths: Sequence[int]
    requests: int
    rounds: int

    def gap_s(self, depth: int) -> float:
        """Return the mean time between urgent requests beside victims of a depth, and alone."""
        in_flight_us = _FLIGHTS_BETWEEN * depth * max(self.lengths_us)
        return max(in_flight_us, _LEAST_GAP_US) / 1e6

    @property
    def window_s(self) -> float:
        """The longest that a window may take; its requests mostly end it before."""
        return _ROOM * self.requests * self.gap_s(max(self.depths))

    @property
    def urgent_s(self) -> float:
        """How long all windows with the urgent tenant take together, without starts."""
        modes = sum(map(len, self.schedulers.values()))
        victims = 1 + len(self.waves) * len(self.lengths_us)
        each = (modes * victims * self.requests * self.gap_s(depth) for depth in self.depths)
        return self.rounds * sum(each)

    def refuse_endless(self) -> None:
        """Raise BadOption if a window might take more than an hour."""
        if self.window_s > _LONGEST_WINDOW_S:
            depth = max(self.depths)
            raise BadOption(
                "--depths", str(depth),
                f"with kernels of up to {max(self.lengths_us) / 1e3:g} ms a window takes up to "
                f"{duration(self.window_s)}: give fewer or shorter ones",
            )  # fmt: skip

    def scenario(self, folder: Path) -> tuple[Scenario, str]:
        """Return the scenario, and its text; ``folder`` is where it stands."""
        import yaml

        text = yaml.safe_dump(self._fields(), sort_keys=False, width=100)
        return parse_scenario(text, folder / f"{NAME}.hwq.yaml"), text

    def _fields(self) -> dict[str, Any]:
        deadline_ms = max(_LEAST_DEADLINE_MS, max(self.lengths_us) / 1e3)
        urgent = {
            "name": URGENT, "workload": WORKLOAD, "parameters": {"depth": 0},
            "arrival": self._arrival(min(self.depths)), "priority": 1, "requests": self.requests,
            "deadline_ms": deadline_ms,
        }  # fmt: skip
        victim = {"name": VICTIM, "workload": WORKLOAD, "arrival": "closed", "priority": 0}
        return {
            "name": NAME,
            "description": "a tiny urgent kernel behind a victim's kernels of a given length",
            "duration": f"{self.window_s:.3f}s",
            "schedulers": {str(each): [*modes] for each, modes in self.schedulers.items()},
            "tenants": [victim, urgent],
            "variants": [*self._urgent_alone(), *self._victims_alone(), *self._beside()],
        }

    def _arrival(self, depth: int) -> str:
        return f"poisson: {1 / self.gap_s(depth):g}/s"

    def _urgent_alone(self) -> list[dict[str, Any]]:
        # Each has its own: YAML would point from one to the other.
        return [
            {"name": f"alone_d{depth}", "only": [URGENT], "schedulers": self._modes_alone(),
             "set": {URGENT: {"arrival": self._arrival(depth)}}}
            for depth in self.depths
        ]  # fmt: skip

    def _modes_alone(self) -> dict[str, list[str]]:
        return {
            str(placement): [*dict.fromkeys(map(mode_alone, modes))]
            for placement, modes in self.schedulers.items()
        }

    def _victims_alone(self) -> list[dict[str, Any]]:
        return [
            {"name": f"w{waves}_{us}us_alone_d{depth}", "only": [VICTIM],
             "schedulers": {str(TenantPlacement.PROCESSES): [NATIVE.name]},
             "set": {VICTIM: {"parameters": _kernels(us, waves, depth), "requests": _OF_VICTIM}}}
            for waves in self.waves for us in self.lengths_us for depth in (SHALLOW, DEEP)
        ]  # fmt: skip

    def _beside(self) -> list[dict[str, Any]]:
        return [
            {"name": f"w{waves}_{us}us_d{depth}",
             "set": {VICTIM: {"parameters": _kernels(us, waves, depth)},
                     URGENT: {"arrival": self._arrival(depth)}}}
            for depth in self.depths for waves in self.waves for us in self.lengths_us
        ]  # fmt: skip


def _kernels(length_us: int, waves: int, depth: int) -> dict[str, Any]:
    return {"kernel_us": float(length_us), "waves": waves, "depth": depth}


def mode_alone(mode: str) -> str:
    """Return the mode under which the urgent tenant is alone: what is the victim's is not given."""
    return str(parse_scheduler(mode).without(VICTIM))


def finds_length(run: PlannedRun) -> bool:
    """Whether a run is of a victim alone, which finds how long its kernels are."""
    return [tenant.name for tenant in run.tenants] == [VICTIM]


def read_lengths(text: str) -> list[int]:
    """Read lengths of kernels such as ``50us,1ms``, in µs; at least `LEAST_PLACES`."""
    option = "--lengths"
    found = []
    for part in _parts(text):
        match = _LENGTH.fullmatch(part)
        length_us = int(match[1]) * _US[match[2]] if match else 0
        if not _SHORTEST_US <= length_us <= _LONGEST_US:
            raise BadOption(option, part, "give a whole number of us or ms, from 10us to 1000ms")
        found.append(length_us)
    unlike = sorted(set(found))
    if len(unlike) < LEAST_PLACES:
        raise BadOption(
            option, text, f"give at least {LEAST_PLACES} lengths: two points are always on a line"
        )
    return unlike


def read_numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """Read whole numbers such as ``1,8``, in order."""
    found = []
    for part in _parts(text) or [text]:
        if not (part.isdecimal() and least <= int(part) <= most):
            raise BadOption(option, part, f"give whole numbers from {least} to {most}")
        found.append(int(part))
    return sorted(set(found))


def read_schedulers(text: str) -> dict[TenantPlacement, list[str]]:
    """Read modes as `hwq which --schedulers` takes them, by placement."""
    threads = f"{TenantPlacement.THREADS}-"
    found: dict[TenantPlacement, list[str]] = {}
    with within("--schedulers"):
        for entry in split_entries(text):
            mode = entry.removeprefix(threads)
            place = TenantPlacement.PROCESSES if mode == entry else TenantPlacement.THREADS
            modes = found.setdefault(place, [])
            modes += [str(each) for each in parse_entry(mode) if str(each) not in modes]
    return found


def least_requests() -> int:
    """Return the fewest requests of a window; a P99 with an interval takes four fifths of them."""
    return minimum_samples(0.99) * 5 // 4


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
