"""Checks the fields of a scenario file against each other.

Works on the file's plain data, where anything may be missing or wrong. The check of each field
reports that; everything else is still checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, NamedTuple

from pytest_hwqueue.data.errors import BadInput, nearest
from pytest_hwqueue.data.noise_names import noise_id
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.engine.scenarios.fields import read_seconds
from pytest_hwqueue.engine.scenarios.goals import (
    OF_TOKENS,
    REFERENCES,
    Goal,
    latency_bound_ns,
    parse_goal,
)
from pytest_hwqueue.engine.scenarios.located_yaml import Path
from pytest_hwqueue.engine.tenants import DEVICE
from pytest_hwqueue.parts.schedulers.syntax import parse_entry
from pytest_hwqueue.parts.workloads.tenants.shapes import MODELS, TORCHVISION, model_shape

Findings = tuple[Path, str]
_PLACEMENTS = tuple(TenantPlacement)
_KINDS = ("model", "workload", "function", "server")
_NOT_OF_SERVERS = ("batch", "parameters", "streams")
_BY_CLIENTS = ("arrival", "concurrency", "start")
_ENDS_BY_TIME = "a window with a server ends by time alone, not by requests"
MOST_AT_ONCE = 64
"""Requests that one of our own tenants may serve at once."""


class _Stated(NamedTuple):
    """A goal that can be read, with its path; it holds in these placements."""

    path: Path
    goal: Goal
    placements: Sequence[str]


def check_names(data: Mapping[str, Any]) -> Iterator[Findings]:
    """Find duplicate and unknown names, and fields that exclude each other."""
    tenants = _tables(data.get("tenants"))
    named = {each["name"]: each for _, each in tenants if isinstance(each.get("name"), str)}
    yield from _twice("tenants", tenants)
    for index, tenant in tenants:
        yield from _check_work(("tenants", index), tenant, tenant)
    yield from _check_servers(data, tenants)
    if isinstance(data.get("schedulers"), dict) and data.get("placement") is not None:
        yield ("placement",), "the placements are the names in schedulers already: leave it out"
    yield from _check_modes((), data)
    yield from _check_noises(data)
    variants = _tables(data.get("variants"))
    yield from _twice("variants", variants)
    own = _goals(data, ())
    runs_of = {
        str(each.get("name")): set(
            map(str, only if isinstance(only := each.get("only"), list) else named)
        )
        for _, each in variants
    }
    yield from _check_goals(own, named, runs_of, "")
    yield from _check_variants_named(own, named, runs_of)
    yield from _check_tokens(own, named)
    placed = [_placements(data, variant) for _, variant in variants] or [_placements(data, {})]
    yield from _check_judged((), data, {place for places in placed for place in places})
    for (index, variant), places in zip(variants, placed, strict=False):
        path = ("variants", index)
        yield from _check_judged(path, variant, places)
        yield from _check_variant(path, variant, named, own, places, runs_of)
    yield from _check_ends(data, tenants)
    if not variants:
        yield from _check_attainment(own, named, placed[0])
        yield from _check_starts(("tenants",), named.values())


def _check_variant(
    path: Path, variant: Mapping[str, Any], tenants: Mapping[str, Mapping[str, Any]],
    inherited: Sequence[_Stated], placements: AbstractSet[str],
    runs_of: Mapping[str, AbstractSet[str]],
) -> Iterator[Findings]:  # fmt: skip
    running = dict(tenants)
    only = variant.get("only")
    names = only if isinstance(only, list) else []
    unknown = [(index, name) for index, name in enumerate(names) if name not in running]
    for index, name in unknown:
        yield (*path, "only", index), _no_tenant(name, tenants)
    if names and not unknown:
        # With an unknown one, who runs is a guess, and all that follows from it would be too.
        running = {name: tenants[name] for name in tenants if name in names}
    changes = variant.get("set")
    for name, change in changes.items() if isinstance(changes, dict) else ():
        if name not in running:
            yield (*path, "set", name), _no_tenant(name, running)
        elif isinstance(change, dict):
            yield from _check_work((*path, "set", name), change, tenants[name])
            running[name] = {**running[name], **change}
    yield from _check_modes(path, variant)
    if not names:
        # Of some by themselves the first begins with the window.
        yield from _check_starts(path, running.values())
    own = _goals(variant, path)
    where = f" in variant {variant.get('name')}"
    yield from _check_goals(own, running, runs_of, where)
    yield from _check_variants_named(own, tenants, runs_of)
    yield from _check_tokens(own, running)
    # A name that is no tenant's was reported at its field.
    known = [
        each
        for each in inherited
        if _meant(each.goal, runs_of) <= set(tenants) and not placements.isdisjoint(each.placements)
    ]
    yield from _check_goals(known, running, runs_of, where)
    yield from _check_attainment([*known, *own], running, placements)


def _check_starts(path: Path, running: Iterable[Mapping[str, Any]]) -> Iterator[Findings]:
    """Refuse tenants that all start later: then their window begins too early."""
    starts = [tenant.get("start") for tenant in running]
    if starts and None not in starts:
        yield path, "all tenants have a start: leave it out for the first, and count from there"


def _check_ends(
    data: Mapping[str, Any], tenants: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[Findings]:
    """Refuse tenants, also of variants, that start when the window is over."""
    for path, fields in _tenants_and_changes(data, tenants):
        with suppress(ValueError):  # reported by the check of the field
            if read_seconds(fields.get("start")) >= read_seconds(data.get("duration")):
                yield (*path, "start"), "the window, of this duration, is over by then"


def _tenants_and_changes(
    data: Mapping[str, Any], tenants: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield path and fields of each tenant, and of each change to one by a variant."""
    for index, tenant in tenants:
        yield ("tenants", index), tenant
    for index, variant in _tables(data.get("variants")):
        changes = variant.get("set")
        for name, change in changes.items() if isinstance(changes, dict) else ():
            if isinstance(change, dict):
                yield ("variants", index, "set", name), change


