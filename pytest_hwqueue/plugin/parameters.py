"""Parametrizes tests by devices, stream counts, scheduler modes and dispatch modes."""

from __future__ import annotations

import os
from functools import cache

import pytest

from pytest_hwqueue.devices.discover import DeviceChoice, choose_devices
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.noise.names import noise_id
from pytest_hwqueue.plugin.cell_settings import id_parts
from pytest_hwqueue.plugin.ranks_needed import ranks_of, workload_of
from pytest_hwqueue.plugin.state import PARAMETERS
from pytest_hwqueue.ranks.launched import launched_rank
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.workloads.declaration import Declaration

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
    launched = launched_rank(os.environ)
    size = ranks_of(workload, device, ranks) if launched is None else launched.size
    return "eager" if workload.graph_refusal(size) else "graph"


@cache
def chosen_devices(specification: str) -> list[DeviceChoice]:
    """Resolve `--hwq-device`, once; BadOption if there is no such device."""
    return choose_devices(specification)


def only_device(specification: str) -> DeviceChoice:
    """Resolve `--hwq-device` for tenants, who share one; BadOption if there is none, or several."""
    devices = chosen_devices(specification)
    if len(devices) > 1:
        labels = ", ".join(device.label for device in devices)
        reason = f"a scenario's tenants share one device: choose from {labels}"
        raise BadOption("--hwq-device", specification, reason)
    return devices[0]


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
