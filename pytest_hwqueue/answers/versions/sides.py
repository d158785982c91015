"""A side of a comparison: a folder, an environment, how pytest runs there; pairs of its cells.

A commit gets a worktree. With a setup command, each side gets its own virtual environment;
without one, the running interpreter searches the side's folder first, so it imports the side's
code. Everything created here is removed at the end, however it ends.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Any

from pytest_hwqueue.answers.versions.imports import (
    REPORTS,
    OtherCode,
    Tree,
    read_reports,
    setup_for,
)
from pytest_hwqueue.answers.versions.scratch import scratch_folder
from pytest_hwqueue.answers.versions.variants import SideVariant, set_up, side_environment
from pytest_hwqueue.data.errors import HwqError, RecordError, abridged, of_side
from pytest_hwqueue.data.metrics.dependence import student_quantile
from pytest_hwqueue.data.metrics.numbers import rise_of
from pytest_hwqueue.data.records.cell import Cell, RunRecord, measured_again
from pytest_hwqueue.data.redaction import redacted
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import UnmatchedCell
from pytest_hwqueue.judge.calibrate import MOST_RUNS, can_convict, detectable_effect
from pytest_hwqueue.judge.judging import judged_once
from pytest_hwqueue.judge.verdict import LEAST_FIRST_RUNS, GateSettings, Verdict
from pytest_hwqueue.options.options import OPTIONS
from pytest_hwqueue.parts.processes.git import (
    commit_of,
    is_ancestor,
    is_changed,
    shallow,
    top_level,
    what_is_lacking,
    worktree,
    worktrees,
)
from pytest_hwqueue.parts.processes.reaper import last_lines, run

_PROBE = """
import json, sys
from pytest_hwqueue.options import suite
found = {"python": sys.executable, "plugin": suite.plugin_name()}
if sys.argv[1] == "suite":
    found |= {"suite": str(suite.suite_path()), "command": suite.pytest_command([])}
print(json.dumps(found))
"""

# Options of pytest whose value is a word of its own, which is no test even if a file has its name.
_TAKE_A_VALUE = ("-k", "-m", "-p", "-c", "-o", "-W", "-n", "-r")

# A single run must not compare, store or report by itself, whatever the environment and ini files
# say: what is given on the command line, even if empty, wins over both.
_SWITCHED_OFF = tuple(
    option.name
    for option in OPTIONS
    if option.name in ("save", "compare", "against", "setup", "markdown", "report", "json")
)

_NO_TESTS = 5
# What pytest prints when it has collected, behind the node ids: a test that a file lacks, the title
# of all tracebacks, and that of one.
_NOT_FOUND = "ERROR: not found: "
_ERRORS = re.compile(r"=+ ERRORS =+")
_COLLECTING = re.compile(r"_+ ERROR collecting (?P<file>.+?)(?:::.*)? _+$")


@dataclass(frozen=True)
class SideRequest:
    """A user's specification of a side.

    Attributes:
        name: A or B.
        place: a commit, branch or tag, or a folder; None for the current folder.
        variant: how it is measured, including what both sides share.
        own: this side's part of the variant, as the user wrote it.
        root: pytest's rootdir for given tests, from the current folder.
        tests: paths from the current folder, or node ids; None for those among the variant's words,
            or the suite if there are none.

    """

    name: str
    place: str | None
    variant: SideVariant
    own: str = ""
    root: str = "."
    tests: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """The side as the user wrote it, such as ``main`` or ``--scheduler native``; no secrets."""
        return redacted(" ".join(part for part in (self.place, self.own) if part)) or "."


@dataclass(frozen=True)
class Side:
    """A side ready to be measured.

    Attributes:
        name: A or B.
        label: as the user wrote it.
        folder: where pytest runs.
        commit: checked out there; None if it is in no repository.
        changed: whether tracked files differ from the commit.
        variant: how it is measured.
        environment: of its processes.
        command: python, pytest, and what it needs, without tests and the plugin's options.
        root: of its node ids.
        tests: which to run.
        collected: node ids of those.
        broken: files of tests that cannot be imported, from the root, and why.
        lacking: tests that were to be run and that it does not have.
        tree: where its code lies, and where it must not come from; None for no look at it.
        notes: what a reader of the comparison should know of it.

    """

    name: str
    label: str
    folder: Path
    commit: str | None
    changed: bool
    variant: SideVariant
    environment: dict[str, str] = field(repr=False)
    command: tuple[str, ...]
    root: Path
    tests: tuple[str, ...]
    collected: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    tree: Tree | None = None
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return one line of text."""
        commit = "in no repository" if self.commit is None else f"commit {self.commit[:10]}"
        changed = ", with uncommitted changes" if self.changed else ""
        return f"{self.name}: {self.label} ({commit}{changed})"

    def why_absent(self, node: str) -> str:
        """Return why a test of the other side was not run on this one; empty if it was."""
        file = node.partition("::")[0]
        if file in self.broken:
            return f"{file} does not import in {self.name}: {self.broken[file]}"
        return "" if node in self.collected else f"{self.name} has no such test"

    def describe_other_code(self, found: Sequence[OtherCode]) -> str:
        """Return which code was not the side's, and the cure; empty if there was none."""
        if not found or self.tree is None:
            return ""
        first, more = found[0], f" (and {len(found) - 1} more)" if found[1:] else ""
        start = os.path.relpath(self.folder, self.tree.own)
        setup = setup_for(first.file, self.tree.working, start)
        said = (
            f"ran without {first.what}, which exists only as {first.file}"
            if first.lacking
            else f"ran {first.what} from {first.file}, which is not its own code"
        )
        again = ", which this --setup has not done" if self.tree.set_up else ""
        return (
            f"side {self.name} {said}{more}: give each side its own, by --setup '{setup}' "
            f"(in pytest --hwq-setup){again}"
        )

    def pytest_command(self, options: Sequence[str], nodes: Sequence[str] | None) -> list[str]:
        """Return the command for a session.

        Args:
            options: in addition to the variant's.
            nodes: ids of the tests to run; None for all requested.

        """
        if nodes is None and self.broken:
            # A file that cannot be imported would cost the others their run.
            nodes = self.collected
        tests = self.tests if nodes is None else [str(self.root / node) for node in nodes]
        off = [f"--hwq-{name}=" for name in _SWITCHED_OFF]
        return [*self.command, *self.variant.arguments(), *off, *options, *tests]


