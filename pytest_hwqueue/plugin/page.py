"""The page of --hwq-report: refused before measuring if it cannot be written, and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.plugin.keys import REGRESSION, SETTINGS

if TYPE_CHECKING:
    from pytest_hwqueue.judge.judging import Judgement


def refuse_unwritable(config: pytest.Config) -> None:
    """Refuse a report that could not be written, before anything is measured.

    Raises:
        pytest.UsageError: saying why, and what to do.

    """
    from pytest_hwqueue.data.document.drawing import cannot_write

    if reason := cannot_write(_file(config)):
        raise pytest.UsageError(f"--hwq-report: {reason}")


def write_report(config: pytest.Config, folder: Path, judgements: Sequence[Judgement]) -> None:
    """Write the report of a session whose records are in ``folder``.

    Raises:
        RecordError: if it cannot be written.

    """
    from pytest_hwqueue.answers.page.cells import find_records
    from pytest_hwqueue.answers.page.render import page_of, write_page

    file, regression = _file(config), config.stash.get(REGRESSION, None)
    page = page_of(
        find_records([folder]), file, judgements=judgements,
        baseline={} if regression is None else regression.baseline,
        baseline_label=", ".join(judgement.baseline for judgement in judgements),
    )  # fmt: skip
    write_page(file, page)


def _file(config: pytest.Config) -> Path:
    file = config.stash[SETTINGS].report
    assert file is not None
    return Path(config.invocation_params.dir / file)
