"""``hwq history``: the sessions of a baseline over time, and where they changed.

Exit status: 0, whatever was found; 2 for wrong usage or input, or without apache-otava.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.gate_options import InputRefused, OwnStatus, gate_settings, open_store
from pytest_hwqueue.cli.plugin_options import with_options

if TYPE_CHECKING:
    from pytest_hwqueue.baselines.diff import Source
    from pytest_hwqueue.baselines.store import Store
    from pytest_hwqueue.history.file import CommitLine

_FIGURES = ("p99", "p50", "iteration_time")
_MOST_RATE = 0.1


@with_options(only=("baselines", "min-effect", "tau"))
@click.command(cls=OwnStatus)
@click.argument("name")
@click.argument("more", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--figure", "figures", metavar="FIGURE", multiple=True,
    help="p99, p50, throughput, TAG.p99, ...; repeatable (default: p99, p50 and iteration_time)",
)  # fmt: skip
@click.option("--cell", "chosen", metavar="CELL", multiple=True, help="only this cell; repeatable")
@click.option(
    "--rate", metavar="SHARE", default="1%", show_default=True,
    help="share of flat series that may have a change point",
)  # fmt: skip
@click.option(
    "--pool-machines",
    is_flag=True,
    help="analyse the sessions of all devices and drivers of one model together",
)
@click.option(
    "--repository", metavar="DIR", type=click.Path(exists=True, file_okay=False), default=".",
    help="where to look up the commits between two sessions (default: the current folder)",
)  # fmt: skip
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False),
    help="also write all sessions and findings to FILE",
)  # fmt: skip
@click.option(
    "--markdown", metavar="FILE", type=click.Path(dir_okay=False), help="also write Markdown"
)
def history(
    name: str, more: tuple[str, ...], figures: tuple[str, ...], chosen: tuple[str, ...],
    rate: str, pool_machines: bool, repository: str, json_file: str | None,
    markdown: str | None, baselines: str | None, **given: Any,
) -> None:  # fmt: skip
    """Show a baseline's sessions over time: steps, with the commits between, drifts, two modes.

    NAME is a baseline (NAME or DEVICE/NAME), or, like each SOURCE, a session's JSON file or a
    folder of records; the runs of all are taken together, and those of a baseline's anchor.
    Sessions on another device or driver are a series of their own.

    \b
      hwq history main
      hwq history main .hwqueue/20260101T120000-4711 --cell "hetero_kernels[cuda-s8-native-eager]"

    Needs apache-otava: pip install 'pytest-hwqueue[history]'. `hwq baseline history` lists the
    deliberate moves of a baseline instead.

    Exit status: 0 whatever is found, 2 for wrong usage or input.
    """
    from pytest_hwqueue.history.analysis import analyse
    from pytest_hwqueue.history.change_points import LEAST_P, OtavaMissing
    from pytest_hwqueue.history.series import arrange
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.history import print_history, render_markdown
    from pytest_hwqueue.settings.values import share

    store = open_store(baselines, packaged=True)
    settings = gate_settings(given)
    accepted = share(_MOST_RATE)("--rate", rate)
    if accepted < LEAST_P:
        raise InputRefused(f"--rate: {rate} is below {LEAST_P:.2%}, the least p there can be")
    sources = [source for text in (name, *more) for source in _sources(text, store)]
    _refuse_unknown(sources, figures, chosen)
    series = [
        each
        for each in arrange(sources, figures or _FIGURES, pool_machines=pool_machines)
        if not chosen or each.cell_id in chosen
    ]
    labels = list(dict.fromkeys(source.label for source in sources))
    try:
        found = analyse(
            series, labels, _lookup(Path(repository)), settings,
            rate=accepted, pool_machines=pool_machines,
        )  # fmt: skip
    except OtavaMissing as error:
        raise InputRefused(str(error)) from None
    print_history(found)
    if json_file is not None:
        write_text(Path(json_file), found.model_dump_json(by_alias=True) + "\n")
    if markdown is not None:
        write_text(Path(markdown), render_markdown(found))


def _sources(text: str, store: Store) -> list[Source]:
    """Return a source, and the anchor of a baseline: runs that were moved away from."""
    from dataclasses import replace

    from pytest_hwqueue.baselines.diff import load_source

    source = load_source(text, store)
    device, _, name = source.label.rpartition("/")
    if source.kind != "baseline" or device not in store.devices():
        return [source]
    return [replace(source, cells=store.anchor(name, device).cells), source]


def _refuse_unknown(
    sources: list[Source], figures: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    from pytest_hwqueue.verdicts.figures import known_names

    cells = {cell_id: cell for source in sources for cell_id, cell in source.cells.items()}
    unknown = [cell_id for cell_id in chosen if cell_id not in cells]
    if unknown:
        raise InputRefused(
            f"--cell: no cell is {unknown[0]!r}; the cells are:\n  " + "\n  ".join(sorted(cells))
        )
    names = known_names([cell.runs[0] for cell in cells.values()])
    missing = [figure for figure in figures if figure not in names]
    if missing:
        raise InputRefused(
            f"--figure: no cell has a figure {missing[0]!r}; there are {', '.join(names)}"
        )


def _lookup(repository: Path) -> Callable[[str, str], list[CommitLine] | None]:
    """Return what lists the commits between two in a repository; each pair is asked for once."""
    from functools import cache

    from pytest_hwqueue.history.file import CommitLine
    from pytest_hwqueue.interleaved.git import commits_between

    @cache
    def between(old: str, new: str) -> list[CommitLine] | None:
        found = commits_between(repository, old, new)
        if found is None:
            return None
        return [CommitLine(commit=each.hash, subject=each.subject) for each in found]

    return between