def is_same(a: Side, b: Side) -> bool:
    """Whether the two sides are identical as far as known: an A/A comparison."""
    unchanged = a.commit is not None and a.commit == b.commit and not (a.changed or b.changed)
    return a.variant == b.variant and (a.folder == b.folder or unchanged)


@contextmanager
def open_sides(
    requests: tuple[SideRequest, SideRequest],
    here: Path,
    setup: str,
    logs: Path,
    say: Callable[[str], None],
) -> Iterator[tuple[Side, Side]]:
    """Set both sides up, check that each finds its tests, and remove them at the end.

    Args:
        requests: for A and B.
        here: the current folder.
        setup: shell command to run once in each side's folder, in a virtual environment of the
            side's own; empty for the running interpreter.
        logs: an existing folder for the commands' output.
        say: receives progress messages.

    Raises:
        SideFailed: if a side cannot be measured. Nothing has been measured then.
        HwqError: if neither can.

    """
    places = found_places(requests, here)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(say))
        notes: dict[str, list[str]] = {request.name: [] for request in requests}
        if lacking := _what_is_lacking(requests, places, here):
            notes["A"].append(lacking)
            say(lacking)
        folders: list[Path] = []
        for request, place in zip(requests, places, strict=True):
            if isinstance(place, Path):
                folders.append(place)
                continue
            say(f"checking out {request.place} ({place[:10]})")
            top = top_level(here) or here
            tree = scratch / request.name
            with of_side(request.name):
                filters = stack.enter_context(worktree(top, place, tree))
                folders.append(_counterpart(here, top, place, tree))
            if filters:
                unfiltered = (
                    f"{request.name}: git could not run all its filters ({', '.join(filters)}), so "
                    "files are as the repository has them; if a test needs their content, install "
                    "what filters them"
                )
                notes[request.name].append(unfiltered)
                say(unfiltered)
        chosen = [
            _split(request.variant.words, folder)
            if request.tests is None
            else (list(request.tests), list(request.variant.words))
            for request, folder in zip(requests, folders, strict=True)
        ]
        suite_only = not any(tests for tests, _ in chosen)
        trees = _trees(here, folders)
        sides = []
        for request, place, folder, own_tree, (own, words) in zip(
            requests, places, folders, trees, chosen, strict=True
        ):
            code = own_tree._replace(generated=str(logs), set_up=bool(setup))
            venv = scratch / f"{request.name}-venv" if setup else None
            environment = side_environment(request.variant, folder, venv, code)
            python = sys.executable
            with of_side(request.name):
                if folder is not place:
                    _refuse_absolute(own)
                if setup and venv is not None:
                    say(f"setting up {request.name}: {setup}")
                    log = logs / f"setup-{request.name.lower()}.log"
                    python = set_up(folder, venv, environment, setup, log)
                found = _probe(request.name, folder, python, environment, suite_only, logs)
                command, root, tests = _command(found, folder, request.root, own, words)
                sides.append(
                    Side(
                        name=request.name,
                        label=request.label,
                        folder=folder,
                        tree=code,
                        commit=commit_of(folder),
                        changed=is_changed(folder),
                        variant=request.variant,
                        environment=environment,
                        command=tuple(command),
                        root=root,
                        tests=tuple(tests),
                        notes=tuple(notes[request.name]),
                    )
                )
        ready = []
        for side in sides:
            say(f"collecting the tests of {side.name}")
            with of_side(side.name):
                ready.append(_collected(side, logs))
        if neither := [test for test in ready[0].lacking if test in ready[1].lacking]:
            raise HwqError(f"neither side has {', '.join(neither)}")
        yield ready[0], ready[1]


