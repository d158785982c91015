"""Mutants are drawn from the code and the seed alone, and counted as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="needs the dependency group mutation")

from cosmic_ray import work_item
from cosmic_ray.commands import init
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

from tools.mutation import (
    annotation_spans,
    command,
    drawn,
    mirrored_tests,
    outcome,
    row,
    sources,
    unpacked,
)

MODULE = '''
def larger(one: int | None, other: int | None) -> int | None:
    """Return the larger of two numbers."""
    if one is None or other is None:
        return one or other
    if one > other + 1 - 1:
        return one
    return other * 1 + 0
'''


def items(folder: Path) -> list[WorkItem]:
    module = folder / "module.py"
    module.write_text(MODULE, encoding="utf-8")
    with use_db(folder / "session.sqlite") as database:
        init([module], database, {})
        return list(database.work_items)


def places(kept: list[WorkItem]) -> list[tuple[str, tuple[int, int]]]:
    return [(each.mutations[0].operator_name, each.mutations[0].start_pos) for each in kept]


def test_the_seed_draws_them_one_a_place_and_none_in_an_annotation(tmp_path: Path) -> None:
    found = items(tmp_path)
    kept = drawn(found, 1000, 7)
    starts = [start for _, start in places(kept)]
    assert len(set(starts)) == len(starts) > 5
    assert {line for line, _ in starts} == {4, 5, 6, 8}
    assert {each.mutations[0].start_pos[0] for each in found} > {2, 4}
    assert places(drawn(found[::-1], 4, 7)) == places(kept)[:4]
    assert places(drawn(found, 1000, 8)) != places(kept)


def test_annotations_are_those_of_arguments_results_and_variables() -> None:
    source = "value: int | str = 1 | 2\ndef function(of: int | None, *others: str) -> None: ..."
    lines = source.splitlines()
    found = [lines[line - 1][begin:end] for (line, begin), (_, end) in annotation_spans(source)]
    assert sorted(found) == ["None", "int | None", "int | str", "str"]


def test_the_mirrored_test_file_runs_first_and_each_once() -> None:
    tests = [Path("tests/judge/test_clocks.py"), Path("tests/judge/test_losses.py")]
    assert command(tests, Path("pytest_hwqueue/judge/losses.py")).split()[-2:] == [
        "tests/judge/test_losses.py",
        "tests/judge/test_clocks.py",
    ]
    assert command(tests, Path("pytest_hwqueue/judge/words.py")) == command(tests)


def test_a_package_is_its_own_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    names = {each.name for each in sources("judge")}
    assert "verdict.py" in names
    assert not {"__init__.py", "store.py"} & names
    assert {each.name for each in mirrored_tests("judge/baselines")} >= {"test_store.py"}


def test_an_outcome_is_told_from_a_timeout_and_the_row_gives_its_interval() -> None:
    results = [
        *[WorkResult(WorkerOutcome.NORMAL, "1 failed", work_item.TestOutcome.KILLED)] * 7,
        WorkResult(WorkerOutcome.NORMAL, "timeout", work_item.TestOutcome.KILLED),
        *[WorkResult(WorkerOutcome.NORMAL, "9 passed", work_item.TestOutcome.SURVIVED)] * 2,
    ]
    assert [outcome(each) for each in results[6:9]] == ["killed", "timed out", "survived"]
    # Clopper and Pearson's interval of 8 in 10.
    assert row("judge", "a1b2c3d", results) == (
        "| `judge` | a1b2c3d | 10 | 7 | 2 | 1 | 80 % [44 %, 97 %] |"
    )


def test_a_commit_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no commit nowhere"):
        unpacked("nowhere", tmp_path / "tree")
