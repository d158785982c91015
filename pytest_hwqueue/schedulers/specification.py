"""Reads the text of a scheduler mode, such as ``xsched:level=1,threshold=1``; nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import NamedTuple

from pytest_hwqueue.errors import BadScheduler

# Other packages add modes here: a name, and a callable as `registry.ModeFactory` says.
ENTRY_POINTS = "pytest_hwqueue.schedulers"

# XSched's policies of xserver by name; the server speaks of them by number.
XSCHED_POLICIES = {
    "HPF": 1, "HHPF": 2, "CHPF": 3, "UP": 4, "PUP": 5, "KEDF": 7, "LAX": 8, "AWF": 9, "CFS": 10,
    "MLFQ": 11,
}  # fmt: skip

# What XSched itself uses where nothing is set.
XSCHED_THRESHOLD = 16
_XSCHED_BATCH = 8


@dataclass(frozen=True)
class SchedulerText:
    """A mode and its parameters, as they were asked for; ``str`` gives the text again."""

    mode: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As on the command line, parameters in the mode's own order."""
        if self.mode == "preload":
            return f"preload:{self.parameters['name']}"
        given = ",".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.mode}:{given}" if given else self.mode


# Reads the text of one parameter, or raises BadScheduler with what is valid.
_Reader = Callable[[str], str]


class ModeSyntax(NamedTuple):
    """What may stand behind a mode's name.

    Attributes:
        usage: how it is written.
        help: what it does, for people.
        parameters: each with what reads it.
        any_name: reads parameters of any name (tenants').

    """

    usage: str
    help: str
    parameters: Mapping[str, _Reader] = MappingProxyType({})
    any_name: _Reader | None = None


def _whole(least: int, most: int) -> _Reader:
    def read(text: str) -> str:
        # The length first: Python refuses to read thousands of digits.
        if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
            raise BadScheduler(f"give a whole number from {least} to {most}")
        return str(int(text))

    return read


def _choice(*choices: str) -> _Reader:
    def read(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise BadScheduler(f"choose from {', '.join(choices)}")

    return read


def _share(text: str) -> str:
    try:
        percent = float(text[:-1]) if text.endswith("%") else 100 * float(text)
    except ValueError:
        percent = -1.0
    if not 0 < percent <= 100:
        raise BadScheduler("give a share above 0 and up to 100%, such as 80% or 0.8")
    return f"{percent:g}%"


_COMMANDS = _whole(1, 100_000)

MODES: dict[str, ModeSyntax] = {
    "native": ModeSyntax("native", "one priority for all streams"),
    "stream-priority": ModeSyntax(
        "stream-priority", "urgent streams of a process get a higher device priority"
    ),
    "mps": ModeSyntax("mps", "NVIDIA's Multi-Process Service, all clients alike"),
    "mps-priority": ModeSyntax(
        "mps-priority", "MPS, tenants of priority 0 and below as clients below normal"
    ),
    "mps-partition": ModeSyntax(
        "mps-partition[:TENANT=80%,...]",
        "MPS, a tenant limited to its share of the multiprocessors",
        any_name=_share,
    ),
    "xsched": ModeSyntax(
        "xsched[:level=1,threshold=16,batch=8,policy=HPF,auto=on]",
        "XSched's global scheduler; a threshold alone gives a batch of half of it",
        {
            "level": _whole(1, 3),
            "threshold": _COMMANDS,
            "batch": _COMMANDS,
            "policy": _choice(*XSCHED_POLICIES),
            "auto": _choice("on", "off"),
        },
    ),
    "preload": ModeSyntax(
        "preload:NAME", "any other library, described in NAME.yaml (--hwq-preloads) or in a file"
    ),
}


def describe_modes() -> str:
    """Every mode with what it does, for help texts."""
    return "; ".join(f"{syntax.usage} ({syntax.help})" for syntax in MODES.values())


def parse_scheduler(text: str) -> SchedulerText:
    """Read one mode with its parameters.

    Raises:
        BadScheduler: naming the part that was wrong and what is valid.

    """
    text = text.strip()
    mode, colon, rest = (part.strip() for part in text.partition(":"))
    syntax = MODES.get(mode)
    if syntax is None:
        added = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
        if mode not in added:
            names = ", ".join([*MODES, *added])
            raise BadScheduler(f"there is no scheduler mode {mode!r}; there are {names}")
        return SchedulerText(mode, _pairs(text, rest))
    if mode == "preload":
        if not rest:
            raise BadScheduler("preload needs the name of a description: preload:NAME")
        return SchedulerText(mode, {"name": rest})
    if colon and not rest:
        raise BadScheduler(f"{text!r} ends after the colon; it is written {syntax.usage}")
    parameters = _checked(syntax, _pairs(text, rest))
    if mode == "xsched":
        threshold, batch = in_flight(parameters)
        if batch > threshold:
            raise BadScheduler(
                f"xsched: batch={batch} is more than threshold={threshold}, which ends every "
                "process under XSched; give a batch of at most the threshold"
            )
    return SchedulerText(mode, parameters)


def needs_environment(text: str) -> bool:
    """Whether a mode works only in processes that were started for it."""
    return text not in ("native", "stream-priority")


def parse_schedulers(text: str) -> tuple[SchedulerText, ...]:
    """Read modes separated by commas, each once: ``native,xsched:level=1,threshold=1,mps``.

    A comma also separates a mode's parameters: a part with ``=`` and without a colon belongs to
    the mode before it.

    Raises:
        BadScheduler: naming the part that was wrong and what is valid.

    """
    modes: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        if "=" in part and ":" not in part:
            if not modes or ":" not in modes[-1]:
                raise BadScheduler(
                    f"{part!r} is a parameter without its mode; write it behind a colon, such as "
                    f"{modes[-1] if modes else 'xsched'}:{part}"
                )
            modes[-1] += f",{part}"
        else:
            modes.append(part)
    if not modes:
        raise BadScheduler(f"give one or more of {', '.join(MODES)}")
    read = {str(mode): mode for mode in map(parse_scheduler, modes)}
    return tuple(read.values())


def in_flight(parameters: Mapping[str, str]) -> tuple[int, int]:
    """Return XSched's threshold and batch size, in commands.

    A batch of half the threshold where only that is given: the relation of XSched's own 16 and 8.
    """
    threshold = int(parameters.get("threshold", XSCHED_THRESHOLD))
    default = max(1, threshold // 2) if "threshold" in parameters else _XSCHED_BATCH
    return threshold, int(parameters.get("batch", default))


def _pairs(text: str, rest: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not name or not value:
            raise BadScheduler(f"{text!r}: {part.strip()!r} is not NAME=VALUE")
        if name in pairs:
            raise BadScheduler(f"{text!r}: {name} is given twice")
        pairs[name] = value
    return pairs


def _checked(syntax: ModeSyntax, given: Mapping[str, str]) -> dict[str, str]:
    mode = syntax.usage.partition("[")[0]
    for name in given:
        if name not in syntax.parameters and syntax.any_name is None:
            valid = ", ".join(syntax.parameters) or "none"
            raise BadScheduler(f"{mode} has no parameter {name!r}; it has {valid}")
    order = [*(name for name in syntax.parameters if name in given)] or list(given)
    read = {}
    for name in order:
        reader = syntax.parameters.get(name, syntax.any_name)
        assert reader is not None
        try:
            read[name] = reader(given[name])
        except BadScheduler as error:
            raise BadScheduler(f"{mode}: {name}={given[name]} is not valid; {error}") from None
    return read
