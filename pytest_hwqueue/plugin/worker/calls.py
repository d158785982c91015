"""What a session and the process that measures for it tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.records.cell import Cell
from pytest_hwqueue.data.records.noise import NoiseRound
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.parts.processes.remote import one_way
from pytest_hwqueue.plugin.keys import Assignment


@dataclass(frozen=True)
class WorkerStart:
    """What a worker must collect, and what its records say about its session.

    Attributes:
        arguments: pytest's.
        folder: in which pytest was called.
        files: to collect.
        records: folder that receives them.
        command: that repeats the session.
        assignment: what is measured, and how.
        provenance: of the tree under test.
        workerinput: as xdist gives it to its workers.
        basetemp: of the tests' temporary folders; None for pytest's own choice.
        environment: variables that tell a rank its place.

    """

    arguments: list[str]
    folder: Path
    files: list[str]
    records: Path
    command: str
    assignment: Assignment
    provenance: Provenance
    workerinput: dict[str, Any]
    basetemp: str | None
    environment: dict[str, str]


class SessionCalls:
    """The session of a test. Of one that runs in the session's own process there is little to do.

    A test in a worker has it `remote`; `test_run.ItemRun` answers.

    Args:
        claim: in the session's own process: notes that a test measures a cell; raises BadInput if
            another test has measured it.

    """

    def __init__(self, claim: Callable[[str, str], None]) -> None:
        self._claim = claim

    def cell_begins(self, cell: Cell, nodeid: str) -> None:
        """A cell is about to be measured by a test.

        Raises:
            BadInput: if another test has measured it: theirs would be taken for runs of one cell.

        """
        self._claim(cell.id, nodeid)

    @one_way
    def measured(self, entry: dict[str, Any]) -> None:
        """A cell has ended; the entry is what its report will carry, should it get that far."""

    @one_way
    def progress(self, stage: str, done: int, planned: int) -> None:
        """Show a cell's progress; it also tells where a hang is."""

    @one_way
    def waits_for_device(self, text: str) -> None:
        """Another session holds the device, as the text says; empty once it no longer does."""

    @one_way
    def rank_failed(self, reason: str, detail: str) -> None:
        """Another rank has failed, and this one will not end by itself: end this process."""

    @one_way
    def report(self, data: dict[str, Any]) -> None:
        """A part of the test has ended; the data is pytest's, `packed`."""

    @one_way
    def exits(self, reason: str, returncode: int | None) -> None:
        """The test has called ``pytest.exit``, which ends the session."""

    @one_way
    def warning(
        self, text: str, category: str, file: str, line: int, nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:  # fmt: skip
        """The test has warned."""

    def keep_device(self, key: str) -> None:
        """Take a device and keep it, beyond the life of the test's process.

        Raises:
            LeaseError: if it cannot be had.

        """

    def confirm_scheduler(self) -> None:
        """Raise NotProven if a service of the scheduler mode has ended."""

    def begin_noise(self, name: str, seconds: int) -> None:
        """Start a noise for the test's process, for so many seconds at most.

        While one runs, another round of it begins, separate from that around it.

        Raises:
            NotProven: if it cannot be started.

        """
        raise NotImplementedError("noise runs only beside a worker, and this was refused before")

    def end_noise(self) -> NoiseRound | None:
        """End it, or its inner round; return what happened in it.

        None for a rank other than the first, beside which the noise of the first one runs.
        """
        raise NotImplementedError
