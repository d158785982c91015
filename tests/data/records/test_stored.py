"""A session's records are read from their files when asked for; what is lost is said, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import (
    RunRecord,
    SessionFile,
    SessionInfo,
    now,
    session_text,
    write_record,
)
from pytest_hwqueue.data.records.stored import SessionFiles, StoredRecords
from pytest_hwqueue.judge.baselines.sources import read_session_file, read_session_id

MakeRecord = Callable[..., RunRecord]
INFO = SessionInfo(id="the-session", started=now(), command="pytest", version="0", settings={})


def names(records: Sequence[RunRecord]) -> list[str]:
    return [record.cell.name for record in records]


def test_records_come_back_as_measured_and_a_lost_one_is_said_once(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    problems: list[str] = []
    records = StoredRecords(problems)
    for name in ("one", "two", "three"):
        records.add(write_record(tmp_path, make_record(name)))
    records.add(make_record("four"))
    assert names(list(records)) == ["one", "two", "three", "four"]
    assert records[0] == make_record("one", started=records[0].started)
    assert names(records[1:]) == ["two", "three", "four"]
    assert [path.parent for path in records.files()] == [tmp_path] * 3
    assert names(records.without_file()) == ["four"]
    assert (len(records), problems) == (4, [])
    records.files()[1].unlink()
    with pytest.raises(RecordError, match="two"):
        records[1]
    for _ in range(2):
        assert names(list(records)) == ["one", "three", "four"]
    (problem,) = problems
    assert problem.startswith("measured, but lost since: cannot read ")
    assert (records.lost, len(records)) == (1, 3)


def write_files(folder: Path, files: list[str], records: list[Any]) -> Path:
    content = SessionFiles(session=INFO, files=files, records=records)
    path = folder / "session.json"
    path.write_text(content.model_dump_json(by_alias=True))
    return path


@pytest.mark.parametrize("whole", [False, True])
def test_file_of_a_session_leads_to_its_records(
    tmp_path: Path, make_record: MakeRecord, whole: bool
) -> None:
    one, two = make_record("one"), make_record("two")
    written = write_record(tmp_path, one)
    path = write_files(tmp_path, [written.name], [two.model_dump(mode="json")])
    if whole:
        path.write_text(session_text(INFO, [one, two], []))
    session, records = read_session_file(path)
    assert session == INFO
    assert names(records) == ["one", "two"]
    assert read_session_id(path) == "the-session"


@pytest.mark.parametrize(
    ("files", "records", "said"),
    [
        (["gone.json"], [], "cannot read"),
        (["session.json"], [], "is not a record"),
        (["../other.json"], [], "is not in its folder"),
        (["/etc/hostname"], [], "is not in its folder"),
        ([], [{"seed": "x"}], "is damaged"),
    ],
)
def test_file_that_names_what_is_no_record_is_refused(
    tmp_path: Path, files: list[str], records: list[Any], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        read_session_file(write_files(tmp_path, files, records))


def test_whole_session_is_written_to_the_byte_as_if_it_were_held(make_record: MakeRecord) -> None:
    """``--hwq-json`` is written record by record; it is what dumping all at once gives."""
    records = [make_record(name) for name in ("one", "two")]
    tenants, judged = [{"plan": "π"}], [{"baseline": "b", "exit_status": 1}]
    listed = []
    for record in records:
        data = record.model_dump(mode="json")
        data["setting"] = data.pop("cell")
        listed.append({"cell": data.pop("cell_id"), **data})
    at_once = SessionFile(
        session=INFO, records=listed, scaling=[], colocations=tenants, judgements=judged
    )
    assert session_text(INFO, iter(records), [], iter(tenants), judged) == json.dumps(
        at_once.model_dump(mode="json", by_alias=True)
    )
    assert json.loads(session_text(INFO, [], []))["records"] == []
