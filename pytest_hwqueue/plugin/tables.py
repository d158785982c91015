"""What the terminal shows of a session at its end: tables, verdicts, the scaling of sweeps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.plugin.keys import REGRESSION, SETTINGS
from pytest_hwqueue.plugin.reading import is_distributed

if TYPE_CHECKING:
    from pytest_hwqueue.data.metrics.between_runs import RunSpread
    from pytest_hwqueue.data.metrics.numbers import PrintedFigure
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.plugin.session import MeasuringSession

_SCALING = "sweep"
"""Within the session's folder: tables and plots of --hwq-scaling."""


def write_tables(
    terminalreporter: pytest.TerminalReporter,
    session: MeasuringSession,
    tests: Iterable[pytest.Item],
) -> None:
    """Write figures, verdicts, and what was stored, of a session that has records."""
    from pytest_hwqueue.answers.session.outcome import annotate, stored_lines
    from pytest_hwqueue.answers.session.tables import render, render_details, render_lines

    config, records = terminalreporter.config, session.records
    settings, regression = config.stash[SETTINGS], config.stash.get(REGRESSION, None)
    writer = config.get_terminal_writer()
    width, colour = writer.fullwidth, writer.hasmarkup
    judgements: list[Judgement] = []
    changes: dict[str, tuple[str, str, PrintedFigure]] = {}
    spreads: dict[str, RunSpread] = {}
    if regression is not None:
        # Of the gate, and so of NumPy, only where runs are compared.
        from pytest_hwqueue.judge.words import changes_of, spreads_of

        judgements = regression.judgements()
        changes, spreads = changes_of(judgements), spreads_of(judgements)
    verbose = config.get_verbosity() > 0
    terminalreporter.write_sep("=", "hardware queues")
    if verbose:
        text = render_details(records, width=width, colour=colour, spreads=spreads)
    else:
        text = render(
            records, width=width, colour=colour, changes=changes, spreads=spreads,
            scaling=settings.scaling,
        )  # fmt: skip
    terminalreporter.write(text.rstrip("\n") + "\n")
    if any(record.noise is not None for record in records):
        # Comparisons need NumPy, which other sessions do without.
        from pytest_hwqueue.answers.session.noise import noise_lines

        if noise := noise_lines(records):
            terminalreporter.write_line(render_lines(noise, width))
    real = Counter(record.cell.device for record in records if not record.simulated)
    shared = sorted(device for device, cells in real.items() if cells > 1)
    if shared and is_distributed(config):
        turns = f"xdist's processes took turns on {', '.join(shared)}"
        line = f"{turns}: measuring is no faster than without -n"
        terminalreporter.write_line(render_lines([line], width))
    more = "" if verbose else " (details: -v)"
    terminalreporter.write_line(f"records: {session.folder}{more}")
    if regression is not None:
        from pytest_hwqueue.judge.words import render_judgement

        for judgement in judgements:
            text = render_judgement(judgement, width, colour, brief=not verbose)
            terminalreporter.write("\n" + text.rstrip("\n") + "\n")
        for label, figures in regression.stored().items():
            stored = stored_lines(label, figures)
            terminalreporter.write_line(render_lines(stored, width))
        if failed := regression.of_failed_tests():
            terminalreporter.write_line(render_lines(failed, width))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            annotations = annotate(regression, _places(config, tests))
            terminalreporter.write("\n" + annotations + "\n")


def write_scaling_files(
    terminalreporter: pytest.TerminalReporter, session: MeasuringSession
) -> None:
    """Write scaling tables and plots next to the records, and say where they are."""
    from pytest_hwqueue.data.document.scaling import write_scaling

    try:
        lines = write_scaling(session.folder / _SCALING, session.records)
    except RecordError as error:
        lines = [str(error)]
    for line in lines:
        terminalreporter.write_line(line)


def _places(
    config: pytest.Config, tests: Iterable[pytest.Item]
) -> dict[str, tuple[str, int | None]]:
    """Return the file and line of each test of a file in GitHub's checkout."""
    checkout = Path(os.environ.get("GITHUB_WORKSPACE", config.rootpath))
    places: dict[str, tuple[str, int | None]] = {}
    for item in tests:
        line = item.location[1]
        if item.path.is_relative_to(checkout):
            file = str(item.path.relative_to(checkout))
            places[item.nodeid] = file, None if line is None else line + 1
    return places
