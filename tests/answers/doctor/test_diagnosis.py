"""A whole diagnosis: what is printed, what is JSON, and what is refused."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pytest_hwqueue.answers.doctor import diagnosis
from pytest_hwqueue.answers.doctor.checks import Check
from pytest_hwqueue.answers.doctor.diagnosis import Diagnosis, as_json, diagnose
from pytest_hwqueue.answers.doctor.report import diagnosis_document
from pytest_hwqueue.data.document.terminal import print_document
from pytest_hwqueue.data.errors import BadOption


def test_a_whole_diagnosis_prints_and_is_json(tmp_path: Path) -> None:
    found = diagnose("cpu", tmp_path, quick=True, progress=lambda text: None)

    printed = StringIO()
    print_document(diagnosis_document(found), Console(file=printed, width=200))
    for text in ("Checks", "Limits", "128 distinct", "Dispatch", "not available: ", "--quick"):
        assert text in printed.getvalue()
    data = json.loads(as_json(found))
    assert data["schema"] == diagnosis.SCHEMA
    assert data["device"] == "cpu"
    assert {check["name"] for check in data["checks"]} == {check.name for check in found.checks}
    assert len(data["limits"]["queues"]) == 8 or data["limits"]["refused"]["queues"]


def test_nothing_measured_prints_no_numbers() -> None:
    check = Check("device", "problem", "cannot be opened [why]", "choose another")
    found = Diagnosis("cuda", "", "now", "0", False, [check], None)

    printed = StringIO()
    print_document(diagnosis_document(found), Console(file=printed, width=120))

    assert found.has_problem
    assert "cannot be opened [why]" in printed.getvalue()
    assert "Limits" not in printed.getvalue()


def test_all_devices_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="one device at a time"):
        diagnose("all", tmp_path, progress=lambda text: None)
