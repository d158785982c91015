"""Runs two sides or two commits in turn, each run in a fresh process, and keeps the records."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_hwqueue.answers.versions.bisection import ComparedCommits, Outcome, TrackedFigure
from pytest_hwqueue.answers.versions.imports import REPORTS, read_reports
from pytest_hwqueue.answers.versions.judge import ABSide, InterleavedJudging
from pytest_hwqueue.answers.versions.sides import Side, SideRequest, looks, open_sides
from pytest_hwqueue.answers.versions.variants import SideVariant
from pytest_hwqueue.data.errors import HwqError, RecordError, SideFailed, abridged, on_one_line
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.cell import RunRecord, now, read_record
from pytest_hwqueue.data.records.files import make_session_folder, session_name
from pytest_hwqueue.data.redaction import redacted, redacted_arguments
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.judge.calibrate import MOST_RUNS
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.statistics import turns
from pytest_hwqueue.judge.verdict import ITERATION_TIME, OTHER_CODE, GateSettings
from pytest_hwqueue.parts.processes.reaper import last_lines, run

# Passed, and some tests failed: in both cases the session went to its end.
_WENT_TO_ITS_END = (0, 1)
_SESSION_FILE = "session.json"
# Fewer decimal digits than a number on the command line may have.
_SEED_BITS = 48
# Cells whose reasons an error gives: the runs' logs have all.
_MOST_NAMED = 3


@dataclass(frozen=True)
class MeasuredRun:
    """The result of one process run of a side.

    Attributes:
        records: of its cells, in the order measured.
        problem: how it ended, if not normally; else empty.
        other_code: which code was measured in place of the side's; empty if the side's.

    """

    records: list[RunRecord]
    problem: str
    other_code: str = ""


MeasureSide = Callable[[Side, int, Sequence[str] | None], MeasuredRun]


def session_folder(folder: Path) -> Path:
    """Create a new folder for a session inside ``folder``.

    Raises:
        OSError: if it cannot be created.

    """
    made = folder / f"ab-{session_name(now())}"
    make_session_folder(made)
    return made


class ProcessRuns:
    """Measures a side with a pytest session in its own process.

    Args:
        folder: of the comparison; each run leaves its records and its output there.
        earlier: runs of comparisons before this one, whose simulated noise must not come again.

    """

    def __init__(self, folder: Path, earlier: int = 0) -> None:
        self._folder = folder
        self._earlier = earlier
        self._listed: list[dict[str, object]] = []

    def __call__(self, side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        """Measure a side once.

        Args:
            side: which.
            number: of the run, from 1, over both sides.
            nodes: tests to run; None for all.

        """
        name = f"{number:02}-{side.name.lower()}"
        records, log = self._folder / name, self._folder / f"{name}.log"
        options = [
            "--hwq-runs=1",
            f"--hwq-dir={records}",
            *_own_noise(side, self._earlier + number),
        ]
        command = side.pytest_command(options, nodes)
        began = now()
        with tempfile.TemporaryDirectory(prefix="imports-", dir=self._folder.absolute()) as reports:
            status = run(command, side.folder, {**side.environment, REPORTS: reports}, log)
            other_code = _other_code(side, Path(reports), status)
        self._listed.append(
            {"number": number, "side": side.name, "started": began, "status": status,
             "records": name, "command": redacted_arguments(command), "other_code": other_code}
        )  # fmt: skip
        return replace(_read(records, number, status, log), other_code=other_code)

    @contextmanager
    def described(self, sides: Sequence[Side]) -> Iterator[None]:
        """Write ``ab.json`` after the ``with`` block, however it ends."""
        interrupted = True
        try:
            yield
            interrupted = False
        finally:
            self._describe(sides, interrupted)

    def _describe(self, sides: Sequence[Side], interrupted: bool) -> None:
        """Write the sides, and every run in order."""
        described = [
            {"name": side.name, "label": side.label, "commit": side.commit,
             "changed": side.changed, "folder": str(side.folder),
             "options": {
                 name: [redacted(value) for value in values]
                 for name, values in side.variant.options.items()
             },
             "environment": {
                 name: redacted_arguments([f"{name}={value}"])[0].removeprefix(f"{name}=")
                 for name, value in side.variant.environment.items()
             }}
            for side in sides
        ]  # fmt: skip
        content = {"sides": described, "runs": self._listed, "interrupted": interrupted}
        write_text(self._folder / "ab.json", json.dumps(content, indent=1) + "\n")


def interleave(
    sides: tuple[Side, Side],
    judging: InterleavedJudging,
    measure: MeasureSide,
    say: Callable[[str], None],
    only: Sequence[str] | None = None,
    lost: bool = False,
) -> Judgement:
    """Measure two sides in ABBA order and judge them; `InterleavedJudging.plan` says how often.

    Args:
        sides: the old one and the new one.
        judging: receives every run.
        measure: measures a side once.
        say: receives a line about every run.
        only: node ids of the tests to measure; None for all that were collected.
        lost: measure once, too, what tests of the old side the new one does not have, so that
            their cells are missing by name.

    Raises:
        HwqError: if a side's first run measures nothing, or both have no cell in common.

    """
    by_name: dict[ABSide, Side] = {"old": sides[0], "new": sides[1]}
    nodes: dict[ABSide, list[str] | None] = {
        name: None if only is None else [node for node in side.collected if node in only]
        for name, side in by_name.items()
    }
    for name, chosen in nodes.items():
        if chosen == []:
            absent = dict.fromkeys(by_name[name].why_absent(node) for node in only or ())
            side = by_name[name]
            raise SideFailed(
                side.name,
                f"{side.label} has none of the tests to be measured: {abridged('; '.join(absent))}",
            )
    # A test has a cell or more; how many is known after the first pair.
    tests = max(len(chosen or by_name[name].collected) for name, chosen in nodes.items())
    pairs = _planned(judging, tests, say)
    planned = 2 * looks(pairs)[0]
    for number, (_, name) in enumerate(turns(list(by_name), max(pairs, MOST_RUNS)), start=1):
        side, chosen = by_name[name], nodes[name]
        if lost and number == 1 and chosen is not None:
            kept = set(sides[1].collected)
            chosen = [*chosen, *(node for node in side.collected if node not in kept)]
        began = time.monotonic()
        measured = measure(side, number, chosen)
        judging.add(name, measured.records, measured.problem, measured.other_code)
        seconds = time.monotonic() - began
        problem = f"; {measured.problem}" if measured.problem else ""
        say(f"run {number} of {planned}, {side.name}: "
            f"{counted(len(measured.records), 'cell')}, {seconds:.0f} s{problem}")  # fmt: skip
        if number <= 2 and not judging.measured(name) and not measured.other_code:
            # Before how pytest ended, why: two tests share a cell, say.
            why = [f"{each.cell_id}: {each.reason}" for each in measured.records if each.reason]
            more = [f"{len(why) - _MOST_NAMED} cells more"] if len(why) > _MOST_NAMED else []
            said = "; ".join(filter(None, [*why[:_MOST_NAMED], *more, measured.problem]))
            raise SideFailed(
                side.name, f"{side.label} measured nothing: {said or 'all its tests were skipped'}"
            )
        if number == 2 and not judging.matched():
            raise HwqError(
                "no cell of A is one of B, so there is nothing to compare. A has "
                f"{', '.join(judging.measured('old'))}; B has {', '.join(judging.measured('new'))}"
            )
        if number == 2 and judging.all_other_code():
            # More runs would be of that code, too.
            judging.look(1)
            break
        if number == 2:
            pairs = _planned(judging, judging.matched(), say)
        if number % 2 or number // 2 not in looks(pairs):
            continue
        done = number // 2
        still = judging.look(done)
        if done == pairs or not still["old"]:
            if done < pairs:
                say(f"decided after {done} of {pairs} pairs")
            break
        nodes = {"old": still["old"], "new": still["new"]}
        planned = 2 * next(look for look in looks(pairs) if look > done)
        say(f"{_tests(len(still['old']))} not decided after {done} pairs, of {pairs} at most")
    judgement = judging.judgement({name: side.why_absent for name, side in by_name.items()})
    return replace(judgement, notes=tuple(note for side in sides for note in side.notes))


def _planned(judging: InterleavedJudging, cells: int, say: Callable[[str], None]) -> int:
    """Return how many pairs to measure; say so if these are more than before."""
    before, pairs = judging.settings.pairs, judging.plan(cells)
    if pairs > before:
        short = f"{before} cannot show a regression in one cell of {cells}"
        say(f"up to {pairs} pairs are planned: {short}")
    return pairs


def _tests(count: int) -> str:
    return f"{count} test is" if count == 1 else f"{count} tests are"


def _read(records: Path, number: int, status: int, log: Path) -> MeasuredRun:
    problems = []
    if status < 0:
        problems.append(f"pytest was ended by {_signal_name(-status)}")
    elif status not in _WENT_TO_ITS_END:
        problems.append(f"pytest ended with status {status}: {last_lines(log, 3)}")
    elif status:
        problems.append("tests failed")
    found = []
    for path in sorted(records.glob("*/*.json")):
        if path.name == _SESSION_FILE:
            continue
        try:
            found.append(read_record(path))
        except RecordError as error:
            problems.append(str(error))
    found.sort(key=lambda record: record.started)
    text = "; ".join(problems)
    return MeasuredRun(found, f"run {number}: {text}, see {log}" if text else "")


def _other_code(side: Side, reports: Path, status: int) -> str:
    """Say which code a run measured in place of the side's; empty if the side's."""
    if side.tree is None:
        return ""
    found = read_reports(reports)
    if found.other or found.heard or status not in _WENT_TO_ITS_END:
        return side.describe_other_code(found.other)
    return (
        f"nothing shows which code side {side.name} ran: its pytest did not report what it "
        "imported; the sitecustomize on its PYTHONPATH must run, so start it without -S, -E and "
        "-I, and let it end by itself"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _own_noise(side: Side, number: int) -> list[str]:
    """Give each run its own simulated noise: a fixed seed would repeat it."""
    options, environment = side.variant.options, os.environ
    text = (options.get("sim-noise") or (environment.get("HWQ_SIM_NOISE", ""),))[-1]
    if not text:
        return []
    parts = [part.strip() for part in text.split(",")]
    seeds = [part.partition("=")[2] for part in parts if part.startswith("seed")]
    base = seeds or options.get("seed") or [environment.get("HWQ_SEED", "0")]
    kept = [part for part in parts if not part.startswith("seed")]
    # Drawn, so that no run shares its noise with another session's, whatever seeds they have.
    seed = random.Random(f"interleaved/{base[-1]}/{number}").getrandbits(_SEED_BITS)
    return [f"--hwq-sim-noise={','.join([*kept, f'seed={seed}'])}"]


# Simulated noise must differ between comparisons, each of which makes fewer runs than this.
_RUNS_OF_ONE = 1000


@dataclass
class CommitComparison:
    """Compares commits, each pair in worktrees of its own.

    Attributes:
        here: the current folder, in the repository.
        folder: where each comparison leaves a folder with what was measured.
        variant: how both sides are measured.
        setup: shell command to run once in each worktree; empty for the running interpreter.
        figures: names of the figures of which the opening looks for a worse one.
        settings: of the gate.
        allow_environment: compare over other drivers, frameworks and clock policies.
        say: receives a line about every run.
        keep_pairs: refuse what needs more pairs than each comparison is given.
        made: comparisons so far, whose simulated noise must not come again.
        open_sides: checks both commits out, and removes what it made.
        measuring: makes what measures a side, from a folder and the number of runs before.

    """

    here: Path
    folder: Path
    variant: SideVariant
    setup: str
    figures: Sequence[str]
    settings: GateSettings
    allow_environment: bool
    say: Callable[[str], None]
    keep_pairs: bool = False
    made: int = 0
    open_sides: Callable[..., AbstractContextManager[tuple[Side, Side]]] = open_sides
    measuring: Callable[[Path, int], ProcessRuns] = ProcessRuns

    def __call__(
        self, old: str, new: str, pairs: int, tracked: TrackedFigure | None
    ) -> ComparedCommits:
        """Compare two commits; see `bisection.Compare`.

        Raises:
            HwqError: if the old commit cannot be measured, which is GOOD, or was good before; or,
                in the opening, if either measures nothing.

        """
        requests = (
            SideRequest("A", old, self.variant),
            SideRequest("B", new, self.variant),
        )
        earlier = self.made * _RUNS_OF_ONE
        self.made += 1
        folder = self.folder / f"{self.made:03}-{new[:10]}"
        folder.mkdir(parents=True)
        try:
            with self.open_sides(requests, self.here, self.setup, folder, self.say) as sides:
                judging = self._judging(old, new, pairs, tracked, folder.name)
                measure = self.measuring(folder, earlier)
                only = None if tracked is None else [tracked.node]
                with measure.described(sides):
                    judgement = interleave(sides, judging, measure, self.say, only)
            _refuse_other_code(judgement)
        except HwqError as error:
            if tracked is None:
                raise _of_ends(error) from error
            # GOOD worked in the opening: if it no longer does, neither would any other commit.
            if isinstance(error, SideFailed) and "A" in error.sides:
                raise
            reason = on_one_line(error)
            return ComparedCommits(
                old=old, new=new, outcome="skip", pairs=0, ratio=None, interval=None, reason=reason
            )
        found = judged(judgement, tracked)
        opened = None
        if tracked is None and found is not None:
            nodes = judging.nodes("new")
            opened = _tracked(found, nodes[found.cell_id])
        return _compared(old, new, judgement.settings.pairs, found, opened)

    def _judging(
        self, old: str, new: str, pairs: int, tracked: TrackedFigure | None, session: str
    ) -> InterleavedJudging:
        settings, figures = replace(self.settings, pairs=pairs), self.figures
        if tracked is not None:
            settings = replace(
                settings, detect=tracked.half, min_effect=tracked.half, own_effects=False
            )
            figures = [tracked.figure]
        return InterleavedJudging(
            figures, settings, (old[:10], new[:10]), session,
            allow_environment=self.allow_environment, keep_pairs=self.keep_pairs,
        )  # fmt: skip


def _of_ends(error: HwqError) -> HwqError:
    """Return an error of the opening, whose sides are the ends that the user has named."""
    if not isinstance(error, SideFailed):
        return error
    ends = {"A": "GOOD", "B": "BAD"}
    return SideFailed([ends[side] for side in error.sides], error.reason)


def _refuse_other_code(judgement: Judgement) -> None:
    for each in judgement.verdicts:
        if each.verdict.reason == OTHER_CODE:
            # No commit can be judged so: that is the fault of none.
            raise SideFailed(["A", "B"], f"{each.cell_id}: {each.verdict.sentence}")


def judged(judgement: Judgement, tracked: TrackedFigure | None) -> CellVerdict | None:
    """Return the verdict that counts: of what is followed, or the clearest regression in time.

    Of regressions, those of the first figure named come first, then the largest against its noise.
    None if what is followed was not measured, or, at first, nothing got worse.
    """
    if tracked is not None:
        return next((v for v in judgement.verdicts if v.cell_id == tracked.cell), None)
    figures = list(dict.fromkeys(each.figure for each in judgement.verdicts))
    worse = [
        each
        for each in judgement.verdicts
        if each.verdict.state == "regression" and _change(each) is not None
    ]
    return min(worse, key=lambda each: (figures.index(each.figure), -_clarity(each)), default=None)


def _change(judged: CellVerdict) -> tuple[float, tuple[float, float], float] | None:
    """Return ratio, interval and sd of the quantity that the verdict rests on, if it is one."""
    verdict = judged.verdict
    companion = verdict.companion
    if companion is not None and verdict.by == ITERATION_TIME.name != verdict.quantity.name:
        return companion.ratio, companion.interval, companion.sd
    if verdict.by == "failures" or verdict.main is None:
        return None
    return verdict.main.ratio, verdict.main.interval, verdict.main.sd


def _clarity(judged: CellVerdict) -> float:
    change = _change(judged)
    return 0.0 if change is None else abs(math.log(change[0])) / max(change[2], 1e-9)


def _tracked(judged: CellVerdict, node: str) -> TrackedFigure:
    change = _change(judged)
    assert change is not None
    verdict = judged.verdict
    by_companion = verdict.by == ITERATION_TIME.name
    quantity = ITERATION_TIME if by_companion else verdict.quantity
    return TrackedFigure(
        cell=judged.cell_id,
        node=node,
        figure=quantity.name if by_companion else judged.figure,
        label=quantity.label,
        higher_is_worse=quantity.higher_is_worse,
        ratio=change[0],
    )


def _compared(
    old: str, new: str, pairs: int, found: CellVerdict | None, opened: TrackedFigure | None
) -> ComparedCommits:
    outcomes: dict[str, Outcome] = {
        "regression": "bad", "pass": "good", "improvement": "good", "incomparable": "skip",
    }  # fmt: skip
    change = found and _change(found)
    return ComparedCommits(
        old=old,
        new=new,
        outcome=found and outcomes.get(found.verdict.state),
        pairs=pairs,
        ratio=change and change[0],
        interval=change and change[1],
        reason="no cell of it got worse" if found is None else found.verdict.line,
        tracked=opened,
    )
