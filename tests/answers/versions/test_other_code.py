"""What becomes of runs that measured other code than their side's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_hwqueue.answers.versions.imports import OtherCode, Tree
from pytest_hwqueue.answers.versions.judge import InterleavedJudging
from pytest_hwqueue.answers.versions.session import (
    CommitComparison,
    MeasuredRun,
    ProcessRuns,
    interleave,
)
from pytest_hwqueue.answers.versions.sides import Side
from pytest_hwqueue.answers.versions.variants import SideVariant, side_environment
from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.judge.verdict import OTHER_CODE, P99, GateSettings, Verdict
from pytest_hwqueue.options.of_commands import REFUSED, comparison_status
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.plugin.regression import Regression
from tests.answers.versions.repositories import make_side, quick_record


def judgement_of(*, other: bool) -> tuple[Judgement, int]:
    """Judge an interleaved session whose runs of A are of other code; return their number too."""
    runs = 0

    def measure(side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        nonlocal runs
        runs += 1
        strayed = side.name == "A" and other
        kept = [quick_record(cell, 2 * number + at) for at, cell in enumerate("ab")]
        return MeasuredRun(kept, "", "side A ran libx from /repository/libx.py" if strayed else "")

    sides = make_side("A", collected=("file.py::test_a",)), make_side("B", collected=("b::b",))
    judging = InterleavedJudging(("p99",), GateSettings(pairs=6), ("main", "."), "one")
    return interleave(sides, judging, measure, lambda _: None), runs


def test_a_run_of_other_code_is_incomparable_and_nothing_more_is_measured() -> None:
    judgement, runs = judgement_of(other=True)
    assert runs == 2
    for each in judgement.verdicts:
        assert (each.verdict.state, each.verdict.reason) == ("incomparable", OTHER_CODE)
        assert "main: side A ran libx from /repository/libx.py" in each.verdict.sentence
    assert len(judgement.verdicts) == 2
    assert judgement_of(other=False)[0].count("incomparable") == 0


def test_no_setting_lets_other_code_pass() -> None:
    passed = judgement_of(other=False)[0].verdicts
    strayed = judgement_of(other=True)[0].verdicts
    warns = dict.fromkeys(("inconclusive", "no-baseline", "incomparable", "missing"), "warn")
    for verdicts, status in ((passed, 0), ((*passed, *strayed), REFUSED)):
        judgement = Judgement("main", verdicts, (), None, 2, GateSettings(), {})
        assert comparison_status(judgement, warns) == status
    regression = Regression.__new__(Regression)
    regression._settings = Settings(on=warns)
    for reason, level in (("failed", "warn"), (OTHER_CODE, "fail")):
        assert regression.level(Verdict("incomparable", reason, "", P99)) == level


def test_a_bisection_ends_as_no_commit_is_to_blame(tmp_path: Path) -> None:
    class Runs(ProcessRuns):
        def __call__(self, side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
            return MeasuredRun(
                [quick_record("a", number)], "", "side A ran libx from /repository/libx.py"
            )

    class Sides:
        def __enter__(self) -> tuple[Side, Side]:
            return make_side("A", collected=("a",)), make_side("B", collected=("a",))

        def __exit__(self, *_: object) -> None:
            return None

    compare = CommitComparison(
        tmp_path, tmp_path, SideVariant(), "", ("p99",), GateSettings(pairs=6), False,
        lambda _: None, open_sides=lambda *_: Sides(), measuring=Runs,
    )  # fmt: skip
    with pytest.raises(HwqError, match=r"side A ran libx from /repository/libx.py"):
        compare("1" * 40, "2" * 40, 6, None)


def side_of(tmp_path: Path, set_up: bool = False) -> Side:
    """A side in a folder of its own; its `working` has the project packages/x."""
    for name in ("side", "work"):
        (tmp_path / name / "tests").mkdir(parents=True)
    (tmp_path / "work" / "packages" / "x" / "src").mkdir(parents=True)
    (tmp_path / "work" / "packages" / "x" / "pyproject.toml").touch()
    (tmp_path / "work" / "packages" / "x" / "src" / "libx.py").touch()
    tree = Tree(
        str(tmp_path / "side"), str(tmp_path / "work"), (str(tmp_path / "work"),), set_up=set_up
    )
    folder = tmp_path / "side"
    return make_side(
        folder=folder, root=folder, tree=tree,
        environment=side_environment(SideVariant(), folder, None, tree),
    )  # fmt: skip


@pytest.mark.parametrize("set_up", [False, True])
@pytest.mark.parametrize("lacking", [False, True])
@pytest.mark.parametrize(("folder", "place"), [(".", "./packages/x"), ("tests", "../packages/x")])
def test_the_sentence_names_the_code_and_the_command_that_helps(
    tmp_path: Path, folder: str, place: str, lacking: bool, set_up: bool
) -> None:
    side = side_of(tmp_path, set_up)
    side = make_side(folder=side.folder / folder, tree=side.tree)
    file = str(tmp_path / "work" / "packages" / "x" / "src" / "libx.py")
    sentence = side.describe_other_code([OtherCode("libx", file, lacking)] * 3)
    assert f"--setup 'pip install {place}' (in pytest --hwq-setup)" in sentence
    assert sentence.startswith("side A ran ")
    assert ("without libx" in sentence) == lacking
    assert "(and 2 more)" in sentence
    assert file in sentence
    assert ("which this --setup has not done" in sentence) == set_up
    assert side.describe_other_code([]) == ""


def test_a_run_shows_by_its_processes_which_code_it_was(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    (tmp_path / "side" / "pytest.py").touch()
    library = str(tmp_path / "work" / "packages" / "x" / "src" / "libx.py")
    straying = f"import runpy, sys; sys.modules['libx'] = type(sys)('libx'); " \
               f"sys.modules['libx'].__file__ = {library!r}"  # fmt: skip
    for number, (flags, script, says) in enumerate((
        ((), "import pytest", ""),
        ((), f"import pytest; {straying}", f"side A ran libx from {library}"),
        # In any process that it starts.
        ((), f"import pytest, subprocess, sys; subprocess.run([sys.executable, '-c', "
             f"{straying!r}])", f"side A ran libx from {library}"),
        # What says nothing proves nothing, unless it says how it broke off.
        (("-S",), "pass", "nothing shows which code side A ran"),
        ((), "import os; os._exit(0)", "nothing shows which code side A ran"),
        ((), "import os; os._exit(3)", ""),
    ), start=1):  # fmt: skip
        command = (sys.executable, *flags, "-c", script)
        made = make_side(
            folder=side.folder, root=side.root, tree=side.tree, command=command,
            environment=side.environment,
        )  # fmt: skip
        measured = ProcessRuns(tmp_path)(made, number, None)
        assert measured.other_code.startswith(says)
        assert bool(measured.other_code) == bool(says)


def test_in_a_hook_none_of_gits_variables_reaches_a_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(*variables: str) -> list[str]:
        for name in variables:
            monkeypatch.setenv(name, "x")
        environment = side_environment(SideVariant(environment={"GIT_TRACE": "1"}), tmp_path, None)
        return sorted(name for name in environment if name.startswith("GIT_"))

    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    assert passed("GIT_SSH_COMMAND") == ["GIT_SSH_COMMAND", "GIT_TRACE"]
    # What the user has for a side is still there.
    assert passed("GIT_INDEX_FILE", "GIT_CONFIG_COUNT", "GIT_EXEC_PATH") == ["GIT_TRACE"]
