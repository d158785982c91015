"""Which cells a session measures: parameters of tests, selection, and refusal of the impossible."""

from __future__ import annotations

import os
from functools import cache

import pytest

from pytest_hwqueue.devices.discover import DeviceChoice, choose_devices
from pytest_hwqueue.errors import BadNoise, BadOption, BadScheduler, UnknownWorkload
from pytest_hwqueue.faults.specification import impossible
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.plugin.background_noise import noise_places
from pytest_hwqueue.plugin.cell_settings import check_parameters, id_parts
from pytest_hwqueue.plugin.noise_fixture import impossible_beside
from pytest_hwqueue.plugin.ranks_needed import ranks_needed, ranks_of, refusal_of_ranks
from pytest_hwqueue.plugin.state import PARAMETERS, REFUSED, SETTINGS, WORKER_KEY, isolates
from pytest_hwqueue.plugin.worker.scheduler_services import grouped, mode_of_worker
from pytest_hwqueue.ranks.place import place_of
from pytest_hwqueue.reports.mirror import claims_benchmark
from pytest_hwqueue.schedulers.cell import unavailable_for_cell, unavailable_for_process
from pytest_hwqueue.schedulers.declared import NATIVE
from pytest_hwqueue.schedulers.mode import SchedulerPaths
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.workloads.registry import Declaration, declaration, workload_class

_STREAMS_OF_OWN_TESTS = 8


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Make device, streams, scheduler and dispatch parameters, unless the test does it itself.

    Raises:
        pytest.UsageError: if the test's workload does not exist.

    """
    found = _workload(metafunc.definition)
    try:
        labels = [device.label for device in _devices(settings.device)]
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
    # A test that asks for hwq_noise says itself what runs beside it, and when.
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
    """Return what ``--hwq-dispatch=auto`` means: a graph where that can be captured.

    A test of one's own is eager: whether its code can be captured is not known.

    Args:
        workload: None in a test of one's own.
        device: its label.
        ranks: as asked for by ``--hwq-ranks``.

    """
    if workload is None or device.partition(":")[0] in ("cpu", "auto"):
        return "eager"
    place = place_of(os.environ)
    size = ranks_of(workload, device, ranks) if place is None else place.size
    return "eager" if workload.graph_refusal(size) else "graph"


def select(config: pytest.Config, items: list[pytest.Item], measuring: list[pytest.Item]) -> None:
    """Keep what --hwq-priority and --hwq-workload ask for; mark what cannot run as skipped.

    Tests that need a worker of their own scheduler's are put together: each change starts one.

    Raises:
        pytest.UsageError: if a workload asked for does not exist, or a scheduler's description.

    """
    settings = config.stash[SETTINGS]
    if isolates(config):
        own = set(measuring)
        measuring = grouped(measuring)
        following = iter(measuring)
        items[:] = [next(following) if item in own else item for item in items]
    for name in settings.workload:
        try:
            declaration(name)
        except UnknownWorkload as error:
            raise pytest.UsageError(f"--hwq-workload: {error}") from None
    if settings.workload or settings.priority:
        kept = [item for item in measuring if _is_asked_for(item, settings)]
        # Tests that measure nothing are not asked for either.
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    for item in measuring:
        if isolates(config):
            claims_benchmark(item)
        reason = refusal(item)
        if reason is not None:
            item.stash[REFUSED] = reason
            item.add_marker(pytest.mark.skip(reason=reason))


def refuse_impossible(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a session in which nothing that was asked for can be measured, and bad parameters.

    Raises:
        pytest.UsageError: with every reason.

    """
    settings = config.stash[SETTINGS]
    if all(REFUSED in item.stash for item in items):
        reasons = dict.fromkeys(item.stash[REFUSED] for item in items)
        raise pytest.UsageError("nothing to measure: " + "; ".join(reasons))
    if settings.param:
        from pytest_hwqueue.errors import BadParameter

        names = dict.fromkeys(f.name for item in items if (f := _workload(item)) is not None)
        try:
            check_parameters(settings, [workload_class(name) for name in names])
        except (BadOption, BadParameter) as error:
            raise pytest.UsageError(str(error)) from None