def _what_is_lacking(
    requests: Sequence[SideRequest], places: Sequence[Path | str], here: Path
) -> str:
    """Return that B lacks commits of A, so that not B's changes alone are compared; or nothing."""
    commits = [commit_of(each) if isinstance(each, Path) else each for each in places]
    # Folders may be of other repositories.
    a, b = (commit and commit_of(here, commit) for commit in commits)
    if not a or not b or (places[1] == b and is_ancestor(here, b, a)):
        # Who names two commits, the later one first, means that order.
        return ""
    lacking = what_is_lacking(here, a, b)
    # A report names no sides, so the sentence does.
    sides = (f"{each.name} is {each.place or 'this version'}" for each in requests)
    return lacking and f"{', '.join(sides)}: {lacking}"


def _trees(here: Path, folders: Sequence[Path]) -> list[Tree]:
    """Return the tree of each side's folder, and those that no code of it may come from."""
    working = top_level(here) or here
    tops = [top_level(each) or each for each in folders]
    a, b = folders
    if tops[0] == tops[1] and not (a.is_relative_to(b) or b.is_relative_to(a)):
        # Two folders of one checkout: what lies in neither is common to both.
        working = next((each for each in folders if here.is_relative_to(each)), b)
        return [Tree(str(each), str(working), (str(a), str(b))) for each in folders]
    others = tuple(map(str, dict.fromkeys([*tops, *worktrees(here)])))
    return [Tree(str(top), str(working), others) for top in tops]


def found_places(requests: Iterable[SideRequest], here: Path) -> list[Path | str]:
    """Return each side's folder, or the commit to check out for it.

    Raises:
        SideFailed: if what names a side is neither.

    """
    places = []
    for request in requests:
        with of_side(request.name):
            places.append(_find(request.place, here))
    return places


def _find(place: str | None, here: Path) -> Path | str:
    """Return a side's folder, or the commit to check out for it."""
    if place is None:
        return here
    folder = (here / Path(place).expanduser()).resolve()
    is_path = place in (".", "..") or place.startswith(("./", "../", "/", "~"))
    commit = None if is_path else commit_of(here, place)
    if commit is not None:
        return commit
    if folder.is_dir():
        return folder
    if top_level(here) is None:
        raise HwqError(
            f"{place!r} is no folder, and {here} is in no git repository, where it could name a "
            "commit"
        )
    raise HwqError(
        f"{place!r} is neither a commit, branch or tag of the repository of {here} nor a "
        f"folder{shallow(here)}"
    )


def _counterpart(here: Path, top: Path, commit: str, tree: Path) -> Path:
    """Return the current folder's place in a tree that has a commit checked out."""
    inside = here.resolve().relative_to(top.resolve())
    if not (tree / inside).is_dir():
        raise HwqError(f"commit {commit[:10]} has no folder {inside}: start from one that it has")
    return tree / inside


