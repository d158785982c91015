"""What a baseline keeps of each run, and the conditions in which two cells differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from pytest_hwqueue.data.errors import RecordError, translated
from pytest_hwqueue.data.metrics.contention import Instrument
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.latency import percentile
from pytest_hwqueue.data.records.cell import Cell, RunRecord, Samples
from pytest_hwqueue.data.records.conditions import SETTING_FIELDS, VERSION_FIELDS
from pytest_hwqueue.data.records.files import device_folder
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.samples import decode_samples, encode_samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA: Final = "pytest-hwqueue/baseline/1"

ENVIRONMENT_FIELDS = frozenset(
    {
        # driver: hard in the fingerprint
        "driver_major",
        # framework: soft in the fingerprint
        "torch_version",
        "cuda_runtime_version",
        "hip_runtime_version",
        # clock policy: soft in the fingerprint
        "application_clock_sm_mhz",
        "application_clock_memory_mhz",
        "performance_level",
        "power_limit_w",
        # modes of the device: soft in the fingerprint
        "compute_mode",
        "ecc_mode",
        # settings and versions of what the process has loaded: soft in the fingerprint
        *SETTING_FIELDS,
        *VERSION_FIELDS,
    }
)
"""Fields of a fingerprint in which two sides may differ if the user says so.

Every other hard field is the identity of what was measured, as are the cell and what its samples
are; every other soft field is only reported.
"""

DEFINITION = "definition."
"""Begins the name of a condition that is the version of what a figure means."""

ITERATION = "iteration"
"""Name of the series of whole iterations."""

Kind = Literal["identity", "environment", "soft"]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Field(ge=0)]

# These two are dataclasses and not pydantic models, and so is StoredRun: 120 000 of them are read
# in half the time and half the memory.
_EXACT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class TagFigures:
    """Latency of one tag's launches in one run, in ns; quantiles are numpy's, type 7."""

    n: Count
    p50_ns: Count
    p90_ns: Count
    p95_ns: Count
    p99_ns: Count

    __pydantic_config__ = _EXACT


@dataclass(frozen=True, slots=True)
class RatioFigures:
    """Ratio of two latencies of one run; None where the run had too few samples for it."""

    p50: Amount | None
    p99: Amount | None

    __pydantic_config__ = _EXACT


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One process run of a cell, in one line of its file.

    Attributes:
        session: id of the session that measured it.
        when: UTC, ISO 8601.
        commit: of the measured code, if known.
        n: number of samples of what the cell is judged by: its latency, or its pace.
        failed: requests that failed and have no latency.
        p50_ns: and the others: quantiles of the n samples (numpy's type 7), rounded to whole ns.
        throughput: amount per second, by unit; ``back to back`` where iterations were not waited
            for.
        tags: by tag; of whole iterations under ``iteration``, where these are not the samples.
        ratios: by name.
        soft: fields of the soft fingerprint that differ from the header's; null is absent.
        samples: the latency samples, encoded; see `samples_ns`.
        in_flight: streams at work while launches were timed; None where the latency is no launch's.
        iteration_ns: mean time per iteration, of all the run's iterations.
        sm_clock_mhz: median clock of the device's multiprocessors between the samples; None where
            it does not tell.

    """

    session: str
    when: str
    commit: str | None
    n: Annotated[int, Field(ge=1, le=2**31 - 1)]
    failed: Count
    p50_ns: Count
    p90_ns: Count
    p95_ns: Count
    p99_ns: Count
    p999_ns: Count
    max_ns: Count
    throughput: dict[str, Amount]
    tags: dict[str, TagFigures]
    ratios: dict[str, RatioFigures]
    soft: dict[str, Value]
    samples: str
    iteration_ns: Amount
    in_flight: Amount | None = None
    sm_clock_mhz: Amount | None = None

    __pydantic_config__ = _EXACT

    def samples_ns(self) -> NDArray[np.float64]:
        """Decode the latency samples in ns, shape (n,), in order, each exact to 5e-4 of itself.

        Raises:
            RecordError: if they are damaged.

        """
        where = f"the run of {self.when} in session {self.session}"
        with translated(RecordError, where, ValueError, remedy="remove it, and store it again"):
            return decode_samples(self.samples, self.n)


