"""Records of a session as they are stored.

A record with its samples takes 40 kB of memory and more, its file's name takes 200 bytes: a session
of thousands of cells must not hold them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, overload

from pydantic import Field, ValidationError

from pytest_hwqueue.data.errors import RecordError, translated
from pytest_hwqueue.data.metrics.between_runs import RunSpread, median_run
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.records.cell import Json, RunRecord, SessionContent, read_record


@dataclass(frozen=True)
class CellRuns:
    """All runs of one cell, at least one, in the order measured."""

    runs: tuple[RunRecord, ...]

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        """The successful runs."""
        return tuple(
            run for run in self.runs if run.status == "ok" and run.metrics.judged is not None
        )

    @property
    def bad(self) -> tuple[RunRecord, ...]:
        """The failed runs."""
        return tuple(run for run in self.runs if run.status != "ok")

    @property
    def percentile(self) -> Literal["p99", "p50"] | None:
        """The percentile that ranks the runs: P99, or P50 if not all have a P99."""
        names: tuple[Literal["p99", "p50"], ...] = ("p99", "p50")
        for name in names:
            if self.measured and all(_value_ms(run, name) is not None for run in self.measured):
                return name
        return None

    @property
    def count(self) -> str:
        """How many runs succeeded, such as ``5``, or ``4 of 5`` if others failed."""
        good, every = len(self.measured), len(self.runs)
        return str(good) if good == every else f"{good} of {every}"

    @property
    def values_ms(self) -> list[float]:
        """That percentile of each successful run, in milliseconds."""
        name = self.percentile
        values = [_value_ms(run, name) for run in self.measured] if name else []
        return [value for value in values if value is not None]

    @property
    def middle(self) -> RunRecord:
        """The run whose percentile is the median of the runs; the lower of two in the middle.

        Without a percentile it is the first successful run, and without any the last failed one.
        """
        if not self.measured:
            return self.runs[-1]
        values = self.values_ms
        if not values:
            return self.measured[0]
        order = sorted(range(len(values)), key=values.__getitem__)
        return self.measured[order[(len(order) - 1) // 2]]

    def shown(self, spreads: Mapping[str, RunSpread]) -> tuple[RunRecord, str]:
        """Return the middle run, whose P99 may have the interval of the median run's.

        It has that where its own is missing, or narrower: than runs differ by, a figure is known no
        better.

        Args:
            spreads: how far earlier runs of a session differ, by cell id, for cells of few runs.

        Returns:
            the record, and by which runs and method its P99 has its interval; empty for its own.

        """
        record, metrics = self.middle, self.middle.metrics
        if metrics.judged is None or self.percentile != "p99" or min(self.values_ms) <= 0:
            return record, ""
        own = metrics.judged.p99
        found = median_run(self.values_ms, CONFIDENCE, spreads.get(record.cell_id))
        if found is None:
            return record, ""
        # Of two runs the lower is shown, which may lie farther from their mean than the ends do.
        low, high = min(found.interval[0], float(own)), max(found.interval[1], float(own))
        if own.interval is not None and own.high - own.low >= high - low:
            return record, ""
        p99 = own.model_copy(update={"low": low, "high": high, "refused": ""})
        judged = metrics.judged.model_copy(update={"p99": p99})
        name = "pace" if metrics.latency is None else "latency"
        tags = {tag: judged if of == metrics.judged else of for tag, of in metrics.tags.items()}
        changed = metrics.model_copy(update={name: judged, "tags": tags})
        return record.model_copy(update={"metrics": changed}), found.by


def gather(records: Sequence[RunRecord]) -> list[CellRuns]:
    """Group runs by cell, in the order in which cells were first measured.

    A test that measures one cell twice in every run counts as two cells here.
    """
    seen: dict[tuple[str, str, int], int] = {}
    cells: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        in_run = (record.nodeid, record.cell_id, record.run)
        turn = seen[in_run] = seen.get(in_run, 0) + 1
        cells.setdefault((record.nodeid, record.cell_id, turn), []).append(record)
    return [CellRuns(tuple(runs)) for runs in cells.values()]


def _value_ms(run: RunRecord, percentile: Literal["p99", "p50"]) -> float | None:
    judged = run.metrics.judged
    return None if judged is None else getattr(judged, percentile).value


SESSION_FILES = "pytest-hwqueue/session-files/"
"""How the schema of every version begins."""


class SessionFiles(SessionContent):
    """``session.json``: a session, and the files in its folder that hold what it measured.

    ``--hwq-json`` writes the records themselves, as a `SessionFile`.
    """

    schema_: Literal["pytest-hwqueue/session-files/2"] = Field(
        "pytest-hwqueue/session-files/2", alias="schema"
    )
    files: list[str] = Field(
        description="of RunRecords, in the order measured; relative to the folder of this file"
    )
    records: list[Json] = Field(
        default_factory=list, description="RunRecords that could not be written to a file"
    )
    colocations: list[str] = Field(
        default_factory=list, description="files of ColocationRecords; relative likewise"
    )


class StoredRecords(Sequence[RunRecord]):
    """A session's records in the order measured; each is read from its file when asked for.

    Args:
        problems: receives a line for each record that can no longer be read. Iterating leaves such
            a record out, from then on; an index raises RecordError.

    """

    def __init__(self, problems: list[str]) -> None:
        self._kept: list[Path | RunRecord] = []
        self._problems = problems
        self.lost = 0

    def add(self, kept: Path | RunRecord) -> None:
        """Add the file of a record, or a record that no file holds."""
        self._kept.append(kept)

    def files(self) -> list[Path]:
        """Return the files, in the order measured."""
        return [kept for kept in self._kept if isinstance(kept, Path)]

    def without_file(self) -> list[RunRecord]:
        """Return the records that no file holds, in the order measured."""
        return [kept for kept in self._kept if not isinstance(kept, Path)]

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[RunRecord]:
        for kept in list(self._kept):
            try:
                record = _read(kept)
            except RecordError as error:
                if kept in self._kept:
                    self._kept.remove(kept)
                    self._problems.append(f"measured, but lost since: {error}")
                    self.lost += 1
                continue
            yield record

    @overload
    def __getitem__(self, index: int) -> RunRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RunRecord]: ...
    def __getitem__(self, index: int | slice) -> RunRecord | list[RunRecord]:
        if isinstance(index, slice):
            return [_read(kept) for kept in self._kept[index]]
        return _read(self._kept[index])


def read_files(path: Path, files: SessionFiles) -> list[RunRecord]:
    """Read the records that a ``session.json`` names, and those in it.

    Args:
        path: of the file.
        files: its content.

    Raises:
        RecordError: naming the file that cannot be read or is damaged.

    """
    with translated(RecordError, f"{path} is damaged", ValidationError):
        apart = [RunRecord.model_validate(each) for each in files.records]
    return [*(read_record(_below(path, name)) for name in files.files), *apart]


def _below(path: Path, name: str) -> Path:
    """Return a file that a session's file names; one elsewhere is none of its own."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise RecordError(f"{path} names {name[:120]!r}, which is not in its folder")
    return path.parent / parts


def _read(kept: Path | RunRecord) -> RunRecord:
    return read_record(kept) if isinstance(kept, Path) else kept
