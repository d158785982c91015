"""``hwq baseline`` and ``hwq compare``: what is stored, and a comparison with it.

Exit status of ``baseline``: 0, or 2 for wrong usage or input.

Exit status of ``compare``: 0 nothing got worse; 1 a regression; 2 something cannot be compared, or
wrong usage or input; 3 a verdict that --on sets to fail. If several apply, the lowest wins. So
status 1 always means that something got worse.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import HwqError, nearest
from pytest_hwqueue.options import of_commands as options

if TYPE_CHECKING:
    from pytest_hwqueue.judge.baselines.runs import CellBaseline
    from pytest_hwqueue.judge.baselines.store import Store


@click.group()
def baseline() -> None:
    """Record, list, show, move and prune stored baselines.

    NAME is a baseline's name, or DEVICE/NAME if several devices have one of that name. The
    option --save of `hwq run` stores them.
    """


@baseline.command(cls=options.PassesOn, context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("measured", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="NAME|P0... [OPTIONS OF hwq run]")  # fmt: skip
@click.option("--sessions", metavar="N", type=click.IntRange(min=1), default=5, show_default=True,
              help="sessions to record, one after the other")  # fmt: skip
@click.pass_context
def record(ctx: click.Context, name: str, measured: tuple[str, ...], sessions: int) -> int:
    """Record the baseline NAME in several sessions: `hwq run ... --save NAME` for each.

    A single session cannot show how much sessions differ; spread over days or boots, they show
    more: repeat the command then. Each cell runs twice in a session unless you give --runs.

        hwq baseline record main P0 --streams 8

    Exit status: that of the first session that fails, which ends the recording; what was stored
    stays.
    """
    from pytest_hwqueue.options.measuring import run

    given = run.make_context("hwq run", [*measured]).params
    more = [f"--save={name}", *["--runs=2"] * (given["runs"] is None)]
    passed_on = ["--", *ctx.meta[options.PASSED_ON]]
    noise = options.settings_of(given).sim_noise
    for number in range(1, sessions + 1):
        options.say(f"session {number} of {sessions}")
        # With one seed, simulated sessions would all be the first.
        own = [f"--sim-noise={noise},seed={number}"] if noise and "seed=" not in noise else []
        status = run.main([*measured, *more, *own, *passed_on], "hwq run", standalone_mode=False)
        if status:
            return int(status)
    return 0


@options.with_options(only=("baselines",))
@baseline.command("list")
def list_baselines(**given: Any) -> None:
    """List the stored baselines of all devices."""
    from pytest_hwqueue.answers.baselines.report import baselines_document

    store = options.open_store(options.settings_of(given).baselines)
    document = baselines_document(store)
    if document is not None:
        options.output(document)
    else:
        click.echo(f"no baseline in {store.root}: `hwq run --save NAME` stores one")


@options.with_options(only=("baselines", "fail-on", *options.GATE))
@baseline.command()
@click.argument("name")
@click.argument("cell", required=False)
def show(name: str, cell: str | None, **given: Any) -> None:
    """Show a baseline's cells and what they can detect; with CELL, its runs."""
    from pytest_hwqueue.answers.baselines.report import cells_document, runs_document

    settings, figures = options.gate_settings(given), options.settings_of(given).fail_on
    store, device, name, label = _opened(name, given)
    cells = store.read(name, device)
    if cell is None:
        options.output(cells_document(label, cells, figures, settings))
    else:
        options.output(runs_document(label, _chosen(cells, (cell,), label)[cell]))


@options.with_options(only=("baselines",))
@baseline.command()
@click.argument("name")
def history(name: str, **given: Any) -> None:
    """Show when and why a baseline was moved, and how far in total."""
    from pytest_hwqueue.answers.baselines.report import moves_document

    store, device, name, label = _opened(name, given)
    anchor, cells = store.anchor(name, device), store.read(name, device)
    moves = store.history(name, device)
    options.output(moves_document(label, moves, anchor, cells))