def _split(words: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Split pytest's arguments into tests in a folder and the rest."""
    tests: list[str] = []
    rest: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        is_test = (
            not word.startswith("-")
            and before not in _TAKE_A_VALUE
            and (folder / word.partition("::")[0]).exists()
        )
        (tests if is_test else rest).append(word)
    return tests, rest


def _refuse_absolute(tests: Sequence[str]) -> None:
    absolute = next((test for test in tests if Path(test).is_absolute()), None)
    if absolute is not None:
        raise HwqError(
            f"{absolute} is the same file for every side; write tests relative to the current "
            "folder, so that each side has its own"
        )


def _command(
    found: dict[str, Any], folder: Path, root: str, tests: list[str], words: list[str]
) -> tuple[list[str], Path, list[str]]:
    """Return how pytest runs there, the root of its node ids, and the tests."""
    if "suite" in found:
        command = [word for word in found["command"] if word != found["suite"]]
        return [*command, *words], Path(found["suite"]).parent, [found["suite"]]
    top = (folder / root).resolve()
    command = [
        found["python"], "-m", "pytest", "-p", found["plugin"], "-p", "no:cacheprovider",
        f"--rootdir={top}", *words,
    ]  # fmt: skip
    return command, top, tests


def _probe(
    name: str,
    folder: Path,
    python: str,
    environment: dict[str, str],
    suite_only: bool,
    logs: Path,
) -> dict[str, Any]:
    """Ask a side's interpreter how pytest and the plugin run there."""
    log = logs / f"probe-{name.lower()}.log"
    what = "suite" if suite_only else "tests"
    status = run([python, "-c", _PROBE, what], folder, environment, log)
    if status != 0:
        raise HwqError(f"pytest-hwqueue cannot be used in {folder}:\n{last_lines(log)}")
    found: dict[str, Any] = json.loads(last_lines(log, 1))
    return found


def _collected(side: Side, logs: Path) -> Side:
    """Return a side with the node ids of its tests, and with what of them it does not have.

    Raises:
        HwqError: if it has none of them, or none that can be imported.

    """
    log = logs / f"collect-{side.name.lower()}.log"
    # This verbosity lists node ids, and tracebacks say which file they are of, whatever an ini
    # file adds.
    options = ["--collect-only", "--verbosity=-1", "--tb=short", f"--hwq-dir={logs}"]
    command = side.pytest_command(options, None)
    with TemporaryDirectory(prefix="imports-", dir=logs.absolute()) as reports:
        status = run(command, side.folder, {**side.environment, REPORTS: reports}, log)
        found = read_reports(reports)
    text = log.read_text(encoding="utf-8", errors="replace")
    if lacking := _not_found(side, text):
        tests = tuple(test for test in side.tests if test not in lacking)
        if not tests:
            raise HwqError(f"{side.label} does not have {', '.join(lacking)}")
        return _collected(replace(side, tests=tests, lacking=lacking), logs)
    if status == _NO_TESTS:
        raise HwqError(
            f"no tests were found in {side.folder} ({' '.join(side.tests)}):\n{last_lines(log)}"
        )
    listed = takewhile(lambda line: not _ERRORS.fullmatch(line), text.splitlines())
    nodes = tuple(line for line in listed if "::" in line)
    cure = side.describe_other_code(found.other or found.lacking)
    broken = {
        file: f"{reason}; {cure}" if cure else reason for file, reason in _broken(text).items()
    }
    if status != 0 and not (nodes and broken):
        because = "\n".join(filter(None, [last_lines(log, 30), cure]))
        raise HwqError(f"pytest cannot collect the tests:\n{because}")
    return replace(side, collected=nodes, broken=broken)


def _not_found(side: Side, output: str) -> tuple[str, ...]:
    """Return the tests of which pytest says that their files do not have them."""
    named = {line.partition(_NOT_FOUND)[2] for line in output.splitlines() if _NOT_FOUND in line}
    return tuple(
        test
        for test in side.tests
        if "::" in test and os.path.normpath(side.folder / test) in map(os.path.normpath, named)
    )


def _broken(output: str) -> dict[str, str]:
    """Return the files that pytest could not import, each with the error's last line."""
    broken: dict[str, str] = {}
    file = ""
    for line in output.splitlines():
        if found := _COLLECTING.match(line):
            file = found["file"]
            broken[file] = "its collection failed"
        elif file and line.startswith("E  "):
            broken[file] = abridged(line[1:])
        elif line.startswith(("====", "____")):
            file = ""
    return broken


# The parts of a cell's id besides its name.
_PARTS = ("device", "streams", "scheduler", "dispatch", "sync_mode", "cache", "variant")


class SideRuns:
    """One side's measurements.

    Args:
        session: name of the session that both sides' runs are part of.

    Attributes:
        cells: every started cell, by id.
        runs: successful ones, in the order measured.
        nodes: the test that measures a cell.
        failures: the first reason why a cell's runs cannot be used.
        other_code: ids of cells with a run that was of other code than the side's.

    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.cells: dict[str, Cell] = {}
        self.runs: dict[str, CellBaseline] = {}
        self.nodes: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.other_code: set[str] = set()

    def add(self, records: Sequence[RunRecord], other_code: str = "") -> None:
        """Take the records of one process run.

        Args:
            records: its measurements.
            other_code: which code was measured in place of the side's; empty if its own was.

        """
        times = Counter(record.cell_id for record in records)
        for record in records:
            cell_id = record.cell_id
            self.cells.setdefault(cell_id, record.cell)
            self.nodes.setdefault(cell_id, record.nodeid)
            if other_code:
                self.other_code.add(cell_id)
                self._fails(cell_id, other_code)
            elif record.status != "ok":
                self._fails(cell_id, f"{record.status}: {record.reason}".removesuffix(": "))
            elif times[cell_id] > 1:
                self._fails(cell_id, measured_again(times[cell_id]))
            else:
                self._add_run(cell_id, record)

    def _add_run(self, cell_id: str, record: RunRecord) -> None:
        try:
            new = cell_of_record(record, self._session)
            known = self.runs.get(cell_id)
            self.runs[cell_id] = new if known is None else add_runs(known, new)
        except RecordError as error:
            self._fails(cell_id, str(error))

    def _fails(self, cell_id: str, reason: str) -> None:
        self.failures.setdefault(cell_id, reason)


@dataclass(frozen=True)
class Pair:
    """One cell on both sides; the ids differ where the user has the sides differ."""

    old: str
    new: str
    label: str


def match(
    old: Mapping[str, Cell], new: Mapping[str, Cell], varied: Collection[str]
) -> tuple[list[Pair], list[UnmatchedCell]]:
    """Match the cells of two sides by identity, never by position.

    Cells with one id are one cell. Where the user varies a part of the identity, and no value of
    that part is on both sides of a workload or test, cells are matched by the other parts.

    Args:
        old: cells by id.
        new: the same of the other side.
        varied: parts that the user varies, such as ``cell.scheduler``.

    Returns:
        the pairs, and the cells without a counterpart, both by id.

    """
    pairs, left = [], []
    for name in sorted({cell.name for cell in (*old.values(), *new.values())}):
        ours, theirs = (
            {cell_id: cell for cell_id, cell in side.items() if cell.name == name}
            for side in (old, new)
        )
        parts = [
            part
            for part in _PARTS
            if f"cell.{part}" not in varied or _values(ours, part) & _values(theirs, part)
        ]
        alike: dict[tuple[object, ...], tuple[list[str], list[str]]] = {}
        for at, side in enumerate((ours, theirs)):
            for cell_id, cell in side.items():
                key = tuple(getattr(cell, part) for part in parts)
                alike.setdefault(key, ([], []))[at].append(cell_id)
        for _, (a, b) in sorted(alike.items(), key=lambda each: str(each[0])):
            if len(a) == len(b) == 1:
                pairs.append(Pair(a[0], b[0], _label(old[a[0]], new[b[0]])))
                continue
            reason = f"measured by {'A' if a else 'B'} only"
            if a and b:
                reason = f"{len(a)} cells of A and {len(b)} of B differ only in what is varied"
            left += [UnmatchedCell(cell_id, reason) for cell_id in dict.fromkeys((*a, *b))]
    return pairs, left


def _values(cells: Mapping[str, Cell], part: str) -> set[object]:
    return {getattr(cell, part) for cell in cells.values()}


def _label(old: Cell, new: Cell) -> str:
    """Return the id of both, with both values where they differ: ``[cuda-s8-native→mps-eager]``."""
    if old.id == new.id:
        return old.id
    both = {}
    for part in _PARTS:
        one, other = getattr(old, part), getattr(new, part)
        both[part] = one if one == other else f"{one or 'default'}→{other or 'default'}"
    return old.model_copy(update=both).id


_EARLY_CONFIDENCE = 0.98


def looks(pairs: int) -> list[int]:
    """Return after how many pairs cells are judged: a sixth, at least 2, then doubling.

    Args:
        pairs: process runs per side of cells that are not acquitted earlier.

    """
    found = [min(pairs, max(LEAST_FIRST_RUNS, pairs // 6))]
    while found[-1] < pairs:
        found.append(min(pairs, 2 * found[-1]))
    return found


def acquitted_early(verdict: Verdict, detect: float) -> bool:
    """Whether a look before the last one acquits a figure.

    A figure is looked at several times, and each look would let 5 % of the worsenings of ``detect``
    pass; so these looks have to exclude it at 98 %.

    Args:
        verdict: of that look.
        detect: the worsening that matters, as a fraction.

    """
    if not verdict.history or verdict.history[-1].decision != "acquitted":
        return False
    main = verdict.main
    if main is None:
        return True
    worse = main.ratio if verdict.quantity.higher_is_worse else 1 / main.ratio
    pairs = len(verdict.new)
    error = main.sd * math.sqrt(2 / pairs)
    limit = math.log(worse) + student_quantile(_EARLY_CONFIDENCE, pairs - 1) * error
    return limit < math.log1p(detect)


def by_pairs(settings: GateSettings, pairs: int) -> GateSettings:
    """Return settings for one look by the differences of so many pairs of one session."""
    return replace(judged_once(settings, pairs), pairs=pairs, paired=True, tau=0.0)


def with_median(figures: Sequence[str]) -> tuple[str, ...]:
    """Return the figures to judge: P99 alone is joined by P50.

    The host's noise sits in the tail, where a few dozen runs cannot see a change of 20 %; in the
    median they can. Other figures are judged as named.
    """
    return ("p99", "p50") if tuple(figures) == ("p99",) else tuple(figures)


def detectable_by_pairs(
    sd: float, pairs: int, settings: GateSettings, compared: int
) -> float | None:
    """Return the smallest true worsening detected with ``settings.power``, as a fraction.

    It is the larger of two effects: the one needed not to be acquitted earlier, and the one that
    the look at all pairs detects (`detectable_effect`). A look before the last acquits
    only where ``settings.detect`` is excluded, so a worsening of that size stays whatever the
    noise. None if no cell could be convicted alone.

    Args:
        sd: standard deviation of the figure's logarithm between runs, without what pairs share.
        pairs: runs of each side.
        settings: of the gate.
        compared: number of figures that share the error rate.

    """
    once = by_pairs(settings, pairs)
    if not can_convict(pairs, pairs, once, compared):
        return None
    first = looks(pairs)[0]
    error, freedom = sd * math.sqrt(2 / first), first - 1
    # A look that acquits has excluded ``detect``, so its own error cannot be larger than this.
    most = math.log1p(settings.detect) / student_quantile(_EARLY_CONFIDENCE, freedom)
    seen = student_quantile(1 - settings.screen, freedom) * min(error, most)
    screened = min(rise_of(seen + NormalDist().inv_cdf(settings.power) * error), settings.detect)
    return max(screened, detectable_effect(sd, pairs, once, compared))


def reach(sd: float, settings: GateSettings, compared: int) -> tuple[float | None, str]:
    """Return the smallest worsening that all pairs detect, and the pairs that the goal takes.

    Args:
        sd: see `detectable_by_pairs`.
        settings: of the gate.
        compared: number of figures that share the error rate.

    """

    def detects(worsening: float | None) -> bool:
        return worsening is not None and worsening <= settings.detect

    by_all = detectable_by_pairs(sd, settings.pairs, settings, compared)
    if detects(by_all):
        return by_all, ""
    more = range(settings.pairs + 1, MOST_RUNS + 1)
    needed = next(
        (n for n in more if detects(detectable_by_pairs(sd, n, settings, compared))), None
    )
    how_many = f"more than {MOST_RUNS}" if needed is None else str(needed)
    text = f"needs {how_many} pairs for {100 * settings.detect:+.3g} %"
    return by_all, text
