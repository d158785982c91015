"""The file next to a record that keeps what its timeline figures and causes are computed from.

A kernel takes a few bytes: its start is the gap behind the kernel before it on its stream, its
duration the difference from the last of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from pytest_hwqueue.data.errors import BadInput, RecordError, files, translated, within
from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.files import unused
from pytest_hwqueue.data.records.samples import PackedLimits, pack, unpack
from pytest_hwqueue.data.safe_files import write_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_hwqueue.data.records.samples import Table

SUFFIX = ".timelines.xz"
LIMITS = PackedLimits(packed=1 << 28, unpacked=1 << 30)
MOST_STREAMS = 1 << 16
SCHEMA: Literal["pytest-hwqueue/timelines/1"] = "pytest-hwqueue/timelines/1"
_NAME = re.compile(r"[A-Za-z0-9._-]+\.timelines\.xz", re.ASCII)
# A kernel outside of requests.
_NONE = -1
# Of a difference, which may be negative.
_UNKNOWN = -(1 << 62)
_REPAIR = "restore the file, or measure again"


class TimelineFile(PlainData):
    """The file, in the folder of the record, with the timelines of the record's figures."""

    file: str = Field(description="its name")
    sha256: str = Field(description="of its bytes")
    size_bytes: int
    kernels: int = Field(description="in all its timelines")


class _About(PlainData):
    """How to read a timeline's table."""

    names: list[str]
    tags: list[str]
    streams: int = Field(ge=0, le=MOST_STREAMS)
    released_ns: int | None
    elsewhere: int


@dataclass
class TimelineData:
    """What the figures of one record are computed from, as far as its samples are not enough.

    Attributes:
        about: what describes the tables, by name.
        tables: columns of whole numbers, by name.
        kernels: in all timelines.

    """

    about: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    kernels: int = 0

    def add(self, name: str, timeline: Timeline) -> None:
        """Keep a timeline, without its host calls and its kernels' shapes."""
        about, kernels, waits = _columns(timeline)
        self.about[name] = about.model_dump(mode="json")
        self.tables |= {name: kernels, f"{name} waits": waits}
        self.kernels += len(timeline.kernels)

    def timeline(self, name: str) -> Timeline | None:
        """Return a timeline; None if there is none of this name.

        Raises:
            ValueError: if it is damaged.

        """
        if name not in self.about:
            return None
        said = f"the timeline {name} is damaged"
        with translated(BadInput, said, KeyError, IndexError, ValidationError):
            about = _About.model_validate(self.about[name])
            return _timeline(about, self.tables[name], self.tables[f"{name} waits"])

    def add_work(self, name: str, work: Sequence[DeviceWork]) -> None:
        """Keep kernels of one owner, of a traced pass."""
        names: dict[str, int] = {}
        stream, start, end = (
            _column(getattr(one, each) for one in work) for each in ("stream", "start_ns", "end_ns")
        )
        number = _column(names.setdefault(one.name, len(names)) for one in work)
        self.tables[f"{name} work"] = {
            "stream": stream,
            "name": number,
            "request": _column(_NONE if one.request is None else one.request for one in work),
            "waited": start - _column(one.ready_ns for one in work),
            "lead": _column(
                _UNKNOWN if one.enqueued_ns is None else one.ready_ns - one.enqueued_ns
                for one in work
            ),
            "gap": start - _before(end, stream),
            "duration": (end - start) - _before(end - start, number),
        }
        self.about[f"{name} work"] = list(names)
        self.kernels += len(work)

    def work(self, name: str, owner: str, most: int | None = None) -> list[DeviceWork]:
        """Return the kernels of a traced pass; with ``most`` only so many, the first to start.

        Raises:
            ValueError: if they are damaged.

        """
        with translated(BadInput, f"the kernels of {name} are damaged", KeyError, IndexError):
            table, names = self.tables[f"{name} work"], self.about[f"{name} work"]
            duration = _summed(table["duration"], table["name"])
            end = _summed(table["gap"] + duration, table["stream"])
            start = end - duration
            ready = start - table["waited"]
            chosen = slice(None) if most is None else _first(start, most)
            ready, start, end = ready[chosen], start[chosen], end[chosen]
            kept = {each: column[chosen].tolist() for each, column in table.items()}
            columns = (
                repeat(owner), kept["stream"], (names[each] for each in kept["name"]),
                ready.tolist(), start.tolist(), end.tolist(),
                (None if each == _NONE else each for each in kept["request"]),
                (None if each == _UNKNOWN else at - each
                 for each, at in zip(kept["lead"], ready.tolist(), strict=True)),
            )  # fmt: skip
            return [DeviceWork(*values) for values in zip(*columns, strict=False)]


def write_kept(folder: Path, stem: str, kept: TimelineData) -> TimelineFile:
    """Write what a record's figures are computed from into the record's folder.

    Args:
        folder: the record's.
        stem: of the file's name; if there is such a file, a number follows.
        kept: what to write.

    Raises:
        RecordError: if it cannot be written, or is more than would be read again.

    """
    path = unused(lambda number: folder / f"{stem}{number}{SUFFIX}", "-")
    with within(f"cannot write {path}"):
        about = {"schema": SCHEMA, "kernels": kept.kernels, "parts": kept.about}
        data = pack(about, kept.tables, LIMITS)
    write_bytes(path, data)
    return TimelineFile(
        file=path.name, sha256=sha256(data).hexdigest(), size_bytes=len(data), kernels=kept.kernels
    )