@dataclass(frozen=True)
class SampleDefinition:
    """What the samples are: both sides of a comparison must mean the same latency.

    Attributes:
        latency: which of an iteration's times; ``pace_ns`` is no latency, but the time from one
            iteration's end to the next's, where none is waited for.
        tags: what timed tagged launches.
        contended: what timed the judged launches while all streams had work; None where no single
            launch is judged, or its stream waits for others.
        primary: of what a sample is, such as ``token``.

    """

    latency: Literal["host_ns", "pace_ns"]
    tags: Literal["events", "activity"]
    primary: str
    contended: Instrument | None = None

    __pydantic_config__ = _EXACT


class CellHeader(PlainData):
    """What all runs of a cell have in common: the first line of its file."""

    schema_: Literal["pytest-hwqueue/baseline/1"] = Field(alias="schema")
    cell: Cell
    hard: dict[str, Value] = Field(description="the hard fingerprint")
    soft: dict[str, Value] = Field(description="the soft fingerprint of the first run")
    sample: SampleDefinition
    definitions: dict[str, int] = Field(
        description="version of what each figure means, as in the records"
    )

    @property
    def has_pace(self) -> bool:
        """Whether its samples are paces, and no latencies."""
        return self.sample.latency == "pace_ns"


@dataclass(frozen=True)
class CellBaseline:
    """The runs of one cell, in the order they were stored; all under the header's conditions.

    ``faults`` are those planted in the records of a session; runs with any are never stored.
    """

    header: CellHeader
    runs: tuple[StoredRun, ...]
    faults: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The folder of the device's model, such as ``nvidia-h200``."""
        return device_folder(self.header.hard)

    @property
    def sessionless(self) -> bool:
        """Whether sessions cannot differ: the device is a model, without a session's noise."""
        hard = self.header.hard
        simulated = capabilities_of(self.header.cell.device).virtual_time
        return simulated and "session=" not in str(hard.get("noise", ""))


@dataclass(frozen=True)
class FieldDifference:
    """A condition that differs between two sides.

    ``a`` and ``b``, in JSON ``baseline`` and ``test``, are the distinct values of a side's runs;
    None is absent or unknown. Only soft fields can have several.
    """

    field: str
    kind: Kind
    a: Annotated[tuple[Any, ...], Field(alias="baseline")]
    b: Annotated[tuple[Any, ...], Field(alias="test")]

    def __str__(self) -> str:
        return f"{self.field} is {in_words(self.a)} in one and {in_words(self.b)} in the other"


def cell_of_record(record: RunRecord, session: str) -> CellBaseline:
    """Convert a record into a cell with one run.

    Args:
        record: of a successful run.
        session: id of the session that measured it.

    Raises:
        RecordError: if the status is not ok, or samples or fingerprint are missing or wrong.

    """
    where = f"{record.cell.id}, measured {record.started}"
    if record.status != "ok":
        reason = f": {record.reason}" if record.reason else ""
        raise RecordError(
            f"{where}: its status is {record.status}{reason}; only runs that went well (ok) have "
            "figures to compare: measure it again"
        )
    if record.fingerprint is None or record.samples is None:
        absent = "fingerprint" if record.fingerprint is None else "samples"
        raise RecordError(f"{where}: the record has no {absent}; measure it again")
    definition, judged_ns = _definition(record), record.judged_ns()
    if not judged_ns:
        launching = record.samples.launching
        if launching is not None and launching.refused:
            raise RecordError(f"{where}: {launching.refused}")
        raise RecordError(f"{where}: the record has no latency samples; measure it again")
    with translated(RecordError, where, ValueError, remedy="measure it again"):
        run = _run(record, judged_ns, session)
    header = CellHeader(
        schema=SCHEMA,
        # As it will be read again: JSON has lists and no tuples.
        cell=Cell.model_validate_json(record.cell.model_dump_json()),
        hard=record.fingerprint.hard,
        soft=record.fingerprint.soft,
        sample=definition,
        definitions=record.definitions,
    )
    return CellBaseline(header, (run,), tuple(record.faults))


