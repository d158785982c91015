"""Faults planted in users' tests: each costs what its docstring says, and no other test anything.

Each file of `planted/` is one session. After each of its tests runs one that only measures, and
that must find a process in which the same figures come out as in a session without faults.
"""

from __future__ import annotations

import ast
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from tests.conftest import Sessions

PLANTED = Path(__file__).parent / "planted"
FILES = sorted(PLANTED.glob("*.py"))
# Their tests take seconds: processes that hang, or must be replaced. What closes descriptors or
# writes to others' stands in tests/acceptance/test_hostile.py, too.
SLOW = ("descriptors", "environment", "interpreter", "processes")
ARGUMENTS = (
    "--hwq-device=sim:h200", "--hwq-streams=2", "--hwq-iterations=20", "--hwq-warmup=2",
    "--hwq-timeout=4", "--hwq-json=session.json", "--junitxml=junit.xml", "-rN", "--tb=short",
)  # fmt: skip
# What a test that only measures is called, before the name of the one that it follows.
AFTER = "test_after_"
TOP = "from pytest_hwqueue import Hwq\n\n\ndef step() -> int:\n    return sum(range(100))\n"
MEASURES = "def {name}(hwq: Hwq) -> None:\n    hwq.measure(step)\n"


def faults(file: Path) -> dict[str, str]:
    """Expected outcomes by test, from the docstrings of a file's tests."""
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = ast.get_docstring(node) or ""
    return found


def with_tests_between(file: Path) -> str:
    """The file's text, with a test that only measures after each of its own."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            after = MEASURES.format(name=AFTER + node.name.removeprefix("test_"))
            assert node.end_lineno is not None
            lines[node.end_lineno : node.end_lineno] = ["", "", *after.splitlines()]
    return "\n".join(lines) + "\n"


def outcomes(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """JUnit's words on each test: ``failed``, ``error``, ``skipped`` with its text; or nothing."""
    found: dict[str, list[tuple[str, str]]] = {}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        name = (case.get("name") or "").partition("[")[0]
        said = [
            (each.tag.replace("failure", "failed"), f"{each.get('message')}\n{each.text}")
            for each in case
            if each.tag in ("failure", "error", "skipped")
        ]
        found.setdefault(name, []).extend(said)
    return found


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The session's records by test."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads((folder / "session.json").read_text(encoding="utf-8"))["records"]:
        name = record["nodeid"].split("::")[1].partition("[")[0]
        assert record["cell"].split("::")[1].partition("[")[0] == name
        found.setdefault(name, []).append(record)
    return found


def expected_parts(outcome: str) -> list[tuple[str, str]]:
    """``failed: first, error: second`` as what JUnit says; ``passed`` says nothing."""
    parts = [part.partition(": ") for part in outcome.split(", ")]
    return [(kind, text) for kind, _, text in parts if kind != "passed"]


def test_there_are_forty_kinds() -> None:
    assert sum(len(faults(file)) for file in FILES) >= 60
    assert all(outcome for file in FILES for outcome in faults(file).values())


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, sessions: Sessions) -> dict[str, Any]:
    """The record of a test that only measures, in a session without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "test_users.py").write_text(f"{TOP}\n\n{MEASURES.format(name='test_alone')}")
    assert sessions.run(folder, *ARGUMENTS).returncode == 0
    (record,) = records(folder)["test_alone"]
    return record


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=pytest.mark.slow if file.stem in SLOW else ())
        for file in FILES
    ],
)
def test_each_fault_costs_its_own_test_only(
    file: Path,
    tmp_path: Path,
    sessions: Sessions,
    undisturbed: dict[str, Any],
    no_process_is_left: None,
) -> None:
    (tmp_path / "test_users.py").write_text(with_tests_between(file), encoding="utf-8")
    before = set(psutil.pids())
    result = sessions.run(tmp_path, *ARGUMENTS)
    print(result.stdout[-5000:], result.stderr[-5000:])  # shown if this fails
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    found = outcomes(tmp_path)
    for name, outcome in faults(file).items():
        expected = expected_parts(outcome)
        assert [kind for kind, _ in found[name]] == [kind for kind, _ in expected], name
        for (_, said), (_, text) in zip(found[name], expected, strict=True):
            assert text in said
        assert found[AFTER + name.removeprefix("test_")] == [], name

    measured = records(tmp_path)
    for name in faults(file):
        (record,) = measured[AFTER + name.removeprefix("test_")]
        assert record["status"] == "ok"
        assert record["samples"] == undisturbed["samples"]
        assert record["metrics"] == undisturbed["metrics"]
    left = [each for pid in set(psutil.pids()) - before if (each := _of(pid, tmp_path))]
    assert left == []
    assert not list(tmp_path.rglob("*.tmp"))


def _of(pid: int, folder: Path) -> str | None:
    """The command of a process that has its current folder in this one."""
    try:
        process = psutil.Process(pid)
        return str(process.cmdline()) if Path(process.cwd()).is_relative_to(folder) else None
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
