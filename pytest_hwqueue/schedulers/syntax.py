"""Parses scheduler modes, such as ``xsched:level=1``, and opens them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.declaration import SchedulerDeclaration, SchedulerSpec
from pytest_hwqueue.schedulers.declared import BUILT_IN, declaration

if TYPE_CHECKING:
    from pytest_hwqueue.schedulers.mode import Scheduler, SchedulerPaths


def parse_scheduler(text: str) -> SchedulerSpec:
    """Parse one mode with its parameters.

    Raises:
        BadScheduler: naming the wrong part and what is valid.

    """
    text = text.strip()
    name, colon, rest = (part.strip() for part in text.partition(":"))
    found = declaration(name)
    if found.argument is not None:
        if not rest:
            raise BadScheduler(f"{name} needs {found.argument[1]}: {found.usage}")
        return SchedulerSpec(found, argument=rest)
    if colon and not rest:
        raise BadScheduler(f"{text!r} ends after the colon; it is written {found.usage}")
    parameters = _checked(found, _pairs(text, rest))
    if found.check is not None:
        found.check(parameters)
    return SchedulerSpec(found, parameters)


def parse_schedulers(text: str) -> tuple[SchedulerSpec, ...]:
    """Parse modes separated by commas, such as ``native,xsched:level=1,threshold=1,mps``.

    A comma also separates a mode's parameters: a part with ``=`` and without a colon belongs to
    the mode before it.

    Raises:
        BadScheduler: naming the wrong part and what is valid.

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
        raise BadScheduler(f"give one or more of {', '.join(each.name for each in BUILT_IN)}")
    read = {str(mode): mode for mode in map(parse_scheduler, modes)}
    return tuple(read.values())


def needs_environment(text: str) -> bool:
    """Whether a mode works only in processes started for it."""
    try:
        return parse_scheduler(text).declaration.needs_environment
    except BadScheduler:
        # A test's own parameter, not parsed before; opening the mode says what is wrong with it.
        return True


def open_scheduler(text: str, paths: SchedulerPaths | None = None) -> Scheduler:
    """Open a mode for the tenants of a scenario, or for a cell.

    Raises:
        BadScheduler: if there is no such mode, a parameter is wrong, or a description is.

    """
    from pytest_hwqueue.schedulers.mode import SchedulerPaths

    spec = parse_scheduler(text)
    module, _, name = spec.declaration.implementation.partition(":")
    opened: Scheduler = getattr(importlib.import_module(module), name)(
        spec, paths or SchedulerPaths()
    )
    return opened


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


def _checked(mode: SchedulerDeclaration, given: Mapping[str, str]) -> dict[str, str]:
    known = {each.name: each for each in mode.parameters}
    for name in given:
        if name not in known and mode.per_tenant is None:
            valid = ", ".join(known) or "none"
            raise BadScheduler(f"{mode.name} has no parameter {name!r}; it has {valid}")
    read = {}
    for name in [*(name for name in known if name in given), *(n for n in given if n not in known)]:
        parameter = known.get(name, mode.per_tenant)
        assert parameter is not None
        try:
            read[name] = parameter.read(given[name])
        except BadScheduler as error:
            raise BadScheduler(f"{mode.name}: {name}={given[name]} is not valid; {error}") from None
    return read
