"""``hwq bisect``: which commit made a figure worse.

Exit status: 0 one commit is named and confirmed; 1 several commits remain, because those between
could not be judged; 2 wrong usage or input; 3 not decided: BAD is not shown to be worse than GOOD,
or the confirmation failed. Interrupted: 128 plus the signal's number; the same command continues.
"""

from __future__ import annotations

import hashlib
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.ab import (
    EXTRA,
    LEAST_PAIRS,
    NOT_HERE,
    POLICIES,
    Comparing,
    measuring_options,
)
from pytest_hwqueue.cli.gate_options import UNDECIDED, InputRefused, gate_settings, gated_figures
from pytest_hwqueue.cli.plugin_options import parsed_setting, with_options

if TYPE_CHECKING:
    from pytest_hwqueue.interleaved.bisection import BisectState
    from pytest_hwqueue.interleaved.variants import SideVariant

_STATUS = {"found": 0, "range": 1, "not-worse": UNDECIDED, "not-confirmed": UNDECIDED}


@with_options(without=(*NOT_HERE, *POLICIES, "workload", "detect"))
@click.command(cls=Comparing)
@click.argument("name")
@click.argument("good")
@click.argument("bad")
@click.option(
    "--pairs", metavar="N", type=click.IntRange(min=LEAST_PAIRS), default=12, show_default=True,
    help="process runs of each side in a comparison; twice as many where these do not decide",
)  # fmt: skip
@click.option(
    "--setup", metavar="COMMAND",
    help="shell command to run once in each worktree, such as 'pip install .', in a virtual "
    "environment; a commit where it fails (such as with status 125) is skipped",
)  # fmt: skip
@click.pass_context
def bisect(
    ctx: click.Context, /, name: str, good: str, bad: str, pairs: int, setup: str | None,
    **given: Any,
) -> None:  # fmt: skip
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
    (--dir keeps what was measured). Merges count as one commit.

    Exit status: 0 one commit is named, 1 several remain because those between cannot be measured,
    2 wrong usage or input, 3 BAD is not shown to be worse or the commit found is not confirmed.
    """
    from pytest_hwqueue.interleaved.bisection import CannotBisect
    from pytest_hwqueue.interleaved.environments import SideError
    from pytest_hwqueue.interleaved.git import GitError
    from pytest_hwqueue.interleaved.session import NothingMeasured
    from pytest_hwqueue.processes.groups import signals_interrupt

    try:
        with signals_interrupt():
            status = _bisect(ctx, name, good, bad, pairs, setup, given)
    except (CannotBisect, SideError, GitError, NothingMeasured, OSError) as error:
        raise InputRefused(str(error).replace("--hwq-", "--")) from None
    except KeyboardInterrupt as interrupt:
        click.echo("interrupted: the same command continues", err=True)
        status = 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
    ctx.exit(status)


def _bisect(
    ctx: click.Context, name: str, good: str, bad: str, pairs: int, setup: str | None,
    given: dict[str, Any],
) -> int:  # fmt: skip
    from pytest_hwqueue.interleaved.bisection import STATE_FILE, read_state, write_state
    from pytest_hwqueue.interleaved.bisection import bisect as search
    from pytest_hwqueue.interleaved.commit_comparison import CommitComparison
    from pytest_hwqueue.interleaved.looks import with_median

    here = Path.cwd()
    settings = replace(gate_settings(given), pairs=pairs, tau=0.0)
    figures = with_median(gated_figures(given))
    variant = _variant(name, here, given, ctx.meta[EXTRA])
    state = _planned(here, name, good, bad, settings.rate)
    # The same command finds its folder again, and another one, of other settings, another folder.
    asked = [state.good, state.commits[-1].commit, name, str(here), setup, figures,
             repr(settings), repr(variant)]  # fmt: skip
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:8]
    folder = here / parsed_setting("dir", given["dir"]) / f"bisect-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STATE_FILE

    def say(text: str) -> None:
        click.echo(f"hwq bisect: {text}", err=True)

    if file.exists():
        state = read_state(file)
        done = len(state.comparisons)
        say(f"continues after {done} comparisons; remove {folder} to start again")
    else:
        write_state(file, state)
        say(f"{len(state.commits)} commits; what is measured is kept in {folder}")
    made = sum(each.is_dir() for each in folder.iterdir())
    compare = CommitComparison(
        here, folder, variant, setup, figures, settings,
        parsed_setting("allow-env", given["allow_env"]), say, made=made,
    )  # fmt: skip
    found = search(state, compare, pairs, lambda state: write_state(file, state), say)
    click.echo(found.sentence)
    return _STATUS[found.ending]


def _variant(name: str, here: Path, given: dict[str, Any], extra: tuple[str, ...]) -> SideVariant:
    """Return how both sides are measured: a workload of the suite, or a test."""
    from pytest_hwqueue.interleaved.bisection import CannotBisect
    from pytest_hwqueue.interleaved.variants import SideVariant
    from pytest_hwqueue.workloads.registry import WORKLOADS

    options = measuring_options(given)
    if name in WORKLOADS:
        return SideVariant({**options, "workload": (name,)}, {}, extra)
    if (here / name.partition("::")[0]).exists():
        return SideVariant(options, {}, (name, *extra))
    raise CannotBisect(f"{name!r} is neither a workload (see `hwq list`) nor a test in {here}")


def _planned(here: Path, name: str, good: str, bad: str, rate: float) -> BisectState:
    """Return the state of a search that has not begun.

    Raises:
        CannotBisect: if there is no commit between GOOD and BAD.

    """
    from pytest_hwqueue.interleaved.bisection import SCHEMA, BisectState, CannotBisect, Listed
    from pytest_hwqueue.interleaved.git import commit_of, commits_between, is_ancestor

    ends = []
    for which, text in (("GOOD", good), ("BAD", bad)):
        commit = None if text.startswith("-") else commit_of(here, text)
        if commit is None:
            raise CannotBisect(f"{which}: {text!r} is no commit, branch or tag of {here}")
        ends.append(commit)
    if not is_ancestor(here, ends[0], ends[1]):
        base = f"git merge-base {good} {bad}"
        raise CannotBisect(f"GOOD: {good} is no ancestor of {bad}: name one, such as `{base}`")
    between = commits_between(here, ends[0], ends[1], first_parent=True)
    if not between:
        raise CannotBisect(f"GOOD and BAD are the same commit, {ends[0][:10]}")
    commits = [Listed(commit=each.hash, subject=each.subject) for each in between]
    return BisectState(schema=SCHEMA, name=name, good=ends[0], commits=commits, rate=rate)
