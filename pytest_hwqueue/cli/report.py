"""``hwq report`` and ``hwq history``: sessions as a page, and over time.

Exit status of ``history``: 0, whatever was found; 2 for wrong usage or input, or without
apache-otava.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli import options
from pytest_hwqueue.errors import HwqError

if TYPE_CHECKING:
    from pytest_hwqueue.baselines.sources import Source
    from pytest_hwqueue.baselines.store import Store
    from pytest_hwqueue.processes.git import CommitLine
    from pytest_hwqueue.reports.page.render import Page


_SESSION_FILES = ("session.json", "which.json")


@options.with_options(only=("dir", "baselines", "fail-on", *options.GATE, "allow-env"))
@click.command()
@click.argument(
    "paths", nargs=-1, metavar="[FOLDER|RECORD]...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "-o", "--output", "file", metavar="FILE", default="report.html", show_default=True,
    type=click.Path(path_type=Path), help="the file to write",
)  # fmt: skip
@click.option(
    "--export", "pictures", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="also write each chart to DIR, as SVG and PNG for papers",
)  # fmt: skip
@click.option("--baseline", metavar="A", help=f"compare with the older runs A: {options.SOURCE}")
def report(
    paths: tuple[Path, ...], file: Path, pictures: Path | None, baseline: str | None, **given: Any
) -> None:
    """Write stored records as one HTML page.

    It opens from disk without a network, and begins with the verdict in one sentence, then lists
    all cells; each opens into its distributions, samples, timeline of streams, causes, scaling,
    proof, and the command to repeat it. FOLDER is searched with its subfolders; the default is the
    newest session in --dir. A folder of `hwq which` also shows modes against goals.

    \b
        hwq report
        hwq report .hwqueue/20260101T120000-4711 -o report.html --baseline reference
        hwq report --export figures

    --export writes each chart of the page to a folder, named after what it shows, beside the page.

    Needs the extra `report` (pip install 'pytest-hwqueue[report]'). Exit status: 0 if it is
    written, whatever it says; 4 for wrong usage or input. `hwq compare` is the gate.
    """
    from pytest_hwqueue.metrics.numbers import counted
    from pytest_hwqueue.reports.page.render import cannot_write, export_charts, write_page

    reason = cannot_write(file)
    if reason is not None:
        raise click.UsageError(reason)
    page = _page(list(paths) or [_newest_session(options.Asked(given).dir)], file, baseline, given)
    write_page(file, page)
    click.echo(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    if pictures is not None:
        charts = counted(export_charts(page, pictures), "chart")
        click.echo(f"{pictures}: {charts}, each as SVG and PNG")


def _newest_session(root: Path) -> Path:
    """Return the folder of the newest session in --dir; refuse if there is none."""
    files = [file for name in _SESSION_FILES for file in root.glob(f"*/{name}")]
    if not files:
        raise click.UsageError(f"{root} has no session: name a folder of records")
    return max(files, key=lambda file: file.stat().st_mtime).parent


def _page(paths: list[Path], file: Path, baseline: str | None, given: Mapping[str, Any]) -> Page:
    from pytest_hwqueue.baselines.sources import load_source, source_of
    from pytest_hwqueue.reports.page.cells import find_records, own_judgements
    from pytest_hwqueue.reports.page.render import page_of
    from pytest_hwqueue.verdicts.judging import compare_sources

    found = find_records(paths)
    own = own_judgements(found) if baseline is None else []
    for line in found.damaged:
        options.say(line)
    if baseline is None:
        return page_of(found, file, judgements=own)
    settings, asked = options.gate_settings(given), options.Asked(given)
    measured = sorted(found.cells, key=lambda stored: stored.record.started)
    records = [(stored.path.parent.resolve().name, stored.record) for stored in measured]
    new = source_of(", ".join(map(str, paths)), "records", records)
    old = load_source(baseline, options.open_store(asked.baselines, packaged=True), of=new)
    judgement = compare_sources(
        old, new, asked.fail_on, settings, allow_environment=asked.allow_env
    )
    return page_of(
        found, file, judgements=[judgement], baseline=old.cells, baseline_label=old.label
    )


_FIGURES = ("p99", "p50", "iteration_time")
_MOST_RATE = 0.1


@options.with_options(only=("baselines", "min-effect", "tau"))
@click.command()
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
@click.option("--pool-machines", is_flag=True,
              help="analyse the sessions of all devices and drivers of one model "
              "together")  # fmt: skip
@click.option(
    "--repository", metavar="DIR", type=click.Path(exists=True, file_okay=False), default=".",
    help="where to look up the commits between two sessions (default: the current folder)",
)  # fmt: skip
@options.out_file("json", "also write all sessions and findings to FILE")
@options.out_file("markdown", "also write Markdown")
def history(
    name: str, more: tuple[str, ...], figures: tuple[str, ...], chosen: tuple[str, ...],
    rate: str, pool_machines: bool, repository: str, **given: Any,
) -> None:  # fmt: skip
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
    from pytest_hwqueue.history.analysis import LEAST_P, analyse
    from pytest_hwqueue.history.series import arrange
    from pytest_hwqueue.reports.history import history_document
    from pytest_hwqueue.settings.values import share

    store = options.open_store(options.Asked(given).baselines, packaged=True)
    settings = options.gate_settings(given)
    accepted = share(_MOST_RATE)("--rate", rate)
    if accepted < LEAST_P:
        raise HwqError(f"--rate: {rate} is below {LEAST_P:.2%}, the least p there can be")
    sources = [source for text in (name, *more) for source in _sources(text, store)]
    _refuse_unknown(sources, figures, chosen)
    series = [
        each
        for each in arrange(sources, figures or _FIGURES, pool_machines=pool_machines)
        if not chosen or each.cell in chosen
    ]
    labels = list(dict.fromkeys(source.label for source in sources))
    found = analyse(
        series, labels, _lookup(Path(repository)), settings,
        rate=accepted, pool_machines=pool_machines,
    )  # fmt: skip
    options.output(
        history_document(found), given, lambda: found.model_dump_json(by_alias=True) + "\n"
    )


def _sources(text: str, store: Store) -> list[Source]:
    """Return a source, and the anchor of a baseline: runs that were moved away from."""
    from dataclasses import replace

    from pytest_hwqueue.baselines.sources import load_source

    source = load_source(text, store)
    device, _, name = source.label.rpartition("/")
    if source.kind != "baseline" or device not in store.devices():
        return [source]
    return [replace(source, cells=store.anchor(name, device)), source]


def _refuse_unknown(
    sources: list[Source], figures: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    from pytest_hwqueue.verdicts.figures import known_names

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
    from pytest_hwqueue.processes.git import commits_between

    return cache(partial(commits_between, repository))
