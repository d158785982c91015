"""What the page shows of a result of ``hwq certify``."""

from __future__ import annotations

from pathlib import Path

from pytest_hwqueue.answers.certify.file import KIND, CertificateFile
from pytest_hwqueue.answers.certify.report import certificate_document, certificates_headline
from pytest_hwqueue.data.records.sealed import read_model

__all__ = ["CertificateFile", "certificate_document", "certificates_headline", "read_certificate"]


def read_certificate(schema: str, path: Path) -> CertificateFile | None:
    """Read a result; None if a file with this schema is none.

    Raises:
        RecordError: if it is damaged.

    """
    if schema.startswith(KIND):
        return read_model(path, CertificateFile, "a result of `hwq certify`")
    return None
