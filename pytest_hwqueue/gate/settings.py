"""How strict the gate is: every number other than the runs that a verdict depends on."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_FIRST_RUNS = 2


@dataclass(frozen=True)
class GateSettings:
    """Rates, effects and run counts of the gate; all shares are fractions (0.01 is 1 %).

    Attributes:
        rate: the share of unchanged suites that may raise an alarm.
        min_effect: no rise below this is called a regression.
        detect: the rise that matters: a cell passes only if a rise of this size is excluded; if it
            cannot be detected, the verdict says how many runs it would take.
        tau: standard deviation of ln P99 between sessions that the user vouches for: 0.005 with
            locked clocks on one host, 0.01 unlocked, 0 only for interleaved runs of one session.
        screen: a cell is acquitted if its t-test's p is above this and ``detect`` is excluded.
        first_runs: new runs of every cell; the first look may be at as many.
        looks: numbers of new runs at which a flagged cell is judged again.
        weights: the share of the error rate spent at each look; 0 may only acquit.
        floor: the smallest credible standard deviation of ln P99 between runs.
        warn: a rise that is not convicted is a warning if the t-test's p, or the exact one, is at
            most this; a fall is more than luck if its p is.
        power: of detecting the minimum detectable effect.
        pairs: old and new runs each in the interleaved mode.
        suite_shift: a median change beyond this, shared by the sentinel, is the machine's.
    """

    rate: float = 0.01
    min_effect: float = 0.05
    detect: float = 0.20
    tau: float = 0.005
    screen: float = 0.20
    first_runs: int = LEAST_FIRST_RUNS
    looks: tuple[int, ...] = (4, 8, 15)
    weights: tuple[float, ...] = (0.0, 0.25, 0.75)
    floor: float = 0.005
    warn: float = 0.01
    power: float = 0.95
    pairs: int = 12
    suite_shift: float = 0.025

    def __post_init__(self) -> None:
        for name in ("rate", "screen", "warn"):
            value = getattr(self, name)
            _require(0 < value < 1, name, "above 0 and below 1", value)
        _require(0.5 < self.power < 1, "power", "above 0.5 and below 1", self.power)
        _require(0 <= self.tau < 1, "tau", "0 or more and below 1", self.tau)
        for name in ("min_effect", "detect", "floor", "suite_shift"):
            value = getattr(self, name)
            _require(0 < value < 10, name, "above 0 and below 10 (a fraction, 0.05 is 5 %)", value)
        _require(self.rate <= self.screen, "screen", f"at least rate ({self.rate})", self.screen)
        _require(
            self.first_runs >= LEAST_FIRST_RUNS,
            "first_runs",
            f"{LEAST_FIRST_RUNS} or more",
            self.first_runs,
        )
        _require(self.pairs >= LEAST_FIRST_RUNS, "pairs", "2 or more", self.pairs)
        ascending = all(a < b for a, b in zip(self.looks, self.looks[1:], strict=False))
        _require(
            bool(self.looks) and self.looks[0] >= self.first_runs and ascending,
            "looks",
            f"ascending numbers of runs from first_runs ({self.first_runs})",
            self.looks,
        )
        _require(
            len(self.weights) == len(self.looks),
            "weights",
            f"as many as looks ({len(self.looks)})",
            self.weights,
        )
        _require(
            all(weight >= 0 for weight in self.weights)
            and self.weights[-1] > 0
            and abs(sum(self.weights) - 1) < 1e-9,
            "weights",
            "0 or more each, above 0 at the last look, and 1 in all",
            self.weights,
        )

    @property
    def last_look(self) -> int:
        """The largest number of new runs that a cell gets."""
        return self.looks[-1]


def _require(holds: bool, field: str, what: str, value: object) -> None:
    if not holds:
        raise ValueError(f"GateSettings.{field} must be {what}, is {value!r}")
