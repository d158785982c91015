"""Values of options: read, or refused with what to give.

What knows devices, modes and noises is imported where one is read: see `Settings`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_hwqueue.data.errors import BadOption, meant, refused_as
from pytest_hwqueue.parts.workloads import MAXIMUM_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Nothing is measured for longer: what asks for more has a wrong unit.
_LONGEST_S = 366 * 24 * 3600.0
VERDICTS = ("inconclusive", "no-baseline", "incomparable", "missing")
"""Those that --hwq-on gives a reaction to: the others always fail, or always pass."""
_REACTIONS = ("pass", "warn", "fail")
_YES = ("1", "true", "yes", "on")


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _whole(value: str, otherwise: int) -> int:
    """Read a whole number as people write it, without ``_`` and of at most 18 digits."""
    return int(value) if re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()) else otherwise


def _real(value: str) -> float:
    """Read a number as people write it; NaN if it is none."""
    try:
        return float("nan" if "_" in value else value)
    except ValueError:
        return float("nan")


def one_of(*choices: str) -> Callable[[str, str], str]:
    """Take one of ``choices``."""

    def parse(option: str, value: str) -> str:
        if value not in choices:
            raise BadOption(option, value, f"choose from {', '.join(choices)}")
        return value

    return parse


def some_of(*choices: str) -> Callable[[str, str], tuple[str, ...]]:
    """Take one or more of ``choices``, separated by commas."""

    def parse(option: str, value: str) -> tuple[str, ...]:
        parts = _split(value)
        for part in parts or [value]:
            if part not in choices:
                raise BadOption(option, part, f"choose one or more of {', '.join(choices)}")
        return tuple(dict.fromkeys(parts))

    return parse


def reactions(option: str, value: str) -> dict[str, str]:
    """Take VERDICT:REACTION, separated by commas or lines; of a verdict named twice, the last."""
    found = {"incomparable": "fail"}
    for part in _split(value.replace("\n", ",")):
        verdict, _, reaction = map(str.strip, part.partition(":"))
        for word, known in ((verdict, VERDICTS), (reaction, _REACTIONS)):
            if word not in known:
                raise BadOption(
                    option, part,
                    f"{meant(word, known)}give VERDICT:REACTION, a verdict of "
                    f"{', '.join(VERDICTS)}, and pass, warn or fail",
                )  # fmt: skip
        found[verdict] = reaction
    return found


def integer(least: int) -> Callable[[str, str], int]:
    """Take an integer of at least ``least``."""

    def parse(option: str, value: str) -> int:
        number = _whole(value, least - 1)
        if number < least:
            raise BadOption(option, value, f"give a whole number of at least {least}")
        return number

    return parse


def integer_or_auto(option: str, value: str) -> int | None:
    """Take an integer of at least 1, or ``auto`` (None)."""
    return None if value == "auto" else integer(1)(option, value)


def seconds(option: str, value: str) -> float:
    """Take seconds above 0; ``20`` or ``20s``."""
    number = _real(value.removesuffix("s"))
    if not 0 < number <= _LONGEST_S:
        raise BadOption(
            option, value, "give seconds greater than 0, such as 20 or 0.5, and at most a year"
        )
    return number


def duration(option: str, value: str) -> float | None:
    """Take a time with its unit, ``90s``, ``10min`` or ``1.5h``, in seconds; or nothing (None)."""
    if not value:
        return None
    for unit, factor in (("min", 60.0), ("h", 3600.0), ("s", 1.0)):
        number = value.removesuffix(unit).strip()
        if value.endswith(unit) and re.fullmatch(r"\d{1,9}(\.\d+)?", number, re.ASCII):
            if float(number) > 0:
                return float(number) * factor
            break
    raise BadOption(option, value, "give a time above 0 and its unit, such as 90s, 10min or 1h")


def share(most: float) -> Callable[[str, str], float]:
    """Take a share above 0 and below ``most``: ``1%`` or ``0.01``."""

    def parse(option: str, value: str) -> float:
        text = value.strip()
        share = _real(text[:-1]) / 100 if text.endswith("%") else _real(text)
        if not 0 < share < most:
            raise BadOption(
                option, value, f"give a share above 0 and below {most:.0%}, such as 1% or 0.01"
            )
        return share

    return parse


def share_or_0(option: str, value: str) -> float:
    """Take a share or 0."""
    return 0.0 if value in ("0", "0%") else share(1)(option, value)


def or_auto(parse: Callable[[str, str], T]) -> Callable[[str, str], T | None]:
    """Take what another takes, or ``auto``, which is None."""
    return lambda option, value: None if value == "auto" else parse(option, value)


def commit(option: str, value: str) -> str:
    """Take a commit's full hash, with ``-dirty`` behind it or not, or nothing."""
    from pytest_hwqueue.parts.processes.git import is_commit

    if value and not is_commit(value):
        raise BadOption(
            option, value,
            "give the full hash, as git rev-parse HEAD prints it, with -dirty at its end if "
            "tracked files were changed",
        )  # fmt: skip
    return value


