"""``hwq ab`` and ``hwq bisect``: two versions in one session, and a search over commits.

Exit status of ``ab``, as of `hwq compare`: 0 nothing got worse; 1 a regression; 2 something cannot
be compared, or wrong usage or input; 3 a verdict that --on sets to fail. Interrupted: 128 plus the
signal's number.

Exit status of ``bisect``: 0 one commit is named and confirmed; 1 several commits remain, because
those between could not be judged; 2 wrong usage or input; 3 not decided: BAD is not shown to be
worse than GOOD, or the confirmation failed. Interrupted: 128 plus the signal's number; the same
command continues.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pytest_hwqueue.answers.versions.variants import OF_THE_COMPARISON
from pytest_hwqueue.data.errors import BadOption, HwqError, within
from pytest_hwqueue.options.of_commands import (
    PASSED_ON,
    UNDECIDED,
    PassesOn,
    comparison_status,
    gate_settings,
    given_options,
    interruptible,
    say,
    settings_of,
    verdicts_text,
    with_options,
)

if TYPE_CHECKING:
    from pytest_hwqueue.answers.versions.bisection import BisectState
    from pytest_hwqueue.answers.versions.variants import SideVariant
    from pytest_hwqueue.judge.verdict import GateSettings
    from pytest_hwqueue.options.options import Settings


_KEPT = {"rate", "min-effect", "detect", "fail-on", "allow-env", "on", "dir", "setup"}
_NOT_HERE = tuple(OF_THE_COMPARISON - _KEPT)
# With 3 pairs normal theory can decide; with fewer nothing can.
_LEAST_PAIRS = 3


@dataclass(frozen=True)
class ComparisonOptions:
    """What `hwq ab` and `hwq bisect` are asked alike.

    Attributes:
        settings: the plugin's options among the command's.
        gate: by which verdicts are given.
        figures: names of those judged.
        measuring: the options of `hwq run` that both sides share, by name.

    """

    settings: Settings
    gate: GateSettings
    figures: tuple[str, ...]
    measuring: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, given: Mapping[str, Any], pairs: int) -> ComparisonOptions:
        """Sort a command's options."""
        from pytest_hwqueue.answers.versions.sides import with_median

        settings = settings_of(given)
        gate = replace(gate_settings(given), pairs=pairs, tau=0.0)
        measuring = {
            option.name: values
            for option, values in given_options(given)
            if option.name not in OF_THE_COMPARISON
        }
        return cls(settings, gate, with_median(settings.fail_on), measuring)


