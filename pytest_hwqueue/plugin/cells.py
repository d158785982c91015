"""From tests to cells: settings, parameters, and what a session plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import BadInput, BadOption, in_utf8
from pytest_hwqueue.data.noise_names import noise_id
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.devices.kinds import (
    chosen_devices,
    default_size,
    resolve_size,
)
from pytest_hwqueue.parts.processes.launched import launched_rank
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, Declaration, workload_class
from pytest_hwqueue.plugin.keys import PARAMETERS, SETTINGS, is_scenario, parameters_of
from pytest_hwqueue.plugin.ranks import ranks_together, workload_of

if TYPE_CHECKING:
    from pytest_hwqueue.engine.causes.traced_pass import TracePlan
    from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
    from pytest_hwqueue.judge.stored import Parts
    from pytest_hwqueue.parts.workloads.workload import Workload


_LEAST_TRACED_S = 5.0


def trace_plan(settings: Settings, only_traced: bool) -> TracePlan | None:
    """Return the traced pass planned for a cell, or None."""
    from pytest_hwqueue.data.metrics.latency import minimum_samples
    from pytest_hwqueue.engine.causes.traced_pass import MOST_REQUESTS, TracePlan
    from pytest_hwqueue.engine.cell.sample_plan import USUAL
    from pytest_hwqueue.parts.devices.launches import PICTURES, WITH_CSV

    requests = settings.iterations or settings.samples or USUAL
    # 5 s by default, up to four times that for a percentile.
    length_ns = round(max(_LEAST_TRACED_S, settings.max_time / 4) * 1e9)
    pictures = os.environ.get(PICTURES)
    if pictures is not None:
        return TracePlan(requests, length_ns, settings.profile_dir, csv=pictures == WITH_CSV)
    if settings.causes != "always" and not only_traced:
        return None
    return TracePlan(max(minimum_samples(0.99), min(MOST_REQUESTS, requests)), length_ns)


def sample_plan(settings: Settings, planned: int | None) -> SamplePlan | None:
    """Return how many samples a run of a cell takes; None where iterations were asked for.

    Args:
        settings: of the session. Where it says nothing of runs, and keeps and compares none, a cell
            is measured once; the runs of a comparison's sides are told to be one each.
        planned: samples that the baseline's runs have, if there is one.

    """
    from pytest_hwqueue.engine.cell.sample_plan import SamplePlan

    if settings.iterations:
        return None
    several = settings.runs or settings.save or settings.compare or settings.against
    return SamplePlan(planned or settings.samples, only_run=not (several or settings.lean))


def lean(settings: Settings, workload: Workload, run: int, *, in_baseline: bool) -> bool:
    """Whether a run measures only what verdicts need: no references, timeline or queue switch.

    A comparison does, unless it gates a ratio that needs references, and whoever asks for it; a
    session that saves measures everything in its first run.

    Args:
        settings: of the session.
        workload: that is measured.
        run: its number, from 1.
        in_baseline: whether the baseline has the cell. Where it has not, there is no verdict, and
            the cell's own figures are all that a reader gets.

    """
    if settings.profile or (settings.compare and not in_baseline):
        return False
    if settings.compare or settings.against:
        gated = {name.partition(".")[0] for name in settings.fail_on}
        return gated.isdisjoint(ratio.name for ratio in workload.ratios)
    if settings.lean:
        return True
    return bool(settings.save) and run > 1 and not workload.ratios and workload.overlap is None


def measures_throughput(settings: Settings) -> bool:
    """Whether a run replays graphs back to back: not in a comparison that judges other figures."""
    compares = settings.compare or settings.against
    return not compares or "throughput" in settings.fail_on


def given_parameters(settings: Settings, workload: type[Workload]) -> dict[str, str]:
    """Return the --hwq-param values for this workload."""
    given = {}
    for name, value in settings.param:
        owner, dot, own = name.rpartition(".")
        if dot:
            if owner == workload.name:
                given[own] = value
        elif name in workload.parameter_model.model_fields:
            given[name] = value
    return given


def check_parameters(settings: Settings, workloads: Sequence[type[Workload]]) -> None:
    """Refuse a --hwq-param that no selected workload has, or whose value is not valid.

    Raises:
        BadOption: naming the parameter and the valid names.
        BadInput: naming the parameter, its value and what is valid.

    """
    from pytest_hwqueue.parts.workloads.workload import parameters_for

    for name, value in settings.param:
        owner, dot, own = name.rpartition(".")
        # Named by its owner a parameter may stand idle: a selection must not make it wrong.
        owners = [workload_class(owner)] if owner in WORKLOADS else [] if dot else list(workloads)
        if not any(own in w.parameter_model.model_fields for w in owners):
            known = "; ".join(
                f"{w.name}: {', '.join(w.parameter_model.model_fields)}"
                for w in (owners if dot and owners else workloads)
            )
            raise BadOption("--hwq-param", f"{name}={value}", f"the parameters are {known}")
    for workload in workloads:
        parameters_for(workload, "full", given_parameters(settings, workload))


def id_parts(settings: Settings, workload: Declaration | None, device: str) -> str:
    """Return the end of a test's id: the parts of its cell's id after the dispatch.

    For example ``-end_only-2ranks-small-mm_dim=512``; empty if everything is at its default.
    Parameters that a test gives in its code are not known before it runs.

    Args:
        settings: of the session.
        workload: the suite's workload, or None for the user's own test.
        device: its label.

    """
    parts = [] if settings.sync_mode == "per_iteration" else [settings.sync_mode]
    parts += [] if settings.cache == "hot" else [settings.cache]
    ranks = ranks_together(workload, device, settings.ranks)
    if launched_rank(os.environ) is not None or ranks > 1:
        parts.append(f"{ranks}ranks")
    if workload is not None:
        kind = device.partition(":")[0]
        size = resolve_size(settings.size, kind)
        parts += [] if size == default_size(kind) else [size]
        if settings.param:
            from pytest_hwqueue.parts.workloads.workload import as_given, parameters_for

            found = workload_class(workload.name)
            given = given_parameters(settings, found)
            with suppress(BadInput):  # `check_parameters` refuses it, once tests are collected
                given = as_given(parameters_for(found, size, given), given)
            parts += [f"{name}={value}" for name, value in given.items()]
    return "".join(f"-{part}" for part in parts)


def own_name(item: pytest.Item) -> str:
    """Return the name of a test's own cells: its file from git's top, its classes, its function.

    Where pytest was started, and with which of the project's tests, does not change it. Outside of
    a git repository the file's path begins at pytest's root folder.
    """
    folder = item.path.parent.resolve()
    top = _top_of_git(folder) or item.config.rootpath.resolve()
    file = Path(os.path.relpath(folder / item.path.name, top)).as_posix()
    # Classes, and what other plugins nest tests in.
    around = [
        node.name
        for node in item.listchain()[:-1]
        if not isinstance(node, (pytest.Session, pytest.Directory, pytest.File))
    ]
    name = "::".join((file, *around, getattr(item, "originalname", item.name)))
    return in_utf8(name)


@cache
def _top_of_git(folder: Path) -> Path | None:
    """Return the top of the working tree that a folder is in, or None.

    Asking git would take a process for each folder of tests.
    """
    for each in (folder, *folder.parents):
        # In a worktree and in a submodule it is a file.
        if os.path.isfile(each / ".git") or os.path.exists(each / ".git" / "HEAD"):
            return each
    return None


def shared_cells(items: Sequence[pytest.Item]) -> list[tuple[pytest.Item, pytest.Item]]:
    """Return pairs of tests whose cells are the same, as far as known before they run.

    Which cells a test of the suite's workloads measures is known only when it begins them.
    """
    found, first = [], dict[tuple[object, ...], pytest.Item]()
    for item in items:
        if (key := _key_of_cells(item)) is None:
            continue
        other = first.setdefault(key, item)
        if other is not item:
            found.append((other, item))
    return found


def _key_of_cells(item: pytest.Item) -> tuple[object, ...] | None:
    if is_scenario(item):
        return (item.case.scenario.name, item.name)  # type: ignore[attr-defined]
    if workload_of(item) is not None:
        return None
    parameters = parameters_of(item)
    given = (str(parameters.get(name)) for name in (*PARAMETERS, "hwq_beside"))
    return (own_name(item), own_parameters(item), *given)


def own_parameters(node: Any) -> str:
    """Return a test's other parameters: its id without the cell's parts."""
    spec = getattr(node, "callspec", None)
    if spec is None:
        return ""
    device, streams, scheduler, dispatch = (spec.params.get(name, "") for name in PARAMETERS)
    cell = f"{device}-s{streams}-{scheduler}-{dispatch}"
    whole = cell + id_parts(node.config.stash[SETTINGS], workload_of(node), str(device))
    # Where a test chooses its dispatch itself, the other parts do not follow it.
    rest: str = spec.id.replace(whole if whole in spec.id else cell, "", 1)
    if "hwq_beside" in spec.params:
        rest = rest.replace(noise_id(spec.params["hwq_beside"]), "", 1)
    return rest.strip("-").replace("--", "-")


_STREAMS_OF_OWN_TESTS = 8


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Parametrize device, streams, scheduler and dispatch, unless the test does so itself.

    Raises:
        pytest.UsageError: if the test's workload does not exist.

    """
    found = workload_of(metafunc.definition)
    try:
        labels = [device.label for device in chosen_devices(settings.device)]
    except BadOption:
        # Raised here it would be an error of the test's file; `refusal` says it for the session.
        labels = [settings.device]
    streams = settings.streams
    if streams is None:
        streams = (found.stream_range.recommended if found else _streams_of_own_test(labels[0]),)
    dispatches = [
        auto_dispatch(found, str(labels[0]), settings.ranks) if mode == "auto" else mode
        for mode in settings.dispatch
    ]
    values: dict[str, list[object]] = {
        "hwq_device": list(labels),
        "hwq_streams": list(streams),
        "hwq_scheduler": list(settings.scheduler),
        "hwq_dispatch": list(dict.fromkeys(dispatches)),
    }
    # A test that uses hwq_noise decides itself which noise runs, and when.
    names = metafunc.fixturenames
    if settings.noise and "hwq_beside" in names and "hwq_noise" not in names:
        ids = [noise_id(name) for name in settings.noise]
        metafunc.parametrize("hwq_beside", settings.noise, ids=ids, indirect=True, scope="function")
    own = _parametrized_by_test(metafunc)
    for name in PARAMETERS:
        if name in metafunc.fixturenames and name not in own:
            prefix = "s" if name == "hwq_streams" else ""
            # The last of them ends with what else the cell's id has.
            end = id_parts(settings, found, labels[0]) if name == PARAMETERS[-1] else ""
            ids = [f"{prefix}{value}{end}" for value in values[name]]
            metafunc.parametrize(name, values[name], ids=ids, indirect=True, scope="function")


