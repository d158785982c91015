"""``hwq report``: stored records as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.gate_options import (
    GATE,
    SOURCE,
    gate_settings,
    gated_figures,
    open_store,
)
from pytest_hwqueue.cli.plugin_options import parsed_setting, with_options
from pytest_hwqueue.cli.recompute import newest_session
from pytest_hwqueue.errors import BadOption, BaselineError, RecordError

if TYPE_CHECKING:
    from pytest_hwqueue.baselines.diff import Source
    from pytest_hwqueue.reports.page.found import Found
    from pytest_hwqueue.verdicts.judging import Judgement


@with_options(only=("dir", "baselines", "fail-on", *GATE, "allow-env"))
@click.command()
@click.argument(
    "paths", nargs=-1, metavar="[FOLDER|RECORD]...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "-o", "--output", metavar="FILE", default="report.html", show_default=True,
    type=click.Path(path_type=Path), help="the file to write",
)  # fmt: skip
@click.option("--baseline", metavar="A", help=f"compare with the older runs A: {SOURCE}")
@click.pass_context
def report(
    ctx: click.Context, /, paths: tuple[Path, ...], output: Path, baseline: str | None, **given: Any
) -> None:
    """Write an HTML report of stored records: one file that opens from disk without a network.

    It begins with the verdict in one sentence, then lists all cells; each opens into its
    distributions, samples, timeline of streams, causes, scaling, proof, and the command to repeat
    it. FOLDER is searched with its subfolders; the default is the newest session in --dir. A folder
    of `hwq which` also shows modes against goals.

    \b
        hwq report
        hwq report .hwqueue/20260101T120000-4711 -o report.html --baseline reference

    Needs the extra `report` (pip install 'pytest-hwqueue[report]'). Exit status: 0 if it is
    written, whatever it says; 4 for wrong usage or input. `hwq compare` is the gate.
    """
    from pytest_hwqueue.reports.page.needed import cannot_write
    from pytest_hwqueue.verdicts.judging import UnknownFigure

    reason = cannot_write(output)
    if reason is not None:
        raise click.UsageError(reason, ctx)
    try:
        _write(list(paths) or [newest_session(ctx, given["dir"])], output, baseline, given)
    except (BaselineError, RecordError, UnknownFigure, BadOption) as error:
        raise click.UsageError(str(error).replace("--hwq-", "--"), ctx) from None
    click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def _write(paths: list[Path], output: Path, baseline: str | None, given: Mapping[str, Any]) -> None:
    from pytest_hwqueue.reports.page.found import find_records
    from pytest_hwqueue.reports.page.render import page_of, write_page

    found = find_records(paths)
    for line in found.damaged:
        click.echo(f"hwq report: {line}", err=True)
    if baseline is None:
        write_page(output, page_of(found, output))
        return
    judgement, old = _compared(found, ", ".join(map(str, paths)), baseline, given)
    page = page_of(
        found, output, judgements=[judgement], baseline=old.cells, baseline_label=old.label
    )
    write_page(output, page)


def _compared(
    found: Found, label: str, baseline: str, given: Mapping[str, Any]
) -> tuple[Judgement, Source]:
    from pytest_hwqueue.baselines.diff import load_source, source_of
    from pytest_hwqueue.verdicts.judging import compare_sources

    settings, figures = gate_settings(given), gated_figures(given)
    measured = sorted(found.cells, key=lambda stored: stored.record.started)
    records = [(stored.path.parent.resolve().name, stored.record) for stored in measured]
    new = source_of(label, "records", records)
    old = load_source(baseline, open_store(given["baselines"], packaged=True), of=new)
    judgement = compare_sources(
        old, new, figures, settings,
        allow_environment=parsed_setting("allow-env", given["allow_env"]),
    )  # fmt: skip
    return judgement, old
