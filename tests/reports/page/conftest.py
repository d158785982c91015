"""Folders of records as sessions leave them, small enough to be read in a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_hwqueue.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.records.cell import RunRecord, write_record
from pytest_hwqueue.records.timelines import Kept, write_kept
from pytest_hwqueue.reports.page.cells import find_records
from pytest_hwqueue.reports.page.render import Page, page_of, render_page

MakeFolder = Callable[[Sequence[RunRecord]], Path]
MakePage = Callable[[Path], Page]

HOSTILE = "<script>alert('kernel')</script>"


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that writes records into a session's folder."""

    def make(records: Sequence[RunRecord]) -> Path:
        folder = tmp_path / "session"
        for record in records:
            write_record(folder, record)
        return folder

    return make


@pytest.fixture
def make_page(tmp_path: Path) -> MakePage:
    """Return a function that gathers what a report of a folder shows."""
    return lambda folder: page_of(find_records([folder]), tmp_path / "report.html")


@pytest.fixture
def html(make_page: MakePage) -> Callable[[Path], str]:
    """Return a function that renders the report of a folder."""
    return lambda folder: render_page(make_page(folder))


def with_timeline(folder: Path, record: RunRecord, name: str = HOSTILE) -> RunRecord:
    """Return a record with a timeline of four kernels on two streams stored next to it."""
    kernels = tuple(
        Kernel(index % 2, index, name, None, 10 * index, 1000 * index + 500, 1000 * index + 1400)
        for index in range(4)
    )
    kept = Kept()
    kept.add("work on all streams", Timeline(kernels, 2, None))
    folder.mkdir(parents=True, exist_ok=True)
    return record.model_copy(update={"timelines": write_kept(folder, "kept", kept)})