def _check_work(
    path: Path, fields: Mapping[str, Any], tenant: Mapping[str, Any]
) -> Iterator[Findings]:
    given = [kind for kind in _KINDS if tenant.get(kind) is not None]
    if fields is tenant and len(given) != 1:
        yield path, f"give one of {', '.join(_KINDS)}{_both(given)}"
    elif given == ["server"]:
        for name in _NOT_OF_SERVERS:
            if fields.get(name) is not None:
                yield (*path, name), "is not of a server, which is asked by requests alone"
        server = tenant["server"]
        for name in _BY_CLIENTS if isinstance(server, dict) and server.get("client") else ():
            if fields.get(name) is not None:
                yield (*path, name), "is the client's to decide (server.client): tell it instead"
        return
    elif given == ["model"]:
        yield from _check_shape((*path, "parameters"), tenant, fields.get("parameters"))
    elif given and fields.get("batch") is not None:
        yield (*path, "batch"), f"is a model's; a {given[0]} has parameters"
    concurrency = fields.get("concurrency")
    if isinstance(concurrency, int) and concurrency > MOST_AT_ONCE:
        yield (
            (*path, "concurrency"),
            f"{concurrency} requests at once are more than {MOST_AT_ONCE}: each has a thread and "
            "streams of its own",
        )


