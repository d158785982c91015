"""`hwq bisect` for real: a repository, processes, a commit that does not build, what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.inner import SHORT, commit, left_behind, new_repository, started
from tests.answers.versions.repositories import TEST


@pytest.mark.slow
def test_the_slow_commit_is_named_and_a_broken_one_skipped(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    commits = [
        commit(
            folder, f"commit {number}",
            test_product="raise ImportError('broken')\n" if number == 2 else TEST,
            product=f"NUMBER = {number}\nDELAY_S = {0.02 if number >= 4 else 0.001}\n",
        )
        for number in range(6)
    ]  # fmt: skip
    command = (
        "pytest_hwqueue",
        "bisect",
        "test_product.py",
        "main~5",
        "main",
        *SHORT,
        "--pairs",
        "5",
    )
    process = started(folder, *command)
    # Some fifty runs, each a fresh process.
    output, said = process.communicate(timeout=900)
    assert process.returncode == 0, output + said
    assert output.startswith(f"{commits[4][:10]} (commit 4) made P50 of test_product")
    (file,) = (folder / ".hwqueue").glob("bisect-*/bisect.json")
    comparisons = json.loads(file.read_text())["comparisons"]
    assert [f"{each['purpose']} {each['outcome']}" for each in comparisons] == [
        "opening bad", "search skip", "search good", "search bad", "confirmation bad",
    ]  # fmt: skip
    assert "pytest cannot collect the tests" in comparisons[1]["reason"]
    assert left_behind(folder) == []
    # The same command again knows the answer, and measures nothing.
    again = started(folder, *command)
    assert again.communicate(timeout=60)[0] == output
    assert again.returncode == 0
    assert len(json.loads(file.read_text())["comparisons"]) == 5
