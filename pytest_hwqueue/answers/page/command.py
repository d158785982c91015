"""``hwq report``: sessions as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.options import of_commands as options

if TYPE_CHECKING:
    from pytest_hwqueue.answers.page.render import Page


_SESSION_FILES = ("session.json", "which.json", "preempt.json", "certificate.json")


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
    newest session in --dir. A folder of `hwq which` also shows modes against goals, one of
    `hwq preempt` each mode's law, and one of `hwq certify` the certificate.

    \b
        hwq report
        hwq report .hwqueue/20260101T120000-4711 -o report.html --baseline reference
        hwq report --export figures

    --export writes each chart of the page to a folder, named after what it shows, beside the page.

    Needs the extra `report` (pip install 'pytest-hwqueue[report]'). Exit status: 0 if it is
    written, whatever it says; 4 for wrong usage or input. `hwq compare` is the gate.
    """
    from pytest_hwqueue.answers.page.render import export_charts, write_page
    from pytest_hwqueue.data.document.drawing import cannot_write
    from pytest_hwqueue.data.metrics.numbers import counted

    reason = cannot_write(file)
    if reason is not None:
        raise click.UsageError(reason)
    page = _page(
        list(paths) or [_newest_session(options.settings_of(given).dir)], file, baseline, given
    )
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
    from pytest_hwqueue.answers.page.cells import find_records, own_judgements
    from pytest_hwqueue.answers.page.render import page_of
    from pytest_hwqueue.judge.baselines.sources import load_source, source_of
    from pytest_hwqueue.judge.judging import compare_sources

    found = find_records(paths)
    own = own_judgements(found) if baseline is None else []
    for line in found.damaged:
        options.say(line)
    if baseline is None:
        return page_of(found, file, judgements=own)
    settings, asked = options.gate_settings(given), options.settings_of(given)
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
