"""What a result depends on, as records keep it, and how two of them differ.

Hard fields must match for two results to be compared; soft ones are reported when they differ. A
field that could not be read is in neither, but in ``missing`` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = "str | int | float | bool | None"


@dataclass(frozen=True)
class Fingerprint:
    """What a result depends on, by field name."""

    hard: dict[str, Value]
    soft: dict[str, Value]
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FingerprintDifference:
    """A field that differs; None if a side does not have it."""

    field: str
    a: Value
    b: Value


def differences(
    a: Fingerprint, b: Fingerprint
) -> tuple[list[FingerprintDifference], list[FingerprintDifference]]:
    """Return what differs between two fingerprints: hard fields, soft fields, both by name.

    A field that only one of them has counts as different; one that neither has is not included, see
    ``missing``.
    """
    return _differences(a.hard, b.hard), _differences(a.soft, b.soft)


def _differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> list[FingerprintDifference]:
    return [
        FingerprintDifference(name, a.get(name), b.get(name))
        for name in sorted({*a, *b})
        if (name in a, a.get(name)) != (name in b, b.get(name))
    ]