@options.with_options(only=("baselines",))
@baseline.command()
@click.argument("name")
@click.option(
    "--from", "origin", metavar="SOURCE", required=True, help=f"the runs: {options.SOURCE}"
)
@click.option("--reason", required=True, help="why this is the norm from now on")
@click.option("--cell", "chosen", metavar="CELL", multiple=True, help="only this cell; repeatable")
def accept(name: str, origin: str, reason: str, chosen: tuple[str, ...], **given: Any) -> None:
    """Move a baseline deliberately: replace its stored runs with others.

    NAME may be new. The first runs stay as the anchor, and the move is added to the history.
    """
    from pytest_hwqueue.answers.baselines.report import move_document, too_few_runs
    from pytest_hwqueue.judge.baselines.sources import load_source

    store = options.open_store(options.settings_of(given).baselines)
    source = load_source(origin, store)
    cells = _chosen(source.cells, chosen, source.label) if chosen else source.cells
    device, name, cells = _target(name, cells, source.label)
    if source.label == f"{device}/{name}":
        raise HwqError(f"--from: {source.label} is the baseline itself")
    commits = {run.commit for cell in cells.values() for run in cell.runs}
    commit = commits.pop() if len(commits) == 1 else None
    move = store.accept(name, device, cells, reason, commit)
    options.output(move_document(f"{device}/{name}", move))
    for left in source.left_out:
        if not chosen or left.cell_id in chosen:
            click.echo(f"left out: {left.cell_id}: {left.reason}", err=True)
    warning = too_few_runs(cells.values())
    if warning:
        click.echo(f"warning: {warning}", err=True)