def _pairs(text: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Add the option --pairs with its help."""
    least = click.IntRange(min=_LEAST_PAIRS)
    return click.option(
        "--pairs", metavar="N", type=least, default=12, show_default=True, help=text
    )


@with_options(without=_NOT_HERE)
@click.command(cls=PassesOn)
@click.argument("places", nargs=-1, metavar="[REF_OR_PATH REF_OR_PATH]")
@click.option("--a", "variant_a", metavar="VARIANT", default="", help="how to measure side A")
@click.option("--b", "variant_b", metavar="VARIANT", default="", help="how to measure side B")
@_pairs("process runs of each side, unless a sixth, a third or two thirds of them decide a cell")
@interruptible("", by_signal=True)
def ab(places: tuple[str, ...], variant_a: str, variant_b: str, pairs: int, **given: Any) -> int:
    """Measure two versions or variants in turn: is the second worse?

    A side is a commit, branch or tag, checked out into a worktree, or a folder as it is; by default
    both are the current folder. VARIANT is written as in a shell: NAME=VALUE words set environment
    variables, followed by options of `hwq run` or pytest. Tests follow after --, relative to the
    folder; without any, the suite is measured. A side that runs code of another folder than its own
    is incomparable: --setup then installs each side's, in a virtual environment of its own.

    \b
      hwq ab main . -- benchmarks/test_mine.py
      hwq ab --a "--scheduler native" --b "--scheduler stream-priority"
      hwq ab --a CUDA_DEVICE_MAX_CONNECTIONS=8 --b CUDA_DEVICE_MAX_CONNECTIONS=32

    P99 and P50 are judged, unless --fail-on names other figures. A cell passes only if a
    worsening of --detect is excluded; otherwise it is measured in all --pairs, and is inconclusive
    if that is still not enough.

    Exit status: 1 after a regression, 2 if something cannot be compared or the input is wrong,
    3 if a verdict is set to fail by --on, and 0 otherwise.
    """
    from pytest_hwqueue.answers.versions.judge import InterleavedJudging
    from pytest_hwqueue.answers.versions.session import ProcessRuns, interleave, session_folder
    from pytest_hwqueue.answers.versions.sides import (
        SideRequest,
        found_places,
        is_same,
        open_sides,
    )
    from pytest_hwqueue.answers.versions.variants import (
        SideVariant,
        read_variant,
        refuse_unmodelled,
        varied_fields,
    )

    variants = (variant_a, variant_b)
    if len(places) not in (0, 2) or not (places or any(variants)):
        raise BadOption(
            "REF_OR_PATH", " ".join(places),
            "name two sides, such as `hwq ab main .`, or vary something by --a and --b",
        )  # fmt: skip
    asked = ComparisonOptions.of(given, pairs)
    common = SideVariant(asked.measuring, {}, click.get_current_context().meta[PASSED_ON])
    own = [read_variant(f"--{name}", text) for name, text in zip("ab", variants, strict=True)]
    varied = varied_fields(own[0], own[1])
    for each in own:
        device = each.over(common).options.get("device", (os.environ.get("HWQ_DEVICE", ""),))
        refuse_unmodelled(device[-1], *own)
    a, b = (
        SideRequest(name, places[number] if places else None, own[number].over(common), text)
        for number, (name, text) in enumerate(zip("AB", variants, strict=True))
    )
    here = Path.cwd()
    # What names no side leaves no folder.
    found_places((a, b), here)
    folder = session_folder(here / asked.settings.dir)
    say(f"what is measured is kept in {folder}")
    judging = InterleavedJudging(
        asked.figures, asked.gate, (a.label, b.label), folder.name,
        varied=varied, allow_environment=asked.settings.allow_env,
    )  # fmt: skip
    measure = ProcessRuns(folder)
    with open_sides((a, b), here, asked.settings.setup, folder, say) as sides:
        for side in sides:
            say(side.describe())
        same = is_same(*sides)
        if same:
            say("A/A: both sides are the same, so whatever differs is noise")
        with measure.described(sides):
            judgement = interleave(sides, judging, measure, say)
    click.echo(f"B: {b.label}{' (A/A: the same as A)' if same else ''}")
    click.echo(verdicts_text(judgement))
    return comparison_status(judgement, asked.settings.on)


_STATUS = {"found": 0, "range": 1, "not-worse": UNDECIDED, "not-confirmed": UNDECIDED}


@with_options(without=(*_NOT_HERE, "on", "workload", "detect"))
@click.command(cls=PassesOn)
@click.argument("name")
@click.argument("good")
@click.argument("bad")
@_pairs("process runs of each side in a comparison; twice as many where these do not decide")
@interruptible("the same command continues", by_signal=True)
def bisect(name: str, good: str, bad: str, pairs: int, **given: Any) -> int:
    """Find the commit between GOOD and BAD that made NAME slower.

    NAME is a workload (see `hwq list`) or a test, such as tests/test_mine.py::test_decode, relative
    to the current folder; GOOD and BAD are commits, branches or tags, GOOD an ancestor of BAD. Each
    commit in the middle is compared with GOOD as `hwq ab` does it. What is followed is the P99, or
    the P50 if only that got worse, unless --fail-on names other figures.

    \b
      hwq bisect hetero_kernels v1.2 main
      hwq bisect tests/test_mine.py::test_decode v1.2 main --setup 'pip install .'

    The commit found is compared once more with the one before it: if it is not to blame, this
    confirms it with a probability of at most --rate. Interrupted, the same command continues
    (--dir keeps what was measured). Merges count as one commit; one where --setup fails (such as
    with status 125) is skipped.

    Exit status: 0 one commit is named, 1 several remain because those between cannot be measured,
    2 wrong usage or input, 3 BAD is not shown to be worse or the commit found is not confirmed.
    """
    from pytest_hwqueue.answers.versions.bisection import STATE_FILE, read_state, write_state
    from pytest_hwqueue.answers.versions.bisection import bisect as search
    from pytest_hwqueue.answers.versions.session import CommitComparison

    here = Path.cwd()
    asked = ComparisonOptions.of(given, pairs)
    setup, figures, gate = asked.settings.setup, asked.figures, asked.gate
    variant = _variant(name, here, asked, click.get_current_context().meta[PASSED_ON])
    state = _planned(here, name, good, bad, gate.rate)
    # The same command finds its folder again, and another one, of other settings, another folder.
    of_search = [state.good, state.commits[-1].commit, name, str(here), setup, figures,
                 repr(gate), repr(variant)]  # fmt: skip
    key = hashlib.sha256(json.dumps(of_search).encode()).hexdigest()[:8]
    folder = here / asked.settings.dir / f"bisect-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STATE_FILE
    if file.exists():
        state = read_state(file)
        done = len(state.comparisons)
        say(f"continues after {done} comparisons; remove {folder} to start again")
    else:
        write_state(file, state)
        say(f"{len(state.commits)} commits; what is measured is kept in {folder}")
    made = sum(each.is_dir() for each in folder.iterdir())
    asked_for = click.get_current_context().get_parameter_source("pairs")
    compare = CommitComparison(
        here, folder, variant, setup, figures, gate, asked.settings.allow_env, say,
        keep_pairs=asked_for is not ParameterSource.DEFAULT, made=made,
    )  # fmt: skip
    found = search(state, compare, pairs, lambda state: write_state(file, state), say)
    click.echo(found.sentence)
    return _STATUS[found.ending]


def _variant(
    name: str, here: Path, asked: ComparisonOptions, extra: tuple[str, ...]
) -> SideVariant:
    """Return how both sides are measured: a workload of the suite, or a test."""
    from pytest_hwqueue.answers.versions.variants import SideVariant
    from pytest_hwqueue.parts.workloads.registry import WORKLOADS

    if name in WORKLOADS:
        return SideVariant({**asked.measuring, "workload": (name,)}, {}, extra)
    if (here / name.partition("::")[0]).exists():
        return SideVariant(asked.measuring, {}, (name, *extra))
    raise HwqError(f"{name!r} is neither a workload (see `hwq list`) nor a test in {here}")


def _planned(here: Path, name: str, good: str, bad: str, rate: float) -> BisectState:
    """Return the state of a search that has not begun.

    Raises:
        HwqError: if there is no commit between GOOD and BAD.

    """
    from pytest_hwqueue.answers.versions.bisection import SCHEMA, BisectState
    from pytest_hwqueue.parts.processes.git import (
        commit_of,
        commits_between,
        is_ancestor,
        is_in,
        shallow,
    )
    from pytest_hwqueue.parts.workloads.registry import WORKLOADS

    ends = []
    for which, text in (("GOOD", good), ("BAD", bad)):
        with within(which):
            commit = commit_of(here, text)
        if commit is None:
            raise HwqError(
                f"{which}: {text!r} is no commit, branch or tag of {here}{shallow(here)}"
            )
        ends.append(commit)
    if not is_ancestor(here, ends[0], ends[1]):
        base = f"git merge-base {good} {bad}"
        raise HwqError(f"GOOD: {good} is no ancestor of {bad}: name one, such as `{base}`")
    between = commits_between(here, ends[0], ends[1], first_parent=True)
    if not between:
        raise HwqError(f"GOOD and BAD are the same commit, {ends[0][:10]}")
    file = name.partition("::")[0]
    for which, text, commit in (("GOOD", good, ends[0]), ("BAD", bad, ends[1])):
        if name not in WORKLOADS and not is_in(here, commit, file):
            raise HwqError(f"{which}: {text} does not have {file}; name commits that have it")
    return BisectState(schema=SCHEMA, name=name, good=ends[0], commits=between, rate=rate)
