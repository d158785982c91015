"""Which earlier sweep is the same, and which of its cells count as measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.records.cell import RunRecord, read_record, write_record
from pytest_hwqueue.records.timelines import Kept, read_kept, write_kept
from pytest_hwqueue.sweeps.earlier import (
    NothingToResume,
    begin_sweep,
    last_sweep,
    origin,
    take_over,
)

COMMIT = "0" * 40
SAME = {"--hwq-seed": "0", "--hwq-streams": "1,2", "commit": COMMIT}
MakeRecord = Callable[..., RunRecord]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of the sessions: two sweeps, the later with another seed, and a session without one."""
    begin_sweep(tmp_path / "first", "2026-01-01T00:00:01.000+00:00", SAME)
    begin_sweep(tmp_path / "other", "2026-01-01T00:00:03.000+00:00", {**SAME, "--hwq-seed": "1"})
    (tmp_path / "plain").mkdir()
    return tmp_path


def test_of_the_sweeps_that_are_the_same_the_last_counts(
    folder: Path, make_record: MakeRecord
) -> None:
    begin_sweep(folder / "a later one", "2026-01-01T00:00:02.000+00:00", SAME)
    write_record(folder / "a later one", make_record())

    found = last_sweep(folder, SAME, COMMIT)

    assert found.session == "a later one"
    assert [len(records) for records in found.measured.values()] == [1]


def test_only_whole_tests_that_went_well_on_this_commit_are_measured(
    folder: Path, make_record: MakeRecord
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "ok": {},
        "failed": {"status": "failed", "reason": "out of memory"},
        "timeout": {"status": "timeout"},
        "invalid": {"status": "invalid"},
        "other commit": {"git_commit": "1" * 40},
        "no commit": {"git_commit": None},
    }
    for nodeid, changed in changes.items():
        write_record(folder / "first", make_record(nodeid=nodeid, **changed))
    write_record(folder / "first", make_record(nodeid="half"))
    write_record(folder / "first", make_record(nodeid="half", status="failed"))
    (folder / "first" / "torn.json").write_text('{"schema_version": 1, "ce')
    (folder / "first" / "session.json").write_text("{}")

    found = last_sweep(folder, SAME, COMMIT)

    assert list(found.measured) == ["ok"]
    (problem,) = found.unreadable
    assert "torn.json is not a record" in problem


def test_no_sweep_at_all(tmp_path: Path) -> None:
    with pytest.raises(NothingToResume, match="there is no sweep in"):
        last_sweep(tmp_path / "nowhere", SAME, COMMIT)


def test_what_the_last_sweep_differs_in_is_named(folder: Path) -> None:
    mine = {"--hwq-seed": "0", "--hwq-streams": "1,2,4", "commit": COMMIT, "torch": "9"}

    with pytest.raises(NothingToResume) as raised:
        last_sweep(folder, mine, COMMIT)

    assert str(raised.value).endswith(
        "the last, other, differs: --hwq-seed was 1, now 0; --hwq-streams was 1,2, now 1,2,4; "
        "torch was not set, now 9"
    )


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "first" / "sweep" / "sweep.json"
    path.write_text(path.read_text()[:50])

    with pytest.raises(RecordError, match=r"sweep\.json is damaged .*remove it"):
        last_sweep(folder, SAME, COMMIT)


def test_records_taken_over_name_the_session_that_measured_them(
    folder: Path, make_record: MakeRecord
) -> None:
    record = make_record(notes=["throttled"])
    assert origin(record) is None

    (path,) = take_over(folder / "second", [record], "first")
    once = read_record(path)
    (path,) = take_over(folder / "third", [once], "second")
    twice = read_record(path)

    assert origin(once) == origin(twice) == "first"
    assert twice == record.model_copy(update={"notes": ["throttled", *twice.notes[1:]]})
    assert len(twice.notes) == 2


def test_timelines_come_along_with_their_records(folder: Path, make_record: MakeRecord) -> None:
    kept = Kept()
    kept.add("pass", Timeline((Kernel(0, 0, "gemm", None, 0, 1, 2),), 1, None))
    record = make_record(timelines=write_kept(folder / "first", "cell", kept))

    (path,) = take_over(folder / "second", [record], "first")
    taken = read_record(path)
    assert taken.timelines == record.timelines
    assert taken.timelines is not None
    assert read_kept(folder / "second", taken.timelines).timeline("pass") == kept.timeline("pass")

    (folder / "first" / "cell.timelines.xz").write_bytes(b"torn")
    (path,) = take_over(folder / "third", [record], "first")
    without = read_record(path)
    assert without.timelines is None
    assert "timelines were not taken over" in without.notes[-1]
    assert origin(without) == "first"