def auto_dispatch(workload: Declaration | None, device: str, ranks: int | None) -> str:
    """Return what ``--hwq-dispatch=auto`` means: graph if graphs have been measured there.

    The user's own test is eager, since it is unknown whether its code can be captured.

    Args:
        workload: None in the user's own test.
        device: its label.
        ranks: as requested by ``--hwq-ranks``.

    """
    if workload is None or not capabilities_of(device).graphs_by_default:
        return "eager"
    refused = workload.graph_refusal(ranks_together(workload, device, ranks))
    return "eager" if refused else "graph"


def _streams_of_own_test(device: str) -> int:
    """Return what ``auto`` streams mean: at most one per core if each is a thread."""
    if not capabilities_of(device).host:
        return _STREAMS_OF_OWN_TESTS
    return min(_STREAMS_OF_OWN_TESTS, len(os.sched_getaffinity(0)))


def _parametrized_by_test(metafunc: pytest.Metafunc) -> set[str]:
    names: set[str] = set()
    for mark in metafunc.definition.iter_markers("parametrize"):
        argument = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if isinstance(argument, str):
            argument = argument.replace(" ", "").split(",")
        names.update(argument)
    return names


# Decided by the workload and the device, when the cell is opened.
_OPEN = "auto"


def planned_cells(items: Sequence[pytest.Item], sync_mode: str, cache: str) -> list[Parts] | None:
    """Return the cells that tests will measure, or None if some are unknown before they run.

    Args:
        items: tests that measure.
        sync_mode: the session's.
        cache: the session's.

    """
    if any(map(is_scenario, items)):
        # The cells of a scenario are its tenants.
        return None
    planned: list[Parts] = []
    for item in items:
        parameters = parameters_of(item)
        known: dict[str, object] = {
            "device": parameters.get("hwq_device"),
            "scheduler": parameters.get("hwq_scheduler"),
            "dispatch": parameters.get("hwq_dispatch"),
            "sync_mode": sync_mode,
            "cache": cache,
        }
        mark = item.get_closest_marker("hwq_workload")
        if mark is not None and mark.args:
            known |= {"name": mark.args[0], "streams": parameters.get("hwq_streams")}
        # A test of one's own may measure anything, on as many streams as it likes.
        planned.append({k: v for k, v in known.items() if v not in (None, "", _OPEN)})
    return planned
