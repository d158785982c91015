"""Timelines come back from their files as they were, in few bytes; damaged files are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records import timelines
from pytest_hwqueue.data.records.samples import pack, unpack
from pytest_hwqueue.data.records.timelines import (
    LIMITS,
    TimelineData,
    TimelineFile,
    copy_kept,
    read_kept,
    write_kept,
)
from pytest_hwqueue.engine.cell.timeline_pass import timeline_pass
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

TIMES = st.integers(-(2**60), 2**60)
NAMES = st.sampled_from(["gemm", "add", "µ", ""])
TAGS = st.sampled_from([None, "", "large", "small#3"])
NUMBERS, STREAMS = st.integers(0, 2**40), st.integers(0, 3)


KERNELS = st.builds(
    lambda stream, launch, name, tag, enqueued, start, duration, waits: Kernel(
        stream, launch, name, tag, enqueued, start, start + duration, tuple(waits)),
    STREAMS, NUMBERS, NAMES, TAGS, TIMES, TIMES, NUMBERS, st.lists(NUMBERS, max_size=3),
)  # fmt: skip
WORKS = st.builds(
    lambda stream, name, start, waited, duration, request, lead: DeviceWork(
        "mine", stream, name, start - waited, start, start + duration, request,
        None if lead is None else start - waited - lead),
    STREAMS, NAMES, TIMES, NUMBERS, NUMBERS, st.none() | NUMBERS,
    st.none() | st.integers(-1000, 1000),
)  # fmt: skip


@given(
    st.lists(KERNELS, max_size=30), st.none() | TIMES, st.integers(0, 5),
    st.lists(WORKS, max_size=30),
)  # fmt: skip
def test_timelines_and_traced_passes_come_back_as_they_were(
    found: list[Kernel], released_ns: int | None, elsewhere: int, work: list[DeviceWork]
) -> None:
    timeline = Timeline(tuple(found), 4, released_ns, elsewhere)
    kept = TimelineData()
    kept.add("pass", timeline)
    kept.add("other", Timeline((), 1, None))
    kept.add_work("pass", work)
    assert kept.kernels == len(found) + len(work)
    about, tables = unpack(pack(kept.about, kept.tables, LIMITS), LIMITS)
    again = TimelineData(about, dict(tables), kept.kernels)
    assert again.timeline("pass") == timeline
    assert again.timeline("other") == Timeline((), 1, None)
    assert again.timeline("none") is None
    assert again.work("pass", "mine") == work
    with pytest.raises(ValueError, match="damaged"):
        again.work("other", "mine")


def test_a_kernel_takes_at_most_12_bytes(tmp_path: Path) -> None:
    square = torch.empty(64, 64)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in [*streams] * 20:
            stream.launch(torch.mm, square, square)

    with SimulatedDevice("h200").open_streams(2) as pool:
        found = timeline_pass(pool, enqueue)
    timelines = {"many": found.many, "one": found.one}
    kept = TimelineData()
    for name, timeline in timelines.items():
        kept.add(name, timeline)
    reference = write_kept(tmp_path, "cell", kept)
    assert kept.kernels == reference.kernels >= 400
    assert reference.size_bytes == (tmp_path / reference.file).stat().st_size
    assert reference.size_bytes <= 12 * reference.kernels
    again = read_kept(tmp_path, reference)
    for name, timeline in timelines.items():
        told = tuple(replace(one, call=None, shape=None) for one in timeline.kernels)
        assert again.timeline(name) == replace(timeline, kernels=told, calls=(), clocks=None)


def one_timeline(end_ns: int = 5) -> TimelineData:
    kept = TimelineData()
    kept.add("pass", Timeline((Kernel(0, 0, "gemm", None, 0, 1, end_ns),), 1, None))
    return kept


def test_files_of_one_name_do_not_replace_each_other(tmp_path: Path) -> None:
    written = [write_kept(tmp_path, "cell", one_timeline(end)) for end in (5, 6)]
    assert [each.file for each in written] == ["cell.timelines.xz", "cell-2.timelines.xz"]
    # A file goes along with its record, and nothing temporary is left.
    for reference in written:
        copy_kept(tmp_path, tmp_path / "new", reference)
    for folder in (tmp_path, tmp_path / "new"):
        found = [read_kept(folder, reference).timeline("pass") for reference in written]
        assert [each and each.kernels[0].end_ns for each in found] == [5, 6]
        assert len(list(folder.glob("*.*"))) == 2


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (None, r"cannot read {path}/cell\.timelines\.xz"),
        (pack({}, {}, LIMITS), r"cell\.timelines\.xz is not the file that was written"),
    ],
)
def test_another_file_is_refused_by_name(
    tmp_path: Path, content: bytes | None, refusal: str
) -> None:
    reference = write_kept(tmp_path, "cell", one_timeline())
    path = tmp_path / reference.file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(RecordError, match=refusal.format(path=tmp_path)):
        read_kept(tmp_path, reference)
    for name in ("../cell.timelines.xz", "/etc/passwd", "a/b.timelines.xz", ""):
        with pytest.raises(RecordError, match="not the name of a timeline file"):
            read_kept(tmp_path / "sub", reference.model_copy(update={"file": name}))


def test_of_too_large_a_file_no_more_is_read(tmp_path: Path) -> None:
    reference = write_kept(tmp_path, "cell", one_timeline())
    with open(tmp_path / reference.file, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecordError, match=r"timelines\.xz is larger than 268435456 bytes, which n"):
        read_kept(tmp_path, reference)


OTHER = {"schema": "other", "parts": {}, "kernels": 0}


@pytest.mark.parametrize("about", [{}, OTHER, {"schema": timelines.SCHEMA}])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, about: dict[str, Any]) -> None:
    data = pack(about, {}, LIMITS)
    (tmp_path / "cell.timelines.xz").write_bytes(data)
    digest = sha256(data).hexdigest()
    reference = TimelineFile(file="cell.timelines.xz", sha256=digest, size_bytes=1, kernels=0)
    with pytest.raises(RecordError, match=r"cell\.timelines\.xz holds no timelines"):
        read_kept(tmp_path, reference)


@pytest.mark.parametrize(
    ("field", "damaged"), [("names", []), ("streams", 0), ("pass", None), ("pass waits", None)]
)
def test_a_damaged_timeline_is_refused(field: str, damaged: object) -> None:
    kept = one_timeline()
    if damaged is None:
        del kept.tables[field]
    else:
        kept.about["pass"][field] = damaged
    with pytest.raises(ValueError, match=r"pass|stream 0"):
        kept.timeline("pass")
