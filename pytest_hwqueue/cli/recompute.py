"""``hwq recompute``: compute the figures of records again, and compare.

Exit status: 0 all agree; 1 a figure differs, or a file is missing or damaged; 4 wrong usage, or
nothing could be computed again.
"""

from __future__ import annotations

from pathlib import Path

import click

from pytest_hwqueue.cli.plugin_options import setting, with_options
from pytest_hwqueue.errors import BadOption

_DIFFERENT, _USAGE = 1, 4
_SESSION_FILES = ("session.json", "which.json")


@with_options(only=("dir",))
@click.command()
@click.argument(
    "paths", nargs=-1, metavar="[FOLDER|RECORD]...", type=click.Path(exists=True, path_type=Path)
)
@click.pass_context
def recompute(ctx: click.Context, /, paths: tuple[Path, ...], dir: str | None) -> None:
    """Compute the figures of records again from what is on disk, and compare to the digit.

    Latency, ratios, throughput and overlap come from a record's samples; queue switch, timeline and
    causes from the timelines next to it (NAME.timelines.xz). FOLDER is searched with its
    subfolders; the default is the newest session in --dir.

    Figures that cannot be computed again, as where a record has no timelines, are listed.

    \b
        hwq recompute
        hwq recompute .hwqueue/20260101T120000-4711

    Exit status: 0 if all agree, 1 if a figure differs or a file is missing or damaged (a table
    shows what is stored and what was computed), 4 for wrong usage, or if nothing could be computed.
    """
    from pytest_hwqueue.recompute.records import recompute as again
    from pytest_hwqueue.reports.recomputed import print_outcome

    outcome = again(list(paths) or [newest_session(ctx, dir)])
    print_outcome(outcome)
    if not outcome.agrees:
        ctx.exit(_DIFFERENT)
    if not outcome.figures:
        click.echo("Error: no figure could be computed again", err=True)
        ctx.exit(_USAGE)


def newest_session(ctx: click.Context, given: str | None) -> Path:
    """Return the folder of the newest session in --dir; refuse if there is none."""
    try:
        root = Path(setting("dir", given))
    except BadOption as error:
        raise click.UsageError(str(error).replace("--hwq-", "--"), ctx) from None
    files = [file for name in _SESSION_FILES for file in root.glob(f"*/{name}")]
    if not files:
        raise click.UsageError(f"{root} has no session: name a folder of records", ctx)
    return max(files, key=lambda file: file.stat().st_mtime).parent
