"""``hwq history``: sessions over time.

Exit status: 0, whatever was found; 2 for wrong usage or input, or without apache-otava.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.options import of_commands as options

if TYPE_CHECKING:
    from pytest_hwqueue.judge.baselines.sources import Source
    from pytest_hwqueue.judge.baselines.store import Store
    from pytest_hwqueue.parts.processes.git import CommitLine


_FIGURES = ("p99", "p50", "iteration_time")
_MOST_RATE = 0.1


@dataclass(frozen=True)
class HistoryOptions:
    """What `hwq history` was asked.

    Attributes:
        figures: names; empty for the usual ones.
        cells: ids; empty for all.
        rate: as given, the share of flat series that may have a change point.
        pool_machines: analyse the sessions of all devices and drivers of one model together.
        repository: folder in which to look up commits.

    """

    figures: tuple[str, ...]
    cells: tuple[str, ...]
    rate: str
    pool_machines: bool
    repository: str


@options.with_options(only=("baselines", "min-effect", "tau"))
@click.command()
@click.argument("name")
@click.argument("more", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--figure", "figures", metavar="FIGURE", multiple=True,
    help="p99, p50, throughput, TAG.p99, ...; repeatable (default: p99, p50 and iteration_time)",
)  # fmt: skip
@click.option("--cell", "cells", metavar="CELL", multiple=True, help="only this cell; repeatable")
@click.option(
    "--rate", metavar="SHARE", default="1%", show_default=True,
    help="share of flat series that may have a change point",
)  # fmt: skip
@click.option("--pool-machines", is_flag=True,
              help="analyse the sessions of all devices and drivers of one model "
              "together")  # fmt: skip
@click.option(
    "--repository", metavar="DIR", type=click.Path(exists=True, file_okay=False), default=".",
    help="where to look up the commits between two sessions (default: the current folder)",
)  # fmt: skip
@options.out_file("json", "also write all sessions and findings to FILE")
@options.out_file("markdown", "also write Markdown")
def history(name: str, more: tuple[str, ...], **given: Any) -> None:
    """Show a baseline's sessions over time, and what changed.

    It finds steps, with the commits between, drifts, and cells with two modes.

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
    from pytest_hwqueue.answers.history.analysis import LEAST_P, analyse
    from pytest_hwqueue.answers.history.report import history_document
    from pytest_hwqueue.answers.history.series import arrange
    from pytest_hwqueue.options.values import share

    asked = HistoryOptions(**{each.name: given.pop(each.name) for each in fields(HistoryOptions)})
    store = options.open_store(options.settings_of(given).baselines, packaged=True)
    settings = options.gate_settings(given)
    accepted = share(_MOST_RATE)("--rate", asked.rate)
    if accepted < LEAST_P:
        raise HwqError(f"--rate: {asked.rate} is below {LEAST_P:.2%}, the least p there can be")
    sources = [source for text in (name, *more) for source in _sources(text, store)]
    _refuse_unknown(sources, asked.figures, asked.cells)
    series = [
        each
        for each in arrange(sources, asked.figures or _FIGURES, pool_machines=asked.pool_machines)
        if not asked.cells or each.cell in asked.cells
    ]
    labels = list(dict.fromkeys(source.label for source in sources))
    found = analyse(
        series, labels, _lookup(Path(asked.repository)), settings,
        rate=accepted, pool_machines=asked.pool_machines,
    )  # fmt: skip
    options.output(
        history_document(found),
        options.OutFiles.of(given),
        lambda: found.model_dump_json(by_alias=True) + "\n",
    )


def _sources(text: str, store: Store) -> list[Source]:
    """Return a source, and the anchor of a baseline: runs that were moved away from."""
    from dataclasses import replace

    from pytest_hwqueue.judge.baselines.sources import load_source

    source = load_source(text, store)
    device, _, name = source.label.rpartition("/")
    if source.kind != "baseline" or device not in store.devices():
        return [source]
    return [replace(source, cells=store.anchor(name, device)), source]


def _refuse_unknown(
    sources: list[Source], figures: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    from pytest_hwqueue.judge.figures import known_names

    cells = {cell_id: cell for source in sources for cell_id, cell in source.cells.items()}
    unknown = [cell_id for cell_id in chosen if cell_id not in cells]
    if unknown:
        raise HwqError(
            f"--cell: no cell is {unknown[0]!r}; the cells are:\n  " + "\n  ".join(sorted(cells))
        )
    names = known_names([cell.runs[0] for cell in cells.values()])
    missing = [figure for figure in figures if figure not in names]
    if missing:
        raise HwqError(
            f"--figure: no cell has a figure {missing[0]!r}; there are {', '.join(names)}"
        )


def _lookup(repository: Path) -> Callable[[str, str], list[CommitLine] | None]:
    """Return what lists the commits between two in a repository; each pair is asked for once."""
    from pytest_hwqueue.parts.processes.git import commits_between

    return cache(partial(commits_between, repository))