def add_runs(cell: CellBaseline, new: CellBaseline) -> CellBaseline:
    """Return the union of both cells' runs.

    Every run's soft fields are restated relative to the first header.

    Raises:
        RecordError: if the conditions are not the same, naming every field that differs.

    """
    different = condition_differences(cell.header, new.header)
    if different:
        listed = "; ".join(map(str, different))
        raise RecordError(
            f"{cell.header.cell.id}: all runs of a cell share their conditions, but {listed}"
        )
    added = tuple(rebase(run, new.header, cell.header) for run in new.runs)
    fresh = tuple(run for run in added if run not in cell.runs)
    return CellBaseline(cell.header, cell.runs + fresh, cell.faults + new.faults)


def rebase(run: StoredRun, old: CellHeader, new: CellHeader) -> StoredRun:
    """Return a run with its soft fields restated relative to another header."""
    soft = soft_fields(old, run)
    names = sorted({*soft, *new.soft})
    changed = {name: soft.get(name) for name in names if soft.get(name) != new.soft.get(name)}
    return replace(run, soft=changed)


def soft_fields(header: CellHeader, run: StoredRun) -> dict[str, Value]:
    """Return the whole soft fingerprint of a run."""
    both = {**header.soft, **run.soft}
    return {name: value for name, value in both.items() if value is not None}


def condition_differences(a: CellHeader, b: CellHeader) -> tuple[FieldDifference, ...]:
    """Return the conditions in which two cells differ: identity first, then environment.

    Of tables those fields that differ, such as ``parameter.chat.server.url``.
    """
    found: list[FieldDifference] = []
    kinds: tuple[Kind, ...] = ("identity", "environment")
    for kind in kinds:
        ours, theirs = _conditions(a, kind), _conditions(b, kind)
        for name in sorted({*ours, *theirs}):
            if kind == "environment" and not (name in ours and name in theirs):
                continue  # unknown on one side, and reported: see `soft_differences`
            found += _different_fields(name, kind, ours.get(name), theirs.get(name))
    return tuple(found)


def _different_fields(name: str, kind: Kind, one: Any, other: Any) -> Iterator[FieldDifference]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _different_fields(f"{name}.{key}", kind, one.get(key), other.get(key))
    # 1 and 1.0 and true are equal in Python and are not the same parameter.
    elif one != other or type(one) is not type(other):
        yield FieldDifference(name, kind, (one,), (other,))


def soft_differences(a: CellBaseline, b: CellBaseline) -> tuple[FieldDifference, ...]:
    """Return the other soft fields whose values differ between the runs of two cells.

    A run that lacks a field says nothing of it, neither that it is the same nor that it differs. Of
    the environment, what only one side knows is reported: it may differ.
    """
    ours = [soft_fields(a.header, run) for run in a.runs]
    theirs = [soft_fields(b.header, run) for run in b.runs]
    found = []
    for name in sorted(set().union(*ours, *theirs)):
        one, other = _known_values(ours, name), _known_values(theirs, name)
        if name in ENVIRONMENT_FIELDS:
            differs = not (one and other) and name not in a.header.hard | b.header.hard
        else:
            differs = bool(one and other) and set(one) != set(other)
        if differs:
            found.append(FieldDifference(name, "soft", one or (None,), other or (None,)))
    return tuple(found)


def _known_values(runs: Iterable[dict[str, Value]], name: str) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(soft[name] for soft in runs if name in soft))


