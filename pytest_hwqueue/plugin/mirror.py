"""Mirrors a record's samples into pytest-benchmark, so that its files and tools see them.

pytest-benchmark measures nothing here. Its pedantic mode is run with a clock that
replays our samples, so the data it stores are ours to the bit, in seconds.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput, translated
from pytest_hwqueue.data.records.cell import Cell, RunRecord

MOST_SAMPLES = 100_000
"""Samples mirrored of one record, at most: pytest-benchmark keeps and sorts them in Python."""

_NS_PER_S = 1e9
_MS_PER_S = 1e3
_PERCENTILES = ("p50", "p95", "p99", "p999")
_names_given = pytest.StashKey[dict[str, int]]()


def mirror(item: pytest.Item, record: RunRecord) -> None:
    """Add a record to pytest-benchmark's session as if its ``benchmark`` fixture had measured it.

    Does nothing where pytest-benchmark is not installed, off, disabled or set to skip, and for a
    record that is not ok. Call it for every record of an item, in order, whatever the status: the
    first one has the test's own name, further ones the name of their cell, so that names stay the
    same when another cell fails.

    Args:
        item: the test that the record belongs to; its fixtures need not have run.
        record: measured in any process.

    Raises:
        ValueError: if pytest-benchmark does not know an option of the test's ``benchmark`` mark.

    """
    session = _session(item.config)
    if session is None:
        return
    node = _node(item, record)
    samples_ns = record.judged_ns()
    if record.status != "ok" or not samples_ns:
        return
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.utils import NameWrapper

    # Neither has types.
    make_fixture: Any = BenchmarkFixture
    wrap: Any = NameWrapper
    mirrored = samples_ns[:MOST_SAMPLES]
    options: dict[str, Any] = {"group": record.family, **session.options, **_marked(item)}
    # Each difference of two readings is a sample.
    readings = (reading for ns in mirrored for reading in (0.0, ns / _NS_PER_S))

    def replayed_samples() -> float:
        return next(readings)

    options["timer"] = wrap(replayed_samples)
    # There is no code of ours to profile, and no more rounds to run until a mean is precise.
    options["cprofile"] = False
    if "precision" in options:
        options["precision"] = None
    with translated(BadInput, f"{item.nodeid}: the benchmark mark is not valid", TypeError):
        fixture = make_fixture(
            node,
            add_stats=session.benchmarks.append,
            logger=session.logger,
            warner=item.warn,
            disabled=False,
            **options,
        )
    fixture.extra_info.update(_extra_info(record, len(mirrored), len(samples_ns)))
    fixture.pedantic(lambda: None, rounds=len(mirrored))
    # pytest-benchmark keeps the clock to the session's end, but need not keep the samples in it.
    readings.close()


def claims_benchmark(item: pytest.Item) -> None:
    """Make a test count as a benchmark for ``--benchmark-only`` and ``--benchmark-skip``.

    Call it before pytest-benchmark's ``pytest_collection_modifyitems``, and only for items whose
    fixtures this process does not set up: they would get a ``benchmark`` fixture that nobody uses.
    Does nothing where pytest-benchmark is off.
    """
    if not item.config.pluginmanager.has_plugin("pytest-benchmark"):
        return
    # A list of its own: pytest shares one between all parametrisations of a function.
    names = list(getattr(item, "fixturenames", ()))
    if "benchmark" not in names:
        item.fixturenames = [*names, "benchmark"]  # type: ignore[attr-defined]


def _session(config: pytest.Config) -> Any | None:
    """Return pytest-benchmark's session if it accepts benchmarks, else None."""
    # Registered under this name by every version, and by none under -p no:benchmark.
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is None or session.disabled or session.skip:
        return None
    return session


def _node(item: pytest.Item, record: RunRecord) -> SimpleNamespace:
    """Return what a BenchmarkFixture reads from its test: the record's names, none of them twice.

    The same session gives the same names. pytest-benchmark 5.1 and 5.2 read ``_nodeid``, 5.3 reads
    ``nodeid``.
    """
    given = item.stash.setdefault(_names_given, {})
    first = not given
    given[record.cell_id] = number = given.get(record.cell_id, 0) + 1
    name, nodeid = item.name, item.nodeid
    if not first:
        name = record.cell_id if number == 1 else f"{record.cell_id}#{number}"
        nodeid = f"{item.nodeid}::{name}"
    cell = record.cell
    settings = {"workload": cell.name, **_settings(cell), "size": cell.size}
    callspec = getattr(item, "callspec", None)
    # For --benchmark-group-by=param:streams and the like; the test's own parameters come first.
    parameters = {} if callspec is None else _plain(callspec.params)
    label = f"{cell.device}-s{cell.streams}-{cell.scheduler}-{cell.dispatch}"
    return SimpleNamespace(
        name=name,
        nodeid=nodeid,
        _nodeid=nodeid,
        callspec=SimpleNamespace(
            id=label if callspec is None else callspec.id, params=settings | parameters
        ),
    )


def _settings(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(
        include={"device", "streams", "scheduler", "dispatch", "sync_mode", "cache"}
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values to JSON's, others to text that says more than pytest-benchmark's."""
    plain = dict(values)
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            plain[name] = repr(value)
    return plain


def _marked(item: pytest.Item) -> dict[str, Any]:
    """Return the options of all ``benchmark`` marks; the closest to the test wins."""
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("benchmark"))):
        options |= mark.kwargs
    return options


def _extra_info(record: RunRecord, mirrored: int, taken: int) -> dict[str, str | int | float]:
    """Return what pytest-benchmark has no field for: plain values, times in seconds."""
    metrics = record.metrics
    assert record.samples is not None
    info: dict[str, str | int | float] = {
        "cell": record.cell_id,
        **_settings(record.cell),
        "status": record.status,
        **({"pace": "time per iteration"} if record.has_pace else {"latency": record.primary.name}),
        "clock": "host" if record.samples.host_ns else "device events",
    }
    for name in _PERCENTILES if metrics.judged is not None else ():
        value = getattr(metrics.judged, name).value
        if value is not None:
            info[f"{name}_s"] = value / _MS_PER_S
    for item in metrics.throughput:
        info[f"throughput ({item.unit})"] = float(item)
    if mirrored < taken:
        info["samples"] = f"the first {mirrored} of {taken}; the record has all of them"
    return info