def baseline_name(option: str, value: str) -> str:
    """Take a name under which a baseline can be stored, or nothing."""
    if not value:
        return value
    from pytest_hwqueue.data.records.files import check_name

    with refused_as(option, value):
        check_name(value)
    return value


def streams(option: str, value: str) -> tuple[int, ...] | None:
    """Take stream counts, or ``auto`` (None)."""
    if value == "auto":
        return None
    valid = f"give a count from 1 to {MAXIMUM_STREAMS}, a list such as 1,2,4,8, or auto"
    counts = []
    for part in _split(value) or [value]:
        # The length first: Python refuses to read thousands of digits.
        if not part.isdecimal() or len(part) > 9 or not 1 <= int(part) <= MAXIMUM_STREAMS:
            raise BadOption(option, part, valid)
        counts.append(int(part))
    return tuple(dict.fromkeys(counts))


def device(option: str, value: str) -> str:
    """Take the name of a device; whether it exists is checked later."""
    from pytest_hwqueue.data.records.kinds import can_name_devices, device_names

    if not can_name_devices(value):
        raise BadOption(option, value, f"choose from {device_names()}")
    return value


def parameters(option: str, value: str) -> tuple[tuple[str, str], ...]:
    """Take NAME=VALUE, one per line."""
    pairs = []
    for line in filter(str.strip, value.splitlines()):
        name, equals, text = line.partition("=")
        if not equals or not name.strip():
            raise BadOption(option, line, "give NAME=VALUE or WORKLOAD.NAME=VALUE")
        pairs.append((name.strip(), text.strip()))
    return tuple(pairs)


def faults(option: str, value: str) -> tuple[str, ...]:
    """Take ``slower:PERCENT``, several separated by white space."""
    faults = []
    for text in value.split():
        name, _, percent = text.partition(":")
        if name != "slower":
            raise BadOption(option, text, "there is one fault, slower:PERCENT")
        if not 0.1 <= _real(percent) <= 100_000:
            raise BadOption(option, text, "give slower:PERCENT, a number from 0.1 to 100000")
        faults.append(f"slower:{_real(percent):g}")
    return tuple(faults)


def noise(option: str, value: str) -> str:
    """Take a noise model, or nothing."""
    if not value:
        return value
    from pytest_hwqueue.parts.devices.simulated.noise import parse_noise

    with refused_as(option, value):
        parse_noise(value, 0)
    return value


def noises(option: str, value: str) -> tuple[str, ...]:
    """Take names of noises; whether they can run is checked later."""
    from pytest_hwqueue.data.noise_names import NONE, parse_noises

    with refused_as(option, value):
        # What is quiet alone is no comparison.
        return () if value == NONE else parse_noises(value)


def names(_option: str, value: str) -> tuple[str, ...]:
    """Take names separated by commas."""
    return tuple(dict.fromkeys(_split(value)))


def some_names(option: str, value: str) -> tuple[str, ...]:
    """Take one or more names separated by commas."""
    found = names(option, value)
    if not found:
        raise BadOption(option, value, "give one or more names")
    return found


def schedulers(option: str, value: str) -> tuple[str, ...]:
    """Take scheduler modes with their parameters; whether they can be used is checked later."""
    from pytest_hwqueue.parts.schedulers.syntax import parse_schedulers

    with refused_as(option, value):
        return tuple(str(mode) for mode in parse_schedulers(value))


def folders(_option: str, value: str) -> tuple[Path, ...]:
    """Take folders separated by commas, or nothing."""
    return tuple(Path(part) for part in _split(value))


def folder(_option: str, value: str) -> Path:
    """Take a path, which has a default."""
    return Path(value)


def path(_option: str, value: str) -> Path | None:
    """Take a path, or nothing (None)."""
    return Path(value) if value else None


def flag(option: str, value: str) -> bool:
    """Take yes or no."""
    lowered = value.lower()
    if lowered not in (*_YES, "0", "false", "no", "off", ""):
        raise BadOption(option, value, "give yes or no")
    return lowered in _YES