def _conditions(header: CellHeader, kind: Kind) -> dict[str, Any]:
    fingerprint = {**header.soft, **header.hard}
    if kind == "environment":
        return {name: fingerprint[name] for name in ENVIRONMENT_FIELDS & fingerprint.keys()}
    cell = {f"cell.{name}": value for name, value in header.cell if name != "parameters"}
    parameters = {f"parameter.{name}": value for name, value in header.cell.parameters.items()}
    sample = {f"sample.{name}": value for name, value in vars(header.sample).items()}
    meant = {f"{DEFINITION}{name}": value for name, value in header.definitions.items()}
    hard = {name: value for name, value in header.hard.items() if name not in ENVIRONMENT_FIELDS}
    return {**cell, **parameters, **sample, **meant, **hard}


def _definition(record: RunRecord) -> SampleDefinition:
    """Return what a record's latencies are, by the same rule as its own summary's."""
    samples = record.samples
    assert samples is not None
    times: Literal["host_ns", "pace_ns"] = "pace_ns" if record.has_pace else "host_ns"
    contended = None if samples.contended is None else samples.contended.timed_by
    return SampleDefinition(times, samples.tags_timed_by, record.primary.name, contended)


def _series(record: RunRecord) -> dict[str, list[int]]:
    """Return the series kept besides the primary one: tags, and whole iterations."""
    samples = record.samples
    assert samples is not None
    series = {tag: values for tag, values in samples.tags_ns.items() if tag != record.primary.name}
    if record.primary.per != "iteration":
        series[ITERATION] = samples.host_ns
    return {name: values for name, values in series.items() if values}


def _run(record: RunRecord, judged_ns: list[int], session: str) -> StoredRun:
    assert record.samples is not None
    # Another figure than that of iterations which are waited for, and never compared with it.
    back_to_back = ", back to back" if record.samples.back_to_back else ""
    encoded, contended = encode_samples(judged_ns), record.samples.contended
    figures = _quantiles(judged_ns, (0.5, 0.9, 0.95, 0.99, 0.999))
    tags = {
        tag: TagFigures(len(values), *_quantiles(values, (0.5, 0.9, 0.95, 0.99)))
        for tag, values in _series(record).items()
    }
    return StoredRun(
        session=session,
        when=record.started,
        commit=record.git_commit,
        n=len(judged_ns),
        # A cell that is no tenant ends with its first failure: if it went well, it had none.
        failed=record.failed_requests or 0,
        p50_ns=figures[0],
        p90_ns=figures[1],
        p95_ns=figures[2],
        p99_ns=figures[3],
        p999_ns=figures[4],
        max_ns=max(judged_ns),
        throughput={each.unit + back_to_back: float(each) for each in record.metrics.throughput},
        tags=tags,
        ratios={
            name: RatioFigures(ratio.p50.value, ratio.p99.value)
            for name, ratio in record.metrics.ratios.items()
        },
        soft={},
        samples=encoded,
        iteration_ns=_iteration_ns(record.samples),
        in_flight=None if contended is None else round(contended.in_flight, 3),
        sm_clock_mhz=_sm_clock_mhz(record),
    )


def _sm_clock_mhz(record: RunRecord) -> float | None:
    # Of several ranks the slowest counts, and the readings are those of the first one's device.
    if record.telemetry is None or (record.ranks is not None and record.ranks.world_size > 1):
        return None
    return record.telemetry.sm_clock_mhz


def _iteration_ns(samples: Samples) -> float:
    """Return the mean time per iteration, from one to the next where iterations overlap.

    A tenth of a nanosecond is below any clock's resolution, and keeps the file readable.
    """
    durations = samples.pace_ns or samples.host_ns
    if not durations:
        raise ValueError("there is no time of an iteration")
    return round(sum(durations) / len(durations), 1)


def _quantiles(values_ns: Sequence[int], quantiles: Sequence[float]) -> list[int]:
    if min(values_ns) < 0:
        raise ValueError(f"a latency is {min(values_ns)} ns, below 0")
    return [round(percentile(values_ns, quantile)) for quantile in quantiles]


def in_words(values: Iterable[object]) -> str:
    """Return the values of a condition, such as ``570 or not known``."""
    return " or ".join("not known" if value is None else str(value) for value in values)