@options.with_options(only=("baselines",))
@baseline.command()
@click.argument("name")
@click.option(
    "--keep", metavar="N", required=True, type=click.IntRange(min=1),
    help="how many of each cell's newest runs to keep",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
def prune(name: str, keep: int, yes: bool, **given: Any) -> None:
    """Keep only the newest runs of each cell.

    The first N runs become the anchor of a cell that has none.
    """
    store, device, name, label = _opened(name, given, packaged=False)
    cells = store.read(name, device).values()
    going = sum(max(0, len(cell.runs) - keep) for cell in cells)
    if not going:
        click.echo(f"no cell of {label} has more than {keep} runs: nothing to remove")
        return
    if not yes:
        click.confirm(f"Remove {going} runs of {label}, the oldest of each cell?", abort=True)
    click.echo(f"removed {store.prune(name, device, keep)} runs of {label}")


@options.with_options(only=("baselines", "fail-on", "rate", "min-effect", "detect"))
@baseline.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
def calibrate(sources: tuple[str, ...], **given: Any) -> None:
    """Estimate from runs of unchanged code how much runs and sessions vary.

    The sources are baselines, session files or folders of records, ideally of 5 sessions with 3
    runs each: `hwq run P0 --runs 3 --save aa`, five times.
    """
    from pytest_hwqueue.answers.baselines.report import calibration_document
    from pytest_hwqueue.judge.baselines.sources import load_source
    from pytest_hwqueue.judge.stored import calibrate_sources

    settings = options.gate_settings(given)
    loaded = [load_source(text, _store_of(text, given)) for text in sources]
    found, left_out = calibrate_sources(loaded, options.settings_of(given).fail_on, settings)
    options.output(calibration_document(found, settings, left_out))


def _store_of(text: str, given: Mapping[str, Any], *, packaged: bool = True) -> Store:
    """Return the folder's baselines; if none has the name, with those that come with the plugin."""
    store = options.open_store(options.settings_of(given).baselines)
    if not packaged or store.devices_with(text):
        return store
    return options.open_store(store.root, packaged=True)


def _opened(
    text: str, given: Mapping[str, Any], *, packaged: bool = True
) -> tuple[Store, str, str, str]:
    """Return the store, and device, name and DEVICE/NAME of what NAME or DEVICE/NAME refers to.

    Without one of its name in the folder, it is one that comes with the plugin, if ``packaged``.
    """
    store = _store_of(text, given, packaged=packaged)
    device, _, name = text.rpartition("/")
    if not device:
        devices = store.devices_with(name)
        if len(devices) > 1:
            raise _ambiguous(f"{name!r} is a baseline of several devices", name, devices)
        if not devices:
            known = nearest(name, store.labels())
            raise HwqError(f"there is no baseline {name!r} in {store.root}: {known}")
        device = devices[0]
    return store, device, name, f"{device}/{name}"


def _target(
    text: str, cells: Mapping[str, CellBaseline], label: str
) -> tuple[str, str, dict[str, CellBaseline]]:
    """Return device and name of the baseline that a source's cells go to, and the cells."""
    device, _, name = text.rpartition("/")
    devices = sorted({cell.device for cell in cells.values()})
    if not devices:
        raise HwqError(f"{label} has no cell that went well: nothing to accept")
    if not device and len(devices) > 1:
        raise _ambiguous(f"{label} has cells of several devices", name, devices)
    if device and device not in devices:
        raise HwqError(f"{label} has no cell of {device}; it has cells of {', '.join(devices)}")
    device = device or devices[0]
    return device, name, {key: cell for key, cell in cells.items() if cell.device == device}


def _chosen(
    cells: Mapping[str, CellBaseline], wanted: tuple[str, ...], label: str
) -> dict[str, CellBaseline]:
    unknown = [cell_id for cell_id in wanted if cell_id not in cells]
    if unknown:
        raise HwqError(
            f"{label} has no cell {unknown[0]!r}; its cells are:\n  " + "\n  ".join(cells)
        )
    return {cell_id: cells[cell_id] for cell_id in wanted}


def _ambiguous(what: str, name: str, devices: list[str]) -> HwqError:
    listed = " or ".join(f"{device}/{name}" for device in devices)
    return HwqError(f"{what}: write {listed}")


_COMPARE = (
    "baselines", "fail-on", *options.GATE, "sentinel", "allow-env", "markdown", "on",
)  # fmt: skip


@options.with_options(only=_COMPARE)
@click.command()
@click.argument("sides", nargs=-1, metavar="A B")
@click.option("--baseline", "a", metavar="A", help=f"the older runs: {options.SOURCE}")
@click.option("--test", "b", metavar="B", help="the newer runs, likewise")
@options.out_file("json", "also write the verdicts and their figures to FILE")
def compare(sides: tuple[str, ...], a: str | None, b: str | None, **given: Any) -> int:
    """Compare stored runs: the newer B with the older A.

    Cells are matched by their ids. `compare A B` is short for `compare --baseline A --test B`.

    Exit status: 1 after a regression, 2 if cells cannot be compared or the input is wrong, 3 if a
    verdict is set to fail by --on, and 0 otherwise.
    """
    named = tuple(side for side in (a, b) if side is not None)
    if (sides and named) or len(sides or named) != 2:
        raise click.UsageError("name two sides: A B, or --baseline A --test B")
    if gc.isenabled():
        # Runs and verdicts contain no reference cycles, and searching some hundred thousand of them
        # for cycles took a third of the time of a comparison of 10 000 cells.
        gc.disable()
        click.get_current_context().call_on_close(gc.enable)
    older, newer = sides or named
    return _compare(older, newer, given)


def _compare(a: str, b: str, given: Mapping[str, Any]) -> int:
    from pytest_hwqueue.answers.baselines.report import hard_differences, render_differences
    from pytest_hwqueue.answers.session.outcome import write_markdown
    from pytest_hwqueue.data.safe_files import write_text
    from pytest_hwqueue.judge.baselines.sources import load_source
    from pytest_hwqueue.judge.file import judgement_file, judgement_text
    from pytest_hwqueue.judge.judging import compare_sources
    from pytest_hwqueue.judge.stored import nothing_in_common

    settings, asked = options.gate_settings(given), options.settings_of(given)
    figures, sentinel = asked.fail_on, asked.sentinel or None
    store = options.open_store(asked.baselines, packaged=True)
    new = load_source(b, store)
    old = load_source(a, store, of=new)
    if not old.cells.keys() & new.cells.keys():
        ours, theirs = ([cell.header.cell for cell in side.cells.values()] for side in (old, new))
        raise HwqError(f"nothing to compare\n{nothing_in_common(old.label, ours, theirs)}")
    if sentinel is not None and sentinel not in old.cells:
        raise HwqError(f"--sentinel: {sentinel!r} is no cell of {old.label}")
    judgement = compare_sources(
        old, new, figures, settings, allow_environment=asked.allow_env, sentinel=sentinel
    )
    if not judgement.verdicts:
        raise HwqError(
            f"no cell that is in both {old.label} and {new.label} has a figure "
            f"{' or '.join(figures)}"
        )
    status = options.comparison_status(judgement, asked.on)
    hard = hard_differences(old, new)
    parts = [options.verdicts_text(judgement)]
    parts += filter(None, [render_differences(hard)])
    if not judgement.judged:
        parts.append("no cell was judged: that is an error, whatever --on says")
    # First of all, so that a file that cannot be written hides no verdict.
    _echo("\n".join(parts))
    if given["json_file"]:
        content = judgement_file(judgement, new.label, status, hard)
        write_text(given["json_file"], judgement_text(content))
    write_markdown(asked.markdown, [judgement], [])
    return status


def _echo(text: str) -> None:
    """Print text; the exit status counts even if the reader closes the pipe early."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # What Python would still write when it ends goes nowhere, as its documentation advises.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
