"""Noise on kernels' durations: seeded, and only on request."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache

from pytest_hwqueue.data.errors import BadInput, shortened

# As people write it, without `_`, and of a length that a number needs.
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_AMPLITUDES = ("session", "run", "jitter")


@dataclass(frozen=True)
class NoiseModel:
    """Makes kernels slower or faster than modelled; every amplitude defaults to zero.

    A factor of amplitude ``a`` is ``1 + a * (u + v - 1)`` with ``u`` and ``v`` uniform in [0, 1):
    a triangle with a standard deviation of ``a / sqrt(6)``. Sums of uniform numbers have the same
    bits on every machine; normal ones (through the C library's logarithm) do not.

    Attributes:
        seed: of the session; the same seed gives the same noise.
        of: what is measured, such as a cell and the number of its run; others get different draws,
            but share the session's.
        session: amplitude of one factor for everything that a session measures.
        run: amplitude of one factor for each run of a cell, that is each pool of streams.
        jitter: amplitude of one factor for each launch.

    """

    seed: int
    of: str = ""
    session: float = 0.0
    run: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an invalid noise model.

        Raises:
            BadInput: naming the field.

        """
        for name in _AMPLITUDES:
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)}: must be at least 0 and below 1")

    def describe(self) -> str:
        """Return the amplitudes, as on the command line."""
        return ",".join(
            f"{name}={getattr(self, name):g}" for name in _AMPLITUDES if getattr(self, name)
        )

    @property
    def steady(self) -> bool:
        """Whether all kernels of a run get the same factor."""
        return not self.jitter

    def factor(self, run: int, now_ns: int) -> float:
        """Return the factor for a kernel launched at ``now_ns`` in the ``run``-th pool."""
        factor = 1 + self.session * self._draw("session") if self.session else 1.0
        if self.run:
            factor *= 1 + self.run * self._draw(f"run/{self.of}/{run}")
        if self.jitter:
            factor *= 1 + self.jitter * _draw(f"{self.seed}/jitter/{self.of}/{run}/{now_ns}")
        return factor

    def _draw(self, what: str) -> float:
        return _kept_draw(f"{self.seed}/{what}")


def _draw(seed: str) -> float:
    """Return a number in [-1, 1), most often near 0."""
    # Seeding by text goes through SHA-512: equal in all Python versions and processes.
    source = random.Random(seed)
    return source.random() + source.random() - 1


# Those of a session or a run are asked for at every launch.
_kept_draw = lru_cache(maxsize=256)(_draw)


def parse_noise(text: str, seed: int, of: str = "") -> NoiseModel | None:
    """Read noise such as ``run=0.03,jitter=0.1``; None if there is none.

    Args:
        text: amplitudes by name; ``seed=N`` among them takes precedence over ``seed``.
        seed: of the session.
        of: what is measured.

    Raises:
        BadInput: naming the wrong part and what is valid.

    """
    if not text:
        return None
    amplitudes: dict[str, float] = {}
    given: set[str] = set()
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in (*_AMPLITUDES, "seed"):
            raise BadInput(
                f"there is no noise {shortened(name)!r}; give {', '.join(_AMPLITUDES)} or seed"
            )
        if name in given:
            raise BadInput(f"{name} is given twice; give it once")
        given.add(name)
        if not _NUMBER.fullmatch(value):
            raise BadInput(f"{name} is {shortened(value)!r}; give a number")
        if name != "seed":
            amplitudes[name] = float(value)
        elif value.isdecimal():
            seed = int(value)
        else:
            raise BadInput(f"seed is {value!r}; give a whole number of at least 0")
    return NoiseModel(seed, of, **amplitudes)