def _check_servers(
    data: Mapping[str, Any], tenants: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[Findings]:
    served = [index for index, tenant in tenants if tenant.get("server") is not None]
    for path, fields in _tenants_and_changes(data, tenants) if served else ():
        if fields.get("requests") is not None:
            yield (*path, "requests"), _ENDS_BY_TIME
    variants = [variant for _, variant in _tables(data.get("variants"))] or [{}]
    if any(TenantPlacement.THREADS in _placements(data, variant) for variant in variants):
        for index in served:
            yield (
                ("tenants", index, "server"),
                "a server is a process: name schedulers for processes alone",
            )


def _both(given: Sequence[str]) -> str:
    return f", not {' and '.join(given)}" if given else ""


def _check_shape(path: Path, tenant: Mapping[str, Any], parameters: object) -> Iterator[Findings]:
    model = tenant["model"]
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        # What is no model, or no name, is reported at its field.
        known = isinstance(model, str) and (model in MODELS or model.startswith(TORCHVISION))
        if known and isinstance(name, str):
            try:
                model_shape(model, "full", {name: value})
            except BadInput as error:
                yield (*path, name), f"tenant {tenant.get('name')}: {error}"


def _check_modes(path: Path, fields: Mapping[str, Any]) -> Iterator[Findings]:
    seen = set()
    for at, placement, text in _entries(fields, "schedulers", path):
        with suppress(BadInput):  # reported by the check of the field
            for mode in map(str, parse_entry(text)):
                if (placement, mode) in seen:
                    yield at, f"{mode} stands here twice"
                seen.add((placement, mode))


def _check_noises(data: Mapping[str, Any]) -> Iterator[Findings]:
    given = data.get("noise")
    noises = given if isinstance(given, list) else []
    ids: dict[str, str] = {}
    for index, name in enumerate(noises):
        same = ids.setdefault(noise_id(str(name)), str(name))
        if same != str(name):
            yield ("noise", index), f"its tests would be called as those of {same!r}; rename one"
        elif name in noises[:index]:
            yield ("noise", index), f"{name} stands here twice"


def _placements(data: Mapping[str, Any], variant: Mapping[str, Any]) -> AbstractSet[str]:
    """Return where a variant's tests run: anywhere, if the file names what is no placement."""
    schedulers = variant.get("schedulers") or data.get("schedulers")
    named = {str(data.get("placement") or TenantPlacement.PROCESSES)}
    if isinstance(schedulers, dict):
        named = set(schedulers)
    return named if named <= set(_PLACEMENTS) else set(_PLACEMENTS)


def _check_judged(
    path: Path, fields: Mapping[str, Any], placements: AbstractSet[str]
) -> Iterator[Findings]:
    goals = fields.get("goals")
    stated = set(goals) if isinstance(goals, dict) else set()
    for place in _PLACEMENTS:
        if place in stated - placements:
            yield (
                (*path, "goals", place),
                f"no test runs in {place}: name schedulers for {place}, or leave these goals out",
            )


def _check_goals(
    goals: Iterable[_Stated], running: Iterable[str], variants: Iterable[str], where: str
) -> Iterator[Findings]:
    known, variants = list(running), list(variants)
    for path, goal, _ in goals:
        for name in sorted(_meant(goal, variants) - set(known)):
            if name == goal.reference and variants:
                near = nearest(name, [*known, *variants])
                yield path, f"there is no tenant or variant {name!r}; {near}"
            else:
                yield path, _no_tenant(name, known) + where


def _check_variants_named(
    goals: Iterable[_Stated], tenants: Iterable[str], runs_of: Mapping[str, AbstractSet[str]]
) -> Iterator[Findings]:
    """Find goals compared with a variant that is a tenant, too, or does not run theirs.

    Args:
        goals: that can be read.
        tenants: all of the scenario.
        runs_of: the tenants that each variant runs.

    """
    for path, goal, _ in goals:
        name = goal.reference
        if name is None or name in REFERENCES or name not in runs_of:
            continue
        if name in set(tenants):
            yield path, f"{name} is a tenant and a variant: rename one of them"
        elif goal.tenant not in runs_of[name]:
            yield path, f"variant {name} does not run {goal.tenant}: name one that does"


def _check_tokens(
    goals: Iterable[_Stated], tenants: Mapping[str, Mapping[str, Any]]
) -> Iterator[Findings]:
    for path, goal, _ in goals:
        if goal.figure not in OF_TOKENS or goal.tenant not in tenants:
            continue
        server = tenants[goal.tenant].get("server")
        fields = server if isinstance(server, dict) else {}
        if fields.get("protocol") != "openai":
            yield path, f"{goal.figure} is of a tenant whose server has protocol: openai"
        elif goal.figure == "goodput" and not {"ttft_ms", "tbt_ms"} & set(fields):
            yield path, "good within which times? give the server ttft_ms, tbt_ms, or both"


def _check_attainment(
    goals: Sequence[_Stated], running: Mapping[str, Mapping[str, Any]], placements: AbstractSet[str]
) -> Iterator[Findings]:
    for path, goal, places in goals:
        name = goal.tenant
        if goal.figure != "attainment" or name not in running:
            continue
        judged = [place for place in places if place in placements]
        bounds = (
            latency_bound_ns((each.goal for each in goals if place in each.placements), name)
            for place in judged
        )
        unbounded = [place for place, bound in zip(judged, bounds, strict=True) if bound is None]
        if unbounded and running[name].get("deadline_ms") is None:
            where = "" if unbounded == judged else f" in {unbounded[0]}"
            yield (
                path,
                f"attained within which latency{where}? give tenant {name} a deadline_ms, or a "
                f"goal such as {name}.latency_p99_ms < 10",
            )


def _goals(fields: Mapping[str, Any], path: Path) -> list[_Stated]:
    """Return the goals that can be read."""
    goals = []
    for at, place, text in _entries(fields, "goals", path):
        placements = _PLACEMENTS if place in ("", "all") else (place,)
        with suppress(BadInput):  # reported by the check of the field
            goals.append(_Stated(at, parse_goal(text), placements))
    return goals


def _entries(fields: Mapping[str, Any], name: str, path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield path, placement and text of what a list holds, or a table with one per placement."""
    given = fields.get(name)
    table = given if isinstance(given, dict) else {"": given}
    for place, listed in table.items():
        for index, text in enumerate(listed if isinstance(listed, list) else ()):
            yield (*path, name, *filter(None, [place]), index), place, str(text)


def _meant(goal: Goal, variants: Iterable[str]) -> set[str]:
    """Return the tenants that a goal names."""
    named = {goal.tenant} - {DEVICE}
    reference = goal.reference
    if reference is None or reference in (*REFERENCES, *variants):
        return named
    return {*named, reference}


def _no_tenant(name: object, known: Iterable[str]) -> str:
    return f"there is no tenant {name!r}; {nearest(str(name), known)}"


def _tables(value: Any) -> list[tuple[int, dict[str, Any]]]:
    entries = enumerate(value) if isinstance(value, list) else ()
    return [(index, each) for index, each in entries if isinstance(each, dict)]


def _twice(field: str, tables: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[Findings]:
    seen: set[str] = set()
    for index, table in tables:
        name = table.get("name")
        if isinstance(name, str) and name in seen:
            yield (field, index, "name"), f"{name!r} stands there twice"
        elif isinstance(name, str):
            seen.add(name)
