"""What the page shows of results of ``hwq which`` and ``hwq capacity``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.answers.which.capacity_file import KIND as CAPACITY
from pytest_hwqueue.answers.which.capacity_file import CapacityFile
from pytest_hwqueue.answers.which.capacity_report import answers, capacity_document
from pytest_hwqueue.answers.which.file import KIND as WHICH
from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.answers.which.report import which_document
from pytest_hwqueue.answers.which.words import headline
from pytest_hwqueue.data.document.document import Document, Headline, Level
from pytest_hwqueue.data.records.sealed import read_model

Result = WhichFile | CapacityFile


def read_result(schema: str, path: Path) -> Result | None:
    """Read a result; None if a file with this schema is none.

    Raises:
        RecordError: if it is damaged.

    """
    if schema.startswith(WHICH):
        return read_model(path, WhichFile, "a table of `hwq which`")
    if schema.startswith(CAPACITY):
        return read_model(path, CapacityFile, "a result of `hwq capacity`")
    return None


def place_of(result: Result) -> int:
    """Return where a result stands among others: tables come before capacities."""
    return 0 if isinstance(result, WhichFile) else 1


def result_document(result: Result, details: Mapping[tuple[str, str], str]) -> Document:
    """Return a result's tables; ``details`` as `which_document` takes them."""
    if isinstance(result, WhichFile):
        return which_document(result, details=details)
    return capacity_document(result)


def results_headline(results: Sequence[Result]) -> Headline:
    """Return the headline of results, at least one: of tables, where there are any."""
    tables = [each for each in results if isinstance(each, WhichFile)]
    if tables:
        return _of_tables(tables)
    capacities = [each for each in results if isinstance(each, CapacityFile)]
    return Headline("plain", "; ".join(answers(each)[0] for each in capacities))


def _of_tables(tables: Sequence[WhichFile]) -> Headline:
    choices = [(table, choice) for table in tables for choice in table.choices]
    if not choices:
        return Headline("warn", "No scheduler was measured.")
    met = sum(bool(choice.met) for _, choice in choices)
    level: Level = "good" if met == len(choices) else "warn"
    named = len(tables) > 1
    sentences = [f"{table.scenario}: " * named + headline(table, one) for table, one in choices]
    if len(sentences) == 1:
        return Headline(level, sentences[0])
    whole = f"In {met} of {len(choices)} cases a scheduler meets all goals."
    return Headline(level, whole, sentences)