def read_kept(folder: Path, reference: TimelineFile) -> TimelineData:
    """Read what a record's figures are computed from.

    Args:
        folder: the record's.
        reference: the record's own.

    Raises:
        RecordError: naming the file that is missing, damaged, or not the one that was written.

    """
    if _NAME.fullmatch(reference.file) is None:
        raise RecordError(f"{reference.file!r} in {folder} is not the name of a timeline file")
    path = folder / reference.file
    with files("read", path, remedy=_REPAIR), open(path, "rb") as file:
        data = file.read(LIMITS.packed + 1)
    if len(data) > LIMITS.packed:
        raise RecordError(f"{path} is larger than {LIMITS.packed} bytes, which none is")
    if sha256(data).hexdigest() != reference.sha256:
        raise RecordError(f"{path} is not the file that was written with its record; {_REPAIR}")
    try:
        about, tables = unpack(data, LIMITS)
        if about.get("schema") != SCHEMA:
            raise RecordError(f"its schema is {about.get('schema')!r}, not {SCHEMA}")
        return TimelineData(dict(about["parts"]), dict(tables), int(about["kernels"]))
    except (RecordError, KeyError, TypeError) as error:
        raise RecordError(f"{path} holds no timelines: {error}; {_REPAIR}") from error


def copy_kept(source: Path, target: Path, reference: TimelineFile) -> None:
    """Copy a record's file into another record's folder; RecordError if that is not possible."""
    read_kept(source, reference)
    write_bytes(target / reference.file, (source / reference.file).read_bytes())


def _columns(timeline: Timeline) -> tuple[_About, Table, Table]:
    kernels = timeline.kernels
    names: dict[str, int] = {}
    tags: dict[str, int] = {}
    name = _column(names.setdefault(one.name, len(names)) for one in kernels)
    stream = _column(one.stream for one in kernels)
    start = _column(one.start_ns for one in kernels)
    end = _column(one.end_ns for one in kernels)
    waits = [
        (index, one.launch - launch)
        for index, one in enumerate(kernels)
        for launch in one.waits_for
    ]
    tag = _column(
        0 if one.tag is None else 1 + tags.setdefault(one.tag, len(tags)) for one in kernels
    )
    about = _About(
        names=list(names), tags=list(tags), streams=timeline.streams,
        released_ns=timeline.released_ns, elsewhere=timeline.elsewhere,
    )  # fmt: skip
    table = {
        "stream": stream,
        "launch": _column(one.launch for one in kernels),
        "name": name,
        "tag": tag,
        "enqueued": _column(one.enqueued_ns for one in kernels),
        "gap": start - _before(end, stream),
        "duration": (end - start) - _before(end - start, name),
    }
    return about, table, {
        "kernel": _column(index for index, _ in waits),
        "back": _column(back for _, back in waits),
    }  # fmt: skip


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    import numpy as np

    return np.fromiter(values, dtype=np.int64)


def _timeline(about: _About, table: Table, waits: Table) -> Timeline:
    duration = _summed(table["duration"], table["name"])
    end = _summed(table["gap"] + duration, table["stream"])
    launch = table["launch"].tolist()
    waited: list[list[int]] = [[] for _ in launch]
    for index, back in zip(waits["kernel"].tolist(), waits["back"].tolist(), strict=True):
        waited[index].append(launch[index] - back)
    tags = [None, *about.tags]
    columns = (
        table["stream"].tolist(), launch, (about.names[each] for each in table["name"]),
        (tags[each] for each in table["tag"]), table["enqueued"].tolist(),
        (end - duration).tolist(), end.tolist(), map(tuple, waited),
    )  # fmt: skip
    kernels = tuple(Kernel(*values) for values in zip(*columns, strict=True))
    return Timeline(kernels, about.streams, about.released_ns, about.elsewhere)


def _first(start: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the indices of the ``most`` kernels that started first, in their order."""
    import numpy as np

    return np.sort(np.argsort(start, kind="stable")[:most])


def _before(values: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of each row the value of the row before it of the same group; 0 of the first."""
    import numpy as np

    order = np.argsort(groups, kind="stable")
    before = np.zeros_like(values)
    sorted_groups = groups[order]
    same = np.flatnonzero(sorted_groups[1:] == sorted_groups[:-1])
    before[order[same + 1]] = values[order[same]]
    return before


def _summed(steps: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of each row the sum of its group's steps so far."""
    import numpy as np

    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(steps[order])
    firsts = np.flatnonzero(np.diff(groups[order], prepend=groups[order][:1] - 1))
    offsets = np.concatenate(([0], sums))[firsts]
    found = np.empty_like(steps)
    found[order] = sums - np.repeat(offsets, np.diff(np.append(firsts, groups.size)))
    return found
