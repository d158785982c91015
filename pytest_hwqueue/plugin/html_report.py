"""The report of --hwq-report: refused before the session if it cannot be written, else its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.plugin.state import SETTINGS

if TYPE_CHECKING:
    from pytest_hwqueue.baselines.runs import CellBaseline
    from pytest_hwqueue.verdicts.judging import Judgement


def refuse_unwritable(config: pytest.Config) -> None:
    """Refuse a report that could not be written, before anything is measured.

    Raises:
        pytest.UsageError: saying why, and what to do.

    """
    from pytest_hwqueue.reports.page.needed import cannot_write

    reason = cannot_write(_file(config))
    if reason is not None:
        raise pytest.UsageError(f"--hwq-report: {reason}")


def write_report(config: pytest.Config, folder: Path, judgements: Sequence[Judgement]) -> None:
    """Write the report of a session whose records are in ``folder``.

    Raises:
        RecordError: if it cannot be written.

    """
    from pytest_hwqueue.reports.page.found import find_records
    from pytest_hwqueue.reports.page.render import page_of, write_page

    file = _file(config)
    page = page_of(
        find_records([folder]), file, judgements=judgements, baseline=_stored(config, judgements),
        baseline_label=", ".join(judgement.baseline for judgement in judgements),
    )  # fmt: skip
    write_page(file, page)


def _file(config: pytest.Config) -> Path:
    file = config.stash[SETTINGS].report
    assert file is not None
    return Path(config.invocation_params.dir / file)


def _stored(config: pytest.Config, judgements: Sequence[Judgement]) -> dict[str, CellBaseline]:
    """Return the cells that --hwq-compare compared with; another commit's runs are not stored."""
    from pytest_hwqueue.baselines.diff import load_source
    from pytest_hwqueue.baselines.folders import packaged_folder
    from pytest_hwqueue.baselines.store import Store
    from pytest_hwqueue.errors import BaselineError

    settings = config.stash[SETTINGS]
    cells: dict[str, CellBaseline] = {}
    if not settings.compare:
        return cells
    store = Store(config.invocation_params.dir / settings.baselines, packaged_folder())
    for judgement in judgements:
        try:
            cells |= load_source(judgement.baseline, store).cells
        except BaselineError:
            # A device without this baseline: its verdicts say so, and there is nothing to draw.
            continue
    return cells
