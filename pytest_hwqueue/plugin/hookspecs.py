"""Hooks that pytest-hwqueue calls: a conftest.py, a plugin or another package implements them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.judge.judging import Judgement


def pytest_hwqueue_report(
    config: pytest.Config,
    folder: Path,
    records: Sequence[RunRecord],
    judgements: Sequence[Judgement],
) -> None:
    """Report on a session that has measured: write a file, send a message, fill a database.

    Called once, at the session's end, in the process that prints the summary (under pytest-xdist
    the controller), when every record and ``session.json`` are on disk. Take the arguments you
    need; pytest passes arguments by name. To report from a package, also in sessions of ``hwq``,
    name the module with this function in an entry point of the group ``pytest_hwqueue.reports``; it
    is imported only if something is measured.

    Raise `HwqError` to tell the user what went wrong. Any other exception is shown with its
    type. Neither changes the session's outcome.

    Args:
        config: of the session; paths are relative to ``config.invocation_params.dir``.
        folder: of the session's records, with ``session.json``; scenarios' records
            (`ColocationRecord`) are in its folders ``scenarios*``.
        records: of cells, in the order measured, of any status; empty for scenarios alone. Each is
            read from its file when it is reached: `list(records)` reads all at once.
        judgements: the outcome for each baseline or commit compared with; empty if nothing was
            compared.

    """