def refusal(item: pytest.Item) -> str | None:
    """Why a test cannot be measured with its parameters, or None.

    Raises:
        pytest.UsageError: if its scheduler mode does not exist.

    """
    settings = item.config.stash[SETTINGS]
    try:
        _devices(settings.device)
    except BadOption as error:
        return str(error)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    found = _workload(item)
    streams = parameters.get("hwq_streams")
    if found is not None and streams is not None:
        least, most = found.stream_range.least, found.stream_range.most
        if not least <= streams <= most:
            return f"{found.name} takes {least} to {most} streams (--hwq-streams={streams})"
    device = str(parameters.get("hwq_device", "")).partition(":")[0]
    if device and (reason := impossible(settings.fault, device)) is not None:
        return reason
    if device not in ("", "sim") and settings.sim_noise:
        return f"--hwq-sim-noise needs a simulated device, not {device}"
    if device == "cpu" and parameters.get("hwq_dispatch") == "graph":
        return "graph dispatch needs an accelerator: the CPU has no graphs (--hwq-dispatch=graph)"
    noise = parameters.get("hwq_beside", NONE)
    if noise != NONE and (reason := _refusal_of_noise(item, noise, device)) is not None:
        return reason
    in_worker = WORKER_KEY in getattr(item.config, "workerinput", {})
    reason = refusal_of_ranks(item, isolates(item.config) or in_worker)
    if reason is not None:
        return reason
    if (text := mode_of_worker(item)) is not None:
        if ranks_needed(item) > 1 or place_of(os.environ) is not None:
            return f"{text} serves a process alone: give --hwq-ranks=1, and no torchrun"
        return _refusal_of_mode(item, text, device)
    scheduler = parameters.get("hwq_scheduler", NATIVE.name)
    if found is not None and streams is not None and scheduler != NATIVE.name:
        # What its streams deserve is for the class to say; an instance is needed only for values.
        urgency = workload_class(found.name).urgency(streams)
        return unavailable_for_cell(open_scheduler(scheduler), device, urgency)
    return None


def _refusal_of_noise(item: pytest.Item, name: str, device: str) -> str | None:
    from pytest_hwqueue.noise.opening import open_noise

    ranked = ranks_needed(item) > 1 or place_of(os.environ) is not None
    if (reason := impossible_beside(name, device == "sim", ranked)) is not None:
        return reason
    config = item.config
    if WORKER_KEY in getattr(config, "workerinput", {}):
        return None
    try:
        return open_noise(name, noise_places(config)).unavailable()
    except (BadNoise, ValueError) as error:
        raise pytest.UsageError(f"--hwq-noise: {error}") from None


def _refusal_of_mode(item: pytest.Item, text: str, device: str) -> str | None:
    config = item.config
    if WORKER_KEY in getattr(config, "workerinput", {}):
        # The session has judged before it started what runs around this process.
        return None
    if not isolates(config):
        return f"{text} needs a process started for it: leave out --hwq-isolation=none"
    paths = config.stash[SETTINGS].scheduler_paths(config.invocation_params.dir)
    try:
        return _unavailable(text, paths, device)
    except BadScheduler as error:
        raise pytest.UsageError(f"--hwq-scheduler: {error}") from None


@cache
def _unavailable(text: str, paths: SchedulerPaths, device: str) -> str | None:
    return unavailable_for_process(open_scheduler(text, paths), device)


def _is_asked_for(item: pytest.Item, settings: Settings) -> bool:
    found = _workload(item)
    if settings.workload and (found is None or found.name not in settings.workload):
        return False
    marks = {mark.name for mark in item.iter_markers()}
    return not settings.priority or not marks.isdisjoint(settings.priority)


def _workload(node: pytest.Item) -> Declaration | None:
    mark = node.get_closest_marker("hwq_workload")
    if mark is None:
        return None
    try:
        return declaration(*mark.args)
    except (UnknownWorkload, TypeError) as error:
        raise pytest.UsageError(f"{node.nodeid}: mark hwq_workload: {error}") from None


def _streams_of_own_test(device: str) -> int:
    """Return what ``auto`` streams mean: on the CPU each is a thread, so no more than cores."""
    if device != "cpu":
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


@cache
def _devices(specification: str) -> list[DeviceChoice]:
    return choose_devices(specification)
