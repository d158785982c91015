"""Folders of records as sessions leave them, small enough to be read in a moment."""

from __future__ import annotations

from pathlib import Path

from pytest_hwqueue.answers.page.cells import find_records
from pytest_hwqueue.answers.page.render import Page, page_of, render_page
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.cell import RunRecord, write_record
from pytest_hwqueue.data.records.timelines import TimelineData, write_kept

HOSTILE = "<script>alert('kernel')</script>"


def folder_of(tmp_path: Path, *records: RunRecord) -> Path:
    """Write records into a session's folder."""
    folder = tmp_path / "session"
    for record in records:
        write_record(folder, record)
    return folder


def page_for(tmp_path: Path, *records: RunRecord) -> Page:
    """Gather what a report of records shows."""
    return page_of(find_records([folder_of(tmp_path, *records)]), tmp_path / "report.html")


def html(tmp_path: Path, *records: RunRecord) -> str:
    """Render the report of records."""
    return render_page(page_for(tmp_path, *records))


def with_timeline(folder: Path, record: RunRecord, name: str = HOSTILE) -> RunRecord:
    """Return a record with a timeline of four kernels on two streams stored next to it."""
    kernels = tuple(
        Kernel(index % 2, index, name, None, 10 * index, 1000 * index + 500, 1000 * index + 1400)
        for index in range(4)
    )
    kept = TimelineData()
    kept.add("work on all streams", Timeline(kernels, 2, None))
    folder.mkdir(parents=True, exist_ok=True)
    return record.model_copy(update={"timelines": write_kept(folder, "kept", kept)})
