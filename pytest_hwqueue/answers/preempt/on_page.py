"""What the page shows of a result of ``hwq preempt``."""

from __future__ import annotations

from pathlib import Path

from pytest_hwqueue.answers.preempt.file import KIND, PreemptFile
from pytest_hwqueue.answers.preempt.report import laws_headline, preempt_document
from pytest_hwqueue.data.records.sealed import read_model

__all__ = ["PreemptFile", "laws_headline", "preempt_document", "read_laws"]


def read_laws(schema: str, path: Path) -> PreemptFile | None:
    """Read a result; None if a file with this schema is none.

    Raises:
        RecordError: if it is damaged.

    """
    if schema.startswith(KIND):
        return read_model(path, PreemptFile, "a result of `hwq preempt`")
    return None
