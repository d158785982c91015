"""``hwq advise``: what pinning, priority and schedulers won back under noise, as measured.

Exit status: 0; 1 if no session has anything to compare; 4 for wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_hwqueue.cli.plugin_options import setting, with_options
from pytest_hwqueue.errors import BadOption

if TYPE_CHECKING:
    from pytest_hwqueue.records.cell import RunRecord

_SESSION_FILE = "session.json"
# In every record measured under a noise, or as its quiet turn.
_NOISE_FIELD = b'"noise":{'


@with_options(only=("dir",))
@click.command()
@click.argument(
    "sessions", nargs=-1, metavar="[SESSION]...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="also write the figures to FILE",
)  # fmt: skip
@click.pass_context
def advise(
    ctx: click.Context, /, sessions: tuple[Path, ...], json_file: Path | None, **given: str | None
) -> None:
    """Report what pinning, priority and schedulers won back under background noise.

    Uses only measurements: the records in the folders SESSION, by default those of all sessions in
    --dir. Comparisons stay within one session; what no session measured is listed with the
    command that measures it. The exit status is 1 if there is nothing to compare.
    """
    from pytest_hwqueue.errors import RecordError
    from pytest_hwqueue.records.cell import write_text
    from pytest_hwqueue.reports.advice_words import advice_lines, advice_text
    from pytest_hwqueue.reports.noise_advice import advise as find

    try:
        root = Path(setting("dir", given["dir"]))
    except BadOption as error:
        raise click.UsageError(str(error).replace("--hwq-", "--"), ctx) from None
    folders = list(sessions) or sorted(each.parent for each in root.glob(f"*/{_SESSION_FILE}"))
    left_out: list[str] = []
    read = [(folder.resolve().name, _records(folder, left_out)) for folder in folders]
    # Their names begin with when they were.
    advice = find(sorted(read, key=lambda each: each[0]))
    for line in [*advice_lines(advice), *(f"left out: {each}" for each in left_out)]:
        click.echo(line)
    if json_file is not None:
        try:
            write_text(json_file, advice_text(advice, [str(each) for each in folders], left_out))
        except RecordError as error:
            raise click.UsageError(f"--json: {error}", ctx) from None
    ctx.exit(0 if advice.comparisons else 1)


def _records(folder: Path, left_out: list[str]) -> list[RunRecord]:
    """Read one session's records under noise; skip what cannot be read, with the reason."""
    from pytest_hwqueue.errors import RecordError
    from pytest_hwqueue.records.cell import read_record
    from pytest_hwqueue.records.tenants import read_colocation
    from pytest_hwqueue.tenancy import TENANTS
    from pytest_hwqueue.tenancy.cells import tenant_records

    found = []
    for path in sorted(folder.glob("*.json")):
        if path.name != _SESSION_FILE and _names_a_noise(path, left_out):
            try:
                found.append(read_record(path))
            except RecordError as error:
                left_out.append(str(error))
    if any(record.family == TENANTS for record in found):
        # Tenants that were measured in runs stand there already.
        return found
    for path in sorted(folder.glob("scenarios*/*.json")):
        if _names_a_noise(path, left_out):
            try:
                found += tenant_records(read_colocation(path), "", {})
            except RecordError as error:
                left_out.append(str(error))
    return found


def _names_a_noise(path: Path, left_out: list[str]) -> bool:
    try:
        return _NOISE_FIELD in path.read_bytes()
    except OSError as error:
        left_out.append(f"cannot read {path}: {error.strerror or error}")
        return False
