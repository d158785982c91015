"""``pytest --hwq-against REF``: measures this session's tests in turn with another commit's.

The session's own run shows which tests pass. Then both versions are measured in their own sessions,
in ABBA order, and a test fails by its verdict. With ``--hwq-compare`` this applies only to tests
that regressed against the stored baseline, which then only screens.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_hwqueue.answers.versions.judge import InterleavedJudging
from pytest_hwqueue.answers.versions.session import ProcessRuns, interleave, session_folder
from pytest_hwqueue.answers.versions.sides import SideRequest, open_sides, with_median
from pytest_hwqueue.answers.versions.variants import SideVariant
from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.processes.git import commit_of, is_in, shallow, top_level
from pytest_hwqueue.parts.processes.reaper import signals_interrupt
from pytest_hwqueue.plugin.pytest_internals import tests_among
from pytest_hwqueue.plugin.reading import wrong_usage

# Options of pytest's cache, which the runs lack: they receive their tests one by one. A trace
# is of this session.
_NOT_FOR_RUNS = frozenset(
    {
        "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--sw",
        "--stepwise", "--sw-skip", "--stepwise-skip", "--cache-clear", "--hwq-profile",
    }
)  # fmt: skip


class Against:
    """Measures tests in turn with their versions in the commit that --hwq-against names.

    Args:
        config: of the session.
        settings: of the session.
        ref: the commit, branch or tag.
        gate: settings of the gate.
        say: receives progress messages.

    Raises:
        pytest.UsageError: if there is no such commit, or it has none of the session's tests.

    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        ref: str,
        gate: GateSettings,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._settings = settings
        self._ref = ref
        self._gate = gate
        self._say = say
        self._here = config.invocation_params.dir
        with wrong_usage("--hwq-against"):
            self._tests, self._theirs = self._chosen()

    def _chosen(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the session's tests, and those that the other commit may have.

        Raises:
            HwqError: if there is no such commit, or it has none of them.

        """
        config, ref = self._config, self._ref
        top = top_level(self._here)
        if top is None or not config.rootpath.resolve().is_relative_to(top.resolve()):
            raise HwqError(f"{config.rootpath}, where the tests are, is in no git repository")
        if commit_of(self._here, ref) is None:
            raise HwqError(f"{ref!r} is no commit, branch or tag of {top}{shallow(top)}")
        tests = tuple(_from(self._here, argument) for argument in config.args)
        # A file that is new here has nothing to compare: its cells are missing there.
        files = {test: test.partition("::")[0] for test in tests}
        theirs = tuple(
            test
            for test, file in files.items()
            if not (self._here / file).exists() or is_in(self._here, ref, file)
        )
        if not theirs:
            raise HwqError(
                f"{ref} does not have {', '.join(tests)}; name tests that both versions have"
            )
        return tests, theirs

    def judge(
        self, nodeids: Sequence[str], among: int = 1, *, whole: bool = False
    ) -> tuple[Judgement, dict[str, str]]:
        """Measure tests on both sides and judge them; return also which test measures each cell.

        The runs may measure cells that the session's own run did not.

        Args:
            nodeids: of this session's tests; those absent from the other commit are missing.
            among: see `InterleavedJudging`.
            whole: these are all tests of this session, so the other commit's others are lost.

        Raises:
            pytest.UsageError: if a side cannot be measured.

        """
        settings, ref = self._settings, self._ref
        root = os.path.relpath(self._config.rootpath, self._here)
        with wrong_usage("--hwq-against", OSError):
            folder = session_folder(self._here / settings.dir)
            variant = SideVariant(words=(*self._words(), *self._own_basetemp(folder)))
            requests = (
                SideRequest("A", ref, variant, root=root, tests=self._theirs),
                SideRequest("B", None, variant, root=root, tests=self._tests),
            )
            # What the baseline convicts is confirmed by the figures that it was convicted by.
            figures = settings.fail_on if settings.compare else with_median(settings.fail_on)
            judging = InterleavedJudging(
                figures, self._gate, (ref, "this version"), folder.name,
                allow_environment=settings.allow_env, among=among,
            )  # fmt: skip
            measure = ProcessRuns(folder)
            with signals_interrupt(), open_sides(
                requests, self._here, settings.setup, folder, self._say
            ) as sides, measure.described(sides):  # fmt: skip
                judgement = interleave(sides, judging, measure, self._say, only=nodeids, lost=whole)
        return judgement, judging.nodes("new")

    def _own_basetemp(self, folder: Path) -> list[str]:
        """Give the runs their own temporary folder: they would empty this session's."""
        given = self._config.getoption("basetemp", None)
        return [f"--basetemp={folder / 'basetemp'}"] if given else []

    def _words(self) -> list[str]:
        """Return the session's arguments without its tests."""
        config = self._config
        added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        words = [*map(_Word, added), *map(_Word, config.invocation_params.args)]
        tests = set(map(id, tests_among(config, words)))
        return [str(each) for each in words if id(each) not in tests and each not in _NOT_FOR_RUNS]


class _Word(str):
    """A word of the command line that is told from another with the same letters."""


def confirmed(judgement: Judgement, interleaved: Judgement) -> Judgement:
    """Return a judgement that keeps only regressions confirmed by interleaved runs.

    Args:
        judgement: against a stored baseline.
        interleaved: of the interleaved runs.

    """
    verdicts = []
    beside = {(each.cell_id, each.figure): each for each in interleaved.verdicts}
    for judged in judgement.verdicts:
        found = beside.get((judged.cell_id, judged.figure))
        if judged.verdict.state != "regression" or found is None:
            verdicts.append(judged)
            continue
        said = "confirmed" if found.verdict.state == "regression" else "not confirmed"
        sentence = (
            f"{judged.verdict.line.partition(';')[0]} against {judgement.baseline}, {said} in one "
            f"session: {found.verdict.sentence}"
        )
        verdicts.append(replace(found, verdict=replace(found.verdict, sentence=sentence)))
    notes = (*judgement.notes, *interleaved.notes)
    return replace(judgement, verdicts=tuple(verdicts), notes=notes)


def _from(here: Path, argument: str) -> str:
    path, colons, inside = argument.partition("::")
    return os.path.relpath(here / path, here) + colons + inside
